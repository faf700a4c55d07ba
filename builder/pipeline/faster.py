"""Publish `precision: mixed` only if its plan is faster than the fp16 plan.

Quantization adds layers. Without int8 kernels that save more time than these cost, the mixed plan
is slower and less accurate than the fp16 plan. This depends on the GPU, so both plans are built and
timed on it.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from builder import parity
from builder.errors import TrtBuildError
from builder.pipeline.stages import Checked, Recorded

if TYPE_CHECKING:
    from builder.engine import Plan
    from builder.triton import Golden

    Time = Callable[[Sequence[Plan], Golden], Sequence[float]]

ROUNDS, CALLS = 9, 10
"""Number of timed rounds of each plan, after one warm-up round, and of calls in each."""
GAIN = 0.98
"""The mixed plan must take at most this share of the time. The measurement noise is 2 %."""


def needs_half_plan(checked: Checked) -> bool:
    """Whether the fp16 plan is also built: the precision is `mixed` and plans can run."""
    spec = checked.built.converted.prepared.spec
    return spec.precision == "mixed" and parity.plan_check.possible()


def in_half(recorded: Recorded) -> Recorded:
    """The same model in fp16."""
    lowered = recorded.lowered
    spec = replace(lowered.spec, precision="fp16", calibration=None)
    return replace(recorded, lowered=replace(lowered, spec=spec))


def choose(
    mixed: Checked, half: Callable[[], Checked], times: Time | None = None
) -> Checked:
    """The mixed model with a warning that compares the times, or the fp16 model if mixed is not
    faster. `half` builds the fp16 model. If it raises TrtBuildError, or either model is not one
    plan, the mixed model is kept. `times` returns the milliseconds of a call of each plan on one
    golden.
    """
    if mixed.layout != "single":
        return mixed
    try:
        fp16 = half()
    except TrtBuildError:
        return mixed
    if fp16.layout != "single":
        return mixed
    timed = times or _on_gpu
    pairs = [timed((_plan(mixed), _plan(fp16)), golden) for golden in _timed(mixed)]
    if not pairs:
        return mixed
    ratio = math.exp(
        statistics.fmean(math.log(first / second) for first, second in pairs)
    )
    first, second = pairs[-1]
    compared = (
        f"the mixed plan takes {ratio:.2f} of the time of fp16 ({first:.3f},"
        f" {second:.3f} ms)"
    )
    if ratio <= GAIN:
        return replace(mixed, warnings=(*mixed.warnings, compared))
    return replace(fp16, warnings=(*fp16.warnings, f"published in fp16: {compared}"))


def _plan(checked: Checked) -> Plan:
    (plan,) = checked.built.plans.values()
    return plan


def _timed(checked: Checked) -> list[Golden]:
    """The goldens at the optimum and at the maximum of each profile."""
    goldens = checked.built.converted.prepared.goldens
    return [golden for golden in goldens if golden.name.endswith(("-opt", "-max"))]


def _on_gpu(plans: Sequence[Plan], golden: Golden) -> Sequence[float]:
    """The median milliseconds of a call of each plan on this golden, timed alternately."""
    from builder.engine import Engine

    with ExitStack() as stack:
        engines = [stack.enter_context(Engine(plan.data)) for plan in plans]
        inputs = [
            [parity.to_torch(golden.inputs[name]).cuda() for name in engine.inputs]
            for engine in engines
        ]
        calls = [
            partial(engine.infer, tensors)
            for engine, tensors in zip(engines, inputs, strict=True)
        ]
        for call in calls:
            _milliseconds(call)  # warm-up
        rounds = [[_milliseconds(call) for call in calls] for _ in range(ROUNDS)]
        return [statistics.median(times) for times in zip(*rounds, strict=True)]


def _milliseconds(call: Callable[[], object]) -> float:
    """The mean time of a call, over CALLS of them."""
    begun = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - begun) / CALLS * 1e3
