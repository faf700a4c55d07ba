"""Load on a live endpoint: throughput and latency, as clients see it and as the server counts it.

The names load on first use. Client processes import neither torch nor TensorRT.
"""

from __future__ import annotations

from builder.exports import lazy

__getattr__, __dir__ = lazy(__name__, __file__)
