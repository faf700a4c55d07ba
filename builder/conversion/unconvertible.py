"""The refusal of a converter or its capability: this node with these arguments cannot be
converted.
"""

from __future__ import annotations


class Unconvertible(Exception):
    """The reason and the fix. NetworkBackend collects it; the node can run in torch instead."""

    def __init__(self, reason: str, fix: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.fix = fix
