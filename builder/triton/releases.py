"""The TensorRT version of each Triton container, from releases.json. Each row has a confidence (A
quoted, B derived, C recalled).
"""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from importlib.resources import files

_VERSION = re.compile(r"\d+(?:\.\d+)+")
Version = tuple[int, ...]


@dataclass(frozen=True)
class Release:
    """A tag of nvcr.io/nvidia/tritonserver. `tensorrt` has every version that the source names, ()
    if unknown. `cuda` is the toolkit's version, such as `12.6`.
    """

    tag: str
    triton: str
    image: str
    tensorrt: tuple[Version, ...]
    confidence: str | None
    source: str | None
    python: str | None
    cuda: str | None = None


@dataclass(frozen=True)
class Match:
    """A release for a TensorRT version. If `exact` is False, only the first `parts` numbers of the
    version are equal.
    """

    release: Release
    parts: int
    exact: bool


@functools.cache
def releases() -> tuple[Release, ...]:
    """All known releases, newest first."""
    rows = json.loads(
        (files("builder") / "triton" / "releases.json").read_text(encoding="utf-8")
    )["releases"]
    return tuple(
        sorted(map(_release, rows), key=lambda release: release.tag, reverse=True)
    )


def for_tensorrt(version: str) -> Match | None:
    """The newest release whose TensorRT has the most leading numbers in common with `version`. None
    if fewer than major.minor.

    A plan is only certain to load in the version that built it. `exact` therefore requires all
    numbers that both name to be equal, at least three.
    """
    numbers = _numbers(version)
    scored = [(_matching_numbers(numbers, release), release) for release in releases()]
    best = max((score for score, _ in scored), default=0)
    if best < 2:
        return None
    release = next(release for score, release in scored if score == best)
    return Match(
        release, best, any(_is_exact(numbers, known) for known in release.tensorrt)
    )


def newest_known() -> Release:
    """The newest release whose TensorRT version is known."""
    return next(release for release in releases() if release.tensorrt)


def _release(row: dict[str, object]) -> Release:
    tensorrt = row.get("tensorrt")
    fact: dict[str, str] = {}
    if isinstance(tensorrt, dict):
        fact = tensorrt
    text = str(fact.get("version") or "")
    python = row.get("python")
    return Release(
        tag=str(row["release"]),
        triton=str(row["triton_version"]),
        image=str(row["image"]),
        tensorrt=tuple(_numbers(number) for number in _VERSION.findall(text)),
        confidence=fact.get("confidence"),
        source=fact.get("source"),
        python=str(python) if python else None,
        cuda=str(row["cuda"]) if "cuda" in row else None,
    )


def _numbers(version: str) -> Version:
    match = _VERSION.search(version)
    if match:
        return tuple(map(int, match.group().split(".")))
    return ()


def _matching_numbers(numbers: Version, release: Release) -> int:
    return max((_common(numbers, known) for known in release.tensorrt), default=0)


def _common(left: Version, right: Version) -> int:
    """The number of equal leading numbers."""
    count = 0
    for left_number, right_number in zip(left, right, strict=False):
        if left_number != right_number:
            break
        count += 1
    return count


def _is_exact(numbers: Version, known: Version) -> bool:
    shorter = min(len(numbers), len(known))
    return shorter >= 3 and numbers[:shorter] == known[:shorter]
