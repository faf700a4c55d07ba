"""How far an answer may be from the original module's, by default: one row for each precision, one
for each element type.

An element passes where |answer - golden| <= atol + rtol * |golden|. The default atol is relative to
the size of the golden tensor (its root mean square), because the rounding error of a sum is
proportional to its terms, not to its result: a softmax over a thousand classes is not let off, and
logits of size 50 are not held to what logits of size 1 can do. A manifest's own atol is absolute,
as written.

8 bits make errors that are large where one value takes another step, and small on average; so their
rows also bound the noise: the root mean square of the error, relative to the golden's. Their atol
is five times that, which the largest of a million normal errors reaches. The reasons also stand in
docs/parity.md, which is tested against this file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from builder.manifest.spec import Tolerance

SMALLEST_SCALE = 1e-6
"""An all-zero golden still allows a rounding error of something."""


@dataclass(frozen=True)
class Row:
    """`rtol`, and `atol` and `noise` in units of the golden's root mean square; why these."""

    rtol: float
    atol: float
    reason: str
    noise: float | None = None


BY_PRECISION = {
    "fp32": Row(
        1e-4,
        1e-4,
        "other kernels sum in another order: about 1e-7 a rounding, some hundred of them in depth",
    ),
    "tf32": Row(5e-3, 5e-3, "products keep 10 bits of mantissa, 5e-4 each; sums stay in float32"),
    "fp16": Row(
        2e-2, 1e-2, "10 bits of mantissa, 5e-4 a rounding, after every layer of some dozens"
    ),
    "bf16": Row(
        8e-2, 5e-2, "7 bits of mantissa, 4e-3 a rounding, after every layer of some dozens"
    ),
    "mixed": Row(
        1e-1,
        2.5e-1,
        "only layers that keep 30 dB (3e-2) by themselves are rounded to int8; what they lose is"
        " averaged by the sums",
        5e-2,
    ),
    "int8": Row(
        1e-1,
        5e-1,
        "255 levels for an activation's whole range: 35 to 45 dB (2e-2 to 6e-3) a layer, kept"
        " through some dozens",
        1e-1,
    ),
    "fp8": Row(
        1e-1,
        5e-1,
        "3 bits of mantissa: 28 dB (4e-2) a layer, whatever the range, averaged by the sums",
        1e-1,
    ),
}
BY_DTYPE = {
    "float64": Row(
        0.0, 0.0, "TensorRT has no float64 arithmetic: the precision of the computation decides"
    ),
    "float32": Row(0.0, 0.0, "stored exactly: the precision of the computation decides"),
    "float16": Row(
        2e-3,
        1e-3,
        "the result itself is rounded to 10 bits: two roundings may differ by a unit, 1e-3",
    ),
    "bfloat16": Row(
        2e-2,
        8e-3,
        "the result itself is rounded to 7 bits: two roundings may differ by a unit, 8e-3",
    ),
}
EXACT = Row(
    0.0, 0.0, "integers and truth values are decisions: one that differs is another decision"
)


def default_tolerance(dtype: str, precision: str = "fp32") -> Tolerance:
    """rtol, and atol relative to the golden's root mean square, for an output of torch's `dtype`
    computed in `precision`.
    """
    stored = BY_DTYPE.get(dtype)
    if stored is None:
        return Tolerance(EXACT.rtol, EXACT.atol)
    computed = BY_PRECISION[precision]
    return Tolerance(max(stored.rtol, computed.rtol), max(stored.atol, computed.atol))


def limits(
    golden: NDArray[Any], dtype: str, wanted: Tolerance, precision: str
) -> tuple[float, float]:
    """(rtol, atol) for this output, both absolute numbers: the manifest's where it states them, the
    default's elsewhere.
    """
    default = default_tolerance(dtype, precision)
    scaled = (default.atol or 0.0) * scale(golden)
    return (
        wanted.rtol if wanted.rtol is not None else default.rtol or 0.0,
        wanted.atol if wanted.atol is not None else scaled,
    )


def noise_limit(dtype: str, wanted: Tolerance, precision: str) -> float | None:
    """The greatest root mean square of the error, in units of the golden's; None: any. A manifest
    that states rtol or atol has said what may differ, so only a noise that it states too is asked
    for.
    """
    if wanted.noise is not None:
        return wanted.noise
    stated = wanted.rtol is not None or wanted.atol is not None
    return None if stated or dtype not in BY_DTYPE else BY_PRECISION[precision].noise


def scale(golden: NDArray[Any]) -> float:
    """The root mean square of the finite elements."""
    values = golden.astype(np.float64)
    finite = values[np.isfinite(values)]
    size = float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0
    return max(size, SMALLEST_SCALE)
