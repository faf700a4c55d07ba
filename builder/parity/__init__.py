"""The original module's answers, and whether a live endpoint gives the same.

The names load on first use: verifying an endpoint needs neither torch nor TensorRT.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from builder.parity.bisect import first_difference as first_difference
    from builder.parity.comparison import Comparison as Comparison
    from builder.parity.comparison import OutputComparison as OutputComparison
    from builder.parity.comparison import compare as compare
    from builder.parity.recording import Recording as Recording
    from builder.parity.recording import record as record
    from builder.parity.recording import record_goldens as record_goldens
    from builder.parity.results import GoldenResult as GoldenResult
    from builder.parity.results import ModelParity as ModelParity
    from builder.parity.tolerances import default_tolerance as default_tolerance
    from builder.triton import Golden as Golden

_PUBLIC = {
    "Comparison": "builder.parity.comparison",
    "Golden": "builder.triton.artifact",
    "GoldenResult": "builder.parity.results",
    "ModelParity": "builder.parity.results",
    "OutputComparison": "builder.parity.comparison",
    "compare": "builder.parity.comparison",
    "default_tolerance": "builder.parity.tolerances",
    "first_difference": "builder.parity.bisect",
    "Recording": "builder.parity.recording",
    "record": "builder.parity.recording",
    "record_goldens": "builder.parity.recording",
    "verify": "builder.parity.verification",
    "verify_engines": "builder.parity.engines",
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'builder.parity' has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)
