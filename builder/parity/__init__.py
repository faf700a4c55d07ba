"""Goldens of the original module, and their comparison with a running server.

Names load on first use: verifying a server needs neither torch nor TensorRT.
"""

from __future__ import annotations

from builder.exports import lazy

__getattr__, __dir__ = lazy(__name__, __file__)
