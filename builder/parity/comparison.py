"""Compare the outputs of one response with one golden: all problems, and the size of the
differences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from builder.manifest import Tolerance
from builder.parity.tolerances import limits, noise_limit, scale
from builder.triton import Golden, dtypes

Array = NDArray[Any]
Arrays = Mapping[str, Array]
DEFAULT = Tolerance()


SAMPLED = 48
"""Elements of one output that a Spread has."""
EDGES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)


@dataclass(frozen=True)
class Spread:
    """Samples of one output: pairs of `expected` and `answered` elements at even distances,
    including the worst, and a histogram of the error relative to the tolerance. `counts` are the
    elements without error, then up to each of EDGES, then above the last.
    """

    expected: tuple[float, ...]
    answered: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class OutputComparison:
    """One output. Errors are the largest over all elements, each with the index of its element;
    None if nothing could be compared.

    `relative` is |output - golden| / |golden| where the golden is not zero. `cosine` is the cosine
    similarity of the two as vectors. `noise` is the root mean square of the error, relative to the
    golden's. `share` is the largest |error| / (atol + rtol * |golden|), or the share of the limit
    of the noise if that is larger: above 1 the output fails. It is infinite if an element must be
    equal and is not.
    """

    name: str
    problem: str | None = None
    absolute: float | None = None
    absolute_at: tuple[int, ...] | None = None
    relative: float | None = None
    relative_at: tuple[int, ...] | None = None
    cosine: float | None = None
    rtol: float | None = None
    atol: float | None = None
    noise: float | None = None
    share: float | None = None
    spread: Spread | None = None

    @property
    def passed(self) -> bool:
        """Whether the output has no problem."""
        return self.problem is None


@dataclass(frozen=True)
class Comparison:
    """All outputs of one response, in the golden's order, then additional ones."""

    outputs: tuple[OutputComparison, ...]

    @property
    def passed(self) -> bool:
        """Whether every output passed."""
        return all(output.passed for output in self.outputs)

    @property
    def share(self) -> float | None:
        """The largest error relative to its tolerance; None if nothing could be compared."""
        return max(
            (output.share for output in self.outputs if output.share is not None),
            default=None,
        )

    @property
    def problems(self) -> tuple[str, ...]:
        """The problems, each with the output's name."""
        return tuple(
            f"output {output.name!r}: {output.problem}"
            for output in self.outputs
            if output.problem
        )

    def as_dict(self) -> dict[str, Any]:
        """The comparison as JSON data."""
        return {
            "passed": self.passed,
            "outputs": [_output_dict(output) for output in self.outputs],
        }


def _output_dict(output: OutputComparison) -> dict[str, Any]:
    """The output as JSON data. JSON has no infinity, so an infinite share is null; `problem` then
    has the difference. The spread is only in records.
    """
    share = (
        output.share if output.share is not None and np.isfinite(output.share) else None
    )
    fields = asdict(output)
    del fields["spread"]
    return {**fields, "share": share, "passed": output.passed}


def compare(
    outputs: Arrays,
    golden: Golden | Arrays,
    tolerance: Tolerance = DEFAULT,
    *,
    precision: str = "fp32",
) -> Comparison:
    """Compare outputs by name; a missing, extra, renamed, wrong-typed, wrong-shaped or newly
    non-finite output fails.

    If `tolerance` does not set a value, the default for the output's dtype and `precision` applies
    (see tolerances). NaN passes only for NaN, an infinity only for the same one.
    """
    expected = golden.outputs if isinstance(golden, Golden) else golden
    common = [
        _output(name, outputs, expected, tolerance, precision) for name in expected
    ]
    extra = [
        OutputComparison(name, _extra(name, outputs, expected))
        for name in outputs
        if name not in expected
    ]
    return Comparison((*common, *extra))


NARROWED = {
    ("float64", "float32"),
    ("int64", "int32"),
    ("int8", "int32"),
    ("uint8", "int32"),
}
"""(module's dtype, network's dtype) if TensorRT does not support the module's dtype at endpoints
(the last two only for versions without INT8 and UINT8 endpoints). Outputs are converted back to the
module's dtype.
"""


def widened(outputs: Arrays, golden: Golden) -> dict[str, Array]:
    """The response with each output converted to the golden's dtype, if the network does not
    support that dtype.
    """
    converted = {}
    for name, array in outputs.items():
        golden_dtype = golden.outputs.get(name, array).dtype
        if (str(golden_dtype), str(array.dtype)) in NARROWED:
            array = array.astype(golden_dtype)
        converted[name] = array
    return converted


def _output(
    name: str, outputs: Arrays, expected: Arrays, tolerance: Tolerance, precision: str
) -> OutputComparison:
    if name not in outputs:
        return OutputComparison(name, _missing(name, outputs, expected))
    got = outputs[name]
    want = expected[name]
    if got.dtype != want.dtype:
        return OutputComparison(
            name, f"the element type is {got.dtype}, not {want.dtype}"
        )
    if got.shape != want.shape:
        return OutputComparison(
            name, f"the shape is {list(got.shape)}, not {list(want.shape)}"
        )
    return _values(name, got, want, tolerance, precision)


def _missing(name: str, outputs: Arrays, expected: Arrays) -> str:
    twin = _twin(expected[name], outputs, expected)
    if twin is not None:
        return f"is missing; {twin!r} has its shape and dtype"
    return "is missing"


def _extra(name: str, outputs: Arrays, expected: Arrays) -> str:
    twin = _twin(outputs[name], expected, outputs)
    if twin is not None:
        return f"is not the model's; it has the shape and dtype of the missing {twin!r}"
    return "is not the model's"


def _twin(array: Array, candidates: Arrays, others: Arrays) -> str | None:
    """The first of `candidates` that `others` lacks and that has the array's shape and dtype."""
    for name, candidate in candidates.items():
        is_like = candidate.dtype == array.dtype and candidate.shape == array.shape
        if is_like and name not in others:
            return name
    return None


def _values(
    name: str, got: Array, want: Array, tolerance: Tolerance, precision: str
) -> OutputComparison:
    known = dtypes.by_numpy(want.dtype)
    dtype = known.name if known else ""
    error, magnitude = _error(got, want)
    noise = _noise(error, want)
    rtol, atol = limits(want, dtype, tolerance, precision, name, noise)
    if not want.size:
        return OutputComparison(
            name, None, 0.0, None, 0.0, None, 1.0, rtol, atol, share=0.0
        )
    allowed = atol + rtol * magnitude
    shares = _shares(error, allowed)
    most_noise = noise_limit(dtype, tolerance, precision)
    problems = (
        _excess(got, want, error, allowed),
        _too_noisy(noise, most_noise),
    )
    return OutputComparison(
        name,
        "; ".join(filter(None, problems)) or None,
        *_largest(error),
        *_largest(_relative(error, magnitude)),
        _cosine(got, want),
        rtol,
        atol,
        noise,
        max(float(shares.max()), noise / most_noise if most_noise else 0.0),
        _spread(got, want, shares),
    )


def _relative(error: Array, magnitude: Array) -> Array:
    """The error relative to the magnitude; 0 where that is 0."""
    zeros = np.zeros_like(error)
    return np.divide(error, magnitude, out=zeros, where=magnitude > 0)


def _too_noisy(noise: float, most: float | None) -> str | None:
    if most is not None and noise > most:
        return f"the error's root mean square is {noise:.3g} of the golden's, more than {most:g}"
    return None


def _shares(error: Array, allowed: Array) -> Array:
    """Each error / allowed; 0 for an element without error, even if nothing is allowed."""
    shares = np.divide(
        error, allowed, out=np.full(error.shape, np.inf), where=allowed > 0
    )
    return np.where(error == 0, 0.0, shares)


def _spread(got: Array, want: Array, shares: Array) -> Spread:
    flat = shares.ravel()
    wrong = flat[flat > 0]
    bins = np.searchsorted(EDGES, wrong)
    counts = np.bincount(bins, minlength=len(EDGES) + 1)
    count = min(SAMPLED, flat.size)
    chosen = np.linspace(0, flat.size - 1, count).astype(np.int64)
    chosen[0] = np.argmax(flat)
    expected = want.ravel()[chosen].astype(np.float64)
    actual = got.ravel()[chosen].astype(np.float64)
    return Spread(
        tuple(expected.tolist()),
        tuple(actual.tolist()),
        (flat.size - wrong.size, *counts.tolist()),
    )


def _noise(error: Array, want: Array) -> float:
    """The noise over the elements with a finite error."""
    finite = error[np.isfinite(error)]
    if finite.size:
        return float(np.sqrt(np.mean(np.square(finite)))) / scale(want)
    return 0.0


def _error(got: Array, want: Array) -> tuple[Array, Array]:
    """|got - want| in float64, infinite where only one is finite; and |want|, zero where it is not
    finite.
    """
    actual = got.astype(np.float64)
    expected = want.astype(np.float64)
    # float64 cannot represent all int64 above 2**53, so integers are compared directly.
    same = (got == want) | (np.isnan(actual) & np.isnan(expected))
    finite = np.isfinite(actual) & np.isfinite(expected)
    infinite = np.full(actual.shape, np.inf)
    difference = np.abs(np.subtract(actual, expected, out=infinite, where=finite))
    unequal = np.maximum(difference, np.finfo(np.float64).tiny)
    error = np.where(same, 0.0, unequal)
    magnitude = np.where(np.isfinite(expected), np.abs(expected), 0.0)
    return error, magnitude


def _largest(error: Array) -> tuple[float, tuple[int, ...]]:
    """The largest error and its index."""
    at = _index_of_max(error)
    return float(error[at]), at


def _index_of_max(error: Array) -> tuple[int, ...]:
    at = int(np.argmax(error))
    return tuple(int(index) for index in np.unravel_index(at, error.shape))


def _excess(got: Array, want: Array, error: Array, allowed: Array) -> str | None:
    """The elements whose error is not allowed. None if there are none."""
    passes = error <= allowed
    if passes.all():
        return None
    at = _index_of_max(np.where(passes, 0.0, error))
    count = int((~passes).sum())
    text = (
        f"{count} of {passes.size} elements differ too much, worst at {list(at)}: {got[at]} instead"
        f" of {want[at]}"
    )
    actual = np.isfinite(got.astype(np.float64))
    recorded = np.isfinite(want.astype(np.float64))
    new = int((~actual & recorded).sum())
    if new:
        return f"{text}; {new} are not finite"
    return text


def _cosine(got: Array, want: Array) -> float | None:
    actual = got.astype(np.float64).ravel()
    expected = want.astype(np.float64).ravel()
    finite = np.isfinite(actual) & np.isfinite(expected)
    actual = actual[finite]
    expected = expected[finite]
    norms = float(np.linalg.norm(actual)) * float(np.linalg.norm(expected))
    if not norms:
        return 1.0 if np.array_equal(actual, expected) else None
    return float(np.dot(actual, expected)) / norms
