"""Load a file in a child process first, so that a malicious or damaged file cannot
crash the build.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from builder import processes
from builder.errors import ModelFileError, UsageError
from builder.torchscript import plugins
from builder.torchscript.archive import sha256

MEMORY_BESIDE_WEIGHTS = 2 << 30
SECONDS = 60
SECONDS_PER_GIB = 10

MODULES = ("torch",)

_MOST_LINES = 12
"""Of an error's text."""

_TOO_LONG = "took more than {seconds} s to load"
_REASONS = {
    -signal.SIGALRM: _TOO_LONG,
    -signal.SIGXCPU: _TOO_LONG,
    -signal.SIGKILL: "was killed while it loaded: out of memory, or more than {seconds} s of CPU",
    -signal.SIGSEGV: "crashes torch when it is loaded",
    -signal.SIGABRT: "crashes torch when it is loaded, or needs more than {memory} MiB for that",
}

_known_good: set[str] = set()


class Archive(Protocol):
    """The facts of a file before it is loaded."""

    @property
    def path(self) -> Path: ...

    @property
    def unpacked_bytes(self) -> int: ...


Load = Callable[[str, Sequence[str], Sequence[str], Any], str]
"""(path of a file, paths of libraries, plugins, a report function) -> the error's text."""


def check_in_child(
    facts: Archive,
    libraries: Sequence[Path] = (),
    target: Load | None = None,
    modules: Sequence[str] = MODULES,
) -> None:
    """Load the file in a child process, unless a file with the same SHA-256 has passed in this
    process.

    `target` is the function that loads it there (by default `load_here`). `modules` are imported
    before the child is forked. The child may use twice the weights' size plus 2 GiB, and 60 s plus
    10 s for each GiB. It can write no file and open no connection. Raises ModelFileError if it
    cannot be loaded within these limits, EnvironmentProblem if no child can be started.
    """
    digest = sha256(facts.path)
    if digest in _known_good:
        return
    limits = processes.Limits(
        memory_bytes=MEMORY_BESIDE_WEIGHTS + 2 * facts.unpacked_bytes,
        seconds=SECONDS + SECONDS_PER_GIB * (facts.unpacked_bytes >> 30),
        file_bytes=0,
    )
    names = [str(path.resolve()) for path in libraries]
    load = partial(
        target or load_here, str(facts.path.resolve()), names, plugins.loaded()
    )
    task = processes.Task(load, limits=limits, sandbox=processes.Sandbox())
    (outcome,) = processes.run([task], modules=modules, grace=0)
    if outcome:
        raise ModelFileError(
            f"{facts.path.name} {_reason(outcome, limits)}", where=str(facts.path)
        ) from None
    _known_good.add(digest)


def _reason(
    outcome: str | processes.Crashed | processes.TimedOut, limits: processes.Limits
) -> str:
    """The error text of torch, or how the process ended."""
    memory = (limits.memory_bytes or 0) >> 20
    if isinstance(outcome, processes.Crashed):
        text = _REASONS.get(outcome.code, "cannot be loaded (exit code {code})")
        return text.format(seconds=limits.seconds, memory=memory, code=outcome.code)
    if isinstance(outcome, processes.TimedOut):
        return outcome.message
    if "memory" in outcome.lower() and "alloc" in outcome.lower():
        outcome = f"it needs more than {memory} MiB: {outcome}"
    return f"cannot be loaded: {_first_lines(outcome)}"


def _first_lines(text: str) -> str:
    lines = text.strip().splitlines()
    if len(lines) > _MOST_LINES:
        lines = [*lines[:_MOST_LINES], "..."]
    return "\n".join(lines)


def load_here(
    path: str, libraries: Sequence[str], extensions: Sequence[str], report: Any
) -> str:
    """Load the file in this process and drop it. Returns the error's text, empty without an error.

    `extensions` are the plugins of the calling process. A plugin that fails within the limits of
    this process is skipped: the file may not need it.
    """

    def load() -> None:
        import torch

        loaded: Any = torch.jit.load(path, map_location="cpu")  # type: ignore[no-untyped-call]
        for name in loaded._c._method_names():
            # reads the source maps, which may be damaged
            str(loaded._c._get_method(name).inlined_graph)

    return error_of(load, libraries, extensions)


def error_of(
    load: Callable[[], object], libraries: Sequence[str], extensions: Sequence[str]
) -> str:
    """The text of the error that `load` raises in this child process; empty if it raises none."""
    import torch

    sys.dont_write_bytecode = True  # this process may write no file
    _silence()
    torch.set_num_threads(1)
    for name in extensions:
        with contextlib.suppress(UsageError):
            plugins.load([name])
    try:
        plugins.load_libraries(map(Path, libraries))
        load()
    except MemoryError:
        return "not enough memory"
    except Exception as error:
        return (str(error) or type(error).__name__)[:60_000]
    return ""


def _silence() -> None:
    """Discard the output of libraries: an abort prints its own message."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
