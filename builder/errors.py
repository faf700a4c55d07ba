"""Every error that trt-build raises on purpose, and the exit code that each one gives.

    TrtBuildError                      exit
    ├── ModelError                        1   one model failed; the others go on
    │   ├── ModelFileError                    the file is not a TorchScript archive that we can load
    │   ├── LoweringError                     a pass met what it cannot express
    │   ├── UnsupportedOperators              every operator that has no converter, all at once
    │   ├── ConversionError                   a converter cannot build this node
    │   ├── NetworkEvaluationError            the reference cannot evaluate the network, or disagrees with TensorRT
    │   ├── EngineError                       TensorRT refused the network
    │   └── PublishError                      the repository could not be written
    │       └── PublishBlocked            4   for want of space or permission
    ├── UsageError                        2   the command line, the manifest
    │   └── ManifestError                     every mistake of a manifest, each with its line
    ├── ParityError                       3   an answer differs from the original module's
    ├── EnvironmentProblem                4   something on this machine is missing or in the way
    │   └── ServerError                       tritonserver did not start, or a model did not load
    └── Defect                           70   nobody raised it on purpose: builder.unforeseen makes it of Python's error

An error says what went wrong, where (file and line, or node and source line) and how to mend it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


class TrtBuildError(Exception):
    """What went wrong, `where`, and the `fix`; `exit_code` is the process's when nothing catches
    it.
    """

    exit_code = 1
    traceback = ""
    """Of an error that nobody raised on purpose, as Python prints it: it travels between processes
    as text alone.
    """

    def __init__(self, message: str, *, where: str | None = None, fix: str | None = None) -> None:
        super().__init__(message)
        self.message, self.where, self.fix = message, where, fix

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors travel between processes: rebuilt from what they hold, not by calling their
        `__init__` again.
        """
        return _rebuilt, (type(self), self.args, self.__dict__)

    def __str__(self) -> str:
        lines = [self.message]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.fix:
            lines.append(f"  fix:   {self.fix}")
        return "\n".join(lines)


def _rebuilt(
    kind: type[TrtBuildError], args: tuple[Any, ...], state: dict[str, Any]
) -> TrtBuildError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class ModelError(TrtBuildError):
    """One model failed; a run over several goes on with the next."""


class ModelFileError(ModelError):
    """The file is not a TorchScript archive, is damaged, or asks for more than TorchScript may
    do.
    """


class LoweringError(ModelError):
    """A pass met what it cannot express without changing the model's meaning."""


class InPlaceError(LoweringError):
    """A write in place that values cannot tell; torch runs it as it is written."""


@dataclass(frozen=True)
class UnsupportedOperator:
    """One node without a converter: its schema, its debug name, where the source has it, why and
    what to do.
    """

    schema: str
    node: str
    where: str
    reason: str
    fix: str


class UnsupportedOperators(ModelError):
    """All nodes of one model that have no converter; `operators` holds each."""

    def __init__(self, operators: Sequence[UnsupportedOperator]) -> None:
        self.operators = tuple(operators)
        count = len(self.operators)
        head = f"{count} node{'s' if count != 1 else ''} cannot be converted to TensorRT:"
        super().__init__("\n".join([head, *self._groups()]))

    def _groups(self) -> list[str]:
        """One paragraph for each schema and reason, with the source line of every node."""
        groups: dict[tuple[str, str, str], list[str]] = {}
        for operator in self.operators:
            groups.setdefault((operator.schema, operator.reason, operator.fix), []).append(
                operator.where
            )
        return [
            "\n".join(
                [
                    f"  {schema}",
                    *(f"    where: {w}" for w in where),
                    f"    why:   {reason}",
                    f"    fix:   {fix}",
                ]
            )
            for (schema, reason, fix), where in groups.items()
        ]


class ConversionError(ModelError):
    """A converter cannot build this node although its capability said that it could: our defect,
    with node and line.
    """


class NetworkEvaluationError(ModelError):
    """The reference cannot evaluate a layer, or a value disagrees with what TensorRT says of its
    tensor.
    """


class EngineError(ModelError):
    """TensorRT refused to build or to run the network; the message carries TensorRT's own words."""


class PublishError(ModelError):
    """The model repository could not be written; what stood there before stands unchanged."""


class PublishBlocked(PublishError):
    """This machine was in the way: no space, no permission, a file system that is read-only."""

    exit_code = 4


class UsageError(TrtBuildError):
    """The command line or a file that the user wrote is wrong."""

    exit_code = 2


@dataclass(frozen=True)
class Mistake:
    """One mistake in a file that the user wrote; `line` counts from 1."""

    file: str
    line: int
    message: str
    fix: str | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}" + (f" ({self.fix})" if self.fix else "")


class ManifestError(UsageError):
    """Every mistake of a manifest at once; `mistakes` holds each."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(map(str, self.mistakes)))


class ParityError(TrtBuildError):
    """An answer differs from the original module's by more than the tolerance."""

    exit_code = 3


class EnvironmentProblem(TrtBuildError):
    """Something on this machine is missing or in the way: a library, a GPU, a port, disk space."""

    exit_code = 4


class ServerError(EnvironmentProblem):
    """tritonserver did not start, stopped, or could not load a model; the message carries its log's
    reason.
    """


class Defect(TrtBuildError):
    """An error of Python's or a library's that trt-build did not expect; `traceback` tells where it
    came from.
    """

    exit_code = 70  # EX_SOFTWARE of sysexits.h
