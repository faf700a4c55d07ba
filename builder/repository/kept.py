"""Checked artifacts that one run keeps for variants of the model with other serving settings.

The number of instances and the dynamic batching settings affect only config.pbtxt. Variants that
differ only in these have the same networks, plans, goldens and checks. The first variant is built;
later ones are published from its artifact.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder import store, triton
from builder.manifest import Batching, ModelSpec
from builder.repository.result import SHOWN, ModelResult

if TYPE_CHECKING:
    from builder.triton import EnsembleArtifact, ModelArtifact

INSTANCES = "instances"
BATCHING = "batching"
BATCHER = ("max_queue_delay_us", "preferred", "graphs")
"""Dynamic batching settings that affect only config.pbtxt."""


@dataclass(frozen=True)
class KeptArtifacts:
    """The artifact files in `folder`. `digests` has the SHA-256 of the files that this run wrote
    after their checks. Other files are not used.
    """

    folder: Path
    digests: dict[str, str] = field(default_factory=dict)

    def read(self, request: Mapping[str, Any]) -> Checked | None:
        """The artifact of a request that differs only in serving settings. None if there is none,
        or the file has changed since this run wrote it.
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
        artifact = pickle.loads(data)
        return artifact if isinstance(artifact, Checked) else None

    def writable(self) -> Path:
        """The folder, which a worker may write to. Created if missing."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder.resolve()

    def write(self, request: Mapping[str, Any], checked: Checked) -> dict[str, str]:
        """Write the artifact. Returns the update of `digests` for the main process."""
        data = pickle.dumps(checked, protocol=pickle.HIGHEST_PROTOCOL)
        (self.writable() / _name(request)).write_bytes(data)
        return {_name(request): hashlib.sha256(data).hexdigest()}


@dataclass(frozen=True)
class Checked:
    """An artifact that passed its checks. `plans` are the plans in the model's record, `result` the
    recorded fields of its ModelResult. `warnings` exclude those of the config, which depend on
    the batching settings.
    """

    artifact: ModelArtifact | EnsembleArtifact
    plans: Mapping[str, Any]
    result: Mapping[str, Any]
    warnings: tuple[str, ...]

    def warnings_of(
        self, artifact: ModelArtifact | EnsembleArtifact
    ) -> tuple[str, ...]:
        """The warnings of the same artifact with other batching settings."""
        return (*self.warnings, *triton.config_warnings(artifact))


def of_variant(
    artifact: ModelArtifact | EnsembleArtifact,
    plans: Mapping[str, Any],
    result: ModelResult,
    warnings: Sequence[str],
) -> Checked:
    """The Checked of a published variant, with the `warnings` of its build."""
    of_config = triton.config_warnings(artifact)
    remaining = tuple(warning for warning in warnings if warning not in of_config)
    return Checked(
        artifact, plans, {name: getattr(result, name) for name in SHOWN}, remaining
    )


def _name(request: Mapping[str, Any]) -> str:
    """The file name for all requests with the same networks, plans and goldens."""
    parts = {key: value for key, value in request.items() if key != INSTANCES}
    batching = request[BATCHING].items()
    parts[BATCHING] = {key: value for key, value in batching if key not in BATCHER}
    return store.digest(parts)


def served_as(
    artifact: ModelArtifact | EnsembleArtifact, spec: ModelSpec
) -> ModelArtifact | EnsembleArtifact:
    """The artifact with the instances and dynamic batching of another spec of the same model."""
    changed = replace(artifact.spec, instances=spec.instances, batching=spec.batching)
    if not isinstance(artifact, triton.EnsembleArtifact):
        return replace(artifact, spec=changed)
    steps = tuple(
        replace(
            step,
            spec=replace(
                step.spec, instances=spec.instances, batching=_of_step(step, spec)
            ),
        )
        for step in artifact.steps
    )
    return replace(artifact, spec=changed, steps=steps)


def _of_step(step: ModelArtifact, spec: ModelSpec) -> Batching:
    """The settings for a step, as in `pipeline.ensembles`: a step that cannot batch has no dynamic
    batching.
    """
    settings = step.spec.batching
    if settings.enabled is False:
        return settings
    return replace(spec.batching, enabled=None)
