"""A report page for a repository, with the results of build, verify, bench and tune."""

from __future__ import annotations

from builder.exports import lazy

__getattr__, __dir__ = lazy(__name__, __file__)
