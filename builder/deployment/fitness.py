"""Rejects a repository that a server cannot serve."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from builder.deployment.preflight import preflight
from builder.deployment.rules import ERROR
from builder.deployment.server_facts import ServerFacts
from builder.errors import EnvironmentProblem


def require_fit(
    repository: Path, server: ServerFacts, only: Sequence[str] = ()
) -> None:
    """Check that `server` can serve the repository, or the models of `only`.

    Raises EnvironmentProblem if preflight finds that it cannot, and UsageError if there is no
    repository.
    """
    errors = [
        finding
        for finding in preflight(repository, server, only)
        if finding.severity == ERROR
    ]
    if errors:
        lines = [
            f"{finding.number} {finding.subject}: {finding.message}; {finding.fix}"
            for finding in errors
        ]
        raise EnvironmentProblem(
            "\n  ".join([f"{server.name} cannot serve these models:", *lines]),
            where=str(repository),
            fix="docs/preflight.md explains each number",
        )
