"""Measures throughput and latency of a live endpoint under load, from the counts of clients and
server.

The names load on first use. Client processes import neither torch nor TensorRT.
"""

from __future__ import annotations

from builder.exports import lazy

__getattr__, __dir__ = lazy(__name__, __file__)
