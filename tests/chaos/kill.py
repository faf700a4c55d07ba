"""Kills a publication at every point where it changes the disk, and checks every resulting
state.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from builder.manifest.spec import Versions
from builder.parity.clients import HttpClient
from builder.serving import FREE_PORTS, serve
from builder.store import clean_up, published, staging
from builder.triton import (
    EnsembleArtifact,
    ModelArtifact,
    SegmentFiles,
    history,
    publish,
)
from builder.triton.config import parse_config
from tests.chaos.counts import Results
from tests.triton.artifacts import Lower, Raise, artifact, lowered, pair, tensor

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
NAME = "pair"
SWITCHING = 40
"""The number of points at the end of a publication that include all moves."""
VARYING = re.compile(rb"\d{4}-\d\d-\d\d[T ][\d:.]+|[0-9a-f]{64}")
"""Times and digests, which differ between runs."""
PUBLISHING = __import__("sys").modules[publish.__module__]


@dataclass
class Counts(Results):
    """The results after the kills, and after the subsequent run of each."""

    kills: int = 0
    old: int = 0
    new: int = 0
    absent: int = 0
    """Only if the file system cannot exchange folders: the next run restores the model."""
    torn: int = 0
    states: int = 0
    """The number of distinct contents of the repository after the kills.

    Staging folders do not count: they are beside the repository, and no server reads them.
    """
    served: int = 0
    served_wrong: int = 0
    left_by_caught_signals: int = 0
    """Staging folders or unnamed steps after SIGTERM and SIGINT, which the process can catch."""
    not_repaired: int = 0

    @property
    def bad(self) -> int:
        """States that users must not see, and that the next run does not repair."""
        return self.torn + self.served_wrong + self.not_repaired


@dataclass
class Change:
    """The change that is killed: `prepare` creates the repository with generation `old`, and `make`
    changes it to `new`. After a removal, `new` is None.
    """

    prepare: Callable[[Path], object]
    make: Callable[[Path], object]
    old: int
    new: int | None


def _publication(keep: int) -> Change:
    """A second publication; with `keep`, of a second version."""
    first, second = (_artifact(generation, keep) for generation in (1, 2))
    return Change(partial(publish, first), partial(publish, second), 1, 2)


class Tagged(torch.nn.Module):
    """A single-folder model with the outputs of the ensemble: the input, and the generation."""

    def __init__(self, generation: int) -> None:
        super().__init__()
        self.generation = generation

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 1, torch.zeros_like(x) + self.generation


def single(generation: int, name: str = NAME) -> ModelArtifact:
    """Create a single-folder model."""
    inputs = (tensor("x", "float32", "batch", 2),)
    return artifact(
        Tagged(generation), inputs, ("y", "g"), name=name, serve_as="python"
    )


def _fused(generation: int) -> ModelArtifact:
    """Create the ensemble's two steps as segments of one model."""
    whole = single(generation)
    models = (
        SegmentFiles("torch", ("x",), ("h",), lowered(Raise(generation))),
        SegmentFiles("torch", ("h",), ("y", "g"), lowered(Lower(generation))),
    )
    return replace(whole, segments=models)


def _one_folder(make: Callable[[int], ModelArtifact]) -> Change:
    first, second = make(1), make(2)
    return Change(partial(publish, first), partial(publish, second), 1, 2)


def _rollback() -> Change:
    """A rollback from the second version to the first."""
    publication = _publication(keep=3)

    def prepare(repository: Path) -> None:
        publication.prepare(repository)
        publication.make(repository)

    return Change(
        prepare, lambda repository: history.rollback(repository / NAME, 1), 2, 1
    )


def _artifact(generation: int, keep: int) -> EnsembleArtifact:
    made = pair(generation, NAME)
    return replace(made, spec=replace(made.spec, versions=Versions(keep=keep)))


def _removal() -> Change:
    """The removal of an ensemble with its steps."""
    first = _artifact(1, keep=0)
    return Change(
        partial(publish, first),
        lambda repository: history.remove(repository / NAME),
        1,
        None,
    )


CHANGES: dict[str, Callable[[], Change]] = {
    "publish": lambda: _publication(keep=0),
    "single": lambda: _one_folder(single),
    "fused": lambda: _one_folder(_fused),
    "version": lambda: _publication(keep=3),
    "rollback": _rollback,
    "remove": _removal,
}
"""Changes of a repository that can be killed, by name."""


@patch.object(PUBLISHING, "SETTLE_SECONDS", 0.0)  # nothing happens while it waits
def run(
    folder: Path,
    *,
    exchange: bool = True,
    stride: int = 1,
    serve_states: bool = False,
    change: str = "publish",
) -> Counts:
    """Kill a change of CHANGES with each of SIGNALS at every `stride`-th point, and at each of the
    last SWITCHING points, which move the folders.

    `exchange` False simulates a file system without RENAME_EXCHANGE. With `serve_states`,
    tritonserver starts on every distinct state.
    """
    counts, states = Counts(), set[str]()
    chosen = CHANGES[change]()
    points = _points(folder / "count", chosen, exchange)
    dense = max(0, points - SWITCHING)
    for number in (*range(0, dense, stride), *range(dense, points)):
        for kind in SIGNALS:
            repository = folder / f"{number}-{kind.name}" / "repository"
            chosen.prepare(repository)
            _in_child(partial(_change, chosen, repository, exchange, number, kind))
            counts.kills += 1
            state = _state(repository)
            _judge(
                repository, chosen, counts, kind, serve_states and state not in states
            )
            states.add(state)
            _repair(repository, chosen, counts)
            shutil.rmtree(repository.parent)
    counts.states = len(states)
    return counts


def _state(repository: Path) -> str:
    """A digest of all names and contents in the repository, without VARYING."""
    digest = hashlib.sha256()
    for path in sorted(repository.rglob("*")):
        name = path.relative_to(repository)
        data = VARYING.sub(b"", path.read_bytes()) if path.is_file() else b""
        digest.update(
            f"{name} {path.is_symlink()} {hashlib.sha256(data).hexdigest()}".encode()
        )
    return digest.hexdigest()


def _points(folder: Path, chosen: Change, exchange: bool) -> int:
    """The number of points of a change, counted by a child that is not killed."""
    repository = folder / "repository"
    chosen.prepare(repository)
    _in_child(
        lambda: (folder / "points").write_text(
            str(_change(chosen, repository, exchange, -1, signal.SIGKILL))
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


def _change(
    chosen: Change, repository: Path, exchange: bool, point: int, kind: signal.Signals
) -> int:
    """Run the change. The process receives the signal at the point-th change of the disk. Returns
    the number of points.
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
        chosen.make(repository)
    return seen


@contextmanager
def _patched(around: Callable[..., Any], exchange: bool) -> Iterator[None]:
    """Count every rename, exchange, removal, and every file and folder that is written. The patch
    is permanent: the process ends.
    """
    PUBLISHING.SETTLE_SECONDS = 0  # type: ignore[attr-defined]
    staging.exchange = around(staging.exchange) if exchange else lambda *_: False  # type: ignore
    for owner, names in (
        (Path, ("rename", "replace", "mkdir", "write_text", "write_bytes", "chmod")),
        (os, ("rename", "link")),
        (shutil, ("rmtree",)),
        (staging, ("sync", "sync_tree")),
        (published, ("write",)),
    ):
        for name in names:
            setattr(owner, name, around(getattr(owner, name)))
    yield


def _judge(
    repository: Path, chosen: Change, counts: Counts, kind: signal.Signals, served: bool
) -> None:
    generation = _generation(repository)
    if not (repository / NAME).exists():
        counts.absent += chosen.new is not None
        counts.new += chosen.new is None
    elif generation is None:
        counts.torn += 1
    else:
        counts.old += generation == chosen.old
        counts.new += generation == chosen.new
    if kind is not signal.SIGKILL:
        left = bool(_staged(repository) or _unnamed(repository))
        counts.left_by_caught_signals += left
        if left:
            print(kind.name, repository, _staged(repository), _unnamed(repository))
    if served and generation is not None:
        counts.served += 1
        counts.served_wrong += not _answers(repository, generation)


def _repair(repository: Path, chosen: Change, counts: Counts) -> None:
    """Perform the next run: it repairs the repository, then makes the requested change."""
    clean_up(repository)
    absent = chosen.new is None and not (repository / NAME).exists()
    whole = absent or _generation(repository) is not None
    clean = not _staged(repository)
    if not _is_done(repository, chosen):
        chosen.make(repository)
    done = _is_done(repository, chosen) and not _staged(repository)
    counts.not_repaired += not (whole and clean and done)


def _is_done(repository: Path, chosen: Change) -> bool:
    """Whether the change is complete. A removal leaves neither the model nor steps."""
    if chosen.new is None:
        return not any(path.is_dir() for path in repository.iterdir())
    return _generation(repository) == chosen.new


def _generation(repository: Path) -> int | None:
    """The generation that is complete in the repository; None for none."""
    folder = repository / NAME
    try:
        record = published.read(folder / published.SIDECAR)
        message = parse_config((folder / "config.pbtxt").read_text(), str(folder))
        named = [step.model_name for step in message.ensemble_scheduling.step]
    except OSError:
        return None
    if named != (record.get("steps") or []) or any(published.damaged(folder)):
        return None
    if any(
        name for version in published.versions(folder) for name in version.damaged()
    ):
        return None
    with np.load(sorted((folder / "goldens").glob("*.npz"))[0]) as golden:
        return int(golden["output:g"].flat[0])


def _staged(repository: Path) -> list[Path]:
    return list(repository.parent.glob(".repository.staging-*"))


def _unnamed(repository: Path) -> set[str]:
    """The steps that are neither in the manifest nor in its list of retired steps."""
    record = published.read(repository / NAME / published.SIDECAR)
    known = {
        NAME,
        *published.step_names(repository / NAME),
        *(record.get("retired") or ()),
    }
    return {path.name for path in repository.iterdir()} - known


def _answers(repository: Path, generation: int) -> bool:
    """Whether a tritonserver that starts on this state returns correct outputs."""
    x = np.arange(4, dtype="float32").reshape(2, 2)
    with serve(repository, **FREE_PORTS) as server:
        client = HttpClient(server.http_url, 60)
        outputs = client.infer(NAME, {"x": x}).outputs
        client.close()
    return bool(np.array_equal(outputs["y"], x) and (outputs["g"] == generation).all())
