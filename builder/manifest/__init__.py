"""Reads and validates manifests. Every mistake is reported with its line."""

from __future__ import annotations

from builder.exports import lazy

__getattr__, __dir__ = lazy(__name__, __file__)
