"""Source lines of the model in messages, for scripts and traces, in memory and saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import builder
from builder.errors import LoweringError
from builder.lowering import ir
from builder.lowering.locations import source_line, source_location
from tests.torchscript.saving import saved
from tests.torchscript.test_storages import rewritten

HERE = str(Path(__file__))
LINES = Path(__file__).read_text().splitlines()


def line(text: str) -> str:
    """`file:line` of the only line of this file that is this text."""
    (number,) = (n for n, found in enumerate(LINES, 1) if found.strip() == text)
    return f"{HERE}:{number}"


class Head(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        shifted = x * 2
        return F.pdist(shifted.abs())


class Net(nn.Module):
    """Calls a function of torch's library that is written in Python, and a module."""

    def __init__(self) -> None:
        super().__init__()
        self.head = Head()

    def forward(self, x: Tensor) -> Tensor:
        noisy = F.gumbel_softmax(x.abs()).sum()
        return self.head(x) + noisy


PDIST, GUMBEL = (
    "return F.pdist(shifted.abs())",
    "noisy = F.gumbel_softmax(x.abs()).sum()",
)


def nodes(module: torch.jit.ScriptModule, kind: str) -> list[Any]:
    nodes.keep = lowered = builder.lower(module)  # type: ignore[attr-defined]
    return ir.nodes_of(lowered.graph, kind)


def traced() -> torch.jit.ScriptModule:
    return torch.jit.trace(Net(), torch.randn(3, 4), check_trace=False)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "script", [torch.jit.script(Net()), saved(torch.jit.script(Net()))]
)
def test_scripted_node_has_source_line_and_text(script: torch.jit.ScriptModule) -> None:
    (pdist,) = nodes(script, "aten::pdist")
    assert source_location(pdist) == f"{line(PDIST)}: {PDIST}" and source_line(
        pdist
    ) == line(PDIST)


def test_trace_names_model_line_before_torch_line() -> None:
    module = traced()
    (pdist,) = nodes(module, "aten::pdist")
    assert (
        source_location(pdist) == f"{line(PDIST)}: {PDIST}"
        and source_line(pdist) == f"{line(PDIST)} in module head"
    )
    (library_node,) = nodes(module, "aten::exponential")
    assert source_location(library_node).startswith(f"{line(GUMBEL)}: {GUMBEL} (in ")
    assert "functional.py" in source_location(library_node)


def test_saved_trace_has_source_line_and_saved_text() -> None:
    module = saved(traced())
    (pdist,) = nodes(module, "aten::pdist")
    assert (
        source_location(pdist).startswith(f"{line(PDIST)}, saved as: ")
        and "pdist" in source_location(pdist).split("saved as")[1]
    )
    (library_node,) = nodes(module, "aten::exponential")
    assert source_location(library_node).startswith(line(GUMBEL))
    assert "exponential" in source_location(library_node)


def test_scripted_node_in_torchs_library_names_line_of_its_input() -> None:
    (library_node,) = (
        node for node in nodes(torch.jit.script(Net()), "aten::empty_like")
    )
    assert "functional.py" in source_location(library_node).split(", near ")[0]
    assert source_location(library_node).endswith(f", near {line(GUMBEL)}")


def test_node_without_source_is_reported_by_kind() -> None:
    graph = torch._C.parse_ir(
        "graph(%x : Tensor):\n  %y : Tensor = aten::relu(%x)\n  return (%y)"
    )
    (relu,) = ir.nodes_of(graph, "aten::relu")
    assert source_location(
        relu
    ) == "graph" and "a node of kind aten::relu" in source_line(relu)


class Writes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add_(x[0])
        return x + self.seen


def test_refusal_of_saved_trace_has_model_source_line() -> None:
    module = saved(torch.jit.trace(Writes(), torch.randn(3, 4), check_trace=False))
    with pytest.raises(LoweringError) as refusal:
        builder.convert(module, [builder.TensorSpec("float32", (3, 4))])
    assert refusal.value.where == line("self.seen.add_(x[0])")


class Loop(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        for i in range(3):
            x = x * 2 + i
        return x


def test_source_that_is_no_utf8_counts_as_missing(tmp_path: Path) -> None:
    file = tmp_path / "loop.pt"
    torch.jit.script(Loop()).save(str(file))
    rewritten(file, lambda _, data: data.replace(b"x = x * 2", b"x = x \xf4 2"))
    module = torch.jit.load(str(file))
    with pytest.raises(UnicodeDecodeError):
        module.graph.findNode("prim::Loop").sourceRange()
    lowered = builder.lower(module)
    x = torch.ones(2)
    assert torch.equal(lowered.run(x)[0], module(x))
    assert builder.convert(lowered, [builder.TensorSpec("float32", (2,))])
