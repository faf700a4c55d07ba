"""Default tolerances: one row for each precision, one for each output dtype.

An element passes if |answer - golden| <= atol + rtol * |golden|. The default atol is relative to
the golden's root mean square, because the rounding error of a sum is proportional to its terms, not
to its result. An absolute number would be too loose for a softmax over a thousand classes and too
strict for logits around 50. An atol in a manifest is absolute, as written.

With 8 bits, an element may be off by a whole quantization step while the average error is small. So
their rows also bound the noise: the root mean square of the error, relative to the golden's. Their
atol is five times that, which the largest of a million normally distributed errors reaches.
docs/parity.md contains the same rows; a test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from builder.manifest import Tolerance

SMALLEST_SCALE = 1e-6
"""The scale of an all-zero golden, so that it allows a small rounding error."""


@dataclass(frozen=True)
class Row:
    """`rtol`, `atol` and `noise`, and the reason. `atol` and `noise` are in units of the golden's
    root mean square.
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
        "7 bits of mantissa, 4e-3 for each rounding, after every one of some dozens of layers",
    ),
    "mixed": Row(
        1e-1,
        2.5e-1,
        "only layers with an SQNR of at least 30 dB (3e-2) use int8; sums average their errors",
        5e-2,
    ),
    "int8": Row(
        1e-1,
        5e-1,
        "255 levels for an activation's whole range: 35 to 45 dB (2e-2 to 6e-3) for each of some"
        " dozens of layers",
        1e-1,
    ),
    "fp8": Row(
        1e-1,
        5e-1,
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
) -> tuple[float, float]:
    """(rtol, atol) for the output `name`, both absolute: the manifest's values, else the
    default's.
    """
    default = default_tolerance(dtype, precision, tolerance.rounded.get(name))
    scaled = (default.atol or 0.0) * scale(golden)
    return (
        tolerance.rtol if tolerance.rtol is not None else default.rtol or 0.0,
        tolerance.atol if tolerance.atol is not None else scaled,
    )


def noise_limit(dtype: str, tolerance: Tolerance, precision: str) -> float | None:
    """The largest root mean square of the error, in units of the golden's; None: no limit.

    A manifest that states rtol or atol switches the default noise limit off.
    """
    if tolerance.noise is not None:
        return tolerance.noise
    stated = tolerance.rtol is not None or tolerance.atol is not None
    if stated or dtype not in BY_DTYPE:
        return None
    return BY_PRECISION[precision].noise


def scale(golden: NDArray[Any]) -> float:
    """The root mean square of the finite elements."""
    values = golden.astype(np.float64)
    finite = values[np.isfinite(values)]
    size = 0.0
    if finite.size:
        size = float(np.sqrt(np.mean(np.square(finite))))
    return max(size, SMALLEST_SCALE)
