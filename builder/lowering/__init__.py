"""Lowering: from a TorchScript module to one block of tensor operators, by a list of passes that
are verified one by one.
"""

from __future__ import annotations

from builder.lowering.graph import LoweredGraph
from builder.lowering.lower import as_written, for_precision, lower
from builder.lowering.passes.fallback import fallback_nodes
from builder.lowering.pipeline import PIPELINE, add_pass, every_pass, passes_for
from builder.lowering.trace import PassRecord, write_sequence

__all__ = [
    "PIPELINE",
    "LoweredGraph",
    "PassRecord",
    "add_pass",
    "as_written",
    "every_pass",
    "fallback_nodes",
    "for_precision",
    "lower",
    "passes_for",
    "write_sequence",
]
