"""The refusal that a converter or its capability gives: this node, with these arguments, cannot
become layers.
"""

from __future__ import annotations


class Unconvertible(Exception):
    """The reason, and what the user can do. NetworkBackend collects it; the node can run in torch
    instead.
    """

    def __init__(self, reason: str, fix: str | None = None) -> None:
        super().__init__(reason)
        self.reason, self.fix = reason, fix
