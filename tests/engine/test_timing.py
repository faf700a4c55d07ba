"""Timing caches of two builds, combined by TensorRT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from builder import files
from builder.conversion import convert
from builder.engine import BuildOptions, build, timing
from builder.engine.flavor import trt
from builder.manifest import TensorSpec


def convolution(channels: int) -> Any:
    torch.manual_seed(0)
    module = torch.nn.Conv2d(channels, 16, 3, padding=1).eval()
    spec = TensorSpec("float32", (2, channels, 16, 16), name="x")
    return convert(torch.jit.trace(module, torch.zeros(2, channels, 16, 16)), [spec])


@pytest.mark.gpu
def test_combined_timing_cache_has_both_measurements(tmp_path: Path) -> None:
    """With both, neither build measures anything new."""
    paths = [tmp_path / f"{channels}.cache" for channels in (3, 5)]
    for channels, path in zip((3, 5), paths, strict=True):
        build(convolution(channels), BuildOptions(timing_cache=path))
    both = tmp_path / "both.cache"
    contents = [path.read_bytes() for path in paths]
    builder = convolution(3).builder
    data, combined = timing.combined(builder, contents)
    if trt.__version__.startswith("8."):
        # TensorRT 8.6 reports each combination of two caches as failed, so none is shared
        assert combined == [False, False]
        return
    assert combined == [True, True]
    joined = timing.combined(builder, [*contents, b"no timing cache"])[0]
    assert len(joined) == len(data)
    files.write(both, data)
    sizes = []
    for channels in (3, 5):
        build(convolution(channels), BuildOptions(timing_cache=both))
        sizes.append(both.stat().st_size)
    assert sizes == [len(data)] * 2
    alone, _ = timing.combined(builder, contents[:1])
    assert len(alone) < len(data)
