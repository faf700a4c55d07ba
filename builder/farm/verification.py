"""Verifies a build with a tritonserver on the same machine: every golden is sent to it."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from builder import engine, serving
from builder.errors import EnvironmentProblem, ParityError, ServerError
from builder.farm.remote import PASSED_VARIABLES
from builder.parity import ModelParity, verify_served
from builder.progress import Progress
from builder.store import signing

AUTO, SERVER, PLAN = "auto", "server", "plan"
"""The values of a target's `verify` (docs/farm.md)."""
PASSED_TO_SERVER = {
    *PASSED_VARIABLES,
    "PYTHONPATH",
    "PYTHONHOME",
    "OMP_NUM_THREADS",
} - {signing.KEY_VARIABLE}
"""Variables that the build's server receives: no credentials, and not the store's key."""


def server_of(choice: str) -> serving.Installation | None:
    """Return the tritonserver that verifies builds on this machine; None if only the build
    verifies.

    Raises EnvironmentProblem if `choice` is "server" and this machine has none.
    """
    if choice == PLAN or (choice == AUTO and not _runs_plans()):
        return None
    try:
        return serving.find()
    except EnvironmentProblem as problem:
        if choice == AUTO:
            return None
        raise EnvironmentProblem(
            f"the target has `verify: server`, and on this machine {problem.message}",
            where=problem.where,
            fix=problem.fix,
        ) from problem


def _runs_plans() -> bool:
    return engine.flavor.has_gpu()


def verified(
    repository: Path, server: serving.Installation, progress: Progress
) -> dict[str, Any]:
    """Serve the repository and compare every golden over HTTP and gRPC, like `trt-build verify
    --serve`.

    Returns the facts that a report shows, JSON-able. Raises ParityError if an output differs or the
    server does not load a model.
    """
    with _few_variables():
        try:
            models = verify_served(repository, installation=server, progress=progress)
        except ServerError as failure:
            raise ParityError(
                f"tritonserver does not serve the built model: {failure.message}",
                where=failure.where,
                fix=failure.fix,
            ) from failure
    _require_correct(models)
    shares = [model.share for model in models if model.share is not None]
    return {
        "by": "tritonserver",
        "version": serving.server_version(server),
        "answered_by": dict(
            Counter(model.answered_by or "unknown" for model in models)
        ),
        "share_of_tolerance": max(shares, default=None),
    }


def _require_correct(models: Sequence[ModelParity]) -> None:
    problems = [problem for model in models for problem in _problems(model)]
    if problems:
        more = ""
        if len(problems) > 1:
            more = f" (and {len(problems) - 1} more)"
        raise ParityError(
            f"tritonserver returns a wrong output: {problems[0]}{more}",
            fix="`trt-build verify REPOSITORY --serve --ladder` on such a machine shows where",
        )


def _problems(model: ModelParity) -> Iterator[str]:
    if model.passed:
        return
    results = [result for result in model.results if not result.passed]
    yield from (f"{model.name}: {problem}" for problem in model.problems)
    for result in results:
        where = f"golden {result.golden} over {result.protocol}"
        yield f"{model.name}: {where}: {'; '.join(result.problems)}"
    if not model.problems and not results:
        yield f"{model.name}: it did not respond"


@contextlib.contextmanager
def _few_variables() -> Iterator[None]:
    """Return the environment without variables that the server must not have."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in PASSED_TO_SERVER
    }
    for name in environment:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(environment)
