"""Loads model files: TorchScript files and exported programs (`.pt2`)."""

from __future__ import annotations

from builder.exports import lazy

__getattr__, __dir__ = lazy(__name__, __file__)
