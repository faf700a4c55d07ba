"""Calibrate a lowered graph, and quantize the operands of its products."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from builder.conversion import (
    SCHEMES,
    Scheme,
    channel_scale,
    reads_alone,
    scaled_weight,
)
from builder.engine import capabilities
from builder.errors import UsageError
from builder.graph_types import Graph, Node
from builder.lowering import (
    PIPELINE,
    Context,
    LoweredGraph,
    ir,
    run_passes,
    source_location,
)
from builder.quantization import nodes, observing, trained
from builder.quantization.additions import additions
from builder.quantization.products import Product, is_transposed, products
from builder.quantization.results import COMPUTED, OWN, TRANSPOSED, Layer, Quantized
from builder.quantization.statistics import (
    FLOATS,
    METHODS,
    NOT_FINITE,
    Error,
    Histogram,
    Range,
)

Batches = Sequence[Sequence[torch.Tensor]]
Scales = Mapping[tuple[int, int], Any]
"""Values by (index of the product, index of the operand)."""

PASSES = PIPELINE[[step.name for step in PIPELINE].index("precision") :]
"""The end of lowering, from the precision policy on: a value that is rounded for two readers is
rounded once.
"""


def quantize(
    lowered: LoweredGraph,
    batches: Batches,
    precision: str = "int8",
    *,
    method: str = "max",
    percentile: float = 99.99,
    skip: Sequence[str] = (),
) -> Quantized:
    """Insert fake quantization at the operands of convolutions, linear layers and matrix products.

    The residual operand of an addition that a quantized convolution absorbs is rounded too.

    `batches` are tensors in the order of the graph's inputs; torch runs them two to four times.
    `method` selects how the range of an activation is computed from them. Weights have a scale for
    each output channel, from its maximum. `skip` are patterns (fnmatch) of layer names. Batch
    normalizations are folded first. Existing fake quantization is not changed, and neither is the
    given graph. Raises UsageError for an unknown method or precision, or no batches.
    """
    scheme = _scheme(precision, method, batches)
    graph = lowered.graph.copy()
    _fold_batch_norms(graph)
    lowered = replace(lowered, graph=graph)
    return _Work(lowered, batches, scheme, method, percentile, tuple(skip)).run()


def _scheme(precision: str, method: str, batches: Batches) -> Scheme:
    if precision not in SCHEMES:
        raise UsageError(
            f"precision {precision!r} quantizes nothing",
            fix=f"use one of {', '.join(SCHEMES)}",
        )
    if method not in METHODS:
        raise UsageError(
            f"unknown calibration method {method!r}",
            fix=f"use one of {', '.join(METHODS)}",
        )
    if method == "entropy" and SCHEMES[precision].dtype != torch.int8:
        raise UsageError(
            "the entropy method is for int8 only",
            fix="use method: max or percentile",
        )
    if not batches:
        raise UsageError(
            "there are no inputs for calibration",
            fix="give at least one batch of inputs",
        )
    return SCHEMES[precision]


def _takes_transposed(dtype: torch.dtype) -> bool:
    """Whether TensorRT builds transposed convolutions with operands of the 8-bit dtype."""
    if dtype != torch.int8:
        return True
    return capabilities.current().takes("DECONVOLUTION", "INT8")


@dataclass(eq=False)
class _Work:
    """Calibration runs. Each uses a copy of the graph, in which the products have the
    same indices.
    """

    lowered: LoweredGraph
    batches: Batches
    scheme: Scheme
    method: str
    percentile: float
    skip: tuple[str, ...]

    def __post_init__(self) -> None:
        graph, containers = self.lowered.graph, self.lowered.containers
        self.products = products(graph, containers)
        self.additions = additions(graph, self.products, containers)
        self.reasons = {
            number: reason
            for number, product in enumerate(self.products)
            if (reason := self._left_alone(product))
        }
        self._leave_additions()

    def run(self) -> Quantized:
        scales = self.scales()
        errors = self.errors(scales)
        bound = self.scheme.least_sqnr
        for number, error in errors.items():
            if math.isnan(error.sqnr):
                self.reasons[number] = NOT_FINITE
            elif bound is not None and error.sqnr < bound:
                self.reasons[number] = (
                    f"its SQNR of {error.sqnr:.1f} dB is below {bound:g} dB"
                )
        self._leave_additions()
        layers = tuple(
            self._layer(number, product, errors)
            for number, product in enumerate(self.products)
        )
        return Quantized(
            self._rounded(scales),
            layers,
            sum(number not in self.reasons for number in self._addition_numbers()),
        )

    def _rounded(self, scales: Scales) -> LoweredGraph:
        """The graph with quantizing nodes."""
        graph = self.lowered.graph.copy()
        context = Context(precision=lambda graph: self.insert(graph, scales))
        trace = run_passes(graph, context, PASSES)
        return replace(self.lowered, graph=graph, trace=(*self.lowered.trace, *trace))

    def _left_alone(self, product: Product) -> str:
        if reason := self._named(product):
            return reason
        if ir.in_fallback(product.node):
            return "it runs in torch"
        if not product.operands:
            return trained.unfit(product.node) or OWN
        if is_transposed(product.node) and not _takes_transposed(self.scheme.dtype):
            return TRANSPOSED
        if self.scheme.weights_only and product.weight is None:
            return COMPUTED
        return trained.unfit(product.node)

    def _named(self, product: Product) -> str:
        matches = any(
            fnmatch.fnmatchcase(product.name, pattern) for pattern in self.skip
        )
        return "a pattern names it" if matches else ""

    def _leave_additions(self) -> None:
        """Record the reason for each residual addition that is not adjacent to a
        quantized product.
        """
        unquantized = [number for number in self.reasons if number < len(self.products)]
        for number, addition in zip(
            self._addition_numbers(), self.additions, strict=True
        ):
            reason = self._named(addition.product)
            if reason or not addition.pays(unquantized):
                self.reasons.setdefault(
                    number, reason or "no product of 8 bits is next to it"
                )

    def _addition_numbers(self) -> range:
        """The indices of the residual additions, which follow those of the products."""
        return range(len(self.products), len(self.products) + len(self.additions))

    def _to_quantize(self, graph: Graph) -> list[tuple[int, Product]]:
        """The products and residual additions of the graph to quantize, with their indices."""
        multiplications = products(graph)
        sums = [addition.product for addition in additions(graph, multiplications)]
        return [
            (number, product)
            for number, product in enumerate([*multiplications, *sums])
            if number not in self.reasons
        ]

    def scales(self) -> dict[tuple[int, int], torch.Tensor]:
        """The scale of every operand that is to be rounded. Products that cannot be quantized get a
        reason.
        """
        ranges: dict[tuple[int, int], Range] = self._observed(lambda key: Range())
        for (number, _), activation in ranges.items():
            if activation.problem:
                self.reasons[number] = activation.problem
        reach = self._reach(
            {
                key: activation
                for key, activation in ranges.items()
                if key[0] not in self.reasons
            }
        )
        scales = {
            key: nodes.scale_of(value, self.scheme.dtype)
            for key, value in reach.items()
        }
        for number, product in enumerate(self.products):
            if number in self.reasons:
                continue
            for operand in product.operands:
                if operand.weight is None:
                    continue
                if operand.weight.dtype not in FLOATS:
                    self.reasons[number] = "its weight is not of floats"
                scales[number, operand.index] = nodes.weight_scale(
                    operand.weight, operand.axis, self.scheme.dtype
                )
        return scales

    def _reach(
        self, ranges: Mapping[tuple[int, int], Range]
    ) -> dict[tuple[int, int], float]:
        """The largest magnitude of each activation that quantization represents."""
        if self.method == "max":
            return {key: activation.greatest for key, activation in ranges.items()}
        histograms = self._observed(lambda key: Histogram(ranges[key].greatest))
        share = METHODS[self.method]
        reach = {}
        for key, histogram in histograms.items():
            reach[key] = histogram.greatest
            if histogram.greatest:
                reach[key] *= share(histogram.counts, self.percentile)
        return reach

    def _observed(self, make: Any) -> dict[tuple[int, int], Any]:
        """Run the batches once with an observer at every activation. `make(key)` creates each
        observer.
        """
        graph = self.lowered.graph.copy()
        observers: dict[tuple[int, int], Any] = {}
        for number, product in self._to_quantize(graph):
            for operand in product.operands:
                if operand.weight is None:
                    observing.watch_input(
                        graph, product.node, operand.index, len(observers)
                    )
                    observers[number, operand.index] = make((number, operand.index))
        observing.run(graph, list(observers.values()), self.batches)
        return observers

    def errors(self, scales: Scales) -> dict[int, Error]:
        """The error of each product's result due to rounding its operands, each product measured
        separately.
        """
        graph = self.lowered.graph.copy()
        observers: dict[int, Error] = {}
        for number, product in self._to_quantize(graph):
            twin = graph.createClone(product.node, lambda value: value)
            twin.insertAfter(product.node)
            self._round(graph, twin, number, product, scales)
            observing.watch_both(graph, product.node, twin, len(observers))
            observers[number] = Error()
        observing.run(graph, list(observers.values()), self.batches)
        return observers

    def insert(self, graph: Graph, scales: Scales) -> None:
        """Insert quantizing nodes before every product that is to be quantized."""
        for number, product in self._to_quantize(graph):
            self._round(graph, product.node, number, product, scales)

    def _round(
        self, graph: Graph, node: Node, number: int, product: Product, scales: Scales
    ) -> None:
        for operand in product.operands:
            value = node.inputsAt(operand.index)
            scale = scales[number, operand.index]
            node.replaceInput(
                operand.index,
                nodes.insert(
                    graph, value, scale, operand.axis, self.scheme.dtype, node
                ),
            )

    def _layer(
        self, number: int, product: Product, errors: Mapping[int, Error]
    ) -> Layer:
        reason = self.reasons.get(number, "")
        sqnr = (
            errors[number].sqnr if number in errors and reason != NOT_FINITE else None
        )
        location = source_location(product.node)
        return Layer(
            product.name,
            product.node.kind(),
            location,
            reason in ("", OWN),
            sqnr,
            reason,
        )


def _fold_batch_norms(graph: Graph) -> None:
    """Fold every batch normalization with running statistics and static parameters into the
    preceding convolution, if nothing else reads its input.

    Conversion cannot fold it into quantized weights. A separate scale between a convolution and its
    activation takes time that int8 should save.
    """
    for node in ir.nodes_of(graph, "aten::batch_norm"):
        if reads_alone(node) and not ir.in_fallback(node):
            _fold(graph, node.inputsAt(0).node(), node)


def _fold(graph: Graph, convolution: Node, node: Node) -> None:
    operands = [*ir.inputs(convolution)[1:3], *ir.inputs(node)[1:5]]
    kernel, bias, gamma, beta, mean, variance = (
        ir.constant(value) for value in operands
    )
    training = ir.constant(node.inputsAt(5))
    eps = ir.constant(node.inputsAt(7))
    are_constant = all(ir.is_constant(value) for value in operands)
    if (
        not are_constant
        or training
        or kernel is None
        or mean is None
        or variance is None
    ):
        return
    scale, shift = channel_scale(gamma, beta, mean, variance, eps=eps)
    weight = scaled_weight(kernel, scale, kernel.dtype)
    offset = shift
    if bias is not None:
        offset = shift + bias.double() * scale
    for index, value in ((1, weight), (2, offset.to(kernel.dtype))):
        convolution.replaceInput(index, ir.insert_constant(graph, value, convolution))
    node.output().replaceAllUsesWith(convolution.output())
    node.destroy()
