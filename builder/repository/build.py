"""build_repository: every model of a folder, each built where it changed and published when its numbers hold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from builder.manifest import load as load_manifests
from builder.manifest.spec import TensorSpec
from builder.repository.result import ModelResult, Progress

if TYPE_CHECKING:
    from builder.engine import BuildOptions


def build_repository(
    models: Path | str,
    out: Path | str,
    *,
    serve_as: str = "auto",
    layout: str = "auto",
    flavour: str = "auto",
    only: Sequence[str] = (),
    inputs: Sequence[TensorSpec] = (),
    sample: Path | str | None = None,
    precision: str | None = None,
    state: str | None = None,
    options: BuildOptions | None = None,
    store: Path | str | None = None,
    rebuild: bool = False,
    jobs: int = 0,
    isolate: bool = True,
    plugins: Sequence[str] = (),
    graphs: Path | str | None = None,
    torch_steps: str = "auto",
    progress: Progress | None = None,
) -> list[ModelResult]:
    """Build every model of the folder `models` into the Triton repository `out`; the results, one a model.

    `inputs` (or the arrays of the npz `sample`) stand in for a manifest that is missing; `precision`, `state` and what
    is set of `options` override the manifests'. A model that TensorRT runs only in part is served in pieces: `layout`
    "fused" in one process, "ensemble" as a Triton ensemble, "auto" as is cheaper. `torch_steps` says what serves an
    ensemble's torch steps: "python" our runtime, "pytorch" Triton's PyTorch backend, "auto" the latter where Triton's
    own backend serves the engines beside them. A model that fails does not stop the others, and leaves what the
    repository had of it. Beside `out` a `.env` names the container that fits the plans.

    A model whose file, manifest, options and versions are those that it was published with is left as it is, which
    needs no torch; `rebuild` builds it all the same. Plans are kept in `store` (a folder or any URL of fsspec) and
    taken from there. `jobs` models are built at a time (0: as the machine allows), each in a process of its own unless
    `isolate` is False; `plugins` are Python files or modules that are imported there first. With a folder `graphs`
    every model is built, and its graph before and after each pass is written to `graphs`/<model>.

    Raises ManifestError and UsageError before anything is built, and EnvironmentProblem where this machine cannot build
    at all.
    """
    from builder.engine import BuildOptions
    from builder.engine import flavour as flavours
    from builder.repository import orders
    from builder.store import Hashes

    sample = Path(sample) if sample is not None else None
    specs = load_manifests(Path(models), only=only, inputs=inputs, sample=sample, precision=precision, state=state)
    chosen = flavours.select(flavour)
    asked = [
        orders.Order(
            spec,
            Path(out),
            serve_as,
            layout,
            chosen,
            options or BuildOptions(),
            str(store) if store else None,
            rebuild or graphs is not None,
            tuple(plugins),
            graphs=Path(graphs) if graphs is not None else None,
            torch_steps=torch_steps,
        )
        for spec in specs
    ]
    with Hashes() as hashes:
        settled = [orders.settled(order, hashes) for order in asked]
    wanted = [one for one in settled if isinstance(one, orders.Order)]
    built = iter(orders.perform(wanted, progress or _silent, jobs, isolate))
    results = [next(built) if isinstance(one, orders.Order) else one for one in settled]
    _write_env(results, Path(out))
    return results


def _write_env(results: Sequence[ModelResult], out: Path) -> None:
    """The .env of the repository, where a plan is new or there is none: it takes protobuf, which is slow to import."""
    new = any(result.ok and result.state != "unchanged" for result in results)
    if new or (any(result.ok for result in results) and not (out.resolve().parent / ".env").exists()):
        from builder.triton import write_env

        write_env(out)


def _silent(model: str, phase: str) -> None:
    pass
