"""What the runtime raises, by whose mistake it is."""

from __future__ import annotations


class InvalidRequest(Exception):
    """The client's mistake: a shape outside every profile."""


class NoPlan(Exception):
    """Why the plan cannot run here."""


class Description(Exception):
    """Not a failure: the answer to a request that asks who answers."""
