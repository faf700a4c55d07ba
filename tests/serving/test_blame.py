"""The runtime names the input that made torch fail, and separates invalid requests from errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.serving import fakes


@pytest.fixture(scope="module")
def modules() -> dict[str, Any]:
    return fakes.runtime()[1]


class Pair(torch.nn.Module):
    """Two embeddings of different sizes, so that an index exceeds only one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(20, 4)
        self.kinds = torch.nn.Embedding(2, 4)

    def forward(self, words: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
        return self.words(words.reshape(-1)) + self.kinds(kinds.reshape(-1))


class Indexed(torch.nn.Module):
    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return x[at]


WORDS = [{"name": "words"}, {"name": "kinds"}]


def failure(module: torch.jit.ScriptModule, tensors: list[torch.Tensor]) -> Exception:
    with pytest.raises((RuntimeError, IndexError)) as raised:
        module(*tensors)
    return raised.value


@pytest.mark.parametrize(
    ("words", "kinds", "invalid"), [(25, 1, "words"), (3, 2, "kinds")]
)
def test_input_with_an_index_out_of_range_is_named(
    modules: dict[str, Any], words: int, kinds: int, invalid: str
) -> None:
    blame = modules["blame"]
    frozen = torch.jit.freeze(torch.jit.script(Pair().eval()))
    tensors = [torch.tensor([[words]]), torch.tensor([[kinds]])]
    limits = blame.table_sizes(frozen)
    assert limits == {0: 20, 1: 2}
    blamed = blame.blamed(failure(frozen, tensors), WORDS, tensors, limits)
    assert isinstance(blamed, modules["errors"].InvalidRequest)
    value, size = {"words": (25, 20), "kinds": (2, 2)}[invalid]
    assert str(blamed) == (
        f"input {invalid!r} has values from {value} to {value}, and the model takes 0 to {size - 1}"
    )


def test_index_error_without_embedding_names_the_input(
    modules: dict[str, Any],
) -> None:
    blame = modules["blame"]
    module = torch.jit.script(Indexed())
    tensors = [torch.zeros(3), torch.tensor([1, 7])]
    inputs = [{"name": "x"}, {"name": "at"}]
    blamed = blame.blamed(failure(module, tensors), inputs, tensors, {})
    assert isinstance(blamed, modules["errors"].InvalidRequest) and "input 'at'" in str(
        blamed
    )


def test_other_failures_keep_their_type_without_traceback(
    modules: dict[str, Any],
) -> None:
    class Broken(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.zeros(3) + x

    tensors = [torch.zeros(4)]
    error = failure(torch.jit.script(Broken()), tensors)
    assert "Traceback of TorchScript" in str(error)
    found = modules["blame"].blamed(error, [{"name": "x"}], tensors, {})
    assert type(found) is type(error) and "Traceback" not in str(found)
    assert str(found).startswith("The size of tensor a (3) must match")


def test_axes_with_the_same_name_must_have_equal_sizes(modules: dict[str, Any]) -> None:
    blame, refused = modules["blame"], modules["errors"].InvalidRequest
    axes = blame.Axes(
        [
            {"name": "ids", "axes": ["batch", "seq"]},
            {"name": "mask", "axes": ["batch", "seq"]},
        ]
    )
    axes.check([torch.zeros(2, 5), torch.zeros(2, 5)])
    with pytest.raises(
        refused, match=r"axis 'seq' must .* 'ids' has 5 .* 'mask' has 7 at axis 1"
    ):
        axes.check([torch.zeros(2, 5), torch.zeros(2, 7)])
    blame.Axes([{"name": "old"}]).check(
        [torch.zeros(1)]
    )  # published before axes were recorded
