"""The exceptions of the runtime, by cause."""

from __future__ import annotations


class InvalidRequest(Exception):
    """An error of the client: a shape outside every profile, or a list that is too long."""


class NoPlan(Exception):
    """The reason why the plan cannot run here."""


class Description(Exception):
    """Not a failure: the reply to a request for a description of what runs the model."""


class NoSenders(Exception):
    """The server cannot receive responses from other threads than the one that calls `execute`."""
