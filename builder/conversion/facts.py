"""Facts of the network's tensors: names, dtypes, axes and their symbolic lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeGuard

import sympy
import torch

from builder.conversion import dtypes
from builder.conversion.dynamic import DynamicScalar, Size, expression
from builder.conversion.unconvertible import Unconvertible
from builder.conversion.values import Operand, Tensor
from builder.conversion.weights import Weights
from builder.engine import ILayer, INetworkDefinition, ITensor, capabilities, tensorrt8
from builder.lowering import source_location
from builder.manifest import Profile

if TYPE_CHECKING:
    from builder.conversion.quantized import Quantized


def is_tensor(value: object) -> TypeGuard[ITensor]:
    """Whether the value is an ITensor."""
    return hasattr(value, "is_network_input")


def is_any_tensor(value: object) -> TypeGuard[Tensor]:
    """Whether the value is an ITensor or a static tensor."""
    return isinstance(value, torch.Tensor) or is_tensor(value)


@dataclass
class TensorFacts:
    """Facts of an ITensor beyond TensorRT's: the symbolic size of each axis; torch's dtype if the
    carrier is wider; the 8-bit tensor that it is dequantized from (`quantized`); the half tensor
    that it is a cast of (`wide_of`); the element that it repeats (`splat`, all axes 1); whether it
    is a reshape of another tensor (`reshaped`); its layer (`producer`); and whether its
    numbers are known to follow from shapes (`sized`).
    """

    sizes: dict[int, DynamicScalar] = field(default_factory=dict)
    exprs: dict[int, sympy.Expr] = field(default_factory=dict)
    dtype: torch.dtype | None = None
    shape: ITensor | None = None
    scalar: DynamicScalar | None = None
    quantized: Quantized | None = None
    wide_of: ITensor | None = None
    splat: ITensor | None = None
    reshaped: bool = False
    producer: ILayer | None = None
    sized: bool = False


class Facts:
    """The state of a conversion, and queries of a value that need no layer."""

    def __init__(
        self,
        net: INetworkDefinition,
        profiles: Sequence[Profile] = ({},),
        messages: list[str] | None = None,
    ) -> None:
        self.net: INetworkDefinition = tensorrt8.typed(net)
        self.capabilities = capabilities.current()
        self.profiles = tuple(profiles)
        self.values: dict[str, Any] = {}
        self.weights = Weights()
        self.warnings: list[str] = []
        self.messages = messages if messages is not None else []
        self.unroll_limit = 64
        # which the precision policy adds, and the module does not use
        self.policy_half: torch.dtype | None = None
        self.loops = 0  # the number of engine loops around the node
        self.control_flow: set[str] = (
            set()
        )  # LOOP, CONDITIONAL, if the network has them
        # numbers that change from iteration to iteration of a loop
        self.varying: set[sympy.Symbol] = set()
        # iteration numbers, with the trip count of their loop
        self.counters: dict[sympy.Symbol, sympy.Expr] = {}
        self.node: Any = None
        self.walker: Any = None
        self._facts: dict[str, TensorFacts] = {}
        self._recorded = 0  # the number of layers that are recorded as producers
        self._constants: dict[Any, ITensor] = {}
        self._shapes: dict[tuple[Any, ...], tuple[ITensor, list[Size]]] = {}

    def facts(self, tensor: ITensor) -> TensorFacts:
        """The facts of an ITensor, kept under its name."""
        return self._facts.setdefault(tensor.name, TensorFacts())

    def producer(self, tensor: ITensor) -> ILayer | None:
        """The producer layer of an ITensor; None for a network input."""
        for index in range(self._recorded, self.net.num_layers):
            layer = self.net.get_layer(index)
            for output in filter(
                is_tensor, map(layer.get_output, range(layer.num_outputs))
            ):
                self.facts(output).producer = layer
        self._recorded = self.net.num_layers
        return self.facts(tensor).producer

    def rename(self, tensor: ITensor, name: str) -> None:
        """Rename an ITensor and its facts."""
        facts = self._facts.pop(tensor.name, None)
        tensor.name = name
        if facts is not None:
            self._facts[tensor.name] = facts

    def warn(self, words: str) -> None:
        """Record a warning with the source location of the current node."""
        where = ""
        if self.node is not None:
            where = f"{source_location(self.node)}: "
        self.warnings.append(f"{where}{words}")

    def dtype(self, value: Operand) -> torch.dtype:
        """torch's dtype of a tensor, DynamicScalar or Python number."""
        if isinstance(value, torch.Tensor | DynamicScalar):
            return value.dtype
        if isinstance(value, bool | int | float):
            return dtypes.TORCH_SCALARS[type(value)]
        facts = self._facts.get(value.name)
        if facts is not None and facts.dtype is not None:
            return facts.dtype
        return dtypes.from_trt(value.dtype)

    def remember_dtype(self, tensor: ITensor, dtype: torch.dtype) -> None:
        """Record torch's dtype of a new tensor if its carrier is wider."""
        if dtype == torch.float64:
            dtype = torch.float32
        if dtypes.from_trt(tensor.dtype) != dtype:
            self.facts(tensor).dtype = dtype

    def rank(self, value: Operand) -> int:
        """The number of axes of a tensor; 0 for a scalar."""
        if hasattr(value, "shape"):
            return len(value.shape)
        return 0

    def axis(self, value: Tensor, axis: int) -> int:
        """`axis` of a tensor as a non-negative number; a 0-d tensor counts as having one axis, as
        in PyTorch.
        """
        rank = max(self.rank(value), 1)
        if not -rank <= axis < rank:
            raise Unconvertible(
                f"axis {axis} is out of range for a tensor of rank {rank}"
            )
        return axis % rank

    def axes(self, value: Tensor, axes: Sequence[int] | int | None) -> list[int]:
        """Several axes, non-negative and sorted; all of them for None or an empty list."""
        if axes is None or axes == []:
            return list(range(self.rank(value)))
        if isinstance(axes, int):
            axes = [axes]
        return sorted({self.axis(value, axis) for axis in axes})

    def expr(self, tensor: Tensor, axis: int) -> sympy.Expr:
        """The symbolic length of an axis. An axis of unknown origin gets a new symbol."""
        static = tensor.shape[axis]
        if static >= 0 or isinstance(tensor, torch.Tensor):
            return sympy.Integer(static)
        exprs = self.facts(tensor).exprs
        if axis not in exprs:
            exprs[axis] = sympy.Symbol(
                f"{tensor.name}[{axis}]", integer=True, nonnegative=True
            )
        return exprs[axis]

    def exprs(self, tensor: Tensor) -> list[sympy.Expr]:
        """The symbolic length of every axis."""
        return [self.expr(tensor, axis) for axis in range(self.rank(tensor))]

    def set_sizes(self, tensor: ITensor, sizes: Sequence[Size | sympy.Expr]) -> ITensor:
        """Record the symbolic sizes of a new tensor. Returns the tensor."""
        exprs = self.facts(tensor).exprs
        for axis, size in enumerate(sizes):
            if tensor.shape[axis] < 0:
                exprs[axis] = expression(size)
        return tensor

    def copy_sizes(self, source: Tensor, target: ITensor) -> ITensor:
        """Record that `target` has the shape of `source`. Returns target."""
        for axis, length in enumerate(target.shape):
            if length < 0:
                self.facts(target).exprs[axis] = self.expr(source, axis)
        return target

    def ranges(self) -> Mapping[sympy.Symbol, tuple[int, int]]:
        """The minimum and maximum size of each named axis over all profiles."""
        spans: dict[sympy.Symbol, tuple[int, int]] = {}
        for profile in self.profiles:
            for name, (low, _, high) in profile.items():
                symbol = axis_symbol(name)
                least, most = spans.get(symbol, (low, high))
                spans[symbol] = (min(low, least), max(high, most))
        return spans


def axis_symbol(name: str) -> sympy.Symbol:
    """The symbol of a named axis."""
    return sympy.Symbol(name, integer=True, nonnegative=True)
