"""The flags of tritonserver for both `serve` (a process) and `deploy` (a container)."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from builder.errors import EnvironmentProblem
from builder.serving.installation import Installation

CONTROL_HEADER = "trt-build-control"
"""The header of requests to a restricted model-control API; its value is the token."""
CLOSED_HEADER = "trt-build"
"""The header of closed requests. Its value is a key that is not stored."""
RESTRICTIONS = ("--http-restricted-api", "--grpc-restricted-protocol")
ALWAYS = ("--disable-auto-complete-config", "--strict-readiness=true")
KEEP_SERVING = "--exit-on-error=false"
"""Lets the server run without the models that fail to load."""
HTTP_MAX_BYTES = 1 << 30
LARGE_REQUESTS = f"--http-max-input-size={HTTP_MAX_BYTES}"
"""From 25.06 on, HTTP bodies are limited to 64 MB, which a profile's maximum may exceed. Earlier
releases have neither the limit nor the flag.
"""
CLIENT_SHARED_MEMORY = "--allow-client-shm=true"
"""From 26.04 on, clients need this flag to use shared memory."""
ALL = "*"
"""Selects all models of the repository."""


@dataclass(frozen=True)
class Restriction:
    """Restricts requests of `protocols` to those with the header `header` and the value `key`."""

    protocols: tuple[str, ...]
    header: str
    key: str

    def flags(self, names: Sequence[str] = RESTRICTIONS) -> list[str]:
        """The flags for HTTP and gRPC, or only those in `names`."""
        return [
            f"{name}={','.join(self.protocols)}:{self.header}={self.key}"
            for name in names
        ]


def closed(client_shared_memory: bool) -> tuple[str, ...]:
    """The protocols by which clients could change the server, and which are closed to them."""
    if client_shared_memory:
        return ("trace", "logging")
    return ("trace", "logging", "shared-memory")


def control(
    explicit: bool, models: Sequence[str] = (), poll_seconds: int | None = None
) -> list[str]:
    """Flags that define how the loaded models change: by the repository (`poll_seconds`), by
    clients (`explicit`, with `models` loaded at the start), or not at all.
    """
    if poll_seconds is not None:
        return ["--model-control-mode=poll", f"--repository-poll-secs={poll_seconds}"]
    if not explicit:
        return ["--model-control-mode=none"]
    return [
        "--model-control-mode=explicit",
        *(f"--load-model={name}" for name in models),
    ]


def restrictions(
    installation: Installation, client_shared_memory: bool, control_token: str | None
) -> list[str]:
    """Flags that close protocols to clients, and allow model loading only with the token.

    Triton has no flag that disables protocols. It can require a key for them, so a key is generated
    here and not stored. Raises EnvironmentProblem if this server cannot require the token.
    """
    supported = [flag for flag in RESTRICTIONS if installation.supports(flag)]
    key = secrets.token_hex(16)
    closing = Restriction(closed(client_shared_memory), CLOSED_HEADER, key).flags(
        supported
    )
    if not control_token:
        return closing
    if missing := [flag for flag in RESTRICTIONS if flag not in supported]:
        raise EnvironmentProblem(
            f"this tritonserver has no {' and no '.join(missing)}, so it cannot require a token",
            where=str(installation.executable),
            fix="use a newer server, or leave the token out and listen on the loopback only",
        )
    return (
        closing
        + Restriction(("model-repository",), CONTROL_HEADER, control_token).flags()
    )


def optional(installation: Installation, client_shared_memory: bool) -> Iterator[str]:
    """The flags that only some releases need and support."""
    for flag in optional_flags(client_shared_memory):
        name, _, _ = flag.partition("=")
        if installation.source == "path" and installation.supports(name):
            yield flag


def optional_flags(client_shared_memory: bool) -> tuple[str, ...]:
    """The optional flags that the server's `--help` lists."""
    if client_shared_memory:
        return (LARGE_REQUESTS, CLIENT_SHARED_MEMORY)
    return (LARGE_REQUESTS,)
