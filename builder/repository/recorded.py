"""record_goldens: record the goldens of models in the store, for builds on other machines."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from builder import pipeline, processes, unforeseen
from builder.errors import EnvironmentProblem
from builder.pipeline import Order
from builder.progress import Progress
from builder.repository import jobs as slots
from builder.repository.request import request_of
from builder.repository.result import ModelResult
from builder.repository.settings import Settings
from builder.store import Hashes, signing


def record_goldens(
    models: Path | str, settings: Settings, *, rebuild: bool = False, progress: Progress
) -> list[ModelResult]:
    """Load and lower each model of `models`, and record its goldens in `settings.store`, unless
    they exist. Returns the name, the error and the seconds of each. Nothing is built. Each model
    runs in a separate process, confined as in build_repository, which also documents the errors.
    """
    settings = replace(settings, share=True)
    orders = settings.orders(settings.specs(models), Path(models), rebuild=rebuild)
    signing.prepare()
    with Hashes() as hashes:
        orders = [replace(order, request=request_of(order, hashes)) for order in orders]
    tasks = [
        processes.Task(
            partial(perform, order),
            progress,
            limits=slots.limits(order.spec.limits),
            sandbox=slots.sandbox(order, publishes=False),
            handlers=signing.HANDLERS,
        )
        for order in orders
    ]
    results = processes.run(tasks, 1, slots.environments(), modules=slots.MODULES)
    return [
        result
        if isinstance(result, ModelResult)
        else ModelResult(order.spec.name, error=result)
        for order, result in zip(orders, results, strict=True)
    ]


def perform(order: Order, progress: Progress) -> ModelResult:
    """Record the goldens of the order; errors as in builder.repository.build.perform."""
    clock = pipeline.Clock(order.spec.name, progress)
    recorded = ModelResult(order.spec.name, seconds=clock.seconds)
    try:
        pipeline.select_environment(order)
        pipeline.record(order, clock)
    except (EnvironmentProblem, BrokenPipeError):
        raise
    except Exception as error:
        recorded.error = unforeseen.as_defect(error)
    return recorded
