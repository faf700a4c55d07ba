"""Split complex tensors into pairs of real tensors. TensorRT has no complex dtype, and rotary
embeddings and spectra use it.
"""

from __future__ import annotations

from typing import Any

import torch

from builder.graph_types import Block, Graph, Node, NodeList, Value
from builder.lowering import ir
from builder.lowering.emit import Emit
from builder.lowering.passes import Context, lowering_pass
from builder.lowering.passes.complex.fourier import FOURIER
from builder.lowering.passes.complex.rules import PART_DTYPES, Pair
from builder.lowering.passes.complex.rules import RULES as _RULES

RULES = _RULES | FOURIER
_STARTS = (
    "aten::view_as_complex",
    "aten::complex",
    "aten::polar",
    "aten::stft",
    *FOURIER,
)
_ENDS = ("aten::view_as_real", "aten::real", "aten::imag", "aten::abs", "aten::angle")
_REAL_RESULTS = frozenset(
    (*_ENDS, *(f"aten::{name}" for name in ("size", "dim", "numel", "len")))
)


@lowering_pass("split-complex", touches=(*_STARTS, *_ENDS, "aten::is_complex"))
def split_complex(graph: Graph, context: Context) -> None:
    """Replace computations on complex tensors by computations on two real tensors.

    fft, ifft, rfft and irfft become products with matrices of cosines and sines, for axes of at
    most 2048 values. In float32 the error is at most 4e-7 of the root mean square, about twice
    torch's. Longer axes keep torch's transform, in a branch if the length is not known yet.

    A value without a rule stays complex, with everything that depends on it: the other Fourier
    transforms, which run in torch, loop-carried values and results of branches.
    """
    if ir.nodes_of(graph, *context.present("aten::is_complex")) or makes_complex(graph):
        _Splitter(graph).block(graph)
        for node in ir.nodes_of(graph, *context.present("aten::view_as_complex")):
            _join_parts(graph, node)


def _join_parts(graph: Graph, node: Node) -> None:
    """Build a complex tensor that stays from its parts: view_as_complex needs a stride of 1, and
    an earlier pass removed the `contiguous` before it.
    """
    emit = Emit(graph, node)
    parts = (emit.op("aten::select", node.inputsAt(0), -1, at) for at in (0, 1))
    ir.replace(node, [emit.op("aten::complex", *parts)])


def makes_complex(graph: Graph) -> bool:
    """Whether a graph with real inputs may compute with complex numbers."""
    return any(_is_start(node) or _is_opaque(node) for node in ir.walk(graph))


def _is_start(node: Node) -> bool:
    return node.kind() in _STARTS or (
        node.kind() == "prim::Constant" and _is_complex(node.output())
    )


def _is_complex(constant: Value) -> bool:
    """Whether a constant is a complex number, or a tensor of them."""
    if constant.type().kind() not in ("TensorType", "ComplexType"):
        return False
    value = ir.constant(constant)
    if isinstance(value, torch.Tensor):
        return value.is_complex()
    return isinstance(value, complex)


class _Splitter:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.pairs: dict[int, Pair] = {}
        self.whole: set[int] = set()
        """Values that are or may be complex and have no parts, and other values derived from them
        (such as a dtype).
        """

    def block(self, block: NodeList) -> None:
        for node in list(block.nodes()):
            if blocks := ir.blocks_of(node):
                self._nested(node, blocks)
            else:
                self._node(node)

    def _nested(self, node: Node, blocks: list[Block]) -> None:
        """A block output has one type in every branch and iteration, so complex block outputs are
        not split.
        """
        for inner in blocks:
            if node.kind() == "prim::Loop" and self._makes_complex(node, inner):
                self.whole |= {value.unique() for value in inner.inputs()}
            self.block(inner)
            # The first output of a loop's body is its condition.
            results = list(inner.outputs())
            results = results[len(results) - node.outputsSize() :]
            for output, value in zip(node.outputs(), results, strict=True):
                if self._complex(value):
                    self.whole.add(output.unique())

    def _makes_complex(self, loop: Node, body: Block) -> bool:
        return any(map(self._complex, loop.inputs())) or any(
            _is_start(node)
            or _is_opaque(node)
            or any(map(self._complex, node.inputs()))
            for node in ir.walk(body)
        )

    def _complex(self, value: Value) -> bool:
        return (
            value.unique() in self.whole
            or value.unique() in self.pairs
            or _is_complex(value)
        )

    def _node(self, node: Node) -> None:
        reads = any(map(self._complex, node.inputs()))
        if node.kind() == "aten::is_complex" and not reads:
            return ir.replace(node, [ir.insert_constant(self.graph, False, node)])
        if node.kind() == "prim::Constant" or not (
            reads or node.kind() in _STARTS or _is_opaque(node)
        ):
            return
        if self._stays(node):
            result = None
        else:
            result = RULES[node.kind()](
                Emit(self.graph, node), node, *self._arguments(node)
            )
        if result is None and node.kind() not in _REAL_RESULTS:
            self.whole |= {value.unique() for value in node.outputs()}
        elif isinstance(result, Pair):
            self.pairs[node.output().unique()] = result
        elif isinstance(result, list):
            self.pairs |= {
                value.unique(): pair
                for value, pair in zip(node.outputs(), result, strict=True)
            }
        elif result is not None:
            ir.replace(node, [result])

    def _stays(self, node: Node) -> bool:
        whole = any(value.unique() in self.whole for value in node.inputs())
        return whole or node.kind() not in RULES or ir.in_fallback(node)

    def _arguments(self, node: Node) -> list[Any]:
        return [
            self._parts(value) if self._complex(value) else value
            for value in node.inputs()
        ]

    def _parts(self, value: Value) -> Pair:
        if value.unique() not in self.pairs:
            self.pairs[value.unique()] = _constants(self.graph, value)
        return self.pairs[value.unique()]


def _constants(graph: Graph, value: Value) -> Pair:
    """The parts of a constant. A 0-d constant is a number, as in a trace: it does not change the
    dtype of the other operand.
    """
    number = ir.constant(value)
    if isinstance(number, torch.Tensor) and number.dim() == 0:
        number = number.item()
    parts = (number.real, number.imag)
    if isinstance(number, torch.Tensor):
        parts = tuple(part.resolve_conj().resolve_neg().contiguous() for part in parts)
    return Pair(*(ir.insert_constant(graph, part, value.node()) for part in parts))


def _is_opaque(node: Node) -> bool:
    """Whether an operator may return complex values for real inputs, and has no rule here."""
    kind = node.kind()
    if not kind.startswith(("aten::", "prim::")):
        return True
    if kind.startswith(("aten::fft_", "aten::_fft_")) or kind in _OPAQUE:
        return kind not in _REAL
    return kind in _TYPED and _requested_dtype(node) in PART_DTYPES


def _requested_dtype(node: Node) -> int | None:
    schema = ir.schema(node)
    names = []
    if schema:
        names = [argument.name for argument in schema.arguments]
    return (
        ir.constant(node.inputsAt(names.index("dtype"))) if "dtype" in names else None
    )


_OPAQUE = frozenset(
    f"aten::{n}" for n in ("linalg_eig", "linalg_eigvals", "_linalg_eig", "sgn")
)
_REAL = frozenset(
    f"aten::fft_{n}"
    for n in "irfft irfft2 irfftn hfft hfft2 hfftn fftfreq rfftfreq".split()
)
_TYPED = frozenset(
    f"aten::{n}"
    for n in (
        "to",
        "tensor",
        "as_tensor",
        "scalar_tensor",
        "zeros",
        "ones",
        "full",
        "empty",
        "rand",
        "randn",
        "arange",
        "linspace",
        "logspace",
        "eye",
        "zeros_like",
        "ones_like",
        "full_like",
        "empty_like",
        "sum",
        "mean",
        "prod",
        "cumsum",
        "cumprod",
        "new_zeros",
        "new_ones",
        "new_full",
        "new_empty",
        "_to_copy",
        "view",
    )
)
