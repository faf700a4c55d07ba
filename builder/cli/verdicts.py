"""The output of `trt-build verify`: a line for each model, and failures grouped by cause."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.cli.terminal import Terminal
from builder.report import percent

if TYPE_CHECKING:
    from builder.parity import GoldenResult, ModelParity

COLUMNS = ("result", "model", "of tolerance", "p50 ms", "p99 ms", "answered by")
NUMBERS = COLUMNS[2:5]
ROW_COLUMNS = (
    *("result", "golden", "protocol"),
    *("of tolerance", "abs error", "cosine", "p50 ms", "p95 ms"),
)
ROW_NUMBERS = ROW_COLUMNS[3:]
NAMES_SHOWN = 4


@dataclass(frozen=True)
class Failure:
    """One failure. `where` is a golden and its protocol, or "" for the whole model."""

    model: str
    where: str
    problem: str


def show(terminal: Terminal, models: Sequence[ModelParity]) -> None:
    """Print a line for each model, the reasons for torch, the failures by cause, and the summary.
    With --verbose, first print a table of all responses of each model.
    """
    if terminal.verbose:
        for model in models:
            terminal.line(f"{model.name}, answered by {runner(model)}", bold=True)
            rows = [row(result) for result in model.results]
            terminal.table(ROW_COLUMNS, rows, numbers=ROW_NUMBERS)
    terminal.table(COLUMNS, [_line(model) for model in models], numbers=NUMBERS)
    for text in _reasons(models):
        terminal.line(text)
    for text in _failures(models):
        terminal.line(text, color="red")
    passed = all(model.passed for model in models)
    terminal.line(summary(models), color="green" if passed else "red")


def answered_by(models: Sequence[ModelParity]) -> dict[str, int]:
    """The number of models by what ran them: "plan", "plan+torch", "torch", "unknown"."""
    counts = Counter(model.answered_by or "unknown" for model in models)
    return {kind: counts[kind] for kind in sorted(counts)}


def summary(models: Sequence[ModelParity]) -> str:
    """`22 passed, 1 failed; 0 by a plan, 23 by torch: no GPU`."""
    passed = sum(model.passed for model in models)
    failed = ""
    if passed < len(models):
        failed = f", {len(models) - passed} failed"
    counts = {"plan": 0, "torch": 0, **answered_by(models)}
    phrases = {
        "plan": "by a plan",
        "torch": "by torch",
        "plan+torch": "by plans and torch",
    }
    kinds = [
        f"{count} {phrases.get(kind, 'by unknown')}"
        for kind, count in counts.items()
        if count or kind != "torch"
    ]
    return f"{passed} passed{failed}; {', '.join(kinds)}{_no_gpu(models)}"


def _no_gpu(models: Sequence[ModelParity]) -> str:
    """The reason, if all plans that did not run have the same reason."""
    unexecuted = {model.device for model in models if model.plan_not_executed}
    return ": no GPU" if unexecuted == {"cpu"} else ""


def _line(model: ModelParity) -> list[str]:
    return [
        "ok" if model.passed else "FAILED",
        model.name,
        percent(model.share),
        number(model.percentile(50), ".2f"),
        number(model.percentile(99), ".2f"),
        runner(model),
    ]


def _reasons(models: Sequence[ModelParity]) -> Iterator[str]:
    """Yield why torch ran, once for all models with the same reason."""
    groups: dict[tuple[bool, str, str], list[str]] = defaultdict(list)
    for model in models:
        by_plan = "plan" in (model.answered_by or "")
        if model.why and (model.plan_not_executed or not by_plan):
            groups[model.plan_not_executed, runner(model), model.why].append(model.name)
    for (unexecuted, source, why), names in groups.items():
        plan = "plan not executed, " if unexecuted else ""
        yield f"{_names(names)}: {plan}answered by {source}: {why}"


def _names(names: Sequence[str]) -> str:
    listed = ", ".join(names[:NAMES_SHOWN])
    if len(names) <= NAMES_SHOWN:
        return listed
    return f"{listed} and {len(names) - NAMES_SHOWN} more"


def failures(models: Sequence[ModelParity]) -> Iterator[Failure]:
    """All failures, by model."""
    for model in models:
        yield from (Failure(model.name, "", problem) for problem in model.problems)
        for result in model.results:
            where = f"{result.golden}, {result.protocol}"
            yield from (
                Failure(model.name, where, problem) for problem in result.problems
            )


def cause(problem: str) -> str:
    """The problem without numbers and names, which differ between failures with the same cause."""
    bare = re.sub(r"'[^']*'", "'...'", problem)
    return re.sub(r"[-+]?\d[\d.,]*(e[-+]?\d+)?|\bnan\b|\binf\b", "#", bare)


def _failures(models: Sequence[ModelParity]) -> Iterator[str]:
    """Yield for each cause the number of failures, the models, and one example."""
    groups: dict[str, list[Failure]] = defaultdict(list)
    for failure in failures(models):
        groups[cause(failure.problem)].append(failure)
    for group in groups.values():
        first = group[0]
        example = ", ".join(filter(None, (first.model, first.where)))
        if len(group) > 1:
            names = list(dict.fromkeys(failure.model for failure in group))
            yield f"FAILED {_names(names)}: {len(group)} times the same cause; for example:"
        yield f"FAILED {example}: {first.problem}"


def runner(model: ModelParity) -> str:
    """What answered for a model, with its device, such as `torch (cpu)`."""
    name = model.answered_by or "unknown"
    if model.device:
        return f"{name} ({model.device})"
    return name


def row(result: GoldenResult) -> list[str]:
    """The row of the output with the largest error in one response."""
    outputs = result.comparison.outputs if result.comparison else ()
    errors = [output.absolute for output in outputs if output.absolute is not None]
    cosines = [output.cosine for output in outputs if output.cosine is not None]
    return [
        "ok" if result.passed else "FAILED",
        result.golden,
        result.protocol,
        percent(result.comparison.share if result.comparison else None),
        number(max(errors, default=None), ".2e"),
        number(min(cosines, default=None), ".7f"),
        number(result.median_ms, ".2f"),
        number(result.p95_ms, ".2f"),
    ]


def number(value: float | None, form: str) -> str:
    """The value in this format; "" for None."""
    if value is None:
        return ""
    return format(value, form)
