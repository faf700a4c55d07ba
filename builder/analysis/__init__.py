"""Facts of the values of a TorchScript graph: constants, dtypes and ranks."""

from __future__ import annotations

from builder.exports import lazy

__getattr__, __dir__ = lazy(__name__, __file__)
