"""Runs the warm-up requests of a model's config before publication. A failed warm-up makes Triton
refuse the model when it is loaded, and may crash the server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from builder import parity, triton
from builder.errors import TrtBuildError, summary
from builder.pipeline.execution import LoadedFiles, Runner

if TYPE_CHECKING:
    from builder.triton import EnsembleArtifact, Golden, ModelArtifact


def confirm(
    artifact: ModelArtifact | EnsembleArtifact, files: LoadedFiles, *, engines: bool
) -> tuple[ModelArtifact | EnsembleArtifact, tuple[str, ...]]:
    """The artifact without the warm-up requests that fail, and a warning for each of them. With
    `engines` the plans, which need a GPU, also run them. Raises the errors of triton.config.
    """
    if not isinstance(artifact, triton.EnsembleArtifact):
        return _confirmed(artifact, files, engines=engines)
    confirmed = [_confirmed(step, files, engines=engines) for step in artifact.steps]
    steps = tuple(step for step, _ in confirmed)
    return replace(artifact, steps=steps), tuple(
        text for _, texts in confirmed for text in texts
    )


def _confirmed(
    artifact: ModelArtifact, files: LoadedFiles, *, engines: bool
) -> tuple[ModelArtifact, tuple[str, ...]]:
    failed = dict(_failures(artifact, files, engines=engines))
    warnings = tuple(
        f"{artifact.spec.name} is served without the warm-up request {name}, which fails: {reason}"
        for name, reason in failed.items()
    )
    return replace(artifact, no_warmup=frozenset(failed)), warnings


def _failures(
    artifact: ModelArtifact, files: LoadedFiles, *, engines: bool
) -> Iterator[tuple[str, str]]:
    """The name of each warm-up request that fails, and the reason. The goldens have passed."""
    import torch

    runners = [Runner(artifact, files)]
    if engines:
        runners.append(Runner(artifact, files, engines=True))
    message = triton.config(artifact, provenance=False)
    for name, inputs in triton.warmup_requests(artifact, message):
        if any(_equal(inputs, golden) for golden in artifact.goldens):
            continue
        try:
            for run in runners:
                run.evaluate(inputs)
        except (TrtBuildError, RuntimeError, IndexError, torch.jit.Error) as error:
            yield name, summary(error)


def _equal(inputs: Mapping[str, NDArray[Any]], golden: Golden) -> bool:
    return all(
        parity.same_bits(array, golden.inputs[name]) for name, array in inputs.items()
    )
