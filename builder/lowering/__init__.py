"""Lowering: rewrite a TorchScript module to one block of tensor operators, by a list of passes that
are each verified.
"""

from __future__ import annotations

from builder.exports import lazy

__getattr__, __dir__ = lazy(__name__, __file__)
