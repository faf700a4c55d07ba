"""Resize and grid sample, sample by sample from the formulas of IResizeLayer's documentation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from builder import reference
from builder.engine import capabilities
from builder.engine.flavor import trt
from builder.errors import NetworkEvaluationError
from networks import closely, constant, evaluate, exactly, network_of

COORDINATES = ["ALIGN_CORNERS", "ASYMMETRIC", "HALF_PIXEL"]
ROUNDINGS = {
    "HALF_UP": lambda x: math.floor(x + 0.5),
    "HALF_DOWN": lambda x: math.ceil(x - 0.5),
    "FLOOR": math.floor,
    "CEIL": math.ceil,
}


def resized(
    mode,
    shape=None,
    scales=None,
    coordinates="ASYMMETRIC",
    rounding="FLOOR",
    **settings,
):
    def build(net, x):
        layer = net.add_resize(x)
        layer.resize_mode = getattr(trt.InterpolationMode, mode)
        layer.coordinate_transformation = getattr(
            trt.ResizeCoordinateTransformation, coordinates
        )
        layer.nearest_rounding = getattr(trt.ResizeRoundMode, rounding)
        for name, value in settings.items():
            setattr(layer, name, value)
        if scales is not None:
            layer.scales = scales
        elif shape is not None:
            layer.shape = shape
        return layer

    return build


def place(coordinates, x, origin, resized):
    return {
        "ALIGN_CORNERS": lambda: x * (origin - 1) / (resized - 1),
        "ASYMMETRIC": lambda: x * (origin / resized),
        "HALF_PIXEL": lambda: (x + 0.5) * (origin / resized) - 0.5,
    }[coordinates]()


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize(("origin", "length"), [(4, 8), (8, 4), (5, 3), (3, 7), (6, 9)])
def test_nearest_resize(coordinates, rounding, origin, length):
    x = torch.arange(float(origin)).reshape(1, 1, 1, origin)
    at = [
        ROUNDINGS[rounding](np.float32(place(coordinates, i, origin, length)))
        for i in range(length)
    ]
    expected = x[..., [min(max(i, 0), origin - 1) for i in at]]
    build = resized(
        "NEAREST", (1, 1, 1, length), coordinates=coordinates, rounding=rounding
    )
    exactly(evaluate(build, x), expected)


def taps(mode, at, a):
    """(index, weight) of each sample that contributes at a coordinate."""
    base = math.floor(at)
    if mode == "LINEAR":
        return [(base, 1 - (at - base)), (base + 1, at - base)]

    def weight(d):
        d = abs(d)
        if d <= 1:
            return ((a + 2) * d - (a + 3)) * d * d + 1
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a if d < 2 else 0.0

    return [(base + i, weight(at - base - i)) for i in range(-1, 3)]


def interpolated(line, length, mode, coordinates, a=-0.75, exclude=False):
    out = []
    for i in range(length):
        pairs = taps(mode, place(coordinates, i, len(line), length), a)
        if exclude:
            pairs = [(j, w) for j, w in pairs if 0 <= j < len(line)]
            pairs = [(j, w / sum(w for _, w in pairs)) for j, w in pairs]
        out.append(sum(line[min(max(j, 0), len(line) - 1)] * w for j, w in pairs))
    return np.array(out)


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("mode", ["LINEAR", "CUBIC"])
@pytest.mark.parametrize(("height", "width"), [(6, 9), (3, 2), (4, 7)])
def test_linear_and_cubic_resize(mode, coordinates, height, width):
    x = np.random.default_rng(2).standard_normal((1, 2, 4, 5)).astype(np.float32)
    rows = np.apply_along_axis(
        interpolated, 2, x.astype(np.float64), height, mode, coordinates
    )
    expected = np.apply_along_axis(
        interpolated, 3, rows, width, mode, coordinates
    ).astype(np.float32)
    build = resized(mode, (1, 2, height, width), coordinates=coordinates)
    closely(evaluate(build, torch.from_numpy(x)), expected, atol=2e-6)


def test_cubic_resize_with_custom_coefficient_excludes_outside():
    x = np.random.default_rng(3).standard_normal((1, 1, 4, 4)).astype(np.float32)
    settings = ("CUBIC", "HALF_PIXEL", -0.5, True)
    rows = np.apply_along_axis(interpolated, 2, x.astype(np.float64), 7, *settings)
    expected = np.apply_along_axis(interpolated, 3, rows, 6, *settings).astype(
        np.float32
    )
    build = resized(
        "CUBIC",
        (1, 1, 7, 6),
        coordinates="HALF_PIXEL",
        cubic_coeff=-0.5,
        exclude_outside=True,
    )
    closely(evaluate(build, torch.from_numpy(x)), expected, atol=2e-6)


def test_trilinear_resize_and_float16():
    x = torch.rand(1, 1, 2, 3, 4)
    build = resized("LINEAR", (1, 1, 4, 6, 8), coordinates="HALF_PIXEL")
    expected = torch.nn.functional.interpolate(x, size=(4, 6, 8), mode="trilinear")
    closely(evaluate(build, x), expected)
    assert evaluate(build, x.half()).dtype == torch.float16


def test_scaled_sizes_are_rounded_down():
    x = torch.arange(10.0).reshape(1, 1, 2, 5)
    # 8.6 computes places by the scale itself, not by the lengths that it gives
    ran = capabilities.current().has_int64
    result = evaluate(resized("NEAREST", scales=[1, 1, 1.5, 1.3]), x, ran=ran)
    exactly(result, x[:, :, [0, 0, 1]][:, :, :, [0, 0, 1, 2, 3, 4]])


def test_second_input_sets_the_resized_shape():
    def build(net, x):
        layer = net.add_resize(x)
        layer.set_input(1, constant(net, [1, 1, 4, 2]))
        return layer

    x = torch.arange(8.0).reshape(1, 1, 2, 4)
    exactly(evaluate(build, x), x[:, :, [0, 0, 1, 1]][:, :, :, [0, 2]])


@pytest.mark.parametrize(("selector", "expected"), [("FORMULA", 1.5), ("UPPER", 0.0)])
def test_single_pixel_follows_the_resize_selector(selector, expected):
    x = torch.arange(4.0).reshape(1, 1, 1, 4)
    settings = {"selector_for_single_pixel": getattr(trt.ResizeSelector, selector)}
    exactly(
        evaluate(
            resized("LINEAR", (1, 1, 1, 1), coordinates="HALF_PIXEL", **settings), x
        ),
        [[[[expected]]]],
    )


def test_nearest_resize_accepts_int8_and_rejects_int32():
    x = torch.arange(4, dtype=torch.int8).reshape(1, 1, 2, 2)
    if not capabilities.current().has_int64:
        pytest.skip("8.6 has INT8 between quantizations alone")
    exactly(
        evaluate(resized("NEAREST", (1, 1, 4, 4)), x),
        x.repeat_interleave(2, 2).repeat_interleave(2, 3),
    )
    _, network = network_of(resized("NEAREST", (1, 1, 4, 4)), [x.int()])
    with pytest.raises(NetworkEvaluationError, match="must have type Float"):
        reference.run(network, [x.int()])


def sample(image, x, y, mode, outside, align):
    """One value of a grid sample, its coordinates within -1..1 of the image."""
    lengths = image.shape[::-1]
    at = [
        ((c + 1) * (n - 1) / 2) if align else ((c + 1) * n - 1) / 2
        for c, n in zip((x, y), lengths, strict=True)
    ]
    if outside == "CLAMP":
        at = [min(max(a, 0.0), n - 1.0) for a, n in zip(at, lengths, strict=True)]
    pairs = [
        [(round(a), 1.0)] if mode == "NEAREST" else taps("LINEAR", a, 0) for a in at
    ]
    total = 0.0
    for i, wx in pairs[0]:
        for j, wy in pairs[1]:
            if 0 <= i < lengths[0] and 0 <= j < lengths[1]:
                total += image[j, i] * wx * wy
    return total


@pytest.mark.parametrize("mode", ["NEAREST", "LINEAR"])
@pytest.mark.parametrize("outside", ["FILL", "CLAMP"])
@pytest.mark.parametrize("align", [True, False])
def test_grid_sample(mode, outside, align):
    random = np.random.default_rng(4)
    image = random.standard_normal((1, 1, 4, 5)).astype(np.float32)
    grid = random.uniform(-1.6, 1.6, (1, 3, 4, 2)).astype(np.float32)

    def build(net, x, grid):
        layer = net.add_grid_sample(x, grid)
        layer.interpolation_mode = getattr(trt.InterpolationMode, mode)
        layer.sample_mode, layer.align_corners = getattr(trt.SampleMode, outside), align
        return layer

    expected = [
        [sample(image[0, 0], *g.astype(np.float64), mode, outside, align) for g in row]
        for row in grid[0]
    ]
    result = evaluate(build, torch.from_numpy(image), torch.from_numpy(grid))
    closely(result, np.array(expected, np.float32)[None, None], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("align", [True, False])
def test_reflected_samples_equal_their_mirrored_samples(align):
    """Coordinates mirrored at the edge have the same value.

    The edge is a pixel's center if corners are aligned, otherwise its boundary.
    """
    image, inside = torch.rand(1, 1, 4, 4), torch.tensor([[[[0.9, -0.7]]]])
    mirrored = torch.tensor([[[[1.1, -1.3]]]])

    def build(net, x, grid):
        layer = net.add_grid_sample(x, grid)
        layer.sample_mode, layer.align_corners = trt.SampleMode.REFLECT, align
        return layer

    closely(evaluate(build, image, inside), evaluate(build, image, mirrored), atol=1e-5)
