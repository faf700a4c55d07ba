"""The goldens of each segment, and whether a network gives the same answers on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from builder.errors import ParityError
from builder.manifest import ModelSpec

if TYPE_CHECKING:
    import torch

    from builder.conversion import Conversion
    from builder.partition import Partition, Segment
    from builder.triton import Golden

Goldens = tuple["Golden", ...]


def record(
    partition: Partition, goldens: Sequence[Golden], spec: ModelSpec, *, compares: bool = True
) -> tuple[Goldens, ...]:
    """For each segment the goldens of its own inputs and outputs: torch runs the segments one after
    another on the original module's inputs. Raises ParityError where their last answers are not the
    original module's, unless `compares` is False.
    """
    chains = [_chain(partition, golden, spec, compares) for golden in goldens]
    count = len(partition.segments)
    return tuple(tuple(chain[number] for chain in chains) for number in range(count))


def _chain(partition: Partition, golden: Golden, spec: ModelSpec, compares: bool) -> list[Golden]:
    from builder import parity
    from builder.lowering import present
    from builder.parity import to_numpy, to_torch
    from builder.triton import Golden

    values = {name: to_torch(golden.inputs[name]) for name in partition.inputs}
    recorded = []
    for segment in partition.segments:
        given = {name: values[name] for name in segment.inputs}
        made = dict(zip(segment.outputs, segment.lowered.run(*given.values()), strict=True))
        values.update(made)
        recorded.append(
            Golden(
                golden.name, *({n: to_numpy(t) for n, t in side.items()} for side in (given, made))
            )
        )
    if not compares:
        return recorded
    made = {name: values[name] for name in partition.outputs}
    tensors = present(made, partition.flags, partition.too_long)
    answer = {name: to_numpy(tensor) for name, tensor in tensors.items()}
    _raise_unless(
        parity.compare(answer, golden, spec.tolerance, precision=torch_precision(spec)),
        f"golden {golden.name}: the segments, run by torch, differ from the module",
        _kinds(partition.segments),
        _random(partition.segments),
    )
    return recorded


def _random(segments: Sequence[Segment]) -> str | None:
    """The first operator that gives other numbers each time."""
    from builder.lowering import ir

    return next(
        filter(None, (ir.random_operator(segment.lowered.graph) for segment in segments)), None
    )


def _kinds(segments: Sequence[Segment]) -> str:
    return ", ".join(f"{number}.{segment.kind}" for number, segment in enumerate(segments))


def _defect() -> str:
    """What to do where the lowered graph is wrong; a pass of a plugin is named."""
    from builder import lowering

    added = [
        f"{step.name} ({step.defined_at})" for step in lowering.every_pass() if step.defined_at
    ]
    if added:
        return (
            f"a pass of a plugin may change the answer: {', '.join(added)}; `trt-build check"
            " --paranoid` names the pass"
        )
    return (
        "this is a defect of trt-build: please report it with the model's graph (`trt-build lower`)"
    )


def _raise_unless(comparison: Any, message: str, where: str, random: str | None = None) -> None:
    if not comparison.passed:
        raise ParityError(
            f"{message}: {'; '.join(comparison.problems)}",
            where=where,
            fix=(
                f"{random} gives other numbers each time, so no answer can be checked: pass them in"
                " as an input"
                if random
                else _defect()
            ),
        )


_FIX = (
    "this is a defect of a converter: please report it with what `trt-build bisect --reduce DIR`"
    " writes; `fallback` keeps the operator in torch"
)
_FIX_HALF = (
    "keep_fp32 spares layers that half cannot hold (`--search-precision` finds and writes them), or"
    " precision: fp32"
)
_FIX_8_BITS = (
    "name its layers of least SQNR (`trt-build check`) in keep_fp32, calibrate with more data or"
    " another method, or state what may be lost in tolerance: {noise: ...}"
)


def eight_bits(spec: ModelSpec) -> bool:
    """Whether rounding to 8 bits, rather than a defect, is the likely reason for a difference."""
    from builder.conversion import SCHEMES

    return spec.precision in SCHEMES


def _fix(spec: ModelSpec) -> str:
    from builder.conversion import HALF

    return _FIX_8_BITS if eight_bits(spec) else _FIX_HALF if spec.precision in HALF else _FIX


def torch_precision(spec: ModelSpec) -> str:
    """What torch's run of the lowered graph is held to: its quantizing nodes round, all else is
    float32.
    """
    return spec.precision if eight_bits(spec) else "fp32"


def check_reference(
    conversion: Conversion, goldens: Sequence[Golden], spec: ModelSpec, *, of: str = "the network"
) -> None:
    """Raise ParityError where the network, evaluated on the CPU, differs from a golden: names where
    it begins.
    """
    from builder import parity

    for golden in goldens:
        tensors = network_inputs(conversion, golden)
        answer = network_answer(conversion, tensors, golden)
        comparison = parity.compare(answer, golden, spec.tolerance, precision=spec.precision)
        if not comparison.passed:
            own = replace(golden, outputs=answer)
            nudged = network_answer(conversion, [_nudged(tensor) for tensor in tensors], golden)
            stable = parity.compare(nudged, own, spec.tolerance, precision=spec.precision)
            raise ParityError(
                f"golden {golden.name}: {of} differs from the module:"
                f" {'; '.join(comparison.problems)}",
                where=parity.first_difference(conversion, tensors),
                fix=_fix(spec) if stable.passed else AMPLIFIES,
            )


def network_inputs(conversion: Conversion, golden: Golden) -> list[torch.Tensor]:
    """The golden's inputs in the order of the network's."""
    from builder.parity import to_torch

    return [to_torch(golden.inputs[str(spec.name)]) for spec in conversion.inputs]


def network_answer(
    conversion: Conversion, tensors: Sequence[torch.Tensor], golden: Golden
) -> dict[str, Any]:
    """The outputs of the network, evaluated on the CPU, as arrays of the golden's dtypes. Raises
    NetworkEvaluationError.
    """
    from builder import reference
    from builder.parity import to_numpy, widened

    answers = reference.run(conversion, tensors)
    return widened(dict(zip(conversion.outputs, map(to_numpy, answers), strict=True)), golden)


AMPLIFIES = (
    "the model amplifies rounding: with inputs that differ by one rounding of float32 its own"
    " answers differ by more than the tolerance. Train it, give its normalization layers the"
    " statistics of real data, or state a `tolerance` in the manifest"
)


def _nudged(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with each second element changed by one rounding of float32."""
    import torch

    if not tensor.is_floating_point():
        return tensor
    signs = torch.arange(tensor.numel()).remainder(2).reshape(tensor.shape)
    return tensor * (1 + signs * torch.finfo(torch.float32).eps)
