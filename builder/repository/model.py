"""One model through all rooms, published only when its numbers hold."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from builder import unforeseen
from builder.errors import EnvironmentProblem
from builder.manifest.spec import ModelSpec
from builder.repository import hops, patterns, reading, reduced, stateful
from builder.repository.orders import Order
from builder.repository.result import SHOWN, ModelResult, Progress

if TYPE_CHECKING:
    from pathlib import Path

    from builder.lowering import LoweredGraph
    from builder.repository.cut import Pieces
    from builder.triton import Golden

REPORT_SECONDS = 5.0
"""How often a long build says where it is."""


def perform(order: Order, progress: Progress) -> ModelResult:
    """The model of the order, built and published; its own errors end in the result, one that
    nobody raised on purpose among them; what is in the way of every model goes through
    (EnvironmentProblem), and that nobody reads `progress`.
    """
    result = ModelResult(order.spec.name, because=order.because)
    try:
        prepare(order)
        _Build(order, result, progress).run()
        result.ok = True
    except (EnvironmentProblem, BrokenPipeError):
        raise
    except Exception as error:
        result.error = unforeseen.ours(error)
    return result


def prepare(order: Order) -> None:
    """Make this process ready for the order: its flavour, its plugins, its share of the cores.
    Raises UsageError for a builder's option that is not to be had here: a plan from the store would
    hide that it was ignored.
    """
    from builder.engine import config, flavour
    from builder.repository import orders, plugins

    flavour.select(order.flavour)
    config.check(orders.options_of(order))
    plugins.load(order.plugins)
    if order.threads:
        import torch

        torch.set_num_threads(order.threads)


class _Build:
    """The phases of one model; each is timed and told to `progress`."""

    def __init__(self, order: Order, result: ModelResult, progress: Progress) -> None:
        from builder.store import Store
        from builder.store.plans import Plans

        self.order, self.spec, self.result, self.progress = order, order.spec, result, progress
        self.plans = Plans(
            Store(order.store) if order.store else None, order.last, rebuild=order.rebuild
        )

    def run(self) -> None:
        from builder import lowering, parity
        from builder.repository import cut, single

        spec = self.spec
        with self.phase("load"):
            module = reading.load(spec)
        with self.phase("lower"):
            lowered = reading.lower(module, spec, keep_text=self.order.graphs is not None)
        if self.order.graphs is not None:
            lowering.write_sequence(lowered.trace, self.order.graphs / spec.name)
        names = spec.outputs or lowered.outputs
        with self.phase("goldens"):
            stateful.check(spec, names)
            goldens = parity.record(module, spec, names)
        if reduced.wanted(spec):
            with self.phase("calibrate"):
                fewer = reduced.reduced(spec, lowered, goldens)
            spec, lowered, self.result.quantised = (
                fewer.spec,
                fewer.lowered,
                reduced.as_data(fewer.quantised),
            )
            self.result.warnings = fewer.warnings
        spec, lowered, goldens = stateful.batch_first(spec, lowered, names, goldens)
        self.spec = spec
        with self.phase("convert"):
            found = cut.convert_or_cut(lowered, spec, names)
        idle = (
            *_unknown_modules(spec, module, lowered),
            *_unknown_operators(spec, lowered),
            *patterns.unmatched(spec, found),
        )
        self.result.warnings = (*self.result.warnings, *idle, *found.warnings)
        if isinstance(found, cut.Pieces):
            self._in_pieces(found, goldens)
            return
        with self.phase("reference"):
            hops.check_reference(found, goldens, spec)
        plan = self._build(found, "model")
        self.result.layers, self.result.plan_bytes = plan.facts["layers"], len(plan.data)
        self._publish(single.artifact(spec, found, plan, goldens, self.order.serve_as))

    def _in_pieces(self, pieces: Pieces, goldens: tuple[Golden, ...]) -> None:
        from builder.repository import arms, layouts

        inner = [] if self.order.layout == "ensemble" else list(arms.engines(pieces))
        with self.phase("reference"):
            recorded = hops.record_hops(pieces.partition, goldens, self.spec)
            for number, conversion in enumerate(pieces.conversions):
                if conversion is not None:
                    hops.check_reference(
                        conversion, recorded[number], self.spec, of=f"segment {number}"
                    )
            of_arms = arms.record(pieces, recorded, self.spec) if inner else {}
            for place, conversion in inner:
                hops.check_reference(
                    conversion, of_arms.get(place, ()), self.spec, of=arms.label(place)
                )
        plans = tuple(
            None if conversion is None else self._build(conversion, f"segment {number}")
            for number, conversion in enumerate(pieces.conversions)
        )
        arm_plans = {
            place: self._build(conversion, arms.label(place)) for place, conversion in inner
        }
        unchecked = [arms.label(place) for place in arm_plans if not of_arms.get(place)]
        self.result.warnings += tuple(
            f"no golden could run {name}: add one (goldens: ...)" for name in unchecked
        )
        cut = layouts.Cut(self.spec, pieces, plans, goldens, tuple(recorded), arm_plans)
        artifact, reason = layouts.artifact(
            cut, self.order.layout, self.order.serve_as, self.order.torch_steps
        )
        self.result.layers = sum(int(plan.facts["layers"]) for plan in cut.built)
        self.result.plan_bytes = sum(len(plan.data) for plan in cut.built)
        self.result.layout = "ensemble" if hasattr(artifact, "steps") else "fused"
        self.result.segments = tuple(segment.kind for segment in pieces.partition.segments)
        self.result.layout_reason = reason
        self._publish(artifact)

    def _build(self, conversion: Any, label: str) -> Any:
        """The plan from the store, else from TensorRT."""
        from builder import engine

        options = self.order.options
        with self.phase("build"):
            return self.plans.build(
                conversion, options, lambda: engine.build(conversion, options, self._watch()), label
            )

    def _watch(self) -> Any:
        """What TensorRT is told to call: it is heard every few seconds only."""
        last = time.monotonic()

        def report(phase: str, step: int, steps: int) -> None:
            nonlocal last
            if time.monotonic() - last > REPORT_SECONDS:
                last = time.monotonic()
                self.progress(self.spec.name, f"build: {phase} ({step} of {steps})")

        return report

    def _publish(self, artifact: Any) -> None:
        from builder import store, triton

        publish = (
            triton.publish_ensemble
            if isinstance(artifact, triton.EnsembleArtifact)
            else triton.publish
        )
        result, made = self.result, self.plans.made.values()
        with self.phase("publish"):
            result.state = "reused" if made and all(one.found for one in made) else "built"
            result.warnings = (
                *result.warnings,
                *triton.lost_batches(artifact),
                *self.plans.warnings,
            )
            shown = {name: getattr(result, name) for name in (*SHOWN, "because", "state")}

            # before it is published: another builder may publish right after
            def recorded(folder: Path) -> None:
                if self.order.edits == "keep":
                    triton.carry_over(self.order.folder, folder)
                store.record(folder, self.order.request, self.plans.record(), shown)

            result.path = publish(artifact, self.order.out, finish=recorded)
            self.plans.remember(self.spec.name, self.order.request, shown)

    @contextmanager
    def phase(self, name: str) -> Any:
        self.progress(self.spec.name, name)
        started = time.monotonic()
        yield
        before = self.result.seconds.get(name, 0.0)
        self.result.seconds[name] = round(before + time.monotonic() - started, 3)


def _unknown_modules(spec: ModelSpec, module: Any, lowered: LoweredGraph) -> Iterator[str]:
    """A name under fallback.modules that marks nothing is most likely misspelt. The modules of a
    frozen file have no names to compare with, its nodes still have.
    """
    from builder.repository import cut

    wanted = spec.fallback.modules
    named = {name for path, inner in module.named_modules() for name in (path, inner.original_name)}
    missed = (
        [name for name in wanted if name not in named] if not named.isdisjoint(wanted) else wanted
    )
    if missed and (missed is not wanted or not cut.kept_nodes(lowered)):
        yield f"fallback.modules names no module of this model: {', '.join(missed)}"


def _unknown_operators(spec: ModelSpec, lowered: LoweredGraph) -> Iterator[str]:
    """A pattern under fallback.ops that no node has is misspelt, or lowering wrote its operator in
    others.
    """
    from builder.lowering import ir
    from builder.manifest.suggest import did_you_mean

    kinds = sorted({node.kind() for node in ir.walk(lowered.graph)}) if spec.fallback.ops else []
    for pattern in patterns.idle(spec.fallback.ops, kinds):
        meant = (
            did_you_mean(pattern, kinds, otherwise_list=False)
            or "`trt-build lower` shows the lowered graph"
        )
        yield f"fallback.ops names no operator of the lowered graph: {pattern} ({meant})"
