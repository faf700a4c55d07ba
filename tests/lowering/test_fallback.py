"""Modules that shall run in torch: found again by qualified name and by class name, after
everything.
"""

from __future__ import annotations

import io

import pytest
import torch

import builder
from builder.conversion.naming import module_scope
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
def test_by_class_name_the_operator_stays_whole(how: str) -> None:
    _, lowered = _lowered(how, "Swish")
    kinds = [node.kind() for node in fallback_nodes(lowered.graph)]
    assert kinds and set(kinds) == {"aten::silu"}
    # silu outside of a Swish is unpacked as always, and common-subexpression elimination has not
    # merged the two
    assert lowered.graph.findNode("aten::sigmoid") is not None


@pytest.mark.parametrize("how", ["script", "trace"])
def test_by_qualified_name_only_that_module(how: str) -> None:
    _, lowered = _lowered(how, "layers.0.act")
    assert [node.kind() for node in fallback_nodes(lowered.graph)] == [
        "aten::silu",
        "aten::silu",
    ]
    # the other Swish of the same block computes the same, and is unpacked; so is all of the second
    # block
    assert len(ir.nodes_of(lowered.graph, "aten::sigmoid")) == 3
    _, lowered = _lowered(how, "layers.1")
    marked = [node.kind() for node in fallback_nodes(lowered.graph)]
    assert (
        marked.count("aten::linear") == 1
        and "aten::add" in marked
        and len(ir.nodes_of(lowered.graph, "aten::linear")) == 2
    )


def test_marked_graphs_run_and_save() -> None:
    model, lowered = _lowered("script", "Swish")
    x, buffer = torch.randn(2, 4), io.BytesIO()
    torch.testing.assert_close(lowered.run(x)[0], model(x))
    lowered.save(buffer)
    buffer.seek(0)
    torch.testing.assert_close(torch.jit.load(buffer)(x)[0], model(x))


def test_without_names_nothing_is_marked() -> None:
    _, lowered = _lowered("script")
    assert not fallback_nodes(lowered.graph)


def test_the_name_of_a_list_is_that_of_all_its_layers() -> None:
    _, lowered = _lowered("script", "layers")
    assert all(
        ir.in_fallback(node) for node in ir.nodes_of(lowered.graph, "aten::linear")
    )


class Twins(torch.nn.Module):
    """torch's record calls the layer of either list `0(Block)`."""

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
def test_the_nodes_keep_the_names_of_their_modules(how: str) -> None:
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
def test_layers_of_equal_names_in_the_record_are_distinguished(name: str) -> None:
    module = saved(torch.jit.script(Twins().eval()))
    lowered = builder.lower(module, fallback_modules=[name])
    linears = [
        ir.in_fallback(node) for node in ir.nodes_of(lowered.graph, "aten::linear")
    ]
    assert linears == ([True, False] if name == "ups.0" else [False, False])
    assert len(fallback_nodes(lowered.graph)) == (6 if name == "ups.0" else 2)


class Own(torch.nn.Module):
    """Calls a method of its own, which calls a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.act = Swish()

    @torch.jit.export
    def twice(self, x):
        return self.act(self.act(x))

    def forward(self, x):
        return self.twice(x) + torch.nn.functional.silu(x)


def test_a_layer_that_a_method_calls_is_found() -> None:
    lowered = builder.lower(
        saved(torch.jit.script(Own().eval())), fallback_modules=["act"]
    )
    assert [node.kind() for node in fallback_nodes(lowered.graph)] == ["aten::silu"] * 2
