"""Finds problems that would keep a server from serving a repository, before the server starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.deployment.models import Model, read, readable
from builder.deployment.rules import (
    DAMAGED,
    ERROR,
    MODEL_RULES,
    SERVER_RULES,
    UNREADABLE,
    Models,
)
from builder.deployment.server_facts import ServerFacts, of_image, this_machine
from builder.errors import EnvironmentProblem, UsageError
from builder.store import published
from builder.triton import releases
from builder.unforeseen import file_system_fix


@dataclass(frozen=True)
class Finding:
    """A finding: its `number` as in docs/preflight.md, the model or other `subject`, the problem,
    the `fix`, and the severity.
    """

    number: str
    subject: str
    message: str
    fix: str
    severity: str = ERROR


def preflight(
    repository: Path,
    server: ServerFacts,
    only: Sequence[str] = (),
    *,
    digests: bool = True,
) -> list[Finding]:
    """Return the problems of serving `repository` with `server`, errors first.

    With `only`, checks only these models and their steps. With `digests` False, files are not
    hashed. Raises UsageError if there is no repository.
    """
    published.require_repository(repository)
    models, findings = _read(repository)
    if only:
        steps = {step for name in only if name in models for step in models[name].steps}
        models = {
            name: model for name, model in models.items() if name in {*only, *steps}
        }
        findings = [
            finding for finding in findings if finding.subject in {*only, *steps}
        ]
    findings += _findings(repository, models, server, digests)
    return sorted(
        findings,
        key=lambda finding: (
            finding.severity != ERROR,
            finding.number,
            finding.subject,
        ),
    )


def _read(repository: Path) -> tuple[dict[str, Model], list[Finding]]:
    """Return the models by name, and a finding for each unreadable folder."""
    models: dict[str, Model] = {}
    findings: list[Finding] = []
    for folder in sorted(path for path in repository.iterdir() if path.is_dir()):
        try:
            models[folder.name] = read(folder)
        except PermissionError as error:
            findings.append(_forbidden(folder.name, error))
        except (OSError, ValueError, UsageError) as error:
            message = f"it cannot be read: {error}"
            findings.append(
                Finding(UNREADABLE, folder.name, message, "publish it again")
            )
    return models, findings


def _forbidden(name: str, error: PermissionError) -> Finding:
    """The finding for a model with a file that this user may not read."""
    message = f"{error.filename or 'it'} cannot be read: {error.strerror}"
    return Finding(UNREADABLE, name, message, file_system_fix(error))


def _findings(
    repository: Path, models: Models, server: ServerFacts, digests: bool
) -> Iterator[Finding]:
    for rule in MODEL_RULES:
        if digests or rule.number != DAMAGED:
            for model in models.values():
                try:
                    with published.shaped(model.folder):
                        messages = list(rule.check(model, models, server))
                except PermissionError as error:
                    yield _forbidden(model.name, error)
                    continue
                for message in messages:
                    yield Finding(
                        rule.number, model.name, message, rule.fix, rule.severity
                    )
    for whole in SERVER_RULES:
        for subject, message in whole.check(repository, models, server):
            yield Finding(whole.number, subject, message, whole.fix, whole.severity)


def expected_server(repository: Path) -> ServerFacts | None:
    """Return the server that the repository was built for: NVIDIA's container whose TensorRT loads
    its plans, else this machine's server. None if neither is known.
    """
    built = {
        str(model.plan.get("tensorrt"))
        for model in readable(repository)
        if model.runs_plan
    }
    matches = [match for match in map(releases.for_tensorrt, sorted(built)) if match]
    try:
        if matches:
            return of_image(matches[0].release.tag)
        return this_machine({})
    except EnvironmentProblem:
        return None


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
