"""Finds the best configuration of a model under load by serving variants of it.

The names load on first use.
"""

from __future__ import annotations

from builder.exports import lazy

__getattr__, __dir__ = lazy(__name__, __file__)
