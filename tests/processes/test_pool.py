"""Each task has a process of its own: what happens to one, however bad, happens to it alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

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
from builder.processes import fork_server
from tests.processes import tasks


def task(name: str, *arguments: Any, report: Any = lambda *_: None) -> processes.Task[Any]:
    return processes.Task(partial(getattr(tasks, name), *arguments), report, "trt-build repo x.pt")


def test_results_come_in_order_and_words_on_the_way() -> None:
    messages: list[tuple[Any, ...]] = []
    tasks = [task("square", n, report=lambda *words: messages.append(words)) for n in range(5)]
    assert processes.run(tasks, jobs=2) == [0, 1, 4, 9, 16]
    assert sorted(messages) == [("squaring", n) for n in range(5)]
    assert processes.run([]) == []


def test_every_task_has_a_process_of_its_own_with_torch_and_without_tensorrt() -> None:
    pids, torch, tensorrt = zip(
        *processes.run([task("loaded")] * 3, modules=["torch"]), strict=True
    )
    assert len({os.getpid(), *pids}) == 4
    assert torch == (True,) * 3
    assert tensorrt == (False,) * 3


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL])
def test_crash_fails_only_its_task_with_a_command_to_reproduce_it(number: signal.Signals) -> None:
    before, crashed, after = processes.run(
        [task("square", 2), task("crash", number), task("square", 3)]
    )
    assert (before, after) == (4, 9)
    assert isinstance(crashed, EngineError)
    assert number.name in crashed.message
    assert "trt-build repo x.pt" in str(crashed.fix)
    if number != signal.SIGKILL:  # which leaves no time to say where
        assert "builder/processes/worker.py" in str(crashed.where)
        assert "in _run" in str(crashed.where)
    if number == signal.SIGKILL:
        assert "out of memory" in crashed.message


def test_exits_and_answers_that_cannot_be_sent_are_not_waited_for() -> None:
    (exited,) = processes.run([task("leave")])
    assert "exit code 7" in exited.message
    with pytest.raises(RuntimeError, match="cannot be sent"):
        processes.run([task("unsendable")])


def test_our_errors_arrive_as_they_were_raised() -> None:
    operators = [UnsupportedOperator("aten::x", "y", "f.py:1", "no converter", "write one")]
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


def test_a_defect_carries_the_traceback_of_its_process() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        processes.run([task("divide", 0)])
    assert "in divide" in str(caught.value.__cause__)


def test_what_one_raises_ends_the_others() -> None:
    pids: list[int] = []
    began = time.monotonic()
    with pytest.raises(UsageError):
        processes.run([task("sleep", report=pids.append), task("fail", UsageError("no"))], jobs=2)
    assert time.monotonic() - began < 30
    assert gone(pids)


@pytest.mark.parametrize("kind", ["sleep", "stubborn"])
def test_ctrl_c_ends_every_process(kind: str) -> None:
    """One that sits in a library and hears nothing is killed after the grace."""
    pids: list[int] = []

    def report(pid: int) -> None:
        pids.append(pid)
        if len(pids) == 2:
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()

    with pytest.raises(KeyboardInterrupt):
        processes.run([task(kind, report=report)] * 2, jobs=2)
    assert len(pids) == 2
    assert gone(pids)
    assert processes.run([task("square", 2)]) == [4]


@pytest.mark.parametrize(
    "stop",
    [
        (
            "threading.Timer(0.5, stop).start(); tasks = [processes.Task(functools.partial("
            "tasks.square, 1), print)] * 3"
        ),
        "tasks = [processes.Task(tasks.deaf, lambda word: (print(word), stop()))]",
    ],
    ids=["while the workers are born", "where nothing can be raised"],
)
def test_a_stop_at_any_moment_is_heard_and_no_worker_prints_a_traceback(stop: str) -> None:
    code = (
        "import functools, os, signal, threading\n"
        "from builder import processes\n"
        "from tests.processes import tasks as tasks\n"
        "stop = lambda: os.kill(os.getpid(), signal.SIGINT)\n"
        f"{stop}\n"
        "try:\n    processes.run(tasks, 3, modules=['torch'])\n"
        "except KeyboardInterrupt:\n    print('stopped')\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "stopped" and "not stopped" not in ended.stdout
    assert ended.stderr == ""


def test_slots_take_the_environments_in_turn() -> None:
    found = processes.run([task("variable", "ONE")] * 4, 2, [{"ONE": "a"}, {"ONE": "b"}])
    assert set(found) == {"a", "b"}
    assert "ONE" not in os.environ


def test_a_crash_is_reproduced_on_the_gpu_of_its_worker() -> None:
    tasks = [task("crash", signal.SIGSEGV)] * 2
    found = processes.run(
        tasks, 2, [{"CUDA_VISIBLE_DEVICES": "GPU-0"}, {"CUDA_VISIBLE_DEVICES": "GPU 1"}]
    )
    assert [crashed.fix for crashed in found] == [
        f"reproduce it with: CUDA_VISIBLE_DEVICES={gpu} trt-build repo x.pt"
        for gpu in ("GPU-0", "'GPU 1'")
    ]


def test_a_task_runs_in_the_folder_that_its_caller_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that it is forked from may have been started in another."""
    assert processes.run([task("folder")]) == [os.getcwd()]
    monkeypatch.chdir(tmp_path)
    assert processes.run([task("folder")]) == [str(tmp_path)]


def test_a_fork_server_that_was_killed_is_replaced() -> None:
    assert processes.run([task("square", 2)]) == [4]
    process = fork_server.server.process
    assert process is not None
    process.kill()
    process.wait()
    assert processes.run([task("square", 3)]) == [9]


def gone(pids: list[int]) -> bool:
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


def test_nothing_heavy_is_needed_to_run_tasks() -> None:
    code = (
        "import sys, builder.processes; print([n for n in ('torch', 'numpy', 'tensorrt_rtx')"
        " if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_ctrl_c_does_not_reach_a_fork_server_that_is_only_starting() -> None:
    """It imports for half a second before it could say so itself, and would print where it was."""
    started = fork_server.ForkServer()
    try:
        started._started()
        assert started.process is not None
        status = Path(f"/proc/{started.process.pid}/status").read_text()
        ignored = int(
            next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:")), 16
        )
        assert ignored & 1 << signal.SIGINT - 1
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        started.close()


def test_modules_are_imported_before_the_fork_and_a_missing_one_fails_its_task_only() -> None:
    modules = ["torch", "no.such.module"]
    assert processes.run([task("square", 2)], modules=modules) == [4]
    ((_, torch, _),) = processes.run([task("loaded")], modules=modules)
    assert torch


def test_a_worker_runs_tasks_of_its_own_which_end_with_it() -> None:
    assert processes.run([task("nested", "square", 3)]) == [9]
    (crashed,) = processes.run([task("nested", "crash", signal.SIGSEGV)])
    assert isinstance(crashed, processes.Crashed)
    assert crashed.code == -signal.SIGSEGV
    pids: list[int] = []
    (killed,) = processes.run([task("killed_with_a_child", report=pids.append)])
    assert killed.code == -signal.SIGKILL
    assert len(pids) == 1
    assert gone(pids)


def test_limits_end_a_task_that_exceeds_them() -> None:
    def limited(name: str, *arguments: Any, **limits: int) -> processes.Task[Any]:
        return replace(task(name, *arguments), limits=processes.Limits(**limits))

    (late,) = processes.run([limited("sleep", seconds=1)])
    assert late.code == -signal.SIGALRM
    (busy,) = processes.run([limited("spin", seconds=1)])
    assert busy.code in (-signal.SIGALRM, -signal.SIGXCPU)
    assert processes.run([limited("allocate", 8 << 20, memory_bytes=256 << 20)]) == [8 << 20]
    with pytest.raises(MemoryError):
        processes.run([limited("allocate", 1 << 30, memory_bytes=256 << 20)])
    with pytest.raises(OSError, match="File too large"):
        processes.run([limited("write_file", file_bytes=0)])


def test_what_a_task_prints_does_not_reach_standard_output() -> None:
    code = (
        "from builder import processes\n"
        "import functools\n"
        "from tests.processes import tasks\n"
        "processes.run([processes.Task(functools.partial(tasks.say, 'among the answers'))])\n"
        "print('answer')\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "answer\n"
    assert "among the answers" in ended.stderr


def test_a_stage_that_takes_too_long_ends_by_name_and_the_others_go_on() -> None:
    slow = replace(task("stages", 0.2, 60.0), limits=processes.Limits(stage_seconds=1.5))
    ended, other = processes.run([slow, task("square", 3)])
    assert isinstance(ended, processes.TimedOut)
    assert ended.message == "net: second took more than 1.5 s and was ended"
    assert "limits.stage_seconds" in str(ended.fix)
    assert other == 9


def test_every_report_begins_a_stage_of_its_own() -> None:
    several = replace(task("stages", *[0.8] * 3), limits=processes.Limits(stage_seconds=2))
    assert processes.run([several]) == ["done"]
