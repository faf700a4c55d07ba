"""Fallback modules: after all passes, their nodes are still marked, by qualified name or by class
name.
"""

from __future__ import annotations

import io

import pytest
import torch

import builder
from builder.conversion.network import module_scope
from builder.lowering import ir
from tests.torchscript.saving import saved


def fallback_nodes(graph: ir.Graph) -> list[ir.Node]:
    """The marked nodes of a graph, in program order."""
    return [node for node in ir.walk(graph) if ir.in_fallback(node)]


class Swish(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.silu(x)


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.act, self.other = torch.nn.Linear(4, 4), Swish(), Swish()

    def forward(self, x):
        return (
            self.act(x)
            + self.other(x)
            + torch.nn.functional.silu(x)
            + self.act(self.linear(x))
        )


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Block(), Block()])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def _lowered(how: str, *names: str) -> tuple[torch.nn.Module, builder.LoweredGraph]:
    model = Model().eval()
    x = torch.randn(2, 4)
    module = (
        torch.jit.script(model)
        if how == "script"
        else torch.jit.trace(model, x, check_trace=False)
    )
    return model, builder.lower(saved(module), fallback_modules=names)


@pytest.mark.parametrize("how", ["script", "trace"])
def test_class_name_keeps_operators_of_its_modules(how: str) -> None:
    _, lowered = _lowered(how, "Swish")
    kinds = [node.kind() for node in fallback_nodes(lowered.graph)]
    assert kinds and set(kinds) == {"aten::silu"}
    # silu outside of a Swish is decomposed as usual, and common-subexpression elimination did not
    # merge the two
    assert lowered.graph.findNode("aten::sigmoid") is not None


@pytest.mark.parametrize("how", ["script", "trace"])
def test_qualified_name_marks_only_that_module(how: str) -> None:
    _, lowered = _lowered(how, "layers.0.act")
    assert [node.kind() for node in fallback_nodes(lowered.graph)] == [
        "aten::silu",
        "aten::silu",
    ]
    # the other Swish of the same block is decomposed, and so are those of the second block
    assert len(ir.nodes_of(lowered.graph, "aten::sigmoid")) == 3
    _, lowered = _lowered(how, "layers.1")
    marked = [node.kind() for node in fallback_nodes(lowered.graph)]
    assert (
        marked.count("aten::linear") == 1
        and "aten::add" in marked
        and len(ir.nodes_of(lowered.graph, "aten::linear")) == 2
    )


def test_marked_graph_runs_and_saves() -> None:
    model, lowered = _lowered("script", "Swish")
    x, buffer = torch.randn(2, 4), io.BytesIO()
    torch.testing.assert_close(lowered.run(x)[0], model(x))
    lowered.save(buffer)
    buffer.seek(0)
    torch.testing.assert_close(torch.jit.load(buffer)(x)[0], model(x))


def test_no_names_mark_no_nodes() -> None:
    _, lowered = _lowered("script")
    assert not fallback_nodes(lowered.graph)


def test_name_of_module_list_marks_all_its_layers() -> None:
    _, lowered = _lowered("script", "layers")
    assert all(
        ir.in_fallback(node) for node in ir.nodes_of(lowered.graph, "aten::linear")
    )


class Twins(torch.nn.Module):
    """torch records the layers of both lists as `0(Block)`."""

    def __init__(self) -> None:
        super().__init__()
        self.ups = torch.nn.ModuleList([Block()])
        self.downs = torch.nn.ModuleList([Block()])

    def forward(self, x):
        for up in self.ups:
            x = up(x)
        for down in self.downs:
            x = down(x)
        return x


@pytest.mark.parametrize("how", ["script", "trace"])
def test_nodes_keep_module_names(how: str) -> None:
    _, plain = _lowered(how)
    _, marked = _lowered(how, "layers.0.act")
    names = [
        {
            module_scope(node, found.containers)
            for node in ir.nodes_of(found.graph, "aten::linear")
        }
        for found in (plain, marked)
    ]
    assert names[0] == names[1] == {"layers.0.linear", "layers.1.linear"}


@pytest.mark.parametrize("name", ["ups.0", "downs.0.act"])
def test_layers_with_equal_recorded_names_are_distinguished(name: str) -> None:
    module = saved(torch.jit.script(Twins().eval()))
    lowered = builder.lower(module, fallback_modules=[name])
    linears = [
        ir.in_fallback(node) for node in ir.nodes_of(lowered.graph, "aten::linear")
    ]
    assert linears == ([True, False] if name == "ups.0" else [False, False])
    assert len(fallback_nodes(lowered.graph)) == (6 if name == "ups.0" else 2)


class CallsOwnMethod(torch.nn.Module):
    """Calls its own method, which calls a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.act = Swish()

    @torch.jit.export
    def twice(self, x):
        return self.act(self.act(x))

    def forward(self, x):
        return self.twice(x) + torch.nn.functional.silu(x)


def test_layer_called_by_a_method_is_marked() -> None:
    lowered = builder.lower(
        saved(torch.jit.script(CallsOwnMethod().eval())), fallback_modules=["act"]
    )
    assert [node.kind() for node in fallback_nodes(lowered.graph)] == ["aten::silu"] * 2
