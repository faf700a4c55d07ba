"""One page of evidence for a repository: what build, verify, bench and tune found."""

from __future__ import annotations

from builder.exports import lazy

__getattr__, __dir__ = lazy(__name__, __file__)
