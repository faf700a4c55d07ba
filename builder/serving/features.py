"""The flags for what published configs ask of the server: a response cache, and the rate limiter.

Triton ignores both fields of a config if the server was started without the flag.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tritonclient.grpc import model_config_pb2 as pb

from builder.errors import UsageError
from builder.serving.installation import Installation
from builder.store import CONFIG, SIDECAR, published
from builder.triton import read_config, versions

CACHE_FLAG = "--cache-config"
CACHE_MIB = 64
"""Default size of the response cache. Triton keeps no response that is larger."""
RATE_LIMITER = "--rate-limit=execution_count"
"""Instances with resources wait until these are free. Without the flag they run at once."""


def cache(mebibytes: int = CACHE_MIB) -> str:
    """The flag for a response cache of this size."""
    return f"{CACHE_FLAG}=local,size={mebibytes << 20}"


def outdated(repository: Path) -> list[str]:
    """The models whose old responses the response cache would return after a publication.

    Triton finds a response by the model's name, its version number and the inputs. A model without
    `versions` in its manifest has version 1 after each publication.
    """
    return [
        folder.name
        for folder in _features_of(repository).cached
        if not keeps_versions(folder)
    ]


def keeps_versions(folder: Path) -> bool:
    """Whether each publication of the model has a version number of its own."""
    policy = published.read(folder / SIDECAR).get(versions.POLICY)
    return isinstance(policy, dict) and bool(policy.get("keep"))


def container_flags(repository: Path, *, changes: bool) -> list[str]:
    """The flags for a server in a container. `changes`: it loads models while it runs."""
    needed = _features_of(repository)
    is_stale = not all(keeps_versions(folder) for folder in needed.cached)
    flags = []
    if needed.cached and not (changes and is_stale):
        flags = [cache()]
    if needed.is_limited:
        return [*flags, RATE_LIMITER]
    return flags


def server_flags(
    repository: Path, installation: Installation, cache_mebibytes: int = 0
) -> list[str]:
    """The flags for a server on this machine. A `cache_mebibytes` of 0 is not a response cache."""
    flags = []
    needed = _features_of(repository)
    if cache_mebibytes and needed.cached and installation.supports(CACHE_FLAG):
        flags.append(cache(cache_mebibytes))
        if installation.bundle:
            flags.append(f"--cache-directory={installation.bundle / 'caches'}")
    rate_limiter, _, _ = RATE_LIMITER.partition("=")
    if needed.is_limited and installation.supports(rate_limiter):
        flags.append(RATE_LIMITER)
    return flags


class _Features(NamedTuple):
    """What the configs of a repository ask of the server."""

    cached: list[Path]
    """The folders of the models whose config enables the response cache."""

    is_limited: bool
    """Whether instances of a model have a rate limiter."""


def _features_of(repository: Path) -> _Features:
    configs = list(_configs(repository))
    groups = [group for _, config in configs for group in config.instance_group]
    return _Features(
        [folder for folder, config in configs if config.response_cache.enable],
        any(group.HasField("rate_limiter") for group in groups),
    )


def _configs(repository: Path) -> Iterator[tuple[Path, pb.ModelConfig]]:
    """The models with their configs. The server itself reports a config that cannot be read."""
    for file in sorted(repository.glob(f"*/{CONFIG}")):
        if not file.is_file():  # reading a pipe blocks until something writes to it
            continue
        try:
            yield file.parent, read_config(file)
        except (OSError, ValueError, UsageError):
            continue
