"""The process that loads a file first: `python -m builder.torchscript.child`, requests and answers
as lines of JSON.

It imports torch once and forks for every file, so a check costs milliseconds after the first.
Forking is sound here: nothing has started a thread, and no GPU is touched. Each fork limits its own
memory and time before it loads; loading runs the file's own `__setstate__`, which may loop or
allocate without end.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

ANSWERED = 0


def main() -> None:
    """Answer requests until standard input ends."""
    import torch

    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints must not stand among the answers
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Fork, load the file there, and say how that ended. For processes that have imported torch and
    done no more.
    """
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        _load(request, write_end)  # never returns
    os.close(write_end)
    try:
        with os.fdopen(read_end) as words:
            error = words.read()
        _, status = os.waitpid(pid, 0)
    except BaseException:
        os.kill(pid, signal.SIGKILL)  # interrupted: it must not go on alone
        raise
    code = os.waitstatus_to_exitcode(status)
    return {
        "ok": code == ANSWERED and not error,
        "error": error,
        "signal": -code if code < 0 else 0,
        "code": code,
    }


def _load(request: dict[str, Any], write_end: int) -> None:
    words = ""
    try:
        _limit(request["bytes"], request["seconds"])
        import torch

        from builder.torchscript.libraries import load_libraries

        sys.dont_write_bytecode = True  # this process may write no file
        load_libraries(map(Path, request.get("libraries", ())))
        torch.jit.load(request["path"], map_location="cpu")  # type: ignore[no-untyped-call]
    except MemoryError:
        words = "not enough memory"
    except BaseException as error:
        words = str(error) or type(error).__name__
    os.write(write_end, words.encode()[:60_000])  # less than a pipe holds
    os._exit(ANSWERED)


def _limit(allowed_bytes: int, seconds: int) -> None:
    """Let this process take `allowed_bytes` more memory and `seconds`, write no file and leave no
    core.
    """
    data = _data_bytes() + allowed_bytes
    for limit, soft, hard in (
        # not RLIMIT_AS: a CUDA build maps tens of GiB that it never touches
        (resource.RLIMIT_DATA, data, data),
        # the soft limit's signal says why; the hard one's is SIGKILL
        (resource.RLIMIT_CPU, seconds, seconds + 5),
        (resource.RLIMIT_FSIZE, 0, 0),
        (resource.RLIMIT_CORE, 0, 0),
    ):
        before = resource.getrlimit(limit)[1]
        most = hard if before == resource.RLIM_INFINITY else min(hard, before)
        resource.setrlimit(limit, (min(soft, most), most))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(seconds)  # time asleep does not count as CPU time


def _data_bytes() -> int:
    """Private writable memory mapped so far, which RLIMIT_DATA counts."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    main()
