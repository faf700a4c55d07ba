"""Brings published models to running servers, and checks that a server can run a repository."""

from __future__ import annotations

from builder.exports import lazy

__getattr__, __dir__ = lazy(__name__, __file__)
