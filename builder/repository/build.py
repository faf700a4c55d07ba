"""build_repository: every model of a folder, each built where it changed and published when its
numbers hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from builder.repository.result import ModelResult, Progress
from builder.repository.settings import Settings, settled


def build_repository(
    models: Path | str,
    out: Path | str,
    settings: Settings | None = None,
    *,
    rebuild: bool = False,
    jobs: int = 0,
    isolate: bool = True,
    graphs: Path | str | None = None,
    progress: Progress | None = None,
    **keywords: Any,
) -> list[ModelResult]:
    """Build every model of the folder `models` into the Triton repository `out`; the results, one a
    model.

    The fields of Settings (serve_as, layout, torch_steps, flavour, only, inputs, sample, precision,
    state, options, store, plugins) may be given as `keywords`, which stand over `settings`.

    A model whose file, manifest, options and versions are those that it was published with is left
    as it is, which needs no torch; `rebuild` builds it all the same. One that fails does not stop
    the others, and leaves what the repository had of it. `jobs` models are built at a time (0: as
    the machine allows), each in a process of its own unless `isolate` is False. With a folder
    `graphs` every model is built, and its graph before and after each pass is written to
    `graphs`/<model>. Beside `out` a `.env` names the container that fits the plans.

    Raises ManifestError and UsageError before anything is built (also for `serve_as` tensorrt_plan
    with TensorRT for RTX, whose plans Triton's backend does not load), and EnvironmentProblem where
    this machine cannot build at all, or not write to `out`.
    """
    from builder.repository import orders, places, targets
    from builder.store import Hashes, signing, tidy

    chosen = settled(settings, keywords)
    asked = chosen.orders(
        chosen.specs(models),
        Path(out),
        rebuild=rebuild or graphs is not None,
        graphs=Path(graphs) if graphs is not None else None,
    )
    tidy(Path(out))
    if chosen.store:
        signing.prepare()  # workers may not write where the key is kept
    with Hashes() as hashes:
        found = [orders.settled(order, hashes) for order in asked]
    wanted = [one for one in found if isinstance(one, orders.Order)]
    if wanted:
        places.check(Path(out))
    for order in wanted:
        if order.spec.triton:  # with protobuf, which an unchanged model needs not
            from builder.triton import section

            section.parsed(order.spec)
    built = iter(orders.perform(wanted, progress or _silent, jobs, isolate))
    results = [next(built) if isinstance(one, orders.Order) else one for one in found]
    for order, result in zip(asked, results, strict=True):
        elsewhere = targets.missing(
            order.options.over(order.spec.build), order.flavour, models, out
        )
        result.warnings = (*result.warnings, *elsewhere)
    _write_env(results, Path(out))
    return results


def _write_env(results: Sequence[ModelResult], out: Path) -> None:
    """The .env of the repository, where a plan is new or there is none: it takes protobuf, which is
    slow to import.
    """
    new = any(result.ok and result.state != "unchanged" for result in results)
    if new or (
        any(result.ok for result in results) and not (out.resolve().parent / ".env").exists()
    ):
        from builder.triton import write_env

        write_env(out)


def _silent(model: str, phase: str) -> None:
    pass
