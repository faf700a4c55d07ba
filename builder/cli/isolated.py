"""Examines each model in a confined process of its own: one that crashes fails alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from builder import processes
from builder.cli.command import describe
from builder.cli.examine import examine
from builder.cli.terminal import Progress
from builder.pipeline import Order
from builder.repository import jobs

TARGET = "builder.cli.isolated:examine_here"


def examine_all(
    asked: Sequence[Order], paranoid: bool, progress: Progress, isolate: bool = True
) -> list[dict[str, Any]]:
    """The report of each order; one whose process crashed or took too long has the reason as its
    error.
    """
    if not isolate:
        return [examine_here(order, paranoid, progress) for order in asked]
    tasks = [
        processes.Task(
            TARGET,
            (order, paranoid),
            progress,
            limits=jobs.limits(order.spec),
            sandbox=jobs.sandbox(order, publishes=False),
        )
        for order in asked
    ]
    answers = processes.run(tasks, modules=jobs.MODULES)
    return [_report(order, answer) for order, answer in zip(asked, answers, strict=True)]


def examine_here(order: Order, paranoid: bool, report: Progress) -> dict[str, Any]:
    """What is found of one model, in this process."""
    return examine(order, report, paranoid=paranoid)


def _report(order: Order, answer: Any) -> dict[str, Any]:
    if isinstance(answer, dict):
        return answer
    spec = order.spec
    return {"name": spec.name, "file": str(spec.path), "error": describe(answer), "config": None}
