"""The original module's answers, and whether a live endpoint gives the same.

The names load on first use: verifying an endpoint needs neither torch nor TensorRT.
"""

from __future__ import annotations

from builder.exports import lazy

__getattr__, __dir__ = lazy(__name__, __file__)
