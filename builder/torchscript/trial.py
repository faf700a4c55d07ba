"""Loads a file in another process first, so that a hostile or broken one cannot take the build
down.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from builder.errors import EnvironmentProblem, ModelFileError
from builder.torchscript.facts import ArchiveFacts, sha256

MEMORY_BESIDE_WEIGHTS = 2 << 30
SECONDS = 60
SECONDS_PER_GIB = 10
_GRACE = 10
_START_SECONDS = 120

_REASONS = {
    signal.SIGALRM: "took more than {seconds} s to load",
    signal.SIGXCPU: "took more than {seconds} s to load",
    signal.SIGKILL: "was killed while it loaded: out of memory, or more than {seconds} s of CPU",
    signal.SIGSEGV: "crashes torch when it is loaded",
    signal.SIGABRT: "crashes torch when it is loaded, or needs more than {memory} MiB for that",
}

FORKS = False
"""Set in a process that has imported torch and done nothing else yet: it forks itself instead of
starting a helper.
"""

_known_good: set[str] = set()
_lock = threading.Lock()
_helper: subprocess.Popen[str] | None = None


def check(facts: ArchiveFacts, libraries: Sequence[Path] = ()) -> None:
    """Load the file in a child process unless a file of the same SHA-256 has passed in this
    process.

    The child may use the weights' size twice and 2 GiB, and 60 s and 10 s for each GiB.
    Raises ModelFileError where it cannot be loaded within that; EnvironmentProblem where no child
    can be started.
    """
    digest = sha256(facts.path)
    if digest in _known_good:
        return
    seconds = SECONDS + SECONDS_PER_GIB * (facts.unpacked_bytes >> 30)
    memory = MEMORY_BESIDE_WEIGHTS + 2 * facts.unpacked_bytes
    with _lock:
        answer = _ask(
            {
                "path": str(facts.path.resolve()),
                "libraries": [str(path.resolve()) for path in libraries],
                "bytes": memory,
                "seconds": seconds,
            }
        )
    if not answer["ok"]:
        raise _refusal(facts.path, answer, seconds, memory)
    _known_good.add(digest)


def _refusal(path: Path, answer: dict[str, Any], seconds: int, memory: int) -> ModelFileError:
    words = answer["error"] or _REASONS.get(answer["signal"], "cannot be loaded (exit code {code})")
    words = (
        words
        if answer["error"]
        else words.format(seconds=seconds, memory=memory >> 20, code=answer["code"])
    )
    if "memory" in words.lower() and "alloc" in words.lower():
        words = f"it needs more than {memory >> 20} MiB: {words}"
    prefix = "cannot be loaded: " if answer["error"] else ""
    return ModelFileError(f"{path.name} {prefix}{_first_lines(words)}", where=str(path))


def _first_lines(words: str, most: int = 12) -> str:
    lines = words.strip().splitlines()
    return "\n".join(lines[:most] + (["..."] if len(lines) > most else []))


def _ask(request: dict[str, Any]) -> dict[str, Any]:
    if FORKS:
        from builder.torchscript import child

        return child.answer(request)
    helper = _started()
    assert helper.stdin is not None and helper.stdout is not None
    try:
        helper.stdin.write(json.dumps(request) + "\n")
        helper.stdin.flush()
        return _line(helper.stdout, request["seconds"] + _GRACE)
    except (BrokenPipeError, TimeoutError, ValueError):
        stop()
        return {"ok": False, "error": "", "signal": signal.SIGKILL, "code": -signal.SIGKILL}
    except BaseException:
        # an interrupt leaves an answer on its way: the next request would read it as its own
        stop()
        raise


def _started() -> subprocess.Popen[str]:
    global _helper
    if _helper is None or _helper.poll() is not None:
        command = [sys.executable, "-m", "builder.torchscript.child"]
        # a session of its own: Ctrl-C goes to the build, which then stops the child itself
        _helper = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            env=_environment(),
        )
        atexit.register(stop)
        try:
            _line(_helper.stdout, _START_SECONDS)
        except (TimeoutError, ValueError) as error:
            stop()
            message = "the process that loads files safely does not start"
            raise EnvironmentProblem(message, where=" ".join(command)) from error
    return _helper


def _environment() -> dict[str, str]:
    """This process's environment, with the folder that `builder` was imported from first on the
    path.
    """
    here = str(Path(__file__).resolve().parents[2])
    rest = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{here}{os.pathsep}{rest}" if rest else here}


def _line(stream: IO[str] | None, seconds: float) -> dict[str, Any]:
    assert stream is not None
    if not select.select([stream], [], [], seconds)[0]:
        raise TimeoutError
    answer: dict[str, Any] = json.loads(stream.readline())
    return answer


def stop() -> None:
    """End the child process and what it has forked; a later check starts another."""
    global _helper
    helper, _helper = _helper, None
    if helper is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(helper.pid, signal.SIGKILL)
        helper.wait()
