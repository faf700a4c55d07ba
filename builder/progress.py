"""The callback to which long operations report their progress."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, str], None]
"""The arguments are (subject, phase that begins). The subject is mostly the name of a model."""
FINISHED = "finished"
"""The start of a phase whose line stays on the terminal: it says how the subject ended."""


def silent(subject: str, phase: str) -> None:
    """Report nothing."""
