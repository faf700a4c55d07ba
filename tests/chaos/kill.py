"""A publication is killed at every point where it changes the disk; every state is judged."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from builder.parity.clients import HttpClient
from builder.serving import serve
from builder.store import published, staging, tidy
from builder.triton import publish as publish_single
from builder.triton import publish_ensemble
from builder.triton.config import parse
from tests.triton.artifacts import pair

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
NAME = "pair"
SWITCHING = 40
"""Points at the end of a publication, among which all moves are."""
PUBLISHING = __import__("sys").modules[publish_single.__module__]


@dataclass
class Counts:
    """What was found after the kills, and after the run that followed each."""

    kills: int = 0
    old: int = 0
    new: int = 0
    absent: int = 0
    """Only where the file system cannot exchange folders: the next run puts the model back."""
    torn: int = 0
    served: int = 0
    served_wrong: int = 0
    left_by_caught_signals: int = 0
    """Staging folders or unnamed steps after SIGTERM and SIGINT, which the process can catch."""
    not_repaired: int = 0

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)


@patch.object(PUBLISHING, "SETTLE_SECONDS", 0.0)  # nothing happens while it waits
def run(folder: Path, *, exchange: bool = True, stride: int = 1, serve_every: int = 0) -> Counts:
    """Kill a publication by each of SIGNALS at every `stride`-th point, and at every point of the
    last SWITCHING, which move the folders; `exchange` False plays a
    file system without RENAME_EXCHANGE. Each `serve_every`-th state is served by tritonserver.
    """
    counts = Counts()
    artifacts = {generation: pair(generation, NAME) for generation in (1, 2)}
    points = _points(folder / "count", artifacts, exchange)
    dense = max(0, points - SWITCHING)
    for number in (*range(0, dense, stride), *range(dense, points)):
        for kind in SIGNALS:
            repository = folder / f"{number}-{kind.name}" / "repository"
            publish_ensemble(artifacts[1], repository)
            _in_child(partial(_publish, artifacts[2], repository, exchange, number, kind))
            counts.kills += 1
            served = serve_every and counts.kills % serve_every == 0
            _judge(repository, counts, kind, bool(served))
            _repair(repository, artifacts, counts)
            shutil.rmtree(repository.parent)
    return counts


def _points(folder: Path, artifacts: dict[int, Any], exchange: bool) -> int:
    """How many points a publication has, counted by a child that is not killed."""
    repository = folder / "repository"
    publish_ensemble(artifacts[1], repository)
    _in_child(
        lambda: (folder / "points").write_text(
            str(_publish(artifacts[2], repository, exchange, -1, signal.SIGKILL))
        )
    )
    return int((folder / "points").read_text())


def _in_child(act: Callable[[], object]) -> None:
    child = os.fork()
    if child == 0:
        for kind in (signal.SIGTERM, signal.SIGINT):
            signal.signal(kind, signal.default_int_handler)  # as the command line does
        try:
            act()
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def _publish(
    artifact: Any, repository: Path, exchange: bool, point: int, kind: signal.Signals
) -> int:
    """Publish; the process gets the signal at the point-th change of the disk. Returns the number
    of points.
    """
    seen = 0

    def reached() -> None:
        nonlocal seen
        seen += 1
        if seen == point + 1:
            os.kill(os.getpid(), kind)

    def around(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **keywords: Any) -> Any:
            reached()
            result = call(*arguments, **keywords)
            reached()
            return result

        return called

    with _patched(around, exchange):
        publish_ensemble(artifact, repository)
    return seen


@contextmanager
def _patched(around: Callable[..., Any], exchange: bool) -> Iterator[None]:
    """Count every rename, exchange, removal, and every file and folder that is written. Never
    undone: the process ends.
    """
    PUBLISHING.SETTLE_SECONDS = 0  # type: ignore[attr-defined]
    staging.exchange = around(staging.exchange) if exchange else lambda *_: False  # type: ignore
    for owner, names in (
        (Path, ("rename", "replace", "mkdir", "write_text", "write_bytes", "chmod")),
        (os, ("rename",)),
        (shutil, ("rmtree",)),
        (staging, ("sync", "sync_tree")),
        (published, ("write",)),
    ):
        for name in names:
            setattr(owner, name, around(getattr(owner, name)))
    yield


def _judge(repository: Path, counts: Counts, kind: signal.Signals, served: bool) -> None:
    generation = _generation(repository)
    if not (repository / NAME).exists():
        counts.absent += 1
    elif generation is None:
        counts.torn += 1
    else:
        counts.old += generation == 1
        counts.new += generation == 2
    if kind is not signal.SIGKILL:
        left = bool(_staged(repository) or _unnamed(repository))
        counts.left_by_caught_signals += left
        if left:
            print(kind.name, repository, _staged(repository), _unnamed(repository))
    if served and generation is not None:
        counts.served += 1
        counts.served_wrong += not _answers(repository, generation)


def _repair(repository: Path, artifacts: dict[int, Any], counts: Counts) -> None:
    """The next run: repairs, then publishes what was wanted."""
    tidy(repository)
    whole = _generation(repository) is not None and not _staged(repository)
    publish_ensemble(artifacts[2], repository)
    done = _generation(repository) == 2 and not _staged(repository)
    counts.not_repaired += not (whole and done)


def _generation(repository: Path) -> int | None:
    """Which generation the repository holds whole; None for none."""
    folder = repository / NAME
    try:
        said = published.read(folder / published.SIDECAR)
        message = parse((folder / "config.pbtxt").read_text(), str(folder))
        named = [step.model_name for step in message.ensemble_scheduling.step]
    except OSError:
        return None
    if named != said.get("steps") or any(published.damaged(folder)):
        return None
    with np.load(sorted((folder / "goldens").glob("*.npz"))[0]) as golden:
        return int(golden["output:g"].flat[0])


def _staged(repository: Path) -> list[Path]:
    return list(repository.parent.glob(".repository.staging-*"))


def _unnamed(repository: Path) -> set[str]:
    """Steps that neither the manifest names nor its list of retired steps has."""
    said = published.read(repository / NAME / published.SIDECAR)
    known = {NAME, *(said.get("steps") or ()), *(said.get("retired") or ())}
    return {path.name for path in repository.iterdir()} - known


def _answers(repository: Path, generation: int) -> bool:
    """Whether a tritonserver that starts on this state answers right."""
    x = np.arange(4, dtype="float32").reshape(2, 2)
    with serve(repository, http_port=0, grpc_port=0, metrics_port=0) as server:
        client = HttpClient(server.http_url, 60)
        outputs = client.infer(NAME, {"x": x}).outputs
        client.close()
    return bool(np.array_equal(outputs["y"], x) and (outputs["g"] == generation).all())
