"""Default tolerances: one row for each precision, one for each output dtype.

An element passes if |output - golden| <= atol + rtol * |golden|. The default atol is relative to
the golden's root mean square, because the rounding error of a sum is proportional to its terms, not
to its result. An absolute number would be too loose for a softmax over a thousand classes and too
strict for logits around 50. An atol in a manifest is absolute, as written.

With 8 bits, an element may be off by a whole quantization step while the average error is small. So
their rows limit the noise: the root mean square of the error, relative to the golden's. The atol of
an element follows from the noise of its output and the number of elements (see largest_error).
docs/parity.md contains the same rows; a test compares the two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from builder.manifest import Tolerance

SMALLEST_SCALE = 1e-6
"""The scale of an all-zero golden, so that it allows a small rounding error."""
UNEVEN = 2.0
"""The largest error of an output, relative to the largest of as many normally distributed errors
with the same noise. Correct networks reach 1.7, because their noise is not the same everywhere. The
other experts that tokens get in 8 bits start at 4 (docs/parity.md).
"""
LEAST_NOISE = 0.2
"""The least noise that limits single elements, as a share of the limit of the noise. Below it, a
few quantization steps are most of the error.
"""


@dataclass(frozen=True)
class Row:
    """`rtol`, `atol` and `noise`, and the reason. `atol` and `noise` are in units of the golden's
    root mean square.

    With `noise` and without `atol`, an output of more noise fails. With both, only an output of at
    most that noise may have larger errors than `atol`.
    """

    rtol: float
    atol: float
    reason: str
    noise: float | None = None


BY_PRECISION = {
    "fp32": Row(
        1e-4,
        1e-4,
        "kernels add in another order: about 1e-7 for each rounding, some hundred roundings in "
        "sequence",
    ),
    "tf32": Row(
        5e-3, 5e-3, "products keep 10 bits of mantissa, 5e-4 each; sums stay in float32"
    ),
    "fp16": Row(
        2e-2,
        1e-2,
        "10 bits of mantissa, 5e-4 for each rounding, after every one of some dozens of layers",
    ),
    "bf16": Row(
        8e-2,
        5e-2,
        "7 bits of mantissa, 4e-3 for each rounding, after every one of some dozens of layers;"
        " their errors add up to a few times that",
        2e-2,
    ),
    "mixed": Row(
        1e-1,
        0.0,
        "only layers with an SQNR of at least 30 dB (3e-2) use int8; sums average their errors",
        5e-2,
    ),
    "int8": Row(
        1e-1,
        0.0,
        "255 levels for an activation's whole range: 35 to 45 dB (2e-2 to 6e-3) for each of some"
        " dozens of layers",
        1e-1,
    ),
    "fp8": Row(
        1e-1,
        0.0,
        "3 bits of mantissa: 28 dB (4e-2) for each layer, whatever the range; sums average the"
        " errors",
        1e-1,
    ),
}
BY_DTYPE = {
    "float64": Row(
        0.0,
        0.0,
        "TensorRT has no float64 arithmetic: the precision of the computation decides",
    ),
    "float32": Row(
        0.0, 0.0, "stored exactly: the precision of the computation decides"
    ),
    "float16": Row(
        2e-3,
        1e-3,
        "the result is rounded to 10 bits: two roundings may differ by one unit, 1e-3",
    ),
    "bfloat16": Row(
        2e-2,
        8e-3,
        "the result is rounded to 7 bits: two roundings may differ by one unit, 8e-3",
    ),
}
EXACT = Row(0.0, 0.0, "integers and truth values are decisions and must be equal")


def default_tolerance(
    dtype: str, precision: str, rounded: str | None = None
) -> Tolerance:
    """The tolerance for an output of torch's `dtype` that was computed in `precision`, from results
    that the model itself rounds to the dtype `rounded`.

    `atol` is relative to the golden's root mean square.
    """
    stored = BY_DTYPE.get(dtype)
    if stored is None:
        return Tolerance(EXACT.rtol, EXACT.atol)
    rows = [stored, BY_PRECISION[precision]]
    if rounded in BY_DTYPE:
        rows.append(BY_DTYPE[rounded])
    return Tolerance(max(row.rtol for row in rows), max(row.atol for row in rows))


def limits(
    golden: NDArray[Any],
    dtype: str,
    tolerance: Tolerance,
    precision: str,
    name: str = "",
    noise: float = 0.0,
) -> tuple[float, float]:
    """(rtol, atol) for the output `name`, both absolute: the manifest's values, else the
    default's. `noise` is that of the output.
    """
    default = default_tolerance(dtype, precision, tolerance.rounded.get(name))
    relative = default.atol or 0.0
    if dtype in BY_DTYPE:
        explained = _explained(precision, tolerance, noise, golden.size)
        relative = max(relative, explained)
    return (
        tolerance.rtol if tolerance.rtol is not None else default.rtol or 0.0,
        tolerance.atol if tolerance.atol is not None else relative * scale(golden),
    )


def _explained(precision: str, tolerance: Tolerance, noise: float, count: int) -> float:
    """The error of an element that the noise of its output explains. 0 if the row of the precision
    has no noise, or if it has an atol and the output more noise.
    """
    row = BY_PRECISION[precision]
    if row.noise is None:
        return 0.0
    if row.atol:
        return largest_error(noise, row.noise, count) if noise <= row.noise else 0.0
    bound = row.noise if tolerance.noise is None else tolerance.noise
    return largest_error(noise, bound, count)


def largest_error(noise: float, bound: float, count: int) -> float:
    """The largest error of one of `count` elements that this noise explains, where the noise is
    limited to `bound`. All are in units of the golden's root mean square.

    The largest of n normally distributed errors is about sqrt(2 ln 2n) times their noise. UNEVEN is
    for noise that is not the same everywhere.
    """
    explained = min(max(noise, LEAST_NOISE * bound), bound)
    return UNEVEN * math.sqrt(2 * math.log(2 * max(count, 1))) * explained


def noise_limit(dtype: str, tolerance: Tolerance, precision: str) -> float | None:
    """The largest root mean square of the error, in units of the golden's; None: no limit.

    A manifest that states rtol or atol switches the default noise limit off.
    """
    if tolerance.noise is not None:
        return tolerance.noise
    stated = tolerance.rtol is not None or tolerance.atol is not None
    if stated or dtype not in BY_DTYPE:
        return None
    row = BY_PRECISION[precision]
    return None if row.atol else row.noise


def scale(golden: NDArray[Any]) -> float:
    """The root mean square of the finite elements."""
    values = golden.astype(np.float64)
    finite = values[np.isfinite(values)]
    size = 0.0
    if finite.size:
        size = float(np.sqrt(np.mean(np.square(finite))))
    return max(size, SMALLEST_SCALE)
