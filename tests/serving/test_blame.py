"""The runtime names the input that made torch fail, and says whose mistake it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.serving import fakes


@pytest.fixture(scope="module")
def modules() -> dict[str, Any]:
    return fakes.runtime()[1]


class Pair(torch.nn.Module):
    """Two tables of different sizes, so that only one of them is exceeded."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(20, 4)
        self.kinds = torch.nn.Embedding(2, 4)

    def forward(self, words: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
        return self.words(words.reshape(-1)) + self.kinds(kinds.reshape(-1))


class Picked(torch.nn.Module):
    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return x[at]


WORDS = [{"name": "words"}, {"name": "kinds"}]


def failure(module: torch.jit.ScriptModule, tensors: list[torch.Tensor]) -> Exception:
    with pytest.raises((RuntimeError, IndexError)) as raised:
        module(*tensors)
    return raised.value


@pytest.mark.parametrize(
    ("words", "kinds", "guilty"), [(25, 1, "words"), (3, 2, "kinds")]
)
def test_the_input_whose_index_is_out_of_range_is_named(
    modules: dict[str, Any], words: int, kinds: int, guilty: str
) -> None:
    blame = modules["blame"]
    frozen = torch.jit.freeze(torch.jit.script(Pair().eval()))
    tensors = [torch.tensor([[words]]), torch.tensor([[kinds]])]
    limits = blame.table_sizes(frozen)
    assert limits == {0: 20, 1: 2}
    found = blame.blamed(failure(frozen, tensors), WORDS, tensors, limits)
    assert isinstance(found, modules["errors"].InvalidRequest)
    value, size = {"words": (25, 20), "kinds": (2, 2)}[guilty]
    assert str(found) == (
        f"input {guilty!r} has values from {value} to {value}, and the model takes 0 to {size - 1}"
    )


def test_without_a_table_the_size_in_torchs_message_decides(
    modules: dict[str, Any],
) -> None:
    blame = modules["blame"]
    module = torch.jit.script(Picked())
    tensors = [torch.zeros(3), torch.tensor([1, 7])]
    inputs = [{"name": "x"}, {"name": "at"}]
    found = blame.blamed(failure(module, tensors), inputs, tensors, {})
    assert isinstance(found, modules["errors"].InvalidRequest) and "input 'at'" in str(
        found
    )


def test_other_failures_stay_the_models_and_lose_the_trace(
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


def test_axes_of_one_name_are_compared(modules: dict[str, Any]) -> None:
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
