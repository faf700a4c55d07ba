"""The error of 8 bits on calibration data that their ranges do not come from.

Goldens are few, and a range from data saturates on larger inputs. So every fifth row of the
calibration data is run with the ranges of all other rows, in torch. The result is what to expect
for inputs that are like the data. The published ranges come from all rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from builder.manifest import ModelSpec, shared_first_axis
from builder.printable import counted

if TYPE_CHECKING:
    import torch

    from builder.lowering import LoweredGraph
    from builder.quantization import HeldOut

    Batches = Sequence[Sequence[torch.Tensor]]


def measure(
    spec: ModelSpec,
    lowered: LoweredGraph,
    trial: LoweredGraph,
    names: Sequence[str],
    batches: Batches,
) -> HeldOut:
    """Compare the quantized graph `trial` with the graph `lowered` on the batches. `names` are the
    output names.
    """
    from builder.parity import compare
    from builder.pipeline.segment_goldens import golden_of
    from builder.quantization import HeldOut

    energies: dict[str, tuple[float, float]] = {}
    problems: list[str] = []
    for batch in batches:
        expected = _named(names, lowered.run(*batch))
        outputs = _named(names, trial.run(*batch))
        comparison = compare(
            golden_of("", {}, outputs).outputs,
            golden_of("", {}, expected),
            spec.tolerance,
            precision=spec.precision,
        )
        problems += comparison.problems[:1]
        for name, tensor in expected.items():
            signal, noise = energies.get(name, (0.0, 0.0))
            more = _energies(tensor, outputs[name])
            energies[name] = (signal + more[0], noise + more[1])
    return HeldOut(
        _rows(spec, batches),
        len(batches),
        max((_relative(*energy) for energy in energies.values()), default=0.0),
        len(problems),
        next(iter(problems), ""),
    )


def warnings(spec: ModelSpec, held_out: HeldOut | None, fix: str) -> Iterator[str]:
    """A warning if requests of held-out rows exceed the tolerance."""
    if held_out is None or not held_out.beyond:
        return
    rows = counted(held_out.rows, "row")
    requests = counted(held_out.requests, "request")
    yield (
        f"{spec.precision} exceeds the tolerance in {held_out.beyond} of {requests} with {rows} of"
        " the calibration data, by the ranges of its other rows; the first:"
        f" {held_out.problem}. Expect this for inputs beyond the goldens: {fix}"
    )


def _named(
    names: Sequence[str], tensors: Sequence[torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The outputs by name. Flags of optional outputs have no name, and are left out."""
    return dict(zip(names, tensors, strict=False))


def _energies(expected: torch.Tensor, output: torch.Tensor) -> tuple[float, float]:
    """The energy of the output, and of its error, over the elements that are finite in both."""
    import torch

    if not expected.is_floating_point() or expected.shape != output.shape:
        return 0.0, 0.0
    golden, error = expected.double(), output.double() - expected.double()
    finite = torch.isfinite(error)
    return (
        float(golden[finite].square().sum()),
        float(error[finite].square().sum()),
    )


def _relative(signal: float, noise: float) -> float:
    """The root mean square of the error relative to the output's."""
    if not noise:
        return 0.0
    return math.sqrt(noise / signal) if signal else math.inf


def _rows(spec: ModelSpec, batches: Batches) -> int:
    if shared_first_axis(spec.inputs) is None:
        return len(batches)
    return sum(batch[0].shape[0] for batch in batches)
