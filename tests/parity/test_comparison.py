"""The comparison detects every difference and reports the worst element."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from builder.manifest.spec import Tolerance
from builder.parity import compare
from builder.parity.comparison import widened
from builder.parity.tolerances import (
    BY_DTYPE,
    BY_PRECISION,
    SMALLEST_SCALE,
    default_tolerance,
    largest_error,
    limits,
)
from builder.triton import Golden

GOLDEN = {
    "y": np.array([[1.0, -2.0], [3.0, 4.0]], dtype=np.float32),
    "n": np.array([1, 2], dtype=np.int64),
}


def changed(name: str, value: object) -> dict[str, np.ndarray]:
    return {**GOLDEN, name: np.asarray(value)}


def test_equal_outputs_pass_with_zero_error() -> None:
    comparison = compare(GOLDEN, GOLDEN)
    y, _ = comparison.outputs
    assert comparison.passed and comparison.problems == ()
    assert (y.absolute, y.relative) == (0, 0) and y.cosine == pytest.approx(1)


def test_missing_and_extra_outputs_fail() -> None:
    assert compare({"y": GOLDEN["y"]}, GOLDEN).problems == ("output 'n': is missing",)
    assert compare({**GOLDEN, "z": np.zeros(1)}, GOLDEN).problems == (
        "output 'z': is not the model's",
    )
    # like y, which is not missing
    assert compare({**GOLDEN, "z": GOLDEN["y"]}, GOLDEN).problems == (
        "output 'z': is not the model's",
    )


def test_renamed_output_is_reported() -> None:
    problems = compare({"y": GOLDEN["y"], "m": GOLDEN["n"]}, GOLDEN).problems
    assert (
        "'m' has its shape and dtype" in problems[0]
        and "of the missing 'n'" in problems[1]
    )


def test_wrong_dtype_and_wrong_shape_fail() -> None:
    assert (
        "float64, not float32"
        in compare(changed("y", GOLDEN["y"].astype(np.float64)), GOLDEN).problems[0]
    )
    assert (
        "[4], not [2, 2]"
        in compare(changed("y", GOLDEN["y"].ravel()), GOLDEN).problems[0]
    )


def test_worst_element_is_reported_with_both_values() -> None:
    wrong = GOLDEN["y"].copy()
    wrong[1, 0] = 3.5
    wrong[0, 0] = 1.1
    y = compare({**GOLDEN, "y": wrong}, GOLDEN).outputs[0]
    assert (y.problem or "").endswith("worst at [1, 0]: 3.5 instead of 3.0")
    assert y.absolute_at == (1, 0) and y.absolute == pytest.approx(0.5)
    assert y.relative_at == (1, 0) and y.relative == pytest.approx(0.5 / 3)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_new_nonfinite_value_fails(value: float) -> None:
    wrong = GOLDEN["y"].copy()
    wrong[0, 1] = value
    comparison = compare({**GOLDEN, "y": wrong}, GOLDEN, Tolerance(1e9, 1e9))
    assert "1 of 4 elements" in comparison.problems[0]
    assert comparison.problems[0].endswith("; 1 are not finite")
    assert not comparison.passed and comparison.share == np.inf
    # of the finite elements
    y = comparison.outputs[0]
    assert y.cosine == pytest.approx(1) and y.absolute == np.inf


def test_nan_and_infinity_match_only_themselves() -> None:
    golden = {"y": np.array([np.nan, np.inf, -np.inf, 1.0], dtype=np.float32)}
    assert compare(golden, golden).passed
    for wrong in (
        [1.0, np.inf, -np.inf, 1.0],
        [np.nan, -np.inf, -np.inf, 1.0],
        [np.nan, 9e9, -np.inf, 1.0],
    ):
        comparison = compare({"y": np.array(wrong, dtype=np.float32)}, golden)
        assert (
            "1 of 4" in comparison.problems[0] and "not" not in comparison.problems[0]
        )


def test_golden_without_finite_elements_has_no_noise_and_the_smallest_scale() -> None:
    golden = {"y": np.full(2, np.nan, np.float32)}
    (y,) = compare(golden, golden).outputs
    row = default_tolerance("float32", "fp32")
    assert y.passed and y.noise == 0.0
    assert y.atol == (row.atol or 0) * SMALLEST_SCALE
    (y,) = compare({"y": np.ones(2, np.float32)}, golden).outputs
    assert not y.passed and y.noise == 0.0


def test_cosine_of_zeros_is_known_only_if_both_are_zero() -> None:
    golden = {"y": np.zeros(2, np.float32)}
    assert compare(golden, golden).outputs[0].cosine == 1.0
    near = {"y": np.full(2, 1e-3, np.float32)}
    assert compare(near, golden).outputs[0].cosine is None


def test_spread_counts_the_errors_by_size_and_has_the_worst_first() -> None:
    golden = {"y": np.zeros(9)}
    errors = [0.0, 1e-6, 5e-6, 5e-5, 5e-4, 5e-3, 5e-2, 0.5, 2.0]
    (y,) = compare({"y": np.array(errors)}, golden, Tolerance(0.0, 1.0)).outputs
    assert y.spread is not None and y.spread.counts == (1,) * 9
    assert y.spread.answered == (2.0, *errors[1:])
    assert y.spread.expected == (0.0,) * 9


def test_outputs_are_widened_only_from_dtypes_that_stand_for_the_golden() -> None:
    golden = Golden("p0-opt", {}, {"n": GOLDEN["n"], "y": GOLDEN["y"]})
    narrow = {"n": GOLDEN["n"].astype(np.int32), "y": GOLDEN["y"].astype(np.float16)}
    outputs = widened({**narrow, "z": GOLDEN["y"]}, golden)
    dtypes = {name: str(array.dtype) for name, array in outputs.items()}
    assert dtypes == {"n": "int64", "y": "float16", "z": "float32"}
    assert compare(widened(golden.outputs, golden), golden).passed


def test_large_integers_are_compared_exactly() -> None:
    golden = {"n": np.array([2**60], dtype=np.int64)}
    assert compare(golden, golden).passed
    assert not compare({"n": np.array([2**60 + 1], dtype=np.int64)}, golden).passed


def test_one_wrong_boolean_fails() -> None:
    golden = {"b": np.array([True, False, True])}
    assert "[1]" in compare({"b": np.array([True, True, True])}, golden).problems[0]


def test_manifest_tolerance_is_absolute_and_default_is_scaled() -> None:
    golden = {"y": np.full(100, 1e-3, dtype=np.float32)}
    near = {"y": golden["y"] + np.float32(5e-5)}
    assert not compare(near, golden).passed
    assert compare(near, golden, Tolerance(rtol=0.0, atol=1e-4)).passed
    large = {"y": golden["y"] * 1e6}
    assert compare({"y": large["y"] + np.float32(0.1)}, large).passed


def test_default_tolerance_is_relative_to_each_element_and_to_the_golden() -> None:
    golden = np.array([3.0, 4.0, 0.0], np.float32)
    row = default_tolerance("float32", "fp32")
    rtol, atol = limits(golden, "float32", Tolerance(), "fp32")
    assert rtol == row.rtol > 0
    assert atol == pytest.approx((row.atol or 0) * np.sqrt(25 / 3))
    assert limits(golden, "float32", Tolerance(0.5, 0.25), "fp32") == (0.5, 0.25)
    assert limits(np.array([7]), "int64", Tolerance(), "fp32") == (0.0, 0.0)


def test_wrong_operator_exceeds_every_tolerance() -> None:
    """Another converter's test of gelu ran relu unnoticed, with a tolerance of 0.1."""
    x = np.linspace(-3, 3, 101, dtype=np.float32)
    silu = {"y": x / (1 + np.exp(-x))}
    relu = {"y": np.maximum(x, 0)}
    for precision in BY_PRECISION:
        assert not compare(relu, silu, precision=precision).passed


def test_empty_output_passes_and_has_no_index() -> None:
    golden = {"y": np.zeros((0, 4), dtype=np.float32)}
    (y,) = compare(golden, golden).outputs
    assert y.passed and y.absolute_at is None
    assert (y.absolute, y.relative, y.cosine, y.share) == (0.0, 0.0, 1.0, 0.0)


def test_scalar_output_has_the_empty_index() -> None:
    golden = {"y": np.float32(2).reshape(())}
    (y,) = compare({"y": np.float32(3).reshape(())}, golden).outputs
    assert not y.passed and y.absolute_at == ()


def test_as_dict_is_json() -> None:
    import json

    assert json.loads(json.dumps(compare({}, GOLDEN).as_dict()))["passed"] is False
    wrong = {"y": GOLDEN["y"] + np.float32(0.5), "n": GOLDEN["n"] + 1}
    comparison = compare(wrong, GOLDEN)
    y, n = json.loads(json.dumps(comparison.as_dict(), allow_nan=False))["outputs"]
    assert y["share"] == comparison.outputs[0].share > 1
    assert np.isinf(comparison.outputs[1].share) and n["share"] is None


def test_coarser_precision_has_no_smaller_tolerance() -> None:
    order = ["fp32", "tf32", "fp16", "bf16"]
    rtols = [default_tolerance("float32", precision).rtol or 0 for precision in order]
    assert rtols == sorted(rtols)
    assert default_tolerance("int64", "int8") == Tolerance(0.0, 0.0)


@pytest.mark.parametrize("precision", ["int8", "fp8", "mixed"])
def test_noise_is_limited_even_if_every_element_passes(precision: str) -> None:
    """Every element is within its tolerance, but an error of 20 % everywhere is too much noise."""
    golden = {"y": np.where(np.arange(1000) % 2, 1.0, -1.0).astype(np.float32)}
    output = {"y": (golden["y"] + np.float32(0.2)).astype(np.float32)}
    comparison = compare(output, golden, precision=precision)
    assert "root mean square is 0.2 of the golden's" in comparison.problems[0]
    assert comparison.outputs[0].noise == pytest.approx(0.2)
    near = {"y": (golden["y"] + np.float32(0.04)).astype(np.float32)}
    assert compare(near, golden, precision=precision).passed


def _noisy(precision: str, level: float) -> tuple[np.ndarray, np.ndarray]:
    """A normal golden of two channels for each of four rows, and an output with normal errors of
    this share of the precision's noise.
    """
    rng = np.random.default_rng(0)
    golden = rng.standard_normal((4, 2, 64, 64))
    noise = level * (BY_PRECISION[precision].noise or 0)
    errors = rng.standard_normal(golden.shape) * noise
    return golden.astype(np.float32), (golden + errors).astype(np.float32)


def _shifted_line(output: np.ndarray) -> None:
    output[1, 1, 5] = np.roll(output[1, 1, 5], 1)


def _other_row(output: np.ndarray) -> None:
    output[2] = output[1]


def _swapped_channels(output: np.ndarray) -> None:
    output[:] = output[:, ::-1].copy()


def _wrong_element(output: np.ndarray) -> None:
    output[2, 0, 3, 9] += 0.45  # less than five times the noise of int8


NOISY = ["bf16", "mixed", "int8", "fp8"]


@pytest.mark.parametrize("precision", NOISY)
@pytest.mark.parametrize("level", [0.1, 0.95])
@pytest.mark.parametrize("mutate", [_shifted_line, _other_row, _swapped_channels])
def test_wrong_rows_and_channels_fail_at_any_allowed_noise(
    precision: str, level: float, mutate: Callable[[np.ndarray], None]
) -> None:
    golden, output = _noisy(precision, level)
    assert compare({"y": output}, {"y": golden}, precision=precision).passed
    mutate(output)
    assert not compare({"y": output}, {"y": golden}, precision=precision).passed


@pytest.mark.parametrize("precision", NOISY)
def test_one_wrong_element_fails_where_the_others_have_little_noise(
    precision: str,
) -> None:
    golden, output = _noisy(precision, 0.1)
    _wrong_element(output)
    (y,) = compare({"y": output}, {"y": golden}, precision=precision).outputs
    assert not y.passed and y.absolute_at == (2, 0, 3, 9)


@pytest.mark.parametrize(
    ("precision", "noise", "largest"), [("fp8", 0.0933, 0.562), ("bf16", 0.0122, 0.06)]
)
def test_the_largest_error_of_many_elements_may_be_six_times_their_noise(
    precision: str, noise: float, largest: float
) -> None:
    """U-Nets in fp8 and bf16, with the noise and largest error of their segmentation."""
    golden, output = _noisy(precision, noise / (BY_PRECISION[precision].noise or 1))
    golden[0, 0, 0, 0], output[0, 0, 0, 0] = 0.0, largest
    assert compare({"y": output}, {"y": golden}, precision=precision).passed


def test_more_elements_may_have_a_larger_error() -> None:
    few, many = (largest_error(0.1, 0.1, count) for count in (40, 10**6))
    assert few == pytest.approx(0.592, abs=1e-3)
    assert many == pytest.approx(1.077, abs=1e-3)
    assert largest_error(0.0, 0.1, 40) == pytest.approx(few / 5)
    assert largest_error(0.3, 0.1, 40) == few


def test_the_share_includes_that_of_the_noise() -> None:
    golden, output = _noisy("int8", 0.95)
    (y,) = compare({"y": output}, {"y": golden}, precision="int8").outputs
    assert y.share == pytest.approx((y.noise or 0) / 0.1) and 0.9 < y.share < 1


def test_manifest_limits_the_noise() -> None:
    golden = {"y": np.ones(100, dtype=np.float32)}
    output = {"y": golden["y"] * np.float32(1.2)}
    assert compare(output, golden, Tolerance(noise=0.3), precision="int8").passed
    assert not compare(output, golden, Tolerance(rtol=1.0, noise=0.1)).passed
    assert compare(output, golden, Tolerance(rtol=1.0), precision="int8").passed
    exact = {"y": golden["y"] * np.float32(1.25)}
    assert compare(exact, golden, Tolerance(rtol=1.0, noise=0.25)).passed


@pytest.mark.parametrize(
    ("arithmetic", "passes", "fails"),
    [("tf32", "tf32", "fp32"), ("fp16", "fp16", "fp32"), ("bf16", "bf16", "tf32")],
)
def test_each_precision_accepts_its_rounding_but_no_coarser_one(
    arithmetic: str, passes: str, fails: str
) -> None:
    """A product of 512 terms with operands rounded to the precision; TF32 does not pass as fp32."""
    import torch

    from benchmarks.tolerances import rounded

    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(512, 512, generator=generator) for _ in range(2))
    golden = {"y": (x @ w).numpy()}
    output = {"y": (rounded(x, arithmetic) @ rounded(w, arithmetic)).numpy()}
    assert compare(output, golden, precision=passes).passed
    assert not compare(output, golden, precision=fails).passed


def test_only_outputs_that_16_bits_reach_have_their_tolerance() -> None:
    golden = {name: np.ones(4, np.float32) for name in ("full", "half")}
    outputs = {name: array * np.float32(1 + 2**-10) for name, array in golden.items()}
    tolerance = Tolerance(rounded={"half": "float16"})
    full, half = compare(outputs, golden, tolerance).outputs
    assert not full.passed and half.passed
    stated = replace(tolerance, rtol=1e-4, atol=1e-4)
    assert not any(one.passed for one in compare(outputs, golden, stated).outputs)


def test_documentation_has_every_tolerance_with_its_reason() -> None:
    from pathlib import Path

    text = (Path(__file__).parents[2] / "docs" / "parity.md").read_text()
    for name, row in BY_PRECISION.items():
        atol = f"{row.atol:g}" if row.atol else "by noise"
        noise = "" if row.noise is None else f"{row.noise:g}"
        assert f"| {name} | {row.rtol:g} | {atol} | {noise} | {row.reason} |" in text
    for name, row in BY_DTYPE.items():
        assert f"| {name} | {row.rtol:g} | {row.atol:g} | {row.reason} |" in text
