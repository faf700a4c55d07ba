"""What one run has built and checked, kept for variants of the model that only Triton runs
otherwise.

The number of instances and the settings of the dynamic batcher are written into config.pbtxt alone.
Variants that differ in nothing else have the same networks, plans, goldens and checks. The first of
them is built; each later one is published from its artifact.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder import store
from builder.manifest import Batching, ModelSpec
from builder.repository.result import SHOWN, ModelResult

if TYPE_CHECKING:
    from builder.triton import EnsembleArtifact, ModelArtifact

INSTANCES, BATCHING = "instances", "batching"
BATCHER = ("max_queue_delay_us", "preferred", "graphs")
"""Settings of the dynamic batcher that only config.pbtxt has."""


@dataclass(frozen=True)
class Kept:
    """The files in `folder`, each with one artifact: `digests` has the SHA-256 of those that this
    run has written after their checks. Others are not used.
    """

    folder: Path
    digests: dict[str, str] = field(default_factory=dict)

    def read(self, request: Mapping[str, Any]) -> Checked | None:
        """What was built from a request that differs in the settings of serving alone; None where
        there is none, or where the file is not as this run wrote it.
        """
        name = _name(request)
        if name not in self.digests:
            return None
        try:
            data = (self.folder / name).read_bytes()
        except OSError:
            return None
        if hashlib.sha256(data).hexdigest() != self.digests[name]:
            return None
        found = pickle.loads(data)
        return found if isinstance(found, Checked) else None

    def writable(self) -> Path:
        """The folder, which a worker may write to; made if it is missing."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder.resolve()

    def write(self, request: Mapping[str, Any], checked: Checked) -> dict[str, str]:
        """Keep it; what `digests` is to be updated with, by the process that began the run."""
        data = pickle.dumps(checked, protocol=pickle.HIGHEST_PROTOCOL)
        (self.writable() / _name(request)).write_bytes(data)
        return {_name(request): hashlib.sha256(data).hexdigest()}


@dataclass(frozen=True)
class Checked:
    """An artifact that passed its checks. `plans` is what the model's record has of its plans,
    `result` the fields of its ModelResult that are recorded; `warnings` are without those of CUDA
    graphs, which the batcher's settings decide.
    """

    artifact: ModelArtifact | EnsembleArtifact
    plans: Mapping[str, Any]
    result: Mapping[str, Any]
    warnings: tuple[str, ...]

    def warnings_of(self, artifact: ModelArtifact | EnsembleArtifact) -> tuple[str, ...]:
        """Those of the same artifact with other settings of the batcher."""
        from builder import triton

        return (*self.warnings, *triton.graph_warnings(artifact))


def of_variant(
    artifact: ModelArtifact | EnsembleArtifact,
    plans: Mapping[str, Any],
    result: ModelResult,
    warnings: Sequence[str],
) -> Checked:
    """What is kept of a variant that was published, with the `warnings` of its build."""
    from builder import triton

    of_config = triton.graph_warnings(artifact)
    rest = tuple(warning for warning in warnings if warning not in of_config)
    return Checked(artifact, plans, {name: getattr(result, name) for name in SHOWN}, rest)


def _name(request: Mapping[str, Any]) -> str:
    """The file of all requests that have the same networks, plans and goldens."""
    rest = {key: value for key, value in request.items() if key != INSTANCES}
    rest[BATCHING] = {k: v for k, v in request[BATCHING].items() if k not in BATCHER}
    return store.digest(rest)


def served_as(
    artifact: ModelArtifact | EnsembleArtifact, spec: ModelSpec
) -> ModelArtifact | EnsembleArtifact:
    """The artifact of another spec of the same model: with its instances and its batcher."""
    from builder.triton import EnsembleArtifact

    changed = _served_as(artifact.spec, spec.instances, spec.batching)
    if not isinstance(artifact, EnsembleArtifact):
        return replace(artifact, spec=changed)
    steps = tuple(
        replace(step, spec=_served_as(step.spec, spec.instances, _of_step(step, spec)))
        for step in artifact.steps
    )
    return replace(artifact, spec=changed, steps=steps)


def _served_as(spec: ModelSpec, instances: int, batching: Batching) -> ModelSpec:
    return replace(spec, instances=instances, batching=batching)


def _of_step(step: ModelArtifact, spec: ModelSpec) -> Batching:
    """As `pipeline.ensembles` gives it to a step: a step that cannot batch has no batcher."""
    own = step.spec.batching
    return own if own.enabled is False else replace(spec.batching, enabled=None)
