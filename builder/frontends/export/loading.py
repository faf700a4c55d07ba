"""Loads an exported program: inspects it, loads it in a child process, then loads it here."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder import torchscript
from builder.errors import ModelFileError
from builder.frontends.export import archive, pytrees

if TYPE_CHECKING:
    from builder.frontends.export.program import ExportedModule

PRELOADED = "builder.frontends.export.preloaded"
"""The module that a process imports before it forks children that load exported programs."""
log = logging.getLogger(__name__)

_UNREAD = re.compile(r"Failed deserializing node Node\(target='([\w.]+)'")
_NOT_READ = "the installed torch cannot read its call of"
"""Calls of torch.cond that torch 2.6 wrote are an example."""


def load(path: Path, *, libraries: Sequence[Path] = ()) -> ExportedModule:
    """Load the program of a `.pt2` file.

    The file is inspected, loaded in a child process with limits of memory and time, and then loaded
    here. Raises ModelFileError and LoweringError.
    """
    from builder.frontends.export.program import ExportedModule

    facts = archive.inspect(path, custom=bool(libraries))
    try:
        torchscript.check_in_child(facts, libraries, load_here, ("torch", PRELOADED))
    except ModelFileError as error:
        error.fix = error.fix or _fix(error.message)
        with_version = f", written by torch {facts.torch_version}, cannot be loaded:"
        error.message = error.message.replace(" cannot be loaded:", with_version, 1)
        raise
    torchscript.load_libraries(libraries)
    try:
        program = _load(str(path))
    except Exception as error:  # torch raises many types of errors here
        raise ModelFileError(
            f"{path.name}, written by torch {facts.torch_version}, cannot be loaded:"
            f" {_reason(error)}",
            where=str(path),
            fix=_fix(str(error)),
        ) from error
    try:
        return ExportedModule(program)
    except Exception as error:
        if hasattr(error, "where") and error.where is None:
            error.where = str(path)
        raise


def load_here(
    path: str, libraries: Sequence[str], extensions: Sequence[str], report: Any
) -> str:
    """Load the file in this child process. Returns the error's text, empty if there was none."""
    return torchscript.error_of(lambda: _load(path), libraries, extensions)


def _load(path: str) -> Any:
    import torch

    program = _text(Path(path))
    pytrees.register_named_tuples(json.loads(program))
    if b'"torch.ops.quantized_decomposed.' in program:
        import torch.ao.quantization.fx._decomposed  # registers the operators of PT2E
    if b'"torch.ops.torchao.' in program:
        from builder.frontends.export import torchao_operators

        torchao_operators.register()
    with _quiet() as warnings:
        try:
            loaded = torch.export.load(path)
            _ = loaded.call_spec  # raises if the program's own signature is missing
            return loaded
        except Exception as error:
            unread = _UNREAD.match(str(error))
            if unread:
                raise RuntimeError(f"{_NOT_READ} {unread[1]}") from error
            # torch logs the reason and raises another error
            if warnings:
                raise RuntimeError(warnings[-1]) from error
            raise


def _text(path: Path) -> bytes:
    """The program's JSON, after the archive has passed inspection."""
    with zipfile.ZipFile(path) as archive:
        programs = [
            name
            for name in archive.namelist()
            if name.endswith(("models/model.json", "program.json"))
        ]
        return archive.read(programs[0])


@contextlib.contextmanager
def _quiet() -> Iterator[list[str]]:
    """Collect the errors that torch.export.load logs, without printing them."""
    messages: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info and record.exc_info[1]:
                messages.append(str(record.exc_info[1]))

    handler = Collect()
    loggers = [logging.getLogger(name) for name in ("torch.export", "torch._export")]
    before = [(logger.propagate, list(logger.handlers)) for logger in loggers]
    for logger in loggers:
        logger.propagate = False
        logger.handlers = [handler]
    try:
        yield messages
    finally:
        for logger, (propagate, handlers) in zip(loggers, before, strict=True):
            logger.propagate = propagate
            logger.handlers = handlers


def _fix(reason: str) -> str:
    """The fix for a program that torch can save but not load."""
    if "deserialize output node" in reason:
        return "return tensors, numbers and None only, and export the model again"
    if _NOT_READ in reason:
        return "export the program again with a newer torch"
    return "check the file with torch.export.load, and export the model again"


def _reason(error: Exception) -> str:
    lines = (str(error) or type(error).__name__).strip().splitlines()
    return lines[0] if lines else type(error).__name__
