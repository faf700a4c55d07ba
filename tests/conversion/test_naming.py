"""Layers are named after module and node in every format: unique, with their source location."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import builder
from builder.lowering.containers import containers, path_of
from tests.torchscript.saving import saved


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.matmul(self.query(x), self.key(x).transpose(-1, -2))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn, self.norm = Attention(), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(torch.matmul(self.self_attn(x) + self.self_attn(x * 2), x))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = Encoder(), nn.Sequential(nn.Linear(8, 4), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x))


def traced(model: nn.Module) -> torch.jit.ScriptModule:
    return torch.jit.trace(model, torch.randn(2, 5, 8))  # type: ignore[no-any-return]


WAYS: dict[str, Callable[[nn.Module], torch.jit.ScriptModule]] = {
    "scripted": torch.jit.script,
    "traced": traced,
    "scripted and saved": lambda model: saved(torch.jit.script(model)),
    "traced and saved": lambda model: saved(traced(model)),
    "traced and frozen": lambda model: torch.jit.freeze(traced(model)),
}


def layers(module: torch.jit.ScriptModule) -> list[Any]:
    spec = builder.TensorSpec("float32", ("n", 5, 8), dims={"n": (1, 2, 4)})
    network = builder.convert(module, [spec]).network
    layers.keep = network  # type: ignore[attr-defined]
    return [network.get_layer(i) for i in range(network.num_layers)]


@pytest.mark.parametrize("way", WAYS)
def test_layers_are_named_after_module_and_node(way: str) -> None:
    module = WAYS[way](Model().eval())
    network_layers = layers(module)
    names = [layer.name for layer in network_layers]
    assert len(set(names)) == len(names)
    for i, j in itertools.product(range(2), range(2)):
        assert f"encoder.layers.{i}.self_attn/aten::matmul_{j}" in names
        assert f"encoder.layers.{i}.self_attn.key/aten::linear_{j}" in names
    assert {
        "encoder.layers.1/aten::matmul_0",
        "head.0/aten::linear_0",
        "head.1/aten::relu_0",
    } <= set(names)
    locations = {
        layer.metadata or layer.name
        for layer in network_layers
        if "head.0" in layer.name
    }
    has_location = any(
        "linear.py" in node.sourceRange() for node in module.inlined_graph.nodes()
    )
    assert has_location or "traced" in way  # torch may record no stack while it traces
    assert not has_location or not [
        location for location in locations if "linear.py" not in location
    ]


def test_frozen_saved_module_keeps_source_locations() -> None:
    network_layers = layers(saved(torch.jit.freeze(torch.jit.script(Model().eval()))))
    assert len({layer.name for layer in network_layers}) == len(network_layers)
    assert any(
        "test_naming.py" in layer.metadata
        for layer in network_layers
        if "aten::matmul" in layer.name
    )


class Ambiguous(nn.Module):
    """Two lists of layers of one class: it is ambiguous which of them has `0`."""

    def __init__(self) -> None:
        super().__init__()
        self.ups, self.downs = (nn.ModuleList([nn.Linear(8, 8)]) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for up in self.ups:
            x = up(x)
        for down in self.downs:
            x = down(x)
        return x


def test_ambiguous_list_name_keeps_the_known_part() -> None:
    names = [layer.name for layer in layers(torch.jit.script(Ambiguous().eval()))]
    assert "0/aten::linear_0" in names and "0/aten::linear_1" in names
    assert len(set(names)) == len(names)


def test_deep_source_location_is_cut_to_tensorrt_limit() -> None:
    def deep(levels: int) -> torch.jit.ScriptModule:
        return deep(levels - 1) if levels else traced(Model().eval())

    network_layers = layers(deep(100))
    assert all(
        "linear.py" in layer.metadata
        for layer in network_layers
        if "head.0" in layer.name
    )


def test_module_path_is_read_from_torch_call_stack() -> None:
    known = containers(torch.jit.script(Model().eval()))
    assert (
        path_of("encoder(Encoder).1(Layer).norm(LayerNorm)", known)
        == "encoder.layers.1.norm"
    )
    assert path_of("encoder(Encoder).7(Layer)", known) == "encoder.7"
    assert path_of("", known) == ""
