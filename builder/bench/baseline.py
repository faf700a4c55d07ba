"""Compares two benchmarks of the same models, including whether they differ at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder import files

SMALLEST = 0.05
"""Smaller changes are no difference, even if the intervals within each run are narrower. Two runs
of one server on a quiet host differ by a few percent.
"""
BETTER = "better"
WORSE = "worse"
SAME = "no difference"


@dataclass(frozen=True)
class Change:
    """A figure of a level: `before` and `after`, the `share` of the change, and the verdict."""

    model: str
    protocol: str
    load: str
    figure: str
    before: float
    after: float
    share: float
    verdict: str


def read(file: Path) -> dict[str, Any]:
    """Read a document of `bench --baseline`. Raises UsageError if the file is none."""
    return files.read_document(
        file,
        _throughputs,
        subject="file that trt-build bench wrote",
        fix="write one with trt-build bench REPOSITORY --serve --baseline FILE",
    )


def _throughputs(record: Any) -> list[Any]:
    models = record["models"]
    return [
        level["throughput"]["value"] for model in models for level in model["levels"]
    ]


def compare(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]
) -> list[Change]:
    """Compare each figure of each common level of the `models` of two documents."""
    return list(_changes(_levels(before), _levels(after)))


def unmatched(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]
) -> list[str]:
    """The levels that only one of the documents has, such as `net grpc c1`."""
    differing = _levels(before).keys() ^ _levels(after).keys()
    return [
        " ".join(word for word in key if word != "none") for key in sorted(differing)
    ]


Levels = dict[tuple[str, str, str, str], Mapping[str, Any]]


def _levels(models: Sequence[Mapping[str, Any]]) -> Levels:
    return {
        (model["name"], model["protocol"], model["memory"], level["load"]): level
        for model in models
        for level in model["levels"]
    }


def _changes(before: Levels, after: Levels) -> Iterator[Change]:
    for key, level in after.items():
        if key not in before:
            continue
        name, protocol, memory, load = key
        transport = protocol if memory == "none" else f"{protocol} {memory}"
        for figure, (old, new) in _pairs(before[key], level).items():
            share = 0.0
            if old["value"]:
                share = new["value"] / old["value"] - 1
            verdict = _verdict(figure, old, new, share)
            yield Change(
                name,
                transport,
                load,
                figure,
                old["value"],
                new["value"],
                share,
                verdict,
            )


def _pairs(
    old: Mapping[str, Any], new: Mapping[str, Any]
) -> dict[str, tuple[Mapping[str, float], Mapping[str, float]]]:
    pairs = {"throughput": (old["throughput"], new["throughput"])}
    common = [name for name in new["latency_ms"] if name in old["latency_ms"]]
    return pairs | {
        name: (old["latency_ms"][name], new["latency_ms"][name]) for name in common
    }


def _verdict(
    figure: str, old: Mapping[str, float], new: Mapping[str, float], share: float
) -> str:
    overlap = old["low"] <= new["high"] and new["low"] <= old["high"]
    if overlap or abs(share) < SMALLEST:
        return SAME
    if (share > 0) == (figure == "throughput"):
        return BETTER
    return WORSE
