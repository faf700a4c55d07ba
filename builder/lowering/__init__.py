"""Lowering: from a TorchScript module to one block of tensor operators, by a list of passes that are verified one by
one.
"""

from __future__ import annotations

from builder.lowering.graph import LoweredGraph
from builder.lowering.lower import lower
from builder.lowering.trace import PassRecord, write_sequence

__all__ = ["LoweredGraph", "PassRecord", "lower", "write_sequence"]
