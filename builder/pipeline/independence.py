"""Run a model's files with rows that no golden has, before Triton may batch its requests.

A batch joins the requests of several clients. Goldens have ordinary values, so they do not show a
bound that only a large value exceeds, or how far a NaN reaches. Here the other rows of a batch are
NaN, infinite, large, zero or equal to the golden's row. Full batches are run, too, and those whose
size is near a number that the graph compares with a size. If the row's answer changes, requests are
not batched. Nor are they if a row of the largest golden has another answer alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from builder import lowering, manifest, parity, triton
from builder.errors import TrtBuildError
from builder.pipeline import ensembles, segment_goldens
from builder.pipeline.execution import LoadedFiles, Runner

if TYPE_CHECKING:
    import torch

    from builder.triton import EnsembleArtifact, ModelArtifact

    Tensors = dict[str, torch.Tensor]
    Positions = tuple[tuple[int, int], ...]
    """How many other rows are before a row in a batch, and how many are after it."""

MAX_SECONDS = 30.0
"""No further kind of rows is tried after this time. Each kind runs the model two to five times."""
_LARGE = 1e4
"""The factor of large values. Most are finite in float16."""
_FAILURES = (RuntimeError, IndexError, TrtBuildError)
"""What a run of unusual rows may raise."""
_ROUNDING = 2.0**-22
"""The relative change of a row that shows whether its answer is stable."""
_ROWS = 8
"""Maximum number of a golden's rows that are run alone."""
_HALVES = frozenset({"float16", "bfloat16"})
_OF_SIZES = frozenset(
    f"aten::{name}" for name in "gt ge lt le eq ne remainder floordiv".split()
)
"""Operators on two integers whose results may differ for the sizes of two batches."""


def confirm(
    artifact: ModelArtifact | EnsembleArtifact, files: LoadedFiles
) -> ModelArtifact | EnsembleArtifact:
    """The artifact with the reason not to batch it (`row_dependence`), if a row's answer depends on
    the other rows. Each step of an ensemble is tested. `batching: {enabled: true}` in the manifest
    leaves out the test.
    """

    if artifact.spec.batching.enabled:
        return artifact
    if not isinstance(artifact, triton.EnsembleArtifact):
        return _confirmed(artifact, files)
    steps = []
    for step in artifact.steps:
        confirmed = _confirmed(step, files)
        if confirmed.row_dependence:
            # With `preferred`, choosing a batch size for it would raise UsageError.
            unbatched = replace(
                confirmed.spec, batching=manifest.Batching(enabled=False)
            )
            confirmed = replace(confirmed, spec=unbatched)
        steps.append(confirmed)
    axes = {axis for profile in artifact.profiles for axis in profile}
    batched = ensembles.batched(steps, artifact.spec.batching, axes)
    return replace(artifact, steps=tuple(batched))


def _confirmed(artifact: ModelArtifact, files: LoadedFiles) -> ModelArtifact:
    most = triton.batching.choose(artifact).max_batch_size
    if most < 2:
        return artifact
    return replace(
        artifact, row_dependence=_dependence(artifact, Runner(artifact, files), most)
    )


def _dependence(artifact: ModelArtifact, run: Runner, most: int) -> str | None:
    """Why the answer to a row depends on the rows beside it, or None."""
    golden_inputs = artifact.goldens[0].inputs
    row = {name: parity.to_torch(array)[:1] for name, array in golden_inputs.items()}
    try:
        alone = run(row)
    except _FAILURES:
        return None
    started = time.monotonic()
    for condition, other, positions in _batches(artifact, run, row, most):
        name = _dependent_output(run, row, alone, other, positions)
        if name is not None:
            return (
                f"output {name!r} of a row depends on its batch's other rows,"
                f" {condition}"
            )
        if time.monotonic() - started > MAX_SECONDS:
            return None
    return _dependence_in_golden(artifact, run, most)


def _dependence_in_golden(
    artifact: ModelArtifact, run: Runner, most: int
) -> str | None:
    """Why a row of the largest golden has another answer alone, or None."""
    goldens = ([*golden.inputs.items()] for golden in artifact.goldens)
    largest = max(goldens, key=lambda arrays: len(arrays[0][1]))
    inputs = {name: parity.to_torch(array)[:most] for name, array in largest}
    size = min(most, len(largest[0][1]))
    steps = _ROWS - 1
    try:
        joined = run(inputs)
        for position in sorted({(size - 1) * n // steps for n in range(_ROWS)}):
            at = slice(position, position + 1)
            row = {name: tensor[at] for name, tensor in inputs.items()}
            alone = run(row)
            answer = {name: tensor[at] for name, tensor in joined.items()}
            name = _beyond_tolerance(run, answer, alone, slice(None))
            if name and _is_stable(run, row, alone):
                return f"output {name!r} of a row is another one in a batch of {size}"
    except _FAILURES:
        pass
    return None


def _batches(
    artifact: ModelArtifact, run: Runner, row: Tensors, most: int
) -> Iterator[tuple[str, Tensors, Positions]]:
    """Batches with `row`: a description, the other row, and the positions."""
    positions = ((1, 1),) if most > 2 else ((1, 0), (0, 1))
    others = _others(artifact, row, with_nan=not _calls_libraries(run))
    for kind, other in _distinct(others):
        yield f"if these are {kind}", other, positions
    golden_inputs = artifact.goldens[0].inputs
    last = {name: parity.to_torch(array)[-1:] for name, array in golden_inputs.items()}
    for size in _sizes(artifact, run, most):
        yield f"in a batch of {size}", last, ((1, size - 2),)


def _sizes(artifact: ModelArtifact, run: Runner, most: int) -> list[int]:
    """The sizes of batches that may be computed in another way than those of 3 rows: the largest,
    and those near a number that the files compare with a size.
    """
    # larger ones may exceed the memory
    recorded = max(len(array) for g in artifact.goldens for array in g.inputs.values())
    largest = min(most, recorded)
    sizes = {largest}
    graphs: list[Any] = [module.inlined_graph for module in run.files.modules.values()]
    for node in (node for graph in graphs for node in lowering.ir.walk(graph)):
        if node.kind() in _OF_SIZES:
            numbers = [value.toIValue() for value in node.inputs()]
            integers = [number for number in numbers if type(number) is int]
            sizes |= {number + step for number in integers for step in (-1, 0, 1)}
    return sorted(size for size in sizes if 3 < size <= largest)


def _dependent_output(
    run: Runner, row: Tensors, alone: Tensors, other: Tensors, positions: Positions
) -> str | None:
    """The first output that changes if `row` and `other` are one batch, or None. `alone` is the
    answer to the row. A batch that fails does not count: the runtime then runs each request by
    itself.
    """
    try:
        of_other = alone if other is row else run(other)
    except _FAILURES:
        return None
    for before, after in positions:
        try:
            joined = run(_joined(other, row, before, after))
        except _FAILURES:
            continue
        for output, tensor in alone.items():
            if tensor.shape[1:] != of_other[output].shape[1:]:
                return output  # such as rows that are padded to the longest
        expected = _joined(of_other, alone, before, after)
        own_row = slice(before, before + 1)
        if name := _different(joined, expected, own_row):
            return name
        name = _beyond_tolerance(run, joined, expected, own_row)
        if name and _is_stable(run, row, alone):
            return name
        name = _different(joined, expected, slice(None))
        if name and _is_stable(run, other, of_other):
            return name
    return None


def _different(answer: Tensors, expected: Tensors, rows: slice) -> str | None:
    """The first output that differs in these rows."""
    for name, tensor in expected.items():
        if len(answer[name]) != len(tensor) or not triton.same_rows(
            parity.to_numpy(answer[name][rows]), parity.to_numpy(tensor[rows])
        ):
            return name
    return None


def _beyond_tolerance(
    run: Runner, answer: Tensors, expected: Tensors, rows: slice
) -> str | None:
    """The first output whose difference in these rows exceeds the model's tolerance. None for a
    model with 16-bit numbers, whose kernels for two batch sizes may round differently.
    """

    artifact = run.artifact
    tolerance = artifact.spec.tolerance
    if tolerance.rounded or _HALVES & {
        io.dtype for io in (*artifact.inputs, *artifact.outputs)
    }:
        return None
    compared = parity.compare(
        {name: parity.to_numpy(answer[name][rows]) for name in expected},
        {name: parity.to_numpy(tensor[rows]) for name, tensor in expected.items()},
        tolerance,
        precision=segment_goldens.torch_precision(artifact.spec),
    )
    return next((one.name for one in compared.outputs if not one.passed), None)


def _is_stable(run: Runner, row: Tensors, answer: Tensors) -> bool:
    """Whether rounding of the inputs does not change the answer. Large values may amplify it."""
    try:
        nudged_answer = run(_changed_floats(row, _nudged, row))
    except _FAILURES:
        return False
    every_row = slice(None)
    return (
        _different(nudged_answer, answer, every_row) is None
        and _beyond_tolerance(run, nudged_answer, answer, every_row) is None
    )


def _nudged(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with every second element a little greater, and the others less."""
    import torch

    signs = 1 - 2 * (torch.arange(tensor.numel()) % 2).reshape(tensor.shape)
    return tensor * (1 + _ROUNDING * signs).to(tensor.dtype)


def _calls_libraries(run: Runner) -> bool:
    """Whether the files call operators of a library, which may crash on NaN."""
    graphs: list[Any] = [module.inlined_graph for module in run.files.modules.values()]
    return any(
        not node.kind().startswith(("aten::", "prim::", "quantized::"))
        for graph in graphs
        for node in lowering.ir.walk(graph)
    )


def _joined(other: Tensors, row: Tensors, before: int, after: int) -> Tensors:
    """The row between `before` and `after` copies of another."""
    import torch

    return {
        name: torch.cat([other[name]] * before + [tensor] + [other[name]] * after)
        for name, tensor in row.items()
    }


def _changed_floats(
    row: Tensors, change: Callable[[torch.Tensor], torch.Tensor], other: Tensors
) -> Tensors:
    """The row with changed floating-point tensors, and all others of `other`."""
    return {
        name: change(tensor) if tensor.is_floating_point() else other[name]
        for name, tensor in row.items()
    }


def _others(
    artifact: ModelArtifact, row: Tensors, *, with_nan: bool
) -> Iterator[tuple[str, Tensors]]:
    """Rows to be run beside `row`, each with a description. Integers stay between those of the
    goldens, because larger ones may be sizes or trip counts. Without `with_nan` all values are
    finite.
    """
    import torch

    spans = {name: _span(artifact, name) for name in row}

    def bounds(position: int, truth: bool) -> Tensors:
        """Zeros, integers at one end of the goldens' span, and booleans of one truth."""
        tensors = {}
        for name, tensor in row.items():
            value = spans[name][position]
            if tensor.is_floating_point():
                value = 0.0
            elif tensor.dtype == torch.bool:
                value = truth
            tensors[name] = torch.full_like(tensor, value)
        return tensors

    floats = partial(_changed_floats, row)
    least, greatest = bounds(0, truth=False), bounds(1, truth=True)
    yield "equal to it", row
    yield "large", floats(lambda t: t.abs() * _LARGE, greatest)
    yield "large and negative", floats(lambda t: t.abs() * -_LARGE, least)
    yield "zero", least
    if with_nan:
        for kind, value in (("NaN", math.nan), ("infinite", math.inf)):
            yield kind, floats(partial(torch.full_like, fill_value=value), row)


def _distinct(rows: Iterator[tuple[str, Tensors]]) -> Iterator[tuple[str, Tensors]]:
    """The rows that differ from all earlier ones: without floating-point inputs, NaN and infinite
    rows do not.
    """
    seen: list[Tensors] = []
    for kind, row in rows:
        equal = (
            all(
                parity.same_bits(
                    parity.to_numpy(tensor), parity.to_numpy(earlier[name])
                )
                for name, tensor in row.items()
            )
            for earlier in seen
        )
        if not any(equal):
            seen.append(row)
            yield kind, row


def _span(artifact: ModelArtifact, name: str) -> tuple[Any, Any]:
    """The least and the greatest value of an input in the goldens."""
    arrays: list[NDArray[Any]] = [golden.inputs[name] for golden in artifact.goldens]
    filled = [array for array in arrays if array.size]
    least = min((array.min() for array in filled), default=0)
    return least, max((array.max() for array in filled), default=0)
