"""Constant infinities of float32.

Myelin replaces an infinity by 1e38 if all elements of a constant are that infinity. An infinity in
a table of two different numbers keeps its value (observed with 8.6.0 on an H100). So layers read
such a constant through a gather from a table.

Masks of attention keep the plain constant. -1e38 is less than all other scores, so the softmax is
the same, except in rows that are masked completely: it is uniform there, and PyTorch's is NaN. With
a gather, attention took 7 to 8 % longer (6 layers of BERT-base's size, fp16, batch 32).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from builder.engine import capabilities
from builder.engine.flavor import trt
from builder.engine.interfaces import ILayer, INetworkDefinition, ITensor
from builder.engine.network import layer_type
from builder.engine.tensorrt8.graph import LayerGraph, kind

MOVES = frozenset({"SHUFFLE", "SLICE", "CAST"})
"""Layers that repeat or move elements."""
PRODUCTS = frozenset({"SHUFFLE", "CAST", "ELEMENTWISE.PROD", "ELEMENTWISE.DIV"})
"""Layers that reshape or scale scores."""


def keep_infinities(
    network: INetworkDefinition, weights: Callable[[torch.Tensor], Any]
) -> None:
    """Replace the infinite constants of a network whose engine would change them.

    `weights` returns the trt.Weights of a tensor and keeps its memory until the build.
    """
    if capabilities.current().takes("CONSTANT.INFINITY", "FLOAT"):
        return
    readers = _Readers(network)
    for constant in readers.infinite:
        tensor = constant.get_output(0)
        inputs = [entry for entry in readers.of[tensor] if not readers.is_mask(*entry)]
        if not inputs:
            continue
        gathered = _gathered(network, constant, weights)
        for layer, index in inputs:
            layer.set_input(index, gathered)


class _Readers(LayerGraph):
    """The inputs that read each tensor, by layer and index, and the infinite constants."""

    def __init__(self, network: INetworkDefinition) -> None:
        super().__init__(network)
        self.of: dict[ITensor, list[tuple[ILayer, int]]] = {
            tensor: [] for tensor in self.sources
        }
        for layer, index, tensor in self.inputs():
            self.of.setdefault(tensor, []).append((layer, index))
        self.infinite = [layer for layer in self.layers if _is_infinite(layer)]
        self._lowest = {
            layer.get_output(0) for layer in self.infinite if _values(layer)[0] < 0
        }

    def is_mask(self, layer: ILayer, index: int) -> bool:
        """Whether the input of a layer is -inf for masked scores of a softmax, or is compared with
        the largest score of each row, to find the rows that are masked completely.
        """
        if layer.get_input(index) not in self._lowest:
            return False
        if self._is_zero_or_lowest(layer):
            return self._feeds_sums(layer.get_output(0))
        if layer_type(layer) == "SELECT":
            return self._is_masking(layer) and self._feeds_softmax(layer.get_output(0))
        if kind(layer) != "ELEMENTWISE.EQUAL":
            return False
        largest = self.sources.get(layer.get_input(1 - index))
        if largest is None or not _is_maximum(largest):
            return False
        scores = largest.get_input(0)
        return self._is_masked(scores) and self._feeds_softmax(scores)

    def _is_masked(self, scores: ITensor) -> bool:
        layer = self.sources.get(scores)
        return layer is not None and self._is_masking(layer)

    def _is_masking(self, layer: ILayer) -> bool:
        """Whether a layer masks products of matrices, possibly masked before: it selects -inf, or
        adds a mask of zeros and -inf. Other scores may be less than -1e38.
        """
        scores = self._beside_lowest(layer)
        if scores is not None:
            if self._is_product(scores):
                return True
            return len(self.of.get(scores, ())) == 1 and self._is_masked(scores)
        return self._is_sum_of_scores(layer) and any(
            self._is_added_mask(layer.get_input(index)) for index in (0, 1)
        )

    def _beside_lowest(self, layer: ILayer) -> ITensor | None:
        """The other operand of a select of -inf; None for other layers."""
        if layer_type(layer) != "SELECT":
            return None
        chosen = {layer.get_input(1), layer.get_input(2)}
        others = chosen - self._lowest
        return others.pop() if len(chosen) == 2 and len(others) == 1 else None

    def _is_sum_of_scores(self, layer: ILayer) -> bool:
        return kind(layer) == "ELEMENTWISE.SUM" and any(
            self._is_product(layer.get_input(index)) for index in (0, 1)
        )

    def _is_product(self, tensor: ITensor) -> bool:
        source = self.source_of(tensor, PRODUCTS)
        return source is not None and layer_type(source) == "MATRIX_MULTIPLY"

    def _is_added_mask(self, tensor: ITensor) -> bool:
        source = self.source_of(tensor, MOVES)
        return (
            source is not None
            and self._is_zero_or_lowest(source)
            and self._feeds_sums(source.get_output(0))
        )

    def _is_zero_or_lowest(self, layer: ILayer) -> bool:
        other = self._beside_lowest(layer)
        if other is None:
            return False
        source = self.source_of(other, MOVES)
        return source is not None and _is_zero(source)

    def _feeds_sums(self, mask: ITensor) -> bool:
        """Whether a mask of zeros and -inf is only added to scores of a softmax."""
        return not mask.is_network_output and all(
            self._feeds_sums(layer.get_output(0))
            if kind(layer) in MOVES
            else self._is_sum_of_scores(layer)
            and self._feeds_softmax(layer.get_output(0))
            for layer, _ in self.of[mask]
        )

    def _feeds_softmax(self, scores: ITensor) -> bool:
        """Whether only a softmax reads masked scores, and the search for rows of -inf."""
        readers = [layer for layer, _ in self.of[scores]]
        if scores.is_network_output or not readers:
            return False
        if len(readers) == 1 and self._beside_lowest(readers[0]) is not None:
            return self._feeds_softmax(readers[0].get_output(0))
        others = [reader for reader in readers if layer_type(reader) != "SOFTMAX"]
        return len(others) < len(readers) and all(map(self._is_search, others))

    def _is_search(self, layer: ILayer) -> bool:
        """Whether the layer computes the largest scores, to compare them with -inf."""
        if not _is_maximum(layer):
            return False
        largest = layer.get_output(0)
        return not largest.is_network_output and all(
            self._finds_masked_rows(reader) for reader, _ in self.of[largest]
        )

    def _finds_masked_rows(self, layer: ILayer) -> bool:
        return kind(layer) == "ELEMENTWISE.EQUAL" and any(
            layer.get_input(index) in self._lowest for index in (0, 1)
        )


def _is_maximum(layer: ILayer) -> bool:
    return layer_type(layer) == "REDUCE" and layer.op == trt.ReduceOperation.MAX


def _is_zero(layer: ILayer) -> bool:
    return layer_type(layer) == "CONSTANT" and not _values(layer).any()


def _is_infinite(layer: ILayer) -> bool:
    """Whether the layer is a float32 constant of one infinity."""
    if layer_type(layer) != "CONSTANT":
        return False
    if layer.get_output(0).dtype != trt.DataType.FLOAT:
        return False
    values = _values(layer)
    return bool(values.numel() and values[0].isinf() and (values == values[0]).all())


def _values(constant: ILayer) -> torch.Tensor:
    return torch.as_tensor(constant.weights).flatten()


def _gathered(
    network: INetworkDefinition,
    constant: ILayer,
    weights: Callable[[torch.Tensor], Any],
) -> ITensor:
    """The constant as a gather from [infinity, 1], with the shape of the constant."""
    infinity = _values(constant)[:1]
    table = torch.cat([infinity, torch.ones(1)])
    indices = torch.zeros(tuple(constant.shape), dtype=torch.int32)
    layer = network.add_gather(
        *(
            network.add_constant(tuple(part.shape), weights(part)).get_output(0)
            for part in (table, indices)
        ),
        0,
    )
    layer.name = f"{constant.name}.gathered"
    return layer.get_output(0)
