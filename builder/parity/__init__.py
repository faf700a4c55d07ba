"""The parity room: the original module's answers, and whether a live endpoint gives the same."""

from __future__ import annotations

from builder.parity.bisect import first_difference
from builder.parity.compare import Comparison, OutputComparison, compare
from builder.parity.recording import record
from builder.parity.tolerances import default_tolerance
from builder.parity.verify import GoldenResult, ModelParity, verify
from builder.triton.artifact import Golden

__all__ = [
    "Comparison",
    "Golden",
    "GoldenResult",
    "ModelParity",
    "OutputComparison",
    "compare",
    "default_tolerance",
    "first_difference",
    "record",
    "verify",
]
