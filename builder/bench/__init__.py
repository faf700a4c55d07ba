"""Load on a live endpoint: throughput and latency, as clients see it and as the server counts it.

The names load on first use. Client processes import neither torch nor TensorRT.
"""

from __future__ import annotations

import importlib
from typing import Any

_PUBLIC = {
    "Load": "builder.bench.job",
    "LevelResult": "builder.bench.results",
    "ModelBench": "builder.bench.results",
    "Options": "builder.bench.measure",
    "bench": "builder.bench.measure",
    "compare": "builder.bench.baseline",
    "requests": "builder.bench.job",
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'builder.bench' has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)
