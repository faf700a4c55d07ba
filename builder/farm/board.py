"""Tracks the runs on a cluster, for `trt-build farm status` and `farm cancel`.

A run has a named actor on the node of its command. The command writes its counts there, and reads
whether the run was canceled.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from builder.farm.cluster import NAMESPACE

PREFIX = "run-"
UPDATE_SECONDS = 1.0
REPLY_SECONDS = 10.0


class Board:
    """The Ray actor with the last counts of a run and its cancellation flag."""

    def __init__(self, about: Mapping[str, Any]) -> None:
        self.about = dict(about)
        self.stop = False

    def update(self, counts: Mapping[str, Any]) -> bool:
        """Store the counts. Returns whether the run was canceled."""
        self.about |= counts
        return self.stop

    def read(self) -> dict[str, Any]:
        """Return the description of the run, its counts, and whether it is canceled."""
        return {**self.about, "canceled": self.stop}

    def cancel(self) -> None:
        """Make the next `update` return True."""
        self.stop = True


class Posted:
    """The command's handle of its run's actor; `counts` returns the figures to show.

    If the cluster does not respond, only the status is lost.
    """

    def __init__(
        self, library: Any, repository: str, counts: Callable[[], Mapping[str, Any]]
    ) -> None:
        self.library = library
        self.name = f"{PREFIX}{uuid.uuid4().hex[:8]}"
        self.counts = counts
        self.response: Any = None
        self.sent = 0.0
        about = {
            "name": self.name,
            "repository": repository,
            "user": getpass.getuser(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since": time.time(),
        }
        here = library.get_runtime_context().get_node_id()
        strategy = library.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            node_id=here, soft=False
        )
        self.actor = (
            library.remote(Board)
            .options(
                name=self.name,
                namespace=NAMESPACE,
                num_cpus=0,
                scheduling_strategy=strategy,
            )
            .remote(about)
        )

    def canceled(self) -> bool:
        """Send the counts, at most once a second. Returns whether the run was canceled."""
        if self.response is None and time.monotonic() - self.sent > UPDATE_SECONDS:
            self.sent = time.monotonic()
            with contextlib.suppress(Exception):
                self.response = self.actor.update.remote(self.counts())
        if (
            self.response is None
            or not self.library.wait([self.response], timeout=0)[0]
        ):
            return False
        response = self.response
        self.response = None
        with contextlib.suppress(Exception):
            return bool(self.library.get(response))
        return False


def runs(library: Any) -> list[tuple[dict[str, Any], Any]]:
    """Return the description and the actor of each run on the cluster."""
    actors = library.util.list_named_actors(all_namespaces=True)
    readable = []
    for listed in actors:
        if listed["namespace"] != NAMESPACE or not listed["name"].startswith(PREFIX):
            continue
        with contextlib.suppress(Exception):  # the run ended in the meantime
            actor = library.get_actor(listed["name"], namespace=NAMESPACE)
            readable.append(
                (library.get(actor.read.remote(), timeout=REPLY_SECONDS), actor)
            )
    return readable


def cancel(library: Any) -> list[str]:
    """Cancel every run on the cluster. Returns their names."""
    names = []
    for about, actor in runs(library):
        library.get(actor.cancel.remote(), timeout=REPLY_SECONDS)
        names.append(str(about["name"]))
    return names
