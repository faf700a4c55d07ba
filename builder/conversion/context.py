"""ConversionContext: the network under construction and what is known of every value in it.

A value is one of: an ITensor; a torch.Tensor (static: a weight, or computed from weights); a DynamicScalar; a Python
int, float, bool, str or None; a list or dict of values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch

from builder.conversion import dtypes
from builder.conversion.dynamic import DynamicScalar, Size, expression
from builder.conversion.naming import where
from builder.conversion.unconvertible import Unconvertible as Unconvertible
from builder.conversion.weights import Weights
from builder.engine import dialect
from builder.engine.flavour import trt
from builder.engine.typed import typed
from builder.manifest.spec import Profile


@dataclass
class TensorFacts:
    """What we know of an ITensor beyond TensorRT: the symbolic size of each axis, torch's dtype if carried wider; the
    8-bit tensor that it is read from (`quantised`), the half tensor that it is a cast of (`wide_of`), the one element
    that it repeats (`splat`, all axes 1)."""

    sizes: dict[int, DynamicScalar] = field(default_factory=dict)
    exprs: dict[int, sympy.Expr] = field(default_factory=dict)
    dtype: torch.dtype | None = None
    shape: Any = None
    scalar: DynamicScalar | None = None
    quantised: Any = None
    wide_of: Any = None
    splat: Any = None


class ConversionContext:
    """The network `net`, the value of each graph value, and the helpers that every converter shares."""

    def __init__(self, net: Any, profiles: Sequence[Profile] = ({},), messages: list[str] | None = None) -> None:
        self.net = typed(net)
        self.profiles = tuple(profiles)
        self.values: dict[str, Any] = {}
        self.weights = Weights()
        self.warnings: list[str] = []
        self.messages = messages if messages is not None else []
        self.unroll_limit = 64
        self.node: Any = None
        self.blocks: Any = None
        self._facts: dict[str, TensorFacts] = {}
        self._constants: dict[Any, Any] = {}
        self._shapes: dict[tuple[Any, ...], tuple[Any, list[Size]]] = {}

    # What is known of a tensor

    def facts(self, tensor: Any) -> TensorFacts:
        """The facts of an ITensor, kept under its name."""
        return self._facts.setdefault(tensor.name, TensorFacts())

    def rename(self, tensor: Any, name: str) -> None:
        """Give an ITensor another name; its facts go with it."""
        facts = self._facts.pop(tensor.name, None)
        tensor.name = name
        if facts is not None:
            self._facts[tensor.name] = facts

    def dtype(self, value: Any) -> torch.dtype:
        """torch's dtype of a tensor, DynamicScalar or Python number."""
        if isinstance(value, torch.Tensor | DynamicScalar):
            return value.dtype
        if isinstance(value, bool | int | float):
            return dtypes.TORCH_SCALARS[type(value)]
        facts = self._facts.get(value.name)
        return (facts and facts.dtype) or dtypes.from_trt(value.dtype)

    def rank(self, value: Any) -> int:
        """The number of axes of a tensor; 0 for a scalar."""
        return len(value.shape) if hasattr(value, "shape") else 0

    def axis(self, value: Any, axis: int) -> int:
        """`axis` of a tensor as a non-negative number; a 0-d tensor counts as having one axis, as in PyTorch."""
        rank = max(self.rank(value), 1)
        if not -rank <= axis < rank:
            raise Unconvertible(f"axis {axis} is out of range for a tensor of rank {rank}")
        return axis % rank

    def axes(self, value: Any, axes: Sequence[int] | int | None) -> list[int]:
        """Several axes, non-negative and sorted; all of them for None or an empty list."""
        if axes is None or axes == []:
            return list(range(self.rank(value)))
        return sorted({self.axis(value, a) for a in ([axes] if isinstance(axes, int) else axes)})

    # Tensors

    def tensor(self, value: Any, dtype: torch.dtype | None = None) -> Any:
        """`value` as an ITensor of torch's `dtype` (its own by default); numbers become 0-d, lists of numbers 1-d."""
        if isinstance(value, DynamicScalar):
            value = self._zero_dim(value)
        elif isinstance(value, list | tuple):
            value = self._stack(value, dtype)
        elif isinstance(value, bool | int | float):
            value = torch.tensor(value, dtype=dtype or self.dtype(value))
        if isinstance(value, torch.Tensor):
            return self.constant(value if dtype is None else value.to(dtype))
        return value if dtype is None else self.cast(value, dtype)

    def constant(self, value: torch.Tensor) -> Any:
        """A constant layer's output over the tensor's own memory; the same small tensor is added once."""
        carrier = dtypes.carrier(value.dtype)
        key: Any = (value.data_ptr(), tuple(value.shape), value.stride(), value.dtype)
        if value.numel() <= 16 and value.device.type == "cpu":
            key = (tuple(value.flatten().tolist()), str(value.dtype), tuple(value.shape))
            key = (repr(key[0]), *key[1:])  # tells -0.0 from 0.0 and equates NaNs
        if key not in self._constants:
            carried = self._narrowed(value, carrier)
            layer = self.net.add_constant(tuple(value.shape), self.weights.of(carried))
            self.weights.alive.append(value)
            output = layer.get_output(0)
            self.remember_dtype(output, value.dtype)
            self._constants[key] = output
        return self._constants[key]

    def _narrowed(self, value: torch.Tensor, carrier: torch.dtype) -> torch.Tensor:
        self._tell_narrowing(value)
        if value.dtype == torch.int64 and carrier == torch.int32 and value.numel():
            limits = torch.iinfo(torch.int32)
            if int(value.max()) > limits.max or int(value.min()) < limits.min:
                value = value.clamp(limits.min, limits.max)
                self.warn("an int64 constant outside int32's range is clamped: this TensorRT has no int64")
        return value.to(carrier)

    def _tell_narrowing(self, value: torch.Tensor) -> None:
        """A warning for a float64 tensor; a 0-d one is how tracing writes a number, which torch narrows as well."""
        if value.dtype == torch.float64 and value.dim():
            self.warn(f"a float64 constant of shape {tuple(value.shape)} is narrowed to float32")

    def warn(self, words: str) -> None:
        """Note a warning, with the line of the model that the node at hand comes from."""
        self.warnings.append(f"{where(self.node)}: {words}" if self.node is not None else words)

    def remember_dtype(self, tensor: Any, dtype: torch.dtype) -> None:
        """Note torch's dtype of a new tensor where its carrier is wider."""
        if dtype == torch.float64:
            dtype = torch.float32
        if dtypes.from_trt(tensor.dtype) != dtype:
            self.facts(tensor).dtype = dtype

    def cast(self, tensor: Any, dtype: torch.dtype) -> Any:
        """An ITensor converted as `tensor.to(dtype)` converts: a cast layer, and wrap-around for the small integers."""
        own = self.dtype(tensor)
        if own == dtype:
            return tensor
        carrier = dtypes.carrier(dtype)
        result = tensor
        if own.is_floating_point and dtype == torch.bool:
            result = self.elementwise("EQUAL", tensor, self.like_scalar(tensor, 0.0))
            result = self.net.add_unary(result, trt.UnaryOperation.NOT).get_output(0)
        elif dtypes.from_trt(tensor.dtype) != carrier:
            result = self.net.add_cast(tensor, dtypes.to_trt(carrier)).get_output(0)
        elif self.facts(tensor).dtype is not None or dtypes.from_trt(tensor.dtype) != dtype:
            result = self.net.add_identity(tensor).get_output(0)  # another torch dtype on the same carrier
        self.copy_sizes(tensor, result)
        if dtype in (torch.uint8, torch.int8) and own != torch.bool:
            result = self._wrap(result, dtype)
        self.facts(result).dtype = None
        self.remember_dtype(result, dtype)
        if dtype == torch.float32 and own in (torch.float16, torch.bfloat16):
            self.facts(result).wide_of = tensor
        return result

    def _wrap(self, tensor: Any, dtype: torch.dtype) -> Any:
        """Two's-complement wrap-around of an int32 carrier, as C's conversion that PyTorch documents for .to()."""
        low = torch.iinfo(dtype).min
        shifted = self.elementwise("SUB", tensor, self.like_scalar(tensor, low)) if low else tensor
        quotient = self.elementwise("FLOOR_DIV", shifted, self.like_scalar(tensor, 256))
        base = self.elementwise("PROD", quotient, self.like_scalar(tensor, 256))
        result = self.elementwise("SUB", tensor, base)
        self.copy_sizes(tensor, result)
        return result

    def wrapped(self, tensor: Any, dtype: torch.dtype) -> Any:
        """The result of integer arithmetic, wrapped around where `dtype` is narrower than its carrier."""
        if dtype in (torch.uint8, torch.int8):
            tensor = self._wrap(tensor, dtype)
        self.remember_dtype(tensor, dtype)
        return tensor

    def like_scalar(self, tensor: Any, value: float | int | bool) -> Any:
        """A constant of the tensor's carrier dtype and rank with every axis 1, ready for an element-wise layer."""
        dtype = dtypes.from_trt(tensor.dtype)
        return self.constant(torch.full((1,) * self.rank(tensor), value, dtype=dtype))

    def elementwise(self, operation: str, a: Any, b: Any) -> Any:
        """One IElementWiseLayer on tensors of equal rank and dtype; `operation` is an ElementWiseOperation's name."""
        output = self.net.add_elementwise(a, b, getattr(trt.ElementWiseOperation, operation)).get_output(0)
        return output

    def unary(self, operation: str, a: Any) -> Any:
        """One IUnaryLayer; `operation` is a UnaryOperation's name. Where it does not negate integers, 0 - a."""
        if operation == "NEG" and not dialect.takes("UNARY.NEG", a.dtype.name):
            return self.elementwise("SUB", self.like_scalar(a, 0), a)
        return self.net.add_unary(a, getattr(trt.UnaryOperation, operation)).get_output(0)

    def broadcast(self, *tensors: Any) -> list[Any]:
        """The tensors as ITensors of one rank: lower ranks get leading axes of size 1, as PyTorch broadcasts."""
        rank = max((self.rank(t) for t in tensors), default=0)
        return [self._operand(t, self.dtype(t), rank) for t in tensors]

    def at_rank(self, tensor: Any, rank: int) -> Any:
        """The tensor with leading axes of size 1 up to `rank`."""
        if isinstance(tensor, torch.Tensor):
            return self._operand(tensor, tensor.dtype, max(rank, tensor.dim()))
        missing = rank - self.rank(tensor)
        return self.unsqueeze(tensor, list(range(missing))) if missing > 0 else tensor

    def operands(self, *values: Any, dtype: torch.dtype | None = None) -> list[Any]:
        """The values as ITensors of one rank and of the dtype that PyTorch promotes them to (or of `dtype`)."""
        dtype = dtype or self.promoted(*values)
        rank = max(self.rank(v) for v in values)
        return [self._operand(v, dtype, rank) for v in values]

    def _operand(self, value: Any, dtype: torch.dtype, rank: int) -> Any:
        """Static values are cast and reshaped before they become constants: no layers for it."""
        if isinstance(value, bool | int | float):
            whole = isinstance(value, int) and not dtype.is_floating_point
            value = torch.tensor(value).to(dtype) if whole else torch.tensor(value, dtype=dtype)  # 300 wraps in uint8
        if isinstance(value, torch.Tensor):
            self._tell_narrowing(value)
            shape = (1,) * (rank - value.dim()) + tuple(value.shape)
            return self.constant(value.to(dtype).reshape(shape))
        if isinstance(value, DynamicScalar):
            return self.at_rank(self.cast(value.tensor, dtype), rank) if rank else self.tensor(value, dtype)
        return self.at_rank(self.cast(value, dtype), rank)

    def promoted(self, *values: Any) -> torch.dtype:
        """PyTorch's result dtype of an operation on these tensors and numbers."""
        return dtypes.promote(*((self.dtype(v), self._category(v)) for v in values))

    def _category(self, value: Any) -> str:
        if isinstance(value, DynamicScalar):
            return "zero-dim" if value.zero_dim else "number"
        if isinstance(value, bool | int | float):
            return "number"
        return "dimensioned" if self.rank(value) else "zero-dim"

    # Sizes

    def size(self, value: Any, axis: int) -> Size:
        """The length of an axis: an int where it is static, else a DynamicScalar."""
        axis = self.axis(value, axis)
        static = value.shape[axis]
        if static >= 0:
            return int(static)
        facts = self.facts(value)
        if axis not in facts.sizes:
            facts.sizes[axis] = self._dynamic_size(value, axis)
        return facts.sizes[axis]

    def _dynamic_size(self, tensor: Any, axis: int) -> DynamicScalar:
        source = self._input_axis(self.expr(tensor, axis))
        if source is not None and source != (tensor.name, axis):
            size = self.size(self._input(source[0]), source[1])  # one shape layer for all tensors of a batch
            assert isinstance(size, DynamicScalar)
            return size
        facts = self.facts(tensor)
        if facts.shape is None:
            facts.shape = self.net.add_shape(tensor).get_output(0)
        piece = self.net.add_slice(facts.shape, (axis,), (1,), (1,)).get_output(0)
        return DynamicScalar(piece, self.expr(tensor, axis))

    def _input_axis(self, expr: sympy.Expr) -> tuple[str, int] | None:
        """The network input's name and axis whose length this is; None where the length is of none."""
        for index in range(self.net.num_inputs):
            tensor = self.net.get_input(index)
            for axis, length in enumerate(tensor.shape):
                if length < 0 and self.expr(tensor, axis) == expr:
                    return tensor.name, axis
        return None

    def _input(self, name: str) -> Any:
        inputs = (self.net.get_input(index) for index in range(self.net.num_inputs))
        return next(tensor for tensor in inputs if tensor.name == name)

    def expr(self, tensor: Any, axis: int) -> sympy.Expr:
        """The symbolic length of an axis; an axis of unknown origin is a symbol of its own."""
        static = tensor.shape[axis]
        if static >= 0:
            return sympy.Integer(static)
        exprs = self.facts(tensor).exprs
        if axis not in exprs:
            exprs[axis] = sympy.Symbol(f"{tensor.name}[{axis}]", integer=True, nonnegative=True)
        return exprs[axis]

    def sizes(self, value: Any) -> list[Size]:
        """The length of every axis."""
        return [self.size(value, axis) for axis in range(self.rank(value))]

    def set_sizes(self, tensor: Any, sizes: Sequence[Size | sympy.Expr]) -> Any:
        """Remember what the dynamic axes of a new tensor are in terms of known ones; returns the tensor."""
        exprs = self.facts(tensor).exprs
        for axis, size in enumerate(sizes):
            if tensor.shape[axis] < 0:
                exprs[axis] = expression(size)
        return tensor

    def copy_sizes(self, source: Any, target: Any) -> Any:
        """`target` has the shape of `source`; returns target."""
        for axis, length in enumerate(target.shape):
            if length < 0:
                self.facts(target).exprs[axis] = self.expr(source, axis)
        return target

    def shape_tensor(self, sizes: Sequence[Size]) -> Any:
        """A 1-d ITensor of the index dtype that holds the sizes, for layers that take a shape as an input; the same
        sizes are put together once."""
        key = tuple(("engine", id(size)) if isinstance(size, DynamicScalar) else size for size in sizes)
        if key not in self._shapes:
            self._shapes[key] = (self._shape_of(sizes), list(sizes))  # held, so that no other gets their ids
        return self._shapes[key][0]

    def _shape_of(self, sizes: Sequence[Size]) -> Any:
        pieces: list[Any] = []
        run: list[int] = []
        for size in sizes:
            if isinstance(size, DynamicScalar):
                pieces += [self._index_constant(run)] if run else []
                pieces.append(size.tensor)
                run = []
            else:
                run.append(size)
        if run or not pieces:
            pieces.append(self._index_constant(run))
        if len(pieces) == 1:
            return pieces[0]
        return self.concatenate(pieces, 0)

    def _index_constant(self, values: Sequence[int]) -> Any:
        return self.constant(torch.tensor(list(values), dtype=dtypes.index_dtype()))

    def _zero_dim(self, scalar: DynamicScalar) -> Any:
        """The scalar as a 0-d ITensor that remembers where it came from."""
        result = self.reshape(scalar.tensor, [])
        self.facts(result).scalar = scalar
        self.remember_dtype(result, scalar.dtype)
        return result

    def scalar(self, tensor: Any) -> DynamicScalar:
        """A one-element ITensor as a DynamicScalar."""
        facts = self.facts(tensor)
        if facts.scalar is None:
            flat = self.reshape(tensor, [1])
            symbol = sympy.Symbol(f"{tensor.name}", integer=True)
            facts.scalar = DynamicScalar(flat, symbol, self.dtype(tensor))
        return facts.scalar

    def _stack(self, values: Sequence[Any], dtype: torch.dtype | None) -> Any:
        if not any(isinstance(v, DynamicScalar) for v in values):
            return torch.tensor(list(values), dtype=dtype)
        return self.shape_tensor(list(values))

    # Shapes

    def reshape(self, tensor: Any, sizes: Sequence[Size]) -> Any:
        """The tensor with other sizes of the same volume; one of them may be -1, as in torch.reshape."""
        sizes = self._without_minus_one(tensor, list(sizes))
        layer = self.net.add_shuffle(tensor)
        static = self._static_reshape(tensor, sizes)
        if static is None:
            layer.set_input(1, self.shape_tensor(sizes))
            layer.zero_is_placeholder = False
        else:
            layer.reshape_dims = trt.Dims(static)
            layer.zero_is_placeholder = any(isinstance(s, DynamicScalar) for s in sizes)
        result = layer.get_output(0)
        self.remember_dtype(result, self.dtype(tensor))
        return self.set_sizes(result, sizes)

    def _without_minus_one(self, tensor: Any, sizes: list[Size]) -> list[Size]:
        if -1 not in [s for s in sizes if isinstance(s, int)]:
            return sizes
        at = sizes.index(-1)
        own, others = self.sizes(tensor), sizes[:at] + sizes[at + 1 :]
        for size in list(others):  # cancel what stands on both sides, so that equal axes stay recognised
            match = next((o for o in own if expression(o) == expression(size)), None)
            if match is not None and match in own:
                own.remove(match)
                others.remove(size)
        total, rest = self._product(own), self._product(others)
        sizes[at] = self.arithmetic("floordiv", total, rest) if rest != 0 else 0
        return sizes

    def _product(self, sizes: Sequence[Size]) -> Size:
        result: Size = 1
        for size in sizes:
            result = self.arithmetic("mul", result, size)
        return result

    def arithmetic(self, operation: str, a: Any, b: Any) -> Any:
        """Integer arithmetic on sizes; Python's where both are static."""
        from builder.conversion.scalars import binary

        return binary(self, operation, a, b)

    def _static_reshape(self, tensor: Any, sizes: Sequence[Size]) -> list[int] | None:
        """reshape_dims that say the same without a shape tensor (0 copies an axis, -1 is worked out), or None."""
        dims: list[int] = []
        open_axes = 0
        has_dynamic = any(isinstance(s, DynamicScalar) for s in sizes)
        for axis, size in enumerate(sizes):
            if isinstance(size, int):
                if size == 0 and has_dynamic:
                    return None
                dims.append(size)
            elif axis < self.rank(tensor) and self.expr(tensor, axis) == size.expr:
                dims.append(0)
            else:
                dims.append(-1)
                open_axes += 1
        return dims if open_axes <= 1 else None

    def unsqueeze(self, tensor: Any, axes: Sequence[int]) -> Any:
        """New axes of size 1 at these positions of the result."""
        sizes = self._exprs(tensor)
        for axis in sorted(axes):
            sizes.insert(axis, sympy.Integer(1))
        return self._rearranged(tensor, sizes, "add_unsqueeze", axes)

    def squeeze(self, tensor: Any, axes: Sequence[int]) -> Any:
        """The tensor without these axes, each of size 1."""
        sizes = [e for axis, e in enumerate(self._exprs(tensor)) if axis not in axes]
        return self._rearranged(tensor, sizes, "add_squeeze", axes)

    def _rearranged(self, tensor: Any, exprs: list[sympy.Expr], method: str, axes: Sequence[int]) -> Any:
        if not axes:
            return tensor
        dynamic = sum(not e.is_Integer for e in exprs)
        if dynamic <= 1:  # a shuffle of static dims is what TensorRT fuses best
            layer = self.net.add_shuffle(tensor)
            layer.reshape_dims = trt.Dims([int(e) if e.is_Integer else -1 for e in exprs])
            layer.zero_is_placeholder = False
        elif hasattr(self.net, method):
            layer = getattr(self.net, method)(tensor, self._index_constant(list(axes)))
        else:
            layer = self.net.add_shuffle(tensor)
            layer.set_input(1, self._shape_without_or_with(tensor, axes, insert=method == "add_unsqueeze"))
        result = layer.get_output(0)
        self.remember_dtype(result, self.dtype(tensor))
        return self.set_sizes(result, exprs)

    def _shape_without_or_with(self, tensor: Any, axes: Sequence[int], insert: bool) -> Any:
        sizes = self.sizes(tensor)
        if not insert:
            return self.shape_tensor([s for axis, s in enumerate(sizes) if axis not in axes])
        for axis in sorted(axes):
            sizes.insert(axis, 1)
        return self.shape_tensor(sizes)

    def _exprs(self, tensor: Any) -> list[sympy.Expr]:
        return [self.expr(tensor, axis) for axis in range(self.rank(tensor))]

    def permute(self, tensor: Any, order: Sequence[int]) -> Any:
        """The axes in another order."""
        layer = self.net.add_shuffle(tensor)
        layer.first_transpose = trt.Permutation(list(order))
        result = layer.get_output(0)
        self.remember_dtype(result, self.dtype(tensor))
        return self.set_sizes(result, [self.expr(tensor, axis) for axis in order])

    def concatenate(self, tensors: Sequence[Any], axis: int) -> Any:
        """The ITensors (of one dtype and rank) one after another along an axis."""
        layer = self.net.add_concatenation(list(tensors))
        layer.axis = axis
        result = layer.get_output(0)
        self.remember_dtype(result, self.dtype(tensors[0]))
        exprs = self._exprs(tensors[0])
        if exprs:
            exprs[axis] = sum((self.expr(t, axis) for t in tensors[1:]), exprs[axis])
        return self.set_sizes(result, exprs)

    def slice(
        self,
        tensor: Any,
        starts: Sequence[Size],
        sizes: Sequence[Size],
        strides: Sequence[Size],
        mode: str | None = None,
        fill: Any = None,
    ) -> Any:
        """ISliceLayer with any of start, size and stride dynamic; a stride of 0 repeats.

        `mode` is a SampleMode's name for what lies outside the tensor; `fill` the ITensor that FILL puts there.
        """
        if mode is not None and not dialect.takes(f"SLICE.{mode}", tensor.dtype.name):  # bools, as integers
            wide = self.cast(tensor, torch.int32)
            filled = fill if fill is None else self.cast(fill, torch.int32)
            return self.cast(self.slice(wide, starts, sizes, strides, mode, filled), torch.bool)
        static = [[v if isinstance(v, int) else 0 for v in values] for values in (starts, sizes, strides)]
        layer = self.net.add_slice(tensor, *(trt.Dims(v) for v in static))
        for index, values in enumerate((starts, sizes, strides), start=1):
            if any(isinstance(v, DynamicScalar) for v in values):
                layer.set_input(index, self.shape_tensor(values))
        if mode is not None:
            layer.mode = getattr(trt.SampleMode, mode)
        if fill is not None:
            layer.set_input(4, fill)
        result = layer.get_output(0)
        self.remember_dtype(result, self.dtype(tensor))
        return self.set_sizes(result, sizes)

    def expand(self, tensor: Any, sizes: Sequence[Size]) -> Any:
        """torch.Tensor.expand: axes of size 1 repeat up to `sizes`; -1 keeps an axis; new axes stand in front."""
        tensor = self.at_rank(tensor, len(sizes))
        own = self.sizes(tensor)
        target = [o if isinstance(s, int) and s == -1 else s for s, o in zip(sizes, own, strict=True)]
        if all(expression(o) == expression(t) for o, t in zip(own, target, strict=True)):
            return tensor
        strides = [self._expand_stride(o, t) for o, t in zip(own, target, strict=True)]
        return self.slice(tensor, [0] * len(target), target, strides)

    def _expand_stride(self, own: Size, target: Size) -> Size:
        """0 where an axis of size 1 repeats, 1 where it stays: min(own - 1, 1) where only the engine will know."""
        if isinstance(own, int):
            return 0 if own == 1 else 1
        if own.expr == expression(target):
            return 1
        less = self.arithmetic("sub", own, 1)
        stride: Size = self.arithmetic("min", less, 1)
        return stride

    def ranges(self) -> Mapping[sympy.Symbol, tuple[int, int]]:
        """The least and greatest size of each named axis over all profiles."""
        spans: dict[sympy.Symbol, tuple[int, int]] = {}
        for profile in self.profiles:
            for name, (low, _, high) in profile.items():
                symbol = axis_symbol(name)
                old = spans.get(symbol, (low, high))
                spans[symbol] = (min(low, old[0]), max(high, old[1]))
        return spans


def axis_symbol(name: str) -> sympy.Symbol:
    """The symbol of a named axis."""
    return sympy.Symbol(name, integer=True, nonnegative=True)
