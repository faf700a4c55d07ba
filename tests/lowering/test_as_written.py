"""In-place writes that cannot become values: torch runs the graph as written, and the next request
is not affected.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from builder.errors import InPlaceError
from builder.lowering import LoweredGraph, as_written, lower
from builder.manifest import TensorSpec


class Overlapping(nn.Module):
    """Writes through overlapping windows of a layer's output and of an input."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv1d(3, 4, 3, padding=1)

    def forward(self, x: Tensor, scale: Tensor) -> dict[str, Tensor]:
        y = self.conv(x).clone()
        y.unfold(2, 2, 1).add_(scale)
        x.unfold(2, 2, 2).mul_(2.0)
        return {"y": y, "x": x}


class Counting(nn.Module):
    """Writes a buffer that the next request would read."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.count.unfold(0, 2, 1).add_(1.0)
        return x + self.count


def lowered_as_written(module: nn.Module) -> LoweredGraph:
    scripted = torch.jit.script(module.eval())
    with pytest.raises(InPlaceError) as reason:
        lower(scripted)
    return as_written(scripted, reason.value)


def test_graph_as_written_matches_module_and_keeps_inputs() -> None:
    graph = lowered_as_written(Overlapping())
    assert (
        graph.inputs == ("x", "scale")
        and graph.outputs == ("y", "x")
        and "aten::unfold" in graph.as_written
    )
    for size in (8, 5):
        x, scale = torch.randn(2, 3, size), torch.tensor(0.5)
        original = x.clone()
        for _ in range(2):
            output = dict(zip(graph.outputs, graph.run(x, scale), strict=True))
            assert torch.equal(x, original)
            for name, expected in Overlapping()(original.clone(), scale).items():
                torch.testing.assert_close(output[name], expected)


class Sizes(Overlapping):
    def forward(self, x: Tensor, scale: Tensor) -> dict[str, list[int]]:
        y = self.conv(x).clone()
        y.unfold(2, 2, 1).add_(scale)
        return {"y": y.shape, "x": x.shape[1:]}


def test_sizes_of_graph_as_written_are_outputs() -> None:
    scripted = torch.jit.script(Sizes())
    inputs = [TensorSpec("float32", (2, 3, 8)), TensorSpec("float32", ())]
    with pytest.raises(InPlaceError) as reason:
        lower(scripted, specs=inputs)
    graph = as_written(scripted, reason.value, specs=inputs)
    sizes = graph.run(torch.ones(2, 3, 8), torch.tensor(1.0))
    assert list(map(int, sizes)) == [2, 4, 8, 3, 8]


class Sorted(nn.Module):
    """Sorts a list of data-dependent numbers."""

    def forward(self, x: Tensor) -> Tensor:
        sizes = [int(x.abs().max()) + 1, 1]
        sizes.sort()
        return x.unsqueeze(0).repeat(sizes + [1] * (x.dim() - 1))


def test_write_to_list_of_data_dependent_content_runs_in_torch() -> None:
    graph, x = lowered_as_written(Sorted()), torch.tensor([[2.5, -1.0]])
    assert "changes a container whose content is known" in graph.as_written
    for _ in range(2):
        torch.testing.assert_close(graph.run(x)[0], Sorted()(x))


def test_graph_as_written_saves_and_loads() -> None:
    import io

    graph, buffer, x = (
        lowered_as_written(Overlapping()),
        io.BytesIO(),
        torch.randn(2, 3, 8),
    )
    graph.save(buffer)
    buffer.seek(0)
    saved = torch.jit.load(buffer)
    for loaded_output, expected in zip(
        saved(x, torch.tensor(1.0)), graph.run(x, torch.tensor(1.0)), strict=True
    ):
        assert torch.equal(loaded_output, expected)


class BesideConstants(nn.Module):
    """Writes a result that is put into a list. torch assumes that all tensors in lists may be the
    same, also those of the module.
    """

    def __init__(self) -> None:
        super().__init__()
        self.anchors = [torch.ones(3), torch.zeros(3)]

    def forward(self, x: Tensor) -> Tensor:
        found = [x]
        for i in range(x.size(0)):
            y = torch.relu_(x * self.anchors[i % 2])
            y.unfold(1, 2, 1).add_(1.0)
            found.append(y)
        return torch.cat(found)


class WritesAnchor(BesideConstants):
    def forward(self, x: Tensor) -> Tensor:
        anchor = self.anchors[x.size(0) % 2]
        anchor.unfold(0, 2, 1).add_(1.0)
        return x * anchor


def test_result_that_is_written_is_no_constant() -> None:
    graph, x = lowered_as_written(BesideConstants()), torch.randn(3, 3)
    for _ in range(2):
        torch.testing.assert_close(graph.run(x)[0], BesideConstants()(x))


@pytest.mark.parametrize("module", [Counting, WritesAnchor])
def test_write_to_model_constant_is_refused(module: type[nn.Module]) -> None:
    with pytest.raises(InPlaceError, match=r"changes a constant of the model|aten::"):
        lowered_as_written(module())
