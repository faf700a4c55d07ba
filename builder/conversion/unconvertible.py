"""The refusal that a converter or its capability gives: this node, with these arguments, cannot
become layers.
"""

from __future__ import annotations

NEWER_OR_FIXED = "TensorRT 10 or newer, or give the loop a fixed number of trips"
"""What helps where 8.6 cannot do in the body of a loop what the others can."""


class Unconvertible(Exception):
    """The reason, and what the user can do. BlockConverter collects it; the node can run in torch
    instead.
    """

    def __init__(self, reason: str, fix: str | None = None) -> None:
        super().__init__(reason)
        self.reason, self.fix = reason, fix
