"""Each task has its own process; failures of one task do not affect the others."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace
from functools import partial
from multiprocessing import Pipe
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from builder import processes
from builder.errors import (
    EngineError,
    ManifestError,
    Mistake,
    UnsupportedOperator,
    UnsupportedOperators,
    UsageError,
)
from builder.processes import fork_server, pool
from tests.cli.conftest import python
from tests.processes import tasks


def task(
    name: str, *arguments: Any, report: Any = lambda *_: None
) -> processes.Task[Any]:
    return processes.Task(
        partial(getattr(tasks, name), *arguments), report, "trt-build repo x.pt"
    )


def test_results_keep_order_and_reports_are_passed_on() -> None:
    messages: list[tuple[Any, ...]] = []
    tasks = [
        task("square", n, report=lambda *words: messages.append(words))
        for n in range(5)
    ]
    assert processes.run(tasks, jobs=2) == [0, 1, 4, 9, 16]
    assert sorted(messages) == [("squaring", n) for n in range(5)]
    assert processes.run([]) == []


def test_each_task_has_its_own_process_without_tensorrt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a fork server of its own: another test may have loaded TensorRT in the shared one.
    Modules are imported before the fork, except those that do not exist.
    """
    modules = ["torch", "no.such.module"]
    own_server = fork_server.ForkServer()
    monkeypatch.setattr(pool, "connect", own_server.connect)
    try:
        pids, torch, tensorrt = zip(
            *processes.run([task("loaded")] * 3, modules=modules), strict=True
        )
    finally:
        own_server.close()
    assert len({os.getpid(), *pids}) == 4
    assert torch == (True,) * 3
    assert tensorrt == (False,) * 3


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL])
def test_crash_fails_only_its_task_and_is_reproducible(number: signal.Signals) -> None:
    before, crashed, after = processes.run(
        [task("square", 2), task("crash", number), task("square", 3)]
    )
    assert (before, after) == (4, 9)
    assert isinstance(crashed, EngineError)
    assert number.name in crashed.message
    assert "trt-build repo x.pt" in str(crashed.fix)
    if number != signal.SIGKILL:  # which leaves no time to report a location
        assert "builder/processes/worker.py" in str(crashed.where)
        assert "in _run" in str(crashed.where)
    if number == signal.SIGKILL:
        assert "out of memory" in crashed.message


def test_exits_and_unsendable_results_are_reported() -> None:
    (exited,) = processes.run([task("leave")])
    assert "exit code 7" in exited.message
    with pytest.raises(RuntimeError, match="cannot be sent"):
        processes.run([task("unsendable")])


def test_errors_of_trt_build_are_passed_on_unchanged() -> None:
    operators = [
        UnsupportedOperator("aten::x", "y", "f.py:1", "no converter", "write one")
    ]
    mistakes = [Mistake("a.yaml", 3, "wrong")]
    for error in (
        UsageError("no", where="here", fix="this"),
        UnsupportedOperators(operators),
        ManifestError(mistakes),
    ):
        with pytest.raises(type(error)) as caught:
            processes.run([task("fail", error)])
        assert str(caught.value) == str(error)
        assert vars(caught.value) == vars(error)


def test_defect_has_the_traceback_of_its_process() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        processes.run([task("divide", 0)])
    assert "in divide" in str(caught.value.__cause__)


def test_exception_of_one_task_ends_the_others() -> None:
    pids: list[int] = []
    began = time.monotonic()
    with pytest.raises(UsageError):
        processes.run(
            [task("sleep", report=pids.append), task("fail", UsageError("no"))], jobs=2
        )
    assert time.monotonic() - began < 30
    assert have_ended(pids)


@pytest.mark.parametrize("kind", ["sleep", "ignore_signals"])
def test_ctrl_c_ends_all_processes(kind: str) -> None:
    """A process that ignores signals is killed after the grace period."""
    pids: list[int] = []

    def report(pid: int) -> None:
        pids.append(pid)
        if len(pids) == 2:
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()

    with pytest.raises(KeyboardInterrupt):
        processes.run([task(kind, report=report)] * 2, jobs=2, grace=0.2)
    assert len(pids) == 2
    assert have_ended(pids)
    assert processes.run([task("square", 2)]) == [4]


@pytest.mark.parametrize(
    "stop",
    [
        (
            "threading.Timer(0.5, stop).start(); tasks = [processes.Task(functools.partial("
            "tasks.square, 1), print)] * 3"
        ),
        (
            "modules = (); tasks = [processes.Task("
            "tasks.ignore_exceptions, lambda word: (print(word), stop()))]"
        ),
    ],
    ids=["while the workers start", "where exceptions are ignored"],
)
def test_stop_at_any_time_prints_no_traceback(stop: str) -> None:
    code = (
        "import functools, os, signal, threading\n"
        "from builder import processes\n"
        "from tests.processes import tasks as tasks\n"
        "stop = lambda: os.kill(os.getpid(), signal.SIGINT)\n"
        "modules = ['torch']\n"
        f"{stop}\n"
        "try:\n    processes.run(tasks, 3, modules=modules)\n"
        "except KeyboardInterrupt:\n    print('stopped')\n"
    )
    ended = python(code)
    assert (
        ended.stdout.splitlines()[-1] == "stopped" and "not stopped" not in ended.stdout
    )
    assert ended.stderr == ""


def test_environments_are_assigned_to_slots_in_turn() -> None:
    results = processes.run(
        [task("variable", "ONE")] * 4, 2, [{"ONE": "a"}, {"ONE": "b"}]
    )
    assert set(results) == {"a", "b"}
    assert "ONE" not in os.environ


def test_reproduction_command_names_the_gpu_of_the_worker() -> None:
    tasks = [task("crash", signal.SIGSEGV)] * 2
    results = processes.run(
        tasks, 2, [{"CUDA_VISIBLE_DEVICES": "GPU-0"}, {"CUDA_VISIBLE_DEVICES": "GPU 1"}]
    )
    assert [crashed.fix for crashed in results] == [
        f"reproduce it with: CUDA_VISIBLE_DEVICES={gpu} trt-build repo x.pt"
        for gpu in ("GPU-0", "'GPU 1'")
    ]


def test_task_runs_in_the_working_folder_of_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fork server may have been started in another folder."""
    assert processes.run([task("folder")]) == [os.getcwd()]
    monkeypatch.chdir(tmp_path)
    assert processes.run([task("folder")]) == [str(tmp_path)]


def test_killed_fork_server_is_replaced() -> None:
    assert processes.run([task("square", 2)]) == [4]
    process = fork_server.server.process
    assert process is not None
    process.kill()
    process.wait()
    assert processes.run([task("square", 3)]) == [9]


def test_worker_that_ends_before_it_reads_its_task_has_crashed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def connect(modules: object) -> object:
        own_end, workers_end = Pipe()
        workers_end.close()
        monkeypatch.setattr(own_end, "send", Mock(side_effect=ConnectionResetError))
        return own_end

    monkeypatch.setattr(pool, "connect", connect)
    (crashed,) = processes.run([task("square", 2)])
    assert isinstance(crashed, processes.Crashed)


def have_ended(pids: list[int]) -> bool:
    def ended(pid: int) -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return False

    until = time.monotonic() + 5
    while time.monotonic() < until and not all(map(ended, pids)):
        time.sleep(0.05)
    return all(map(ended, pids))


def test_processes_imports_no_heavy_modules() -> None:
    code = (
        "import sys, builder.processes; print([n for n in ('torch', 'numpy', 'tensorrt_rtx')"
        " if n in sys.modules])"
    )
    done = python(code)
    assert done.stdout == "[]\n"


def test_starting_fork_server_ignores_ctrl_c() -> None:
    """It cannot block the signal itself during its first imports, and would print a traceback."""
    started = fork_server.ForkServer()
    try:
        started._started()
        assert started.process is not None
        status = Path(f"/proc/{started.process.pid}/status").read_text()
        ignored = int(
            next(
                line.split()[1]
                for line in status.splitlines()
                if line.startswith("SigIgn:")
            ),
            16,
        )
        assert ignored & 1 << signal.SIGINT - 1
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        started.close()


def test_nested_tasks_end_with_their_worker() -> None:
    assert processes.run([task("nested", "square", 3)]) == [9]
    (crashed,) = processes.run([task("nested", "crash", signal.SIGSEGV)])
    assert isinstance(crashed, processes.Crashed)
    assert crashed.code == -signal.SIGSEGV
    pids: list[int] = []
    (killed,) = processes.run([task("killed_with_a_child", report=pids.append)])
    assert killed.code == -signal.SIGKILL
    assert len(pids) == 1
    assert have_ended(pids)


def test_task_that_exceeds_limits_is_ended() -> None:
    def limited(name: str, *arguments: Any, **limits: int) -> processes.Task[Any]:
        return replace(task(name, *arguments), limits=processes.Limits(**limits))

    both = [limited("sleep", seconds=1), limited("spin", seconds=1)]
    late, busy = processes.run(both, jobs=2)
    assert late.code == -signal.SIGALRM
    assert busy.code in (-signal.SIGALRM, -signal.SIGXCPU)
    assert processes.run([limited("allocate", 8 << 20, memory_bytes=256 << 20)]) == [
        8 << 20
    ]
    with pytest.raises(MemoryError):
        processes.run([limited("allocate", 1 << 30, memory_bytes=256 << 20)])
    with pytest.raises(OSError, match="File too large"):
        processes.run([limited("write_file", file_bytes=0)])


def test_output_of_tasks_does_not_reach_standard_output() -> None:
    code = (
        "from builder import processes\n"
        "import functools\n"
        "from tests.processes import tasks\n"
        "processes.run([processes.Task(functools.partial(tasks.print_text, 'output\\x1b\\x07'))])\n"
        "print('answer')\n"
    )
    ended = python(code)
    assert ended.stdout == "answer\n"
    assert "output\\x1b\\x07" in ended.stderr


def test_stage_timeout_ends_only_its_task() -> None:
    """Each report begins a new stage: three stages may together exceed the limit of one."""
    limits = processes.Limits(stage_seconds=1.5)
    slow = replace(task("stages", 0.2, 60.0), limits=limits)
    several = replace(task("stages", *[0.6] * 3), limits=limits)
    ended, done, other = processes.run([slow, several, task("square", 3)], jobs=2)
    assert isinstance(ended, processes.TimedOut)
    assert done == "done"
    assert ended.message == "the stage 'second' took more than 1.5 s and was ended"
    assert "limits.stage_seconds" in str(ended.fix)
    assert other == 9
