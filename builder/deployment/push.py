"""Pushes published models to a running server and verifies each at the endpoint.

A model that clients already use is first loaded under another name beside the live one. This
candidate is verified with its goldens. Then one rename switches to it, and it is verified again
under its own name. If that fails, the former model is restored.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from tritonclient.grpc import model_config_pb2 as pb
from tritonclient.utils import InferenceServerException

from builder.errors import ServerError, TrtBuildError, UsageError
from builder.parity import ModelParity, config_check, verify
from builder.progress import Progress, silent
from builder.serving import PLAIN, Access, control
from builder.store import CONFIG, clean_up, published
from builder.triton import candidate, history, read_config, versions

UNCHANGED, PUSHED, REJECTED, ROLLED_BACK = (
    "unchanged",
    "pushed",
    "rejected",
    "rolled back",
)
"""States of a model: already live; now live; the candidate failed and nothing was switched; it
failed after the switch and the former model is live.
"""
FAILED = "failed"
"""The model failed after the switch, and there is no former model to restore."""


@dataclass(frozen=True)
class Target:
    """A running server: its addresses, the repository that it reads, and the waiting times.

    Times are in seconds: `timeout` for each load, `drain` before former steps are unloaded.
    """

    repository: Path
    http: str
    grpc: str | None = None
    access: Access = PLAIN
    timeout: float = control.LOAD_TIMEOUT
    drain: float = control.DRAIN_SECONDS


@dataclass(frozen=True)
class Pushed:
    """The result for one model: its `state` (see above), the live version number, problems from
    verification or the server, and accepted incompatible changes.
    """

    name: str
    state: str
    number: int | None = None
    problems: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def live(self) -> bool:
        """Whether clients reach the pushed model."""
        return self.state in (UNCHANGED, PUSHED)


def push(
    source: Path,
    target: Target,
    only: Sequence[str] = (),
    *,
    accept: bool = False,
    progress: Progress | None = None,
) -> list[Pushed]:
    """Push the models of the repository `source` to the server that reads `target.repository`.

    With `only`, pushes only these models. `target.repository` may be `source` itself if `trt-build
    repo` has already published there.

    Raises UsageError for an unknown model or an incompatible change without `accept`,
    EnvironmentProblem if no server answers, and PublishError.
    """
    folders = check_local(source, target, only)
    with control.connected(
        target.http, target.access, target.timeout, target.grpc
    ) as api:
        explicit = api.is_explicit()
        return [
            _Push(folder, target, api, explicit, accept, progress or silent).run()
            for folder in folders
        ]


def check_local(source: Path, target: Target, only: Sequence[str] = ()) -> list[Path]:
    """Repair what killed runs left in `target.repository`, and remove former steps of ensembles
    that have drained. A server in poll mode holds these until then.

    Returns the folders of the models to push. Raises UsageError for a missing repository or model.
    """
    published.require_repository(target.repository)
    clean_up(target.repository)
    return history.models(source, only)


@dataclass(eq=False)
class _Push:
    """The push of one model to one server."""

    source: Path
    target: Target
    api: control.Control
    explicit: bool
    accept: bool
    progress: Progress

    def __post_init__(self) -> None:
        self.name = self.source.name
        self.folder = self.target.repository / self.name
        self.in_place = self.source.resolve() == self.folder.resolve()

    def run(self) -> Pushed:
        begin = time.monotonic()
        pushed = self._run()
        number = None
        if self.folder.is_dir():
            number = versions.of_model(self.folder)[0].number
        return replace(
            pushed, number=number, seconds=round(time.monotonic() - begin, 2)
        )

    def _run(self) -> Pushed:
        live = self._is_live()
        if live and self._same_files() and not self._problems(self.name):
            return Pushed(self.name, UNCHANGED)
        # in poll mode the server loads a change without a request: the switch comes first
        first = live and (self.explicit or not self.in_place)
        if first and (problems := self._candidate_problems()):
            return self._rejected(problems)
        return self._switched_in_place() if self.in_place else self._switched()

    def _is_live(self) -> bool:
        try:
            return bool(self.api.client.is_model_ready(self.name))
        except (InferenceServerException, OSError):
            return False

    def _same_files(self) -> bool:
        """Whether the server's repository has the pushed version and the server its config."""
        served_versions = published.versions(self.folder)
        pushed_version = versions.of_model(self.source)[0]
        return (
            bool(served_versions)
            and versions.same(pushed_version, served_versions[0])
            and not self._differences()
        )

    def _differences(self) -> tuple[str, ...]:
        """The differences between the config in the server's repository and the served config."""
        served = self.api.client.get_model_config(self.name)
        return config_check.differences(
            read_config(self.folder / CONFIG),
            json_format.ParseDict(served, pb.ModelConfig()),
        )

    def _problems(self, name: str) -> tuple[str, ...]:
        """The problems that verification finds with a model at the endpoint."""
        self.progress(self.name, "verify")
        to = self.target
        (parity,) = verify(
            to.repository,
            to.http,
            to.grpc,
            [name],
            repeat=0,
            timeout=to.timeout,
            access=to.access,
        )
        return _causes(parity)

    def _candidate_problems(self) -> tuple[str, ...]:
        """Load the model under another name, verify all its goldens, and unload it."""
        self.progress(self.name, "load candidate")
        added = candidate.add(self.source, self.target.repository)
        problems: tuple[str, ...] = ("interrupted",)
        try:
            try:
                self._load(added.folder)
                problems = self._problems(added.name)
            except ServerError as error:
                problems = (error.message,)
        finally:
            if self.explicit:
                steps = added.steps if problems else ()
                with contextlib.suppress(ServerError):  # the repository decides
                    self.api.unload((added.name, *steps))
            if problems or not added.steps:
                added.withdraw()
            else:  # the steps have the names that the model itself will use
                replace(added, steps=()).withdraw()
        return problems

    def _rejected(self, problems: tuple[str, ...]) -> Pushed:
        """Return the rejected result. Nothing was switched; a publication by `repo` is reverted to
        the live version.
        """
        if self.in_place:
            problems += self._roll_back()
        return Pushed(self.name, REJECTED, problems=problems)

    def _switched(self) -> Pushed:
        """Publish into the server's repository. If the model fails, restore the former one."""
        with candidate.former(self.folder) as former:
            before = self._present_state()
            self.progress(self.name, "switch")
            promotion = history.promote(
                self.source, self.target.repository, accept=self.accept
            )
            try:
                problems = self._live_problems(before)
            except BaseException:
                former.restore()
                raise
            if not problems:
                self._drop_former_steps()
                return Pushed(self.name, PUSHED, changes=promotion.changes)
            return self._restored(former, problems)

    def _restored(self, former: candidate.Former, problems: tuple[str, ...]) -> Pushed:
        self.progress(self.name, "roll back")
        if not former.exists and self.explicit:
            with contextlib.suppress(ServerError):
                self.api.unload((self.name, *published.step_names(self.folder)))
        before = self._present_state()
        former.restore()
        if not former.exists:
            return Pushed(self.name, FAILED, problems=problems)
        return Pushed(
            self.name, ROLLED_BACK, problems=problems + self._live_problems(before)
        )

    def _switched_in_place(self) -> Pushed:
        """Load the publication of `repo`. If it fails, roll back to the kept version before it."""
        self.progress(self.name, "switch")
        if not (problems := self._live_problems(None)):
            self._drop_former_steps()
            return Pushed(self.name, PUSHED)
        before = self._present_state()
        rollback_problems = self._roll_back()
        if rollback_problems:
            return Pushed(self.name, FAILED, problems=problems + rollback_problems)
        return Pushed(
            self.name, ROLLED_BACK, problems=problems + self._live_problems(before)
        )

    def _roll_back(self) -> tuple[str, ...]:
        """Roll the repository back to the kept version before the current one. Returns why it
        cannot.
        """
        try:
            history.rollback(self.folder, None, accept=True)
        except UsageError as error:
            return (
                f"the repository still has the model that failed, since {error.message};"
                " a restarted server would serve it",
            )
        return ()

    def _live_problems(self, before: _ServerState | None) -> tuple[str, ...]:
        try:
            self._load(self.folder, before)
            return self._problems(self.name)
        except ServerError as error:
            return (error.message,)

    def _drop_former_steps(self) -> None:
        if self.explicit:
            self.api.unload(self.api.former_steps(self.folder), drain=self.target.drain)

    def _load(self, folder: Path, before: _ServerState | None = None) -> None:
        """Wait until the model in `folder` is ready on the server. Raises ServerError."""
        if self.explicit:
            self.api.load(folder)
            return
        deadline = time.monotonic() + self.target.timeout
        for waited in _ticks(deadline):
            with contextlib.suppress(InferenceServerException):
                if self._has(folder, before):
                    return
                ready = self.api.client.is_model_ready(folder.name)
                reason = None
                if not ready:
                    reason = self.api.why_not_ready(folder.name)
                if reason and waited > WAIT_FOR_REASON:
                    raise ServerError(f"model {folder.name!r} was not loaded: {reason}")
        raise ServerError(
            f"the server did not take model {folder.name!r} up within {self.target.timeout:g} s",
            where=self.target.http,
            fix="start it with trt-build serve --watch, and name its repository with --to",
        )

    def _has(self, folder: Path, before: _ServerState | None) -> bool:
        """Whether the server has loaded `folder`, and no longer has the state `before`."""
        client = self.api.client
        name = folder.name
        number = versions.of_model(folder)[0].number
        if not client.is_model_ready(name, str(number)):
            return False
        served = json_format.ParseDict(client.get_model_config(name), pb.ModelConfig())
        if config_check.differences(read_config(folder / CONFIG), served):
            return False
        return (
            before is None
            or before.config != served
            or self._requests() < before.requests
        )

    def _present_state(self) -> _ServerState | None:
        """The server's present state of the model. Its counters restart with each load."""
        if self.explicit or not self._is_live():
            return None
        with contextlib.suppress(TrtBuildError):
            self._problems(self.name)  # the counters need a request
        client = self.api.client
        served = json_format.ParseDict(
            client.get_model_config(self.name), pb.ModelConfig()
        )
        return _ServerState(served, self._requests())

    def _requests(self) -> int:
        statistics = self.api.client.get_inference_statistics(self.name)["model_stats"]
        return sum(int(version["inference_count"]) for version in statistics)


@dataclass(frozen=True)
class _ServerState:
    config: Any
    requests: int


WAIT_FOR_REASON = 3.0
"""Seconds before the server's reason is used. Before the server polls, the reason is from a former
load.
"""


def _ticks(deadline: float) -> Iterator[float]:
    """Yield the seconds waited so far, until the deadline."""
    begin = time.monotonic()
    while (now := time.monotonic()) < deadline:
        yield now - begin
        time.sleep(control.POLL_SECONDS)


def _causes(parity: ModelParity) -> tuple[str, ...]:
    """Why a model failed, one text for each cause; empty if it passed."""
    if parity.passed:
        return ()
    results = [result for result in parity.results if not result.passed]
    texts = [
        f"{result.golden} over {result.protocol}: {problem}"
        for result in results
        for problem in result.problems
    ]
    return (*parity.problems, *texts) or ("no golden got a response",)
