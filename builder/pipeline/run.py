"""The order in which the stages of one model run, each phase timed and reported."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from builder import engine, lowering, parity, store
from builder.pipeline import (
    execution,
    faster,
    independence,
    ladder,
    padding,
    stages,
    warmup,
)
from builder.pipeline.fallback import KeptInTorch
from builder.pipeline.order import Order, options_of
from builder.pipeline.stages import Checked, Published, Recorded, Stage
from builder.progress import Progress
from builder.torchscript import plugins

if TYPE_CHECKING:
    from builder.conversion import Conversion
    from builder.engine import BuildOptions, Plan
    from builder.parity import Recordings
    from builder.store import Plans

REPORT_SECONDS = 5.0
"""Interval of progress reports in a long build."""


def select_environment(order: Order) -> None:
    """Set up this process for the order: flavor, plugins, number of threads. Raises UsageError for
    a builder option that this TensorRT does not support, because a plan from the store would hide
    that it is ignored.
    """
    engine.flavor.select(order.flavor)
    engine.config.check(options_of(order))
    plugins.load(order.plugins)
    if order.threads:
        import torch

        torch.set_num_threads(order.threads)


class Clock:
    """Reports each phase of a model to `progress` as it begins, and each stage to `reached` when it
    is complete. `seconds` holds the time of each phase.
    """

    def __init__(
        self,
        name: str,
        progress: Progress,
        reached: Callable[[Stage], None] | None = None,
    ) -> None:
        self.name = name
        self.progress = progress
        self.reached = reached or (lambda stage: None)
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the block, also if it raises."""
        self.progress(self.name, name)
        started = time.monotonic()
        try:
            yield
        finally:
            before = self.seconds.get(name, 0.0)
            self.seconds[name] = round(before + time.monotonic() - started, 3)


def record(order: Order, clock: Clock, *, paranoid: bool = False) -> Recorded:
    """Run the stages from the order to the goldens."""
    with clock.phase("load"):
        loaded = stages.load(order.spec)
    with clock.phase("lower"):
        lowered = ladder.lower(
            loaded, keep_text=order.graphs is not None, paranoid=paranoid
        )
    clock.reached(lowered)
    if order.graphs is not None:
        lowering.write_sequence(lowered.graph.trace, order.graphs / order.spec.name)
    with clock.phase("goldens"):
        recorded = stages.record(lowered, _recordings(order))
    return recorded


def _recordings(order: Order) -> Recordings | None:
    """The store of the order's goldens; None if each build records its own."""
    if not (order.share and order.store and order.request):
        return None

    key = store.goldens_key(order.spec.name, order.request)
    return parity.Recordings(order.store, key, rebuild=order.rebuild)


def check(
    order: Order,
    clock: Clock,
    compile: stages.Compile | None = None,
    *,
    paranoid: bool = False,
) -> Checked:
    """Run the stages from the order to the artifact. `compile` builds the plan of each network;
    without it nothing is built, and the plans are empty.
    """
    return check_recorded(
        record(order, clock, paranoid=paranoid), order, clock, compile
    )


def check_recorded(
    recorded: Recorded, order: Order, clock: Clock, compile: stages.Compile | None
) -> Checked:
    """Run the stages from the goldens to the artifact; see `check`."""
    compiled = compile or _not_built(order)

    def attempt(source: Recorded, in_torch: KeptInTorch) -> Checked:
        return _attempt(
            source, in_torch, order, clock, compiled, has_plans=compile is not None
        )

    if order.ended:
        return ladder.by_torch(recorded, order.ended, attempt)
    return ladder.first_success(recorded, attempt)


def _attempt(
    recorded: Recorded,
    in_torch: KeptInTorch,
    order: Order,
    clock: Clock,
    compile: stages.Compile,
    *,
    has_plans: bool,
) -> Checked:
    """Run the stages from one lowered form of the model to the artifact. Raises the errors of the
    model. With `has_plans` every plan is run, if this machine can run it.
    """
    with clock.phase("calibrate"):
        prepared = stages.prepare(recorded)
    clock.reached(prepared)
    with clock.phase("convert"):
        converted = stages.convert(prepared, order.layout, in_torch)
    with clock.phase("ranges"):
        converted = stages.keep_in_float32(converted)
    clock.reached(converted)
    with clock.phase("reference"):
        stages.check_reference(converted)
    with clock.phase("build"):
        built = stages.build(converted, compile)
    if has_plans:
        built = _with_correct_plans(built, order, clock)
    clock.reached(built)
    checked = stages.assemble(built, order)
    with clock.phase("execute"):
        return _executed(checked, order, has_plans=has_plans)


def _with_correct_plans(
    built: stages.Built, order: Order, clock: Clock
) -> stages.Built:
    """What was built after every plan was run. Incorrect plans are built again."""
    with clock.phase("run plans"):
        return stages.check_plans(
            built,
            options_of(order),
            lambda step: clock.progress(clock.name, f"run plans: {step}"),
        )


def _executed(checked: Checked, order: Order, *, has_plans: bool) -> Checked:
    """Run the files that will be published: on the goldens, on rows that no golden has, on padded
    goldens and on the warm-up requests. What fails of the last two is left out with a warning.
    """
    files = execution.LoadedFiles()
    compared = execution.check_artifact(checked.artifact, files)
    on_gpu = has_plans and parity.plan_check.possible()
    artifact = checked.artifact
    if not order.ended:
        artifact = independence.confirm(artifact, files)
    artifact, unused = padding.confirm(artifact, files, engines=on_gpu)
    artifact, failed = warmup.confirm(artifact, files, engines=on_gpu)
    warnings = (*checked.warnings, *unused, *failed)
    return replace(checked, artifact=artifact, parity=compared, warnings=warnings)


def publish(
    order: Order,
    clock: Clock,
    plans: Plans,
    finish: Callable[[Path], None],
    compare: Callable[[Path, Path], None],
) -> Published:
    """From the order to the repository, with plans from the store or from TensorRT. `finish` adds
    to the model's folder before it is published, and `compare` compares it with the published one.
    """
    compiled = compiler(order.options, clock, plans)
    recorded = record(order, clock)
    checked = check_recorded(recorded, order, clock, compiled)
    if faster.needs_half_plan(checked):
        checked = _faster(checked, recorded, order, clock, compiled, plans)
    clock.reached(checked)
    labels = {part.label for part in checked.built.converted.networks}
    # without those of failed attempts
    plans.records = {
        label: plan for label, plan in plans.records.items() if label in labels
    }
    with clock.phase("publish"):
        return stages.publish(checked, order.out, finish, compare, order.stage)


def _faster(
    mixed: Checked,
    recorded: Recorded,
    order: Order,
    clock: Clock,
    compile: stages.Compile,
    plans: Plans,
) -> Checked:
    """The mixed model, or the fp16 model if it is as fast. `plans` and the clock's stages are those
    of the chosen model.
    """
    mixed_plans = dict(plans.records)

    def half() -> Checked:
        return check_recorded(faster.in_half(recorded), order, clock, compile)

    chosen = faster.choose(mixed, half)
    if chosen.built is mixed.built:
        plans.records = mixed_plans
        for stage in (
            mixed.built.converted.prepared,
            mixed.built.converted,
            mixed.built,
        ):
            clock.reached(stage)
    return chosen


def compiler(options: BuildOptions, clock: Clock, plans: Plans) -> stages.Compile:
    """A function that returns the plan of a network, from the store or by a build."""

    def compile(conversion: Conversion, label: str) -> Plan:
        report = _occasionally(clock)
        return plans.build(
            conversion,
            options,
            lambda: engine.build(conversion, options, report),
            label,
        )

    return compile


def _occasionally(clock: Clock) -> Callable[[str, int, int], None]:
    """Report TensorRT's progress at most every few seconds."""
    last = time.monotonic()

    def report(phase: str, step: int, steps: int) -> None:
        nonlocal last
        if time.monotonic() - last > REPORT_SECONDS:
            last = time.monotonic()
            clock.progress(clock.name, f"build: {phase} ({step} of {steps})")

    return report


def _not_built(order: Order) -> stages.Compile:
    """Plans without an engine, with the facts that a config needs."""

    def compile(conversion: Conversion, label: str) -> Plan:
        return engine.Plan(
            b"not built", engine.plan_facts(conversion, options_of(order), b"", 0.0)
        )

    return compile
