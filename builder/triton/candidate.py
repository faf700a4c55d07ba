"""Publishes a candidate model under its own name beside the model that it will replace.

The candidate is verified at the endpoint before clients reach it. The former model is kept until
the new one has passed verification.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tritonclient.grpc import model_config_pb2 as pb

from builder.store import CONFIG, GENERATED, SIDECAR, published, staging
from builder.triton import bytecode, copying, versions
from builder.triton.config import config_text, read_config
from builder.triton.publish import add_steps, blocked, move_in

INFIX = ".candidate."
"""Separates the model's name and the digest in a candidate's name."""


@dataclass(frozen=True)
class Candidate:
    """A model in the folder `name` of `repository`, and the steps that were added with it."""

    name: str
    repository: Path
    steps: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """The folder that the server reads."""
        return self.repository / self.name

    def withdraw(self) -> None:
        """Remove the candidate from the repository, with its steps that no published model
        names.
        """
        name = self.name.partition(INFIX)[0]
        with staging.staging(self.repository) as stage, staging.lock(self.repository):
            published_steps = published.step_names(self.repository / name)
            for model in (
                self.name,
                *(step for step in self.steps if step not in published_steps),
            ):
                with contextlib.suppress(FileNotFoundError):
                    (self.repository / model).rename(stage / model)
            staging.sync(self.repository)


def add(source: Path, repository: Path) -> Candidate:
    """Copy the current version of the model in the folder `source` into `repository` as
    `<name>.candidate.<digest>`.

    The copy is atomic, and includes the steps of an ensemble that are not there yet. The remains of
    a killed push are recorded as a step of the model, which publication removes later. Raises
    UsageError if there is no such model, PublishError if a file of it is damaged.
    """
    current = versions.of_model(source)[0]
    before = copying.identity(source)
    versions.require_undamaged(current)
    digest = hashlib.sha256((source / SIDECAR).read_bytes()).hexdigest()[:8]
    name = f"{source.name}{INFIX}{digest}"
    steps = published.recorded_steps(current.sidecar)
    with blocked(source.name, repository), staging.staging(repository) as stage:
        (stage / name).mkdir()
        versions.copied(current, stage / name)
        copying.require_same(source, before)
        _rename(stage / name, source.name)
        for step in steps:
            copying.copy(source.parent / step, stage / step, links=True)
        for model in (*steps, name):
            bytecode.prevent(stage / model)
            staging.sync_tree(stage / model)
        with staging.lock(repository):
            new = add_steps(source.name, steps, repository, stage)
            staging.swap(
                stage / name, repository / name, stage / f"{staging.OLD}{name}"
            )
            staging.sync(repository)
    return Candidate(name, repository, tuple(new))


def _rename(folder: Path, name: str) -> None:
    """Write the folder's name into its config, which serves only the current version."""
    record = published.read(folder / SIDECAR)
    message = read_config(folder / CONFIG)
    message.name = folder.name
    message.version_policy.CopyFrom(
        pb.ModelVersionPolicy(
            specific=pb.ModelVersionPolicy.Specific(
                versions=[published.number_of(record)]
            )
        )
    )
    text = config_text(message)
    (folder / CONFIG).unlink()
    (folder / CONFIG).write_text(text, encoding="utf-8")
    digest = hashlib.sha256(text.encode()).hexdigest()
    files = {**record.get("files", {}), CONFIG: digest}
    published.write(
        folder, {**record, "step_of": name, "files": files, GENERATED: text}
    )


@dataclass(frozen=True)
class Former:
    """The contents of `folder` before a push: a copy in `stage`, or nothing."""

    folder: Path
    stage: Path
    steps: tuple[str, ...]

    @property
    def exists(self) -> bool:
        """Whether there was a former model."""
        return (self.stage / self.folder.name).is_dir()

    def restore(self) -> None:
        """Restore the former model with one rename, or remove the new one if there was none.

        Raises PublishError.
        """
        name = self.folder.name
        repository = self.folder.parent
        with blocked(name, repository), staging.lock(repository):
            if self.exists:
                move_in(name, self.steps, repository, self.stage)
                return
            steps = published.step_names(self.folder)
            for model in (name, *sorted(steps)):
                (repository / model).rename(self.stage / f"withdrawn {model}")
            staging.sync(repository)


@contextlib.contextmanager
def former(folder: Path) -> Iterator[Former]:
    """Keep the present model in `folder` and its steps for the duration of a `with` block.

    Files are hard links if the file system supports them.
    """
    repository = folder.parent
    repository.mkdir(parents=True, exist_ok=True)
    with blocked(folder.name, repository), staging.staging(repository) as stage:
        steps = []
        if folder.is_dir():
            steps = sorted(published.step_names(folder))
            for model in (folder.name, *steps):
                copying.copy(repository / model, stage / model, links=True)
        yield Former(folder, stage, tuple(steps))
