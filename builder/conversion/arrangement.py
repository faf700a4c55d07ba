"""Layers that rearrange the elements of a tensor: reshape, permute, slice, repeat."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import sympy
import torch

from builder.conversion.dynamic import DynamicScalar, Size, bounds, expression
from builder.conversion.lengths import Lengths
from builder.conversion.unconvertible import Unconvertible
from builder.conversion.values import Tensor
from builder.engine import ILayer, ITensor, tensorrt8, trt


class Arrangement(Lengths):
    """Layers that move elements and compute nothing. Each records the sizes of its output."""

    def reshape(self, tensor: ITensor, sizes: Sequence[Size]) -> ITensor:
        """The tensor with other sizes of the same volume; one of them may be -1, as in
        torch.reshape.
        """
        sizes = self._without_minus_one(tensor, list(sizes))
        layer = self.net.add_shuffle(tensor)
        static = self._static_reshape(tensor, sizes)
        if static is None:
            layer.set_input(1, self.shape_tensor(sizes))
            layer.zero_is_placeholder = False
        else:
            layer.reshape_dims = trt.Dims(static)
            layer.zero_is_placeholder = any(
                isinstance(size, DynamicScalar) for size in sizes
            )
        return self._reshaped(layer, tensor, sizes)

    def _reshaped(
        self, layer: ILayer, tensor: ITensor, sizes: Sequence[Size | sympy.Expr]
    ) -> ITensor:
        """The output of a layer that gives `tensor` these sizes."""
        result = layer.get_output(0)
        self.remember_dtype(result, self.dtype(tensor))
        self.facts(result).reshaped = True
        return self.set_sizes(result, sizes)

    def _without_minus_one(self, tensor: ITensor, sizes: list[Size]) -> list[Size]:
        if -1 not in [size for size in sizes if isinstance(size, int)]:
            return sizes
        at = sizes.index(-1)
        remaining = self.sizes(tensor)
        others = sizes[:at] + sizes[at + 1 :]
        # cancel factors on both sides, so that equal axes are recognized
        for size in list(others):
            for candidate in remaining:
                if expression(candidate) == expression(size):
                    remaining.remove(candidate)
                    others.remove(size)
                    break
        total = math.prod(remaining)
        known_product = math.prod(others)
        sizes[at] = 0
        if known_product != 0:
            sizes[at] = total // known_product
        return sizes

    def _static_reshape(
        self, tensor: ITensor, sizes: Sequence[Size]
    ) -> list[int] | None:
        """Equivalent reshape_dims without a shape tensor (0 copies an axis, -1 is inferred), or
        None.
        """
        dims: list[int] = []
        open_axes = 0
        may_be_empty = False
        has_dynamic = any(isinstance(size, DynamicScalar) for size in sizes)
        for axis, size in enumerate(sizes):
            if isinstance(size, int):
                if size == 0 and has_dynamic:
                    return None
                dims.append(size)
            elif axis < self.rank(tensor) and self.expr(tensor, axis) == size.expr:
                dims.append(0)
                may_be_empty |= self._may_be_empty(size)
            else:
                dims.append(-1)
                open_axes += 1
        copied = dims.count(0) if has_dynamic else 0
        takes = self.capabilities.takes("SHUFFLE.COPIED_AXIS", tensor.dtype.name)
        if copied and self.facts(tensor).reshaped and not takes:
            dims = [dim or -1 for dim in dims]
            open_axes += copied
        # -1 is 0 beside an empty axis
        if open_axes > 1 or (open_axes and may_be_empty):
            return None
        return dims

    def _may_be_empty(self, size: DynamicScalar) -> bool:
        span = bounds(size.expr, self.ranges())
        return span is None or span[0] <= 0

    def unsqueeze(self, tensor: ITensor, axes: Sequence[int]) -> ITensor:
        """New axes of size 1 at these positions of the result."""
        sizes = self.exprs(tensor)
        for axis in sorted(axes):
            sizes.insert(axis, sympy.Integer(1))
        return self._rearranged(tensor, sizes, "add_unsqueeze", axes)

    def squeeze(self, tensor: ITensor, axes: Sequence[int]) -> ITensor:
        """The tensor without these axes, each of size 1."""
        sizes = [
            expr for axis, expr in enumerate(self.exprs(tensor)) if axis not in axes
        ]
        return self._rearranged(tensor, sizes, "add_squeeze", axes)

    def _rearranged(
        self, tensor: ITensor, exprs: list[sympy.Expr], method: str, axes: Sequence[int]
    ) -> ITensor:
        if not axes:
            return tensor
        dynamic = sum(not expr.is_Integer for expr in exprs)
        # TensorRT fuses a shuffle of static dims best. It infers one dynamic axis, unless another
        # axis is empty.
        if not dynamic or (dynamic == 1 and 0 not in exprs):
            layer = self.net.add_shuffle(tensor)
            layer.reshape_dims = trt.Dims(
                [int(expr) if expr.is_Integer else -1 for expr in exprs]
            )
            layer.zero_is_placeholder = False
        elif self.capabilities.has_layer(method):
            layer = getattr(self.net, method)(tensor, self._index_constant(list(axes)))
        else:
            layer = self.net.add_shuffle(tensor)
            layer.set_input(
                1,
                self._shape_without_or_with(
                    tensor, axes, insert=method == "add_unsqueeze"
                ),
            )
            layer.zero_is_placeholder = False
        return self._reshaped(layer, tensor, exprs)

    def _shape_without_or_with(
        self, tensor: ITensor, axes: Sequence[int], insert: bool
    ) -> ITensor:
        sizes = self.sizes(tensor)
        if not insert:
            return self.shape_tensor(
                [size for axis, size in enumerate(sizes) if axis not in axes]
            )
        for axis in sorted(axes):
            sizes.insert(axis, 1)
        return self.shape_tensor(sizes)

    def at_rank(self, tensor: Tensor, rank: int) -> ITensor:
        """The tensor with leading axes of size 1 up to `rank`."""
        if isinstance(tensor, torch.Tensor):
            return self._constant_at_rank(tensor, tensor.dtype, max(rank, tensor.dim()))
        missing = rank - self.rank(tensor)
        if missing > 0:
            return self.unsqueeze(tensor, list(range(missing)))
        return tensor

    def permute(self, tensor: ITensor, order: Sequence[int]) -> ITensor:
        """The axes in another order."""
        layer = self.net.add_shuffle(tensor)
        layer.first_transpose = trt.Permutation(list(order))
        result = layer.get_output(0)
        self.remember_dtype(result, self.dtype(tensor))
        self.facts(result).reshaped = self.facts(tensor).reshaped
        return self.set_sizes(result, [self.expr(tensor, axis) for axis in order])

    def slice(
        self,
        tensor: ITensor,
        starts: Sequence[Size],
        sizes: Sequence[Size],
        strides: Sequence[Size] = (),
        mode: str | None = None,
        fill: ITensor | None = None,
    ) -> ITensor:
        """ISliceLayer with any of start, size and stride dynamic; a stride of 0 repeats. By default
        all strides are 1.

        `mode` is the name of the SampleMode for elements outside the tensor, and `fill` the ITensor
        for FILL. Raises Unconvertible for a mode that loop bodies do not support.
        """
        strides = strides or [1] * len(sizes)
        dtype = tensor.dtype.name
        # bools, as integers
        if mode is not None and not self.capabilities.takes(f"SLICE.{mode}", dtype):
            wide = self.cast(tensor, torch.int32)
            filled = fill
            if fill is not None:
                filled = self.cast(fill, torch.int32)
            sliced = self.slice(wide, starts, sizes, strides, mode, filled)
            return self.cast(sliced, torch.bool)
        in_loop = f"SLICE.{mode}.IN_LOOP"
        if mode and self.loops and not self.capabilities.takes(in_loop, dtype):
            raise Unconvertible(tensorrt8.PADS_IN_LOOP, tensorrt8.NEWER_OR_FIXED)
        layer = self._slice_layer(tensor, (starts, sizes, strides))
        if mode is not None:
            layer.mode = getattr(trt.SampleMode, mode)
        if fill is not None:
            layer.set_input(4, fill)
        result = layer.get_output(0)
        self.remember_dtype(result, self.dtype(tensor))
        return self.set_sizes(result, sizes)

    def _slice_layer(self, tensor: ITensor, ranges: Sequence[Sequence[Size]]) -> Any:
        """The layer with `ranges` (starts, sizes, strides) as attributes, or as inputs if
        dynamic. An empty slice starts at 0: TensorRT refuses a start outside the tensor.
        """
        empty = [size == 0 for size in ranges[1]]
        ranges = [
            [
                default if is_empty else value
                for value, is_empty in zip(values, empty, strict=True)
            ]
            for values, default in zip(ranges, (0, 0, 1), strict=True)
        ]
        self.keep_steady(*itertools.chain(*ranges))
        static = [
            [value if isinstance(value, int) else 0 for value in values]
            for values in ranges
        ]
        layer = self.net.add_slice(tensor, *(trt.Dims(values) for values in static))
        for index, values in enumerate(ranges, start=1):
            if any(isinstance(value, DynamicScalar) for value in values):
                layer.set_input(index, self.shape_tensor(values))
        return layer

    def expand(self, tensor: Tensor, sizes: Sequence[Size]) -> ITensor:
        """torch.Tensor.expand: axes of size 1 repeat up to `sizes`; -1 keeps an axis; new axes come
        first.
        """
        tensor = self.at_rank(tensor, len(sizes))
        current = self.sizes(tensor)
        target: list[Size] = []
        is_expanded = False
        for old, new in zip(current, sizes, strict=True):
            if isinstance(new, int) and new == -1:
                new = old
            target.append(new)
            is_expanded = is_expanded or expression(old) != expression(new)
        if not is_expanded:
            return tensor
        strides = [
            self._expand_stride(old, new)
            for old, new in zip(current, target, strict=True)
        ]
        return self.slice(tensor, [0] * len(target), target, strides)

    def _expand_stride(self, current: Size, target: Size) -> Size:
        """0 if an axis of size 1 repeats, 1 if it stays; min(size - 1, 1) if the size is known only
        at run time.
        """
        if isinstance(current, int):
            return 0 if current == 1 else 1
        if current.expr == expression(target):
            return 1
        return self.minimum(current - 1, 1)  # type: ignore[no-any-return]
