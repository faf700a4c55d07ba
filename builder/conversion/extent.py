"""The number of time steps of each row of a batch: all steps, or the row's length.

Steps need no mask for shorter rows, because the output of a recurrent layer does not depend on
later steps. Only the final state is gathered at the row's end, and the second direction reads each
row from its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch

from builder.conversion import dtypes, nonzero, scalars
from builder.conversion.context import ConversionContext, Unconvertible
from builder.conversion.dynamic import DynamicScalar, Size, same_size
from builder.conversion.layers import gathered, less, reduce
from builder.conversion.values import Tensor
from builder.engine import ITensor, trt

NEEDS_TOTAL = (
    "pass total_length=x.size(1) to pad_packed_sequence (x.size(0) if time is first)"
)


class Extent:
    """All rows have all steps."""

    ragged = False

    def part(
        self,
        ctx: ConversionContext,
        x: ITensor,
        start: Sequence[Size],
        sizes: Sequence[Size],
        *,
        reverse: bool = False,
    ) -> ITensor:
        """A part of x as [time, batch, width]. `start` is its start on the axes after time, `sizes`
        are all sizes (with or without an axis of size 1 before batch). With `reverse`, each row is
        reversed in time.
        """
        first, step = 0, 1
        if reverse and not self.ragged:
            first, step = sizes[0] - 1, -1
        steps = [step] + [1] * len(start)
        slice_ = ctx.slice(x, [first, *start], sizes, steps)
        if len(sizes) > 3:
            slice_ = ctx.squeeze(slice_, [1])
        return self.reversed_in_time(ctx, slice_) if reverse and self.ragged else slice_

    def reversed_in_time(self, ctx: ConversionContext, x: Any) -> Any:
        """x [time, batch, width] with each row reversed in time."""
        return self.part(ctx, x, [0, 0], ctx.sizes(x), reverse=True)

    def ends(self, ctx: ConversionContext, x: Any) -> Any:
        """x [time, ..., batch, width] at each row's last step: [..., batch, width]."""
        raise NotImplementedError


class Lengths(Extent):
    """Row b has `lengths[b]` steps, at least one and at most `steps`. `model_lengths` is the
    model's tensor of lengths.
    """

    ragged = True

    def __init__(
        self, ctx: ConversionContext, model_lengths: Tensor, steps: Size, batch: Size
    ) -> None:
        self.ctx = ctx
        self.model_lengths = model_lengths
        self.steps = steps
        self.batch = batch

    @cached_property
    def lengths(self) -> ITensor:
        """[1, batch] of the index dtype. torch raises for an invalid length; here it is clamped, so
        that nothing is read out of bounds.
        """
        ctx = self.ctx
        dtype = dtypes.index_dtype()
        lengths = ctx.unsqueeze(ctx.tensor(self.model_lengths, dtype), [0])
        lengths = ctx.elementwise("MAX", lengths, _number(ctx, 1))
        return ctx.set_sizes(
            ctx.elementwise("MIN", lengths, _number(ctx, self.steps)), [1, self.batch]
        )

    @cached_property
    def longest(self) -> Size:
        """The largest length. Raises Unconvertible if it depends on data and this TensorRT does not
        support such sizes.
        """
        if isinstance(self.model_lengths, torch.Tensor):
            return int(self.model_lengths.max())
        return self.ctx.size(self._time_steps, 0)

    @cached_property
    def _time_steps(self) -> ITensor:
        """0, 1, ... less than the largest length: a tensor whose size depends on data."""
        ctx = self.ctx
        reason = nonzero.data_dependent(ctx)
        if reason:
            raise Unconvertible(
                f"the length of the longest sequence depends on data: {reason}",
                NEEDS_TOTAL,
            )
        maximum = reduce(ctx, "MAX", self.lengths, [1], keepdim=True)
        alive = ctx.squeeze(less(ctx, self._steps, maximum), [1])
        return ctx.squeeze(nonzero.positions(ctx, alive), [1])

    @cached_property
    def _steps(self) -> ITensor:
        from builder.conversion.evaluators.creation import indices

        return self.ctx.unsqueeze(indices(self.ctx, self.steps), [1])  # [time, 1]

    @cached_property
    def mask(self) -> ITensor:
        """[time, batch] bool: whether the step is within the row's length."""
        return self.ctx.set_sizes(
            less(self.ctx, self._steps, self.lengths), [self.steps, self.batch]
        )

    @cached_property
    def _last(self) -> ITensor:
        """[1, batch]: the last step of each row."""
        last = self.ctx.elementwise("SUB", self.lengths, _number(self.ctx, 1))
        return self.ctx.set_sizes(last, [1, self.batch])

    @cached_property
    def _from_the_end(self) -> ITensor:
        """[time, batch]: the flat index into [time * batch] of the step at distance `time` from the
        row's end.
        """
        back = self.ctx.elementwise("SUB", self._last, self._steps)
        return self._flat_indices(
            self.ctx.elementwise("MAX", back, _number(self.ctx, 0)), self.steps
        )

    @cached_property
    def _end(self) -> ITensor:
        """[1, batch]: the flat index into [time * batch] of each row's last step."""
        return self._flat_indices(self._last, 1)

    @cached_property
    def _both_ends(self) -> ITensor:
        """[2, batch]: the flat indices into [time * 2 * batch] of each row's last step in two
        directions.
        """
        directions = self.ctx.constant(
            torch.arange(2, dtype=dtypes.index_dtype())[:, None]
        )
        doubled = self.ctx.elementwise("PROD", self._last, _number(self.ctx, 2))
        return self._flat_indices(self.ctx.elementwise("SUM", doubled, directions), 2)

    def _flat_indices(self, step: ITensor, rows: Size) -> ITensor:
        """[rows, batch]: the flat indices into [time * batch] of these steps of each row."""
        from builder.conversion.evaluators.creation import indices

        ctx = self.ctx
        before = ctx.elementwise("PROD", step, _number(ctx, self.batch))
        return ctx.set_sizes(
            ctx.elementwise(
                "SUM", before, ctx.unsqueeze(indices(ctx, self.batch), [0])
            ),
            [rows, self.batch],
        )

    def reversed_in_time(self, ctx: ConversionContext, x: ITensor) -> ITensor:
        return _rows_at(ctx, x, self._from_the_end)

    def ends(self, ctx: ConversionContext, x: ITensor) -> ITensor:
        if ctx.rank(x) == 3:
            return ctx.squeeze(_rows_at(ctx, x, self._end), [0])
        return _rows_at(ctx, x, self._both_ends)

    def stretched(
        self, ctx: ConversionContext, x: ITensor, length: Size, fill: ITensor
    ) -> ITensor:
        """x [time, ...] at another length: sliced, or padded with `fill` (0-d)."""
        if same_size(length, self.steps):
            return x
        sizes = [length, *ctx.sizes(x)[1:]]
        if isinstance(length, DynamicScalar) and length is vars(self).get("longest"):
            return ctx.set_sizes(gathered(ctx, x, self._time_steps, 0), sizes)
        return ctx.slice(x, [0] * len(sizes), sizes, mode="FILL", fill=fill)


def _number(ctx: ConversionContext, value: Size) -> ITensor:
    """[1, 1] of the index dtype."""
    return ctx.at_rank(scalars.vector(ctx, value, torch.int64), 2)


def _rows_at(ctx: ConversionContext, x: ITensor, positions: ITensor) -> ITensor:
    """Rows of x [..., batch, width], flattened except for its width, at `positions` [rows, batch]:
    [rows, batch, width].
    """
    flat = ctx.net.add_shuffle(x)
    flat.reshape_dims = trt.Dims([-1, x.shape[-1]])
    return gathered(ctx, flat.get_output(0), positions, 0)
