"""The error classes of trt-build and their exit codes.

    TrtBuildError                      exit
    ├── ModelError                        1   one model failed; the others continue
    │   ├── ModelFileError                    the file is not a TorchScript archive that can be loaded
    │   │   └── ModelFileBlocked          4   no permission to read it
    │   ├── LoweringError                     a pass cannot express the graph
    │   │   └── KeyMistake                        a value of the manifest does not fit the module
    │   ├── UnsupportedOperators              every operator that has no converter, all at once
    │   ├── ConversionError                   a converter cannot build this node
    │   ├── NetworkEvaluationError            the reference cannot evaluate the network, or disagrees with TensorRT
    │   ├── EngineError                       TensorRT refused the network
    │   └── PublishError                      the repository could not be written
    │       └── PublishBlocked            4   no space or no permission
    ├── UsageError                        2   the command line, the manifest
    │   └── ManifestError                     every mistake of a manifest, each with its line
    ├── ParityError                       3   an output differs from the original module's
    ├── EnvironmentProblem                4   something on this machine is missing or blocks the work
    │   └── ServerError                       tritonserver did not start, or a model did not load
    └── Defect                           70   an unexpected error, converted by builder.unforeseen

An error has a message, a location (file and line, or node and source line) and a fix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from builder.printable import counted


class TrtBuildError(Exception):
    """Base class: a message, `where` it happened, the `fix`, and the `exit_code` of the process."""

    exit_code = 1
    traceback = ""
    """The traceback of an unexpected error, as text, so that it can pass between processes."""

    def __init__(
        self, message: str, *, where: str | None = None, fix: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.fix = fix

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the attributes, because errors pass between processes without `__init__`."""
        return _rebuilt, (type(self), self.args, self.__dict__)

    def __str__(self) -> str:
        lines = [self.message]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.fix:
            lines.append(f"  fix:   {self.fix}")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """The error as JSON data."""
        optional = {"where": self.where, "fix": self.fix, "traceback": self.traceback}
        return {
            "kind": type(self).__name__,
            "message": self.message,
            "exit_code": self.exit_code,
            **{key: value for key, value in optional.items() if value},
        }


def summary(error: Exception) -> str:
    """The message of an error of trt-build; of an error of the operating system its text without
    the number; of another error the last line of its text, where torch has the reason, or the name
    of its class.
    """
    if isinstance(error, TrtBuildError):
        return error.message
    if isinstance(error, OSError) and error.strerror:
        name = "" if error.filename is None else f": {error.filename}"
        return f"{error.strerror}{name}"
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__


def _rebuilt(
    kind: type[TrtBuildError], args: tuple[Any, ...], state: dict[str, Any]
) -> TrtBuildError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class ModelError(TrtBuildError):
    """One model failed. A run over several models continues with the next one."""


class ModelFileError(ModelError):
    """The file is not a TorchScript archive, is damaged, or uses operators that are not allowed."""


class ModelFileBlocked(ModelFileError):
    """The machine prevents reading the file: no permission, or a network file system is gone."""

    exit_code = 4


class LoweringError(ModelError):
    """A pass cannot express the graph without changing its results."""


class KeyMistake(LoweringError):
    """The value of the manifest's `key` does not fit the module."""

    def __init__(self, key: str, message: str, fix: str) -> None:
        super().__init__(message, fix=fix)
        self.key = key


class UnboundedListError(LoweringError):
    """An output is a list whose length is not known before the model runs.

    `name` is the output's name, such as `boxes` or `output_1`. `max_lengths` of the manifest
    declares its largest length.
    """

    def __init__(self, name: str, where: str) -> None:
        super().__init__(
            f"output {name!r} is a list whose length is not known before the model runs,"
            " and an endpoint has a fixed set of outputs",
            where=where,
            fix=f"write its largest length in the manifest: max_lengths: {{{name}: N}}",
        )
        self.name = name


class InPlaceError(LoweringError):
    """An in-place write that cannot be expressed as values; torch runs the model unchanged."""


@dataclass(frozen=True)
class UnsupportedOperator:
    """One node without a converter: schema, debug name, source location, reason and fix."""

    schema: str
    node: str
    where: str
    reason: str
    fix: str


class UnsupportedOperators(ModelError):
    """All nodes of one model that have no converter; `operators` lists them."""

    def __init__(self, operators: Sequence[UnsupportedOperator]) -> None:
        self.operators = tuple(operators)
        nodes = counted(len(self.operators), "node")
        head = f"{nodes} cannot be converted to TensorRT:"
        super().__init__("\n".join([head, *self._groups()]))

    def as_dict(self) -> dict[str, Any]:
        """The error as JSON data, with the operators."""
        return {**super().as_dict(), "operators": list(map(vars, self.operators))}

    def _groups(self) -> list[str]:
        """One paragraph for each schema and reason, with the source line of every node."""
        groups: dict[tuple[str, str, str], list[str]] = {}
        for operator in self.operators:
            groups.setdefault(
                (operator.schema, operator.reason, operator.fix), []
            ).append(operator.where)
        paragraphs = []
        for (schema, reason, fix), locations in groups.items():
            lines = [f"  {schema}"]
            lines += [f"    where: {location}" for location in locations]
            lines += [f"    why:   {reason}", f"    fix:   {fix}"]
            paragraphs.append("\n".join(lines))
        return paragraphs


class ConversionError(ModelError):
    """A converter failed on a node that its capability accepts: a defect, with node and line."""


class NetworkEvaluationError(ModelError):
    """The reference cannot evaluate a layer, or disagrees with TensorRT about a shape or dtype."""


class EngineError(ModelError):
    """TensorRT refused to build or run the network; the message includes TensorRT's message."""


class PublishError(ModelError):
    """The model repository could not be written; its earlier content is unchanged."""


class PublishBlocked(PublishError):
    """No space, no permission, a read-only file system, or a path that is too long."""

    exit_code = 4


class UsageError(TrtBuildError):
    """The command line, or a file that the user wrote, is invalid."""

    exit_code = 2


@dataclass(frozen=True)
class Mistake:
    """One mistake in a file that the user wrote; `line` counts from 1."""

    file: str
    line: int
    message: str
    fix: str | None = None

    def __str__(self) -> str:
        text = f"{self.file}:{self.line}: {self.message}"
        if self.fix:
            return f"{text} ({self.fix})"
        return text


class ManifestError(UsageError):
    """All mistakes of a manifest; `mistakes` lists them."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(map(str, self.mistakes)))

    def as_dict(self) -> dict[str, Any]:
        """The error as JSON data, with the mistakes."""
        return {**super().as_dict(), "mistakes": list(map(vars, self.mistakes))}


class ParityError(TrtBuildError):
    """An output differs from the original module's by more than the tolerance."""

    exit_code = 3


class EnvironmentProblem(TrtBuildError):
    """Something on this machine is missing or blocks the work: a library, a GPU, a port, space."""

    exit_code = 4


class ServerError(EnvironmentProblem):
    """tritonserver did not start, stopped, or could not load a model; includes the log's reason."""


class Defect(TrtBuildError):
    """An unexpected error from Python or a library; `traceback` shows where it came from."""

    exit_code = 70  # EX_SOFTWARE of sysexits.h
