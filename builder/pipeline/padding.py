"""Verify the padding of a manifest's `pad` before publication.

Each golden that is shorter than the longest is padded to its sizes and run as it will be served.
The cropped outputs must equal the golden's within the tolerance. A model whose padding is not
verified is published without it, with a warning: Triton then batches only requests of the same
length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from builder import parity, triton
from builder.errors import ParityError, TrtBuildError, summary
from builder.pipeline import segment_goldens
from builder.pipeline.execution import LoadedFiles, Runner

if TYPE_CHECKING:
    from builder.triton import EnsembleArtifact, Golden, ModelArtifact, Padding


def confirm(
    artifact: ModelArtifact | EnsembleArtifact, files: LoadedFiles, *, engines: bool
) -> tuple[ModelArtifact | EnsembleArtifact, tuple[str, ...]]:
    """The artifact with the padding of its manifest, or without it and with a warning. With
    `engines` the plans, which need a GPU, are also run on the padded goldens.
    """
    if isinstance(artifact, triton.EnsembleArtifact) or not artifact.spec.pad:
        return artifact, ()
    try:
        return replace(
            artifact, padding=_confirmed(artifact, files, engines=engines)
        ), ()
    except (TrtBuildError, RuntimeError, IndexError) as error:
        return artifact, (f"`pad` is not used: {summary(error)}",)


def _confirmed(
    artifact: ModelArtifact, files: LoadedFiles, *, engines: bool
) -> Padding:
    choice = triton.batching.choose(artifact)
    if choice.max_batch_size < 2:
        raise ParityError(f"Triton does not batch the model: {choice.reason}")
    padding = triton.padding.declared(artifact.spec, artifact.goldens)
    longest, shorter = _shorter(padding, artifact.goldens)
    spec = artifact.spec
    runners = [(Runner(artifact, files), segment_goldens.torch_precision(spec))]
    if engines:
        runners.append((Runner(artifact, files, engines=True), spec.precision))
    for runner, precision in runners:
        for golden in shorter:
            _compare(runner, padding, golden, longest, precision)
    return padding


def _shorter(
    padding: Padding, goldens: Sequence[Golden]
) -> tuple[dict[str, int], list[Golden]]:
    """The longest lengths, and the goldens that are padded to them. Raises ParityError if there are
    none.
    """
    sizes = [padding.sizes(golden) for golden in goldens]
    longest = {axis: max(lengths[axis] for lengths in sizes) for axis in sizes[0]}
    shorter = [
        golden
        for golden, lengths in zip(goldens, sizes, strict=True)
        if lengths != longest and not padding.has_empty_row(golden)
    ]
    if not shorter:
        raise ParityError(
            "every golden has the longest length, or a row with padding only, so"
            " nothing shows that padding is safe"
        )
    return longest, shorter


def _compare(
    run: Runner,
    padding: Padding,
    golden: Golden,
    longest: dict[str, int],
    precision: str,
) -> None:
    """Raise ParityError if the outputs for the padded golden differ."""
    outputs = run.evaluate(padding.padded(golden.inputs, longest))
    sizes = padding.sizes(golden)
    comparison = parity.compare(
        parity.widened(padding.cropped(outputs, sizes), golden),
        golden,
        run.artifact.spec.tolerance,
        precision=precision,
    )
    if not comparison.passed:
        spans = ", ".join(
            f"{axis} from {sizes[axis]} to {size}" for axis, size in longest.items()
        )
        raise ParityError(
            f"golden {golden.name}, padded along {spans}, has other outputs:"
            f" {'; '.join(comparison.problems)}"
        )
