"""Compare one network in one precision with torch in float32 on the CPU, by the rules of
builder.parity.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import builder
from builder.engine import BuildOptions, build
from builder.parity.arrays import to_numpy
from builder.parity.comparison import Comparison, compare, widened
from builder.triton.artifact import Golden
from tests.conversion import old
from tests.networks import rivals
from tests.networks.comparing import (
    Network,
    eager_of,
    flat,
    inputs_of,
    scripted_of,
    specs_of,
)

FACTOR = 4
"""An output beyond the tolerance is excused if torch's own error (rivals.py) is, too, and the
engine's error is at most this many times as large. Both errors are the same roundings in another
order, amplified by the same weights. So their noise is similar, and the largest error of some
thousand elements differs by a small factor.
"""
SHIFT = 1.0
"""The shift of batch norms in standard deviations: five of six values pass the next rectifier.
Around 0, where one of two passes, every block of random weights amplifies a perturbation by a fifth
(Yang et al. 2019, "A Mean Field Theory of Batch Normalization"). After fifty blocks this exceeds
what half precision can represent. Trained networks do not amplify like this.
"""


@dataclass(frozen=True)
class Error:
    """The largest share of the tolerance of an element (infinite for another integer, shape or
    NaN), and the root mean square of the error relative to that of the output.
    """

    share: float
    noise: float

    def __or__(self, other: Error) -> Error:
        return Error(max(self.share, other.share), max(self.noise, other.noise))

    def within(self, other: Error) -> bool:
        """Whether it is at most FACTOR times the other."""
        return self.share <= FACTOR * other.share and self.noise <= FACTOR * other.noise


def judge(
    network: Network, mode: str, precision: str, by: str = "engine", level: int = 0
) -> dict[str, Any]:
    """The fields of a row: layers, seconds, the largest `share` and `noise` over all shapes and
    outputs, and the `result`.

    `level` is TensorRT's builder optimization level. With `by` "reference" the reference runs on
    the CPU instead of an engine. Raises the errors of conversion, build and run.
    """
    eager = eager_of(network, SHIFT)
    module = scripted_of(network, eager, mode)
    cases = [inputs_of(network, i) for i in range(len(network.cases))]
    with torch.no_grad():
        truth = [[t.clone() for t in flat(module(*case))] for case in cases]
    started = time.perf_counter()
    conversion = builder.convert(module, specs_of(network), precision=precision)
    converted = time.perf_counter()
    row: dict[str, Any] = {
        "layers": conversion.network.num_layers,
        "convert": round(converted - started, 2),
    }
    outputs = _answers(conversion, cases, by, level, row)
    compared = [
        _compared(conversion, a, t, precision)
        for a, t in zip(outputs, truth, strict=True)
    ]
    errors = _errors(compared, outputs, truth)
    row |= _figures(errors)
    if all(c.passed for c in compared):
        return row | {"result": "passed"}
    row["problem"] = next(c.problems[0] for c in compared if not c.passed)[:300]
    excused = _excused(errors, conversion, eager, cases, truth, precision)
    if any("are not finite" in problem for c in compared for problem in c.problems):
        excused["result"] = (
            "another answer"  # whatever torch does: what overflows is no rounding
        )
    return row | excused


def play_8_6() -> None:
    """Convert for TensorRT 8.6 from now on in this process (tests/conversion/old.py)."""
    old.play(pytest.MonkeyPatch())


def _answers(
    conversion: Any, cases: Sequence[Any], by: str, level: int, row: dict[str, Any]
) -> list[list[torch.Tensor]]:
    """The outputs at each of the cases, in the conversion's order."""
    if by == "reference":
        return [list(builder.reference.run(conversion, list(case))) for case in cases]
    from builder.engine.run import Engine

    plan = build(conversion, BuildOptions(optimization_level=level))
    row["build"] = round(plan.facts["build_seconds"], 2)
    with Engine(plan.data) as engine:
        named = [
            dict(
                zip(
                    engine.outputs,
                    engine(*_ordered(conversion, engine, case)),
                    strict=True,
                )
            )
            for case in cases
        ]
    return [[output[name] for name in conversion.outputs] for output in named]


def _ordered(
    conversion: Any, engine: Any, case: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """The inputs in the engine's order; TensorRT 8.6 lists them in a different order."""
    inputs = {
        spec.name: tensor for spec, tensor in zip(conversion.inputs, case, strict=True)
    }
    return [inputs[name] for name in engine.inputs]


def _compared(
    conversion: Any, output: Sequence[Any], truth: Sequence[Any], precision: str
) -> Comparison:
    golden = Golden("", {}, _named(conversion, truth))
    return compare(
        widened(_named(conversion, output), golden), golden, precision=precision
    )


def _named(conversion: Any, tensors: Sequence[torch.Tensor]) -> dict[str, Any]:
    return {
        name: to_numpy(tensor)
        for name, tensor in zip(conversion.outputs, tensors, strict=True)
    }


def _errors(
    compared: Sequence[Comparison], results: Any, truth: Any
) -> dict[str, Error]:
    """The largest error of each output over the cases."""
    errors: dict[str, Error] = {}
    for comparison, outputs, expected in zip(compared, results, truth, strict=True):
        for output, got, want in zip(
            comparison.outputs, outputs, expected, strict=True
        ):
            errors[output.name] = errors.get(output.name, Error(0.0, 0.0)) | _error(
                output, to_numpy(got), to_numpy(want)
            )
    return errors


def _error(output: Any, got: Any, want: Any) -> Error:
    if output.rtol is None or got.shape != want.shape:
        return Error(math.inf, math.inf)
    wrong, size = np.abs(got.astype(np.float64) - want), np.abs(want.astype(np.float64))
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(same, 0.0, wrong / (output.atol + output.rtol * size))
    return Error(
        float(np.nan_to_num(shares, nan=np.inf, posinf=np.inf).max(initial=0.0)),
        output.noise or 0.0,
    )


def _figures(errors: dict[str, Error], whose: str = "") -> dict[str, Any]:
    largest = Error(
        max(e.share for e in errors.values()), max(e.noise for e in errors.values())
    )
    return {
        f"{whose}share": _number(largest.share),
        f"{whose}noise": _number(largest.noise),
    }


def _number(value: float) -> float | None:
    """The value with three digits; None for an infinity, which JSON does not have."""
    return float(f"{value:.3g}") if math.isfinite(value) else None


def _excused(
    errors: dict[str, Error],
    conversion: Any,
    eager: Any,
    cases: Any,
    truth: Any,
    precision: str,
) -> dict[str, Any]:
    """The verdict on errors beyond the tolerance: "fp16 itself" if torch exceeds it, too, and the
    error of every such output is within FACTOR of torch's.
    """
    name, variants = rivals.variants(eager, cases, precision)
    own: dict[str, Error] = {}
    for variant_errors in variants:
        compared = [
            _compared(conversion, a, t, precision)
            for a, t in zip(variant_errors, truth, strict=True)
        ]
        variant_error = _errors(compared, variant_errors, truth)
        own = {n: own.get(n, error) | error for n, error in variant_error.items()}
    excused = all(
        e.share <= 1 or (own[n].share > 1 and e.within(own[n]))
        for n, e in errors.items()
    )
    return _figures(own, "own_") | {
        "own": name,
        "result": f"{precision} itself" if excused else "another answer",
    }
