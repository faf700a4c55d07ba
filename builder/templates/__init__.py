"""The Triton config templates, and the Python runtime that is copied into each model.

The rules of safe operators are part of the runtime. Loading a model file here checks the same ones.
"""

from __future__ import annotations

from builder.exports import lazy

__getattr__, __dir__ = lazy(__name__, __file__)
