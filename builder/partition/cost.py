"""The cost model of segments: floating-point operations against the transfer of boundary tensors.

These are rough estimates, which distinguish a matrix product from a bias between two torch
operators. `trt-build check` prints them.
"""

from __future__ import annotations

import math

from builder.partition.shapes import Shapes

LAUNCH_SECONDS = 5e-6
"""Launch cost of one eager torch operator, which a fused engine avoids (CUDA launches take about 5
us).
"""
TRANSITION_SECONDS = 20e-6
"""Cost of one engine call: binding addresses and enqueueing."""
BYTES_PER_SECOND = 10e9
"""Transfer rate between ensemble steps in the worst case: through host memory, over PCIe."""
FLOPS_SAVED_PER_SECOND = 20e12
"""Estimated flops that save one second in an engine compared with eager float32, on a data-center
GPU.
"""


def size_in_bytes(shapes: Shapes, value: str) -> int:
    """The bytes of a value at the first profile's opt; 0 if the shape depends on data."""
    if value not in shapes.known:
        return 0
    dtype, probes = shapes.known[value]
    return math.prod(probes[1]) * dtype.itemsize


def seconds_saved(nodes: int, flops: int, crossing_bytes: int) -> float:
    """The time that a TensorRT segment between torch segments saves, minus the cost of its two
    transitions.
    """
    saved = nodes * LAUNCH_SECONDS + flops / FLOPS_SAVED_PER_SECOND
    return saved - 2 * TRANSITION_SECONDS - crossing_bytes / BYTES_PER_SECOND


STEP_SECONDS = 1e-3
"""Overhead of an ensemble step: queueing, and for torch steps the transfer to the Python process
and back (measured by benchmarks/partition.py).
"""
STEP_SHARE = 0.1
"""The largest share of a model's compute time that the overhead of its steps may have; above it,
the fused layout is better.
"""
FLOPS_PER_SECOND = 50e12
"""Estimated flops per second of an engine on a data-center GPU, in float32 with TF32 or in half.
"""


def step_seconds(steps: int, crossing_bytes: int) -> float:
    """The overhead of an ensemble with this many steps for one request, compared with one
    process.
    """
    return steps * STEP_SECONDS + crossing_bytes / BYTES_PER_SECOND


def compute_seconds(flops: int) -> float:
    """The estimated compute time."""
    return flops / FLOPS_PER_SECOND
