"""What a segment is worth: floating-point operations against what crosses its border.

These are estimates that distinguish a matrix product from a bias between two torch operators;
`trt-build check` prints them.
"""

from __future__ import annotations

import math

from builder.partition.shapes import Shapes

LAUNCH_SECONDS = 5e-6
"""What one eager torch operator costs to launch, which a fused engine does not pay (CUDA launches
take some 5 us).
"""
TRANSITION_SECONDS = 20e-6
"""Entering and leaving an engine once: binding addresses and enqueueing."""
BYTES_PER_SECOND = 10e9
"""What crosses between Triton steps at worst: through host memory, over PCIe."""
FLOPS_SAVED_PER_SECOND = 20e12
"""Flops that cost one second less in an engine than in eager float32, roughly, on a data-center
GPU.
"""


def size_in_bytes(shapes: Shapes, value: str) -> int:
    """The bytes of a value at the first profile's opt; 0 where the shape depends on data."""
    if value not in shapes.known:
        return 0
    dtype, probes = shapes.known[value]
    return math.prod(probes[1]) * dtype.itemsize


def seconds_saved(nodes: int, flops: int, crossing_bytes: int) -> float:
    """What an island of TensorRT between torch nodes saves, less the cost of its two
    transitions.
    """
    saved = nodes * LAUNCH_SECONDS + flops / FLOPS_SAVED_PER_SECOND
    return saved - 2 * TRANSITION_SECONDS - crossing_bytes / BYTES_PER_SECOND


STEP_SECONDS = 1e-3
"""What a step of an ensemble costs besides its work: queueing, and for torch steps the way to the
Python process and back (benchmarks/partition.py measures it).
"""
STEP_SHARE = 0.1
"""How much of a model's work its steps may cost before one process is better."""
FLOPS_PER_SECOND = 50e12
"""What an engine does in a second, roughly, on a data-center GPU in float32 with TF32 or in half.
"""


def step_seconds(steps: int, crossing_bytes: int) -> float:
    """What an ensemble of so many steps costs a request beside the work of one process."""
    return steps * STEP_SECONDS + crossing_bytes / BYTES_PER_SECOND


def compute_seconds(flops: int) -> float:
    """The work itself, roughly."""
    return flops / FLOPS_PER_SECOND
