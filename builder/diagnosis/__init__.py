"""Finds the step and the node at which a model's outputs begin to differ.

`ladder` compares every step from the original module to the network. The names load on first use,
because the package loads torch and TensorRT.
"""

from __future__ import annotations

from builder.exports import lazy

__getattr__, __dir__ = lazy(__name__, __file__)
