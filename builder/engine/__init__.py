"""The only package that imports TensorRT: the flavor, an empty network, and the build of a
plan.
"""

from __future__ import annotations

from builder.exports import lazy

__getattr__, __dir__ = lazy(__name__, __file__)
