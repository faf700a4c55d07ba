"""The cheapest precision that a model's tolerance allows: which layers must stay in float32, found
by trying.

The judge of a trial is the engine on a GPU where there is one, else the network evaluated on the
CPU in the dtypes that are written into it. Every golden is asked; the one that failed last is asked
first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from builder import processes
from builder.errors import TrtBuildError, UsageError
from builder.manifest import editing
from builder.manifest.spec import ModelSpec
from builder.repository import orders
from builder.repository.orders import Order
from builder.repository.result import Progress
from builder.repository.settings import Settings, settled

PERFORM = "builder.repository.trials:perform"
DEFAULT = "fp16"
"""What is tried where neither the manifest nor the command line asks for less than float32."""


@dataclass
class Search:
    """What was found for one model: `precision` and `keep_fp32` are to be written into its
    manifest. `layers` could have been kept, `problem` is what differs where none is, `judge`
    "engine" or "reference"; `error` tells why nothing was found.
    """

    name: str
    manifest: Path | None = None
    precision: str = ""
    keep_fp32: tuple[str, ...] = ()
    layers: int = 0
    judge: str = ""
    problem: str = ""
    trials: int = 0
    seconds: float = 0.0
    written: bool = False
    error: TrtBuildError | None = None
    tried: list[tuple[int, bool]] = field(default_factory=list)
    """For each trial how many layers were kept, and whether every golden passed."""


def wanted(spec: ModelSpec, precision: str | None) -> ModelSpec:
    """The spec as it is first tried. Raises UsageError where there is no manifest to write the
    outcome into.
    """
    if spec.manifest is None:
        raise UsageError(
            f"model {spec.name!r} has no manifest that the precision could be written into",
            fix=f"trt-build init {spec.path}",
        )
    return replace(
        spec,
        precision=precision
        or (spec.precision if spec.precision not in ("fp32", "tf32") else DEFAULT),
    )


def search_precision(
    models: Path | str,
    settings: Settings | None = None,
    *,
    out: Path | str = "model_repository",
    jobs: int = 0,
    isolate: bool = True,
    progress: Progress | None = None,
    **keywords: Any,
) -> list[Search]:
    """Find for every model of `models` the cheapest precision within its tolerance, and write it
    into its manifest.

    What is tried is the setting `precision`, else the manifest's, else fp16: first for every layer
    that the policy reduces, then with as few layers kept in float32 (`keep_fp32`) as let all
    goldens pass; fp32 where no layer can be reduced, or TensorRT would run less of the model than
    in fp32. Each is written as soon as it is found. A model that fails, with its `error`, does not
    stop the others. Settings and `keywords` are those of build_repository; nothing is published,
    but the command that reproduces a crash builds into `out`. Raises UsageError where a model has
    no manifest, or one that cannot be changed, EnvironmentProblem where it may not be, and what
    build_repository raises.
    """
    chosen = settled(settings, keywords)
    specs = [
        wanted(spec, chosen.precision) for spec in replace(chosen, precision=None).specs(models)
    ]
    for spec in specs:
        editing.check(_manifest(spec))
    asked = chosen.orders(specs, Path(out))
    return perform_all(asked, progress or (lambda model, phase: None), jobs, isolate)


def perform_all(
    asked: Sequence[Order], progress: Progress, jobs: int, isolate: bool
) -> list[Search]:
    """The searches of the orders, each in a process of its own unless told otherwise."""
    if not isolate:
        from builder.repository.trials import perform

        return [perform(order, progress) for order in asked]
    tasks = [
        processes.Task(
            PERFORM,
            (order,),
            progress,
            f"{order.reproduce} --search-precision",
            limits=orders.limits(order.spec),
            sandbox=_sandbox(order),
        )
        for order in asked
    ]
    answers = processes.run(
        tasks,
        jobs or orders.default_jobs(),
        orders.environments(),
        modules=orders.MODULES,
    )
    pairs = zip(asked, answers, strict=True)
    return [
        a if isinstance(a, Search) else Search(o.spec.name, o.spec.manifest, error=a)
        for o, a in pairs
    ]


def _sandbox(order: Order) -> processes.Sandbox:
    """A search also writes the manifest, by a new file beside it."""
    chosen = orders.sandbox(order)
    return replace(chosen, writable=(*chosen.writable, _manifest(order.spec).resolve().parent))


def _manifest(spec: ModelSpec) -> Path:
    assert spec.manifest is not None  # wanted() has seen to it
    return spec.manifest
