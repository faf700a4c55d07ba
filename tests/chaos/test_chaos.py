"""Short runs of the tools: no response is incorrect, and no kill leaves a partial repository."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest

from builder.serving import FREE_PORTS, PLAIN, control, serve
from builder.store import published
from tests.chaos import (
    asking,
    census,
    flat,
    kill,
    limit,
    load,
    page,
    pushing,
    reload,
    streams,
)


def test_page_is_current() -> None:
    assert page.PAGE.read_text() == page.page(), (
        "run: python docs/generate.py reliability-tests"
    )


@pytest.mark.slow
@pytest.mark.live
@pytest.mark.parametrize("mode", ["poll", "explicit"])
def test_republished_ensemble_gives_no_wrong_results_under_load(
    tmp_path: Path, mode: str
) -> None:
    counts = load.run(tmp_path / "repository", mode, publications=3, clients=4)
    assert (counts.failed, counts.mixed, counts.empty) == (0, 0, 0), counts
    assert counts.publications == 3 and counts.right == counts.requests > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("change", ["version", "rollback", "remove", "single", "fused"])
def test_kills_never_leave_a_partial_model_or_version(
    tmp_path: Path, change: str
) -> None:
    counts = kill.run(tmp_path, stride=60, change=change)
    assert (counts.torn, counts.not_repaired, counts.absent) == (0, 0, 0), counts
    assert counts.left_by_caught_signals == 0, counts
    assert counts.old and counts.new and counts.old + counts.new == counts.kills, counts


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("exchange", [True, False])
def test_next_run_repairs_repository_after_kills(
    tmp_path: Path, exchange: bool
) -> None:
    counts = kill.run(tmp_path, exchange=exchange, stride=60)
    assert (counts.torn, counts.not_repaired) == (0, 0), counts
    assert counts.left_by_caught_signals == 0, counts
    assert counts.old and counts.new and (exchange or counts.absent), counts
    assert exchange is not bool(counts.absent), counts


@pytest.mark.slow
@pytest.mark.live
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", ["poll", "explicit"])
def test_pushed_models_give_no_wrong_results_under_load(
    tmp_path: Path, mode: str
) -> None:
    counts = pushing.run(tmp_path, mode, pushes=5, clients=4, pause=0.05)
    assert counts.bad == 0, counts
    assert (counts.pushes, counts.rejected) == (5, 1) and counts.requests > 0


def test_memory_is_compared_after_warm_up() -> None:
    assert flat.growth([1.0] * 11) is None and flat.is_flat(None, None) is None
    rising = [100.0 + 10 * n for n in range(12)]
    assert flat.growth([400.0] * 3 + [100.0] * 9) == 1.0
    assert flat.growth(rising) == round(200 / 140, 3)
    assert flat.is_flat(1.1, None) is True and flat.is_flat(1.0, 1.101) is False


def test_memory_is_compared_at_equal_process_counts() -> None:
    held = [4, 6, 6, 8, 10, 8, 6, 4, 6, 8, 12, 12, 10, 12, 12, 10]
    flat_memory = [10 + 0.6 * count for count in held]
    assert flat.growth(flat_memory) != 1.0
    trend = flat.trend(flat_memory, held)
    assert trend and flat.growth(trend.level) == 1.0
    assert trend.per_sample == pytest.approx(0, abs=1e-9)
    trend = flat.trend([one + 0.5 * n for n, one in enumerate(flat_memory)], held)
    assert (
        trend
        and trend.per_sample == pytest.approx(0.5)
        and not flat.is_flat(flat.growth(trend.level))
    )
    alike = flat.trend([10 + 0.5 * n for n in range(16)], [4] * 16)
    assert (
        alike
        and alike.per_sample == pytest.approx(0.5)
        and flat.trend([1.0], [1]) is None
    )


MAPPING = """
import mmap, sys
with open(sys.argv[1], "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    sum(mapped[n] for n in range(0, len(mapped), 4096))
own = b"x" * int(sys.argv[2])
print(flush=True)
input()
"""


def test_memory_excludes_shared_file_mappings(tmp_path: Path) -> None:
    """Two servers map the same libraries in this way."""
    file = tmp_path / "library"
    file.write_bytes(bytes(32 << 20))
    with contextlib.ExitStack() as stack:

        def started(own: int) -> float:
            process = subprocess.Popen(
                [sys.executable, "-c", MAPPING, file, str(own)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            assert process.stdout and process.stdout.readline() == b"\n"
            pids.append(process.pid)
            return census.memory(process.pid).allocated

        pids: list[int] = []
        alone = started(0)
        assert started(32 << 20) == pytest.approx(alone + 32, abs=1)
        assert census.memory(pids[0]).allocated == pytest.approx(alone, abs=1)
        assert alone < 20


SHARING = """
import mmap, os, sys
with open(sys.argv[1], "r+b") as file:
    mapped = mmap.mmap(file.fileno(), 0)
    mapped[:] = bytes(len(mapped))
if os.fork() == 0:
    mapped[:] = bytes(len(mapped))
    print(flush=True)
input()
"""


def test_region_of_ended_process_is_attributed_to_server() -> None:
    """The region has 32 MiB in /dev/shm, like that of each process of the Python backend."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as region:
        region.truncate(32 << 20)
        words = [sys.executable, "-c", SHARING, region.name]
        with subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as server:
            assert server.stdout and server.stdout.readline() == b"\n"
            (child,) = census.children(server.pid)
            found, leaked = census.Census(), census.Census()
            census._weigh(server.pid, found)
            os.kill(child, signal.SIGKILL)
            while census.children(server.pid):
                time.sleep(0.05)
            census._weigh(server.pid, leaked)
            server.kill()
    assert (found.processes, leaked.processes) == (2, 1)
    assert found.stubs_mib > 32 > found.server_mib and leaked.stubs_mib == 0
    assert leaked.server_mib == pytest.approx(found.server_mib + 32, abs=4)


def test_percentiles_are_accurate_to_one_bucket() -> None:
    window = asking.Window()
    for milliseconds in range(1, 1001):
        window.answered(milliseconds)
    assert 500 <= window.percentile(50) <= 510 and 990 <= window.percentile(99) <= 1000
    again = asking.Window.of(json.loads(json.dumps(window.as_dict())))
    again.add(window)
    assert (
        again.percentile(99) == window.percentile(99) and again.buckets.total() == 2000
    )


def test_unreferenced_models_and_processes_are_leaks() -> None:
    named = {"pair": 0, "pair.0.torch.a": 1}
    models = Counter(["pair", "pair.0.torch.a", "pair.0.torch.b"])
    stubs = Counter(["pair.0.torch.a", "pair.0.torch.a", "pair.0.torch.b"])
    differences = census.compare(named, models, stubs)
    assert differences.leaked_models == ["pair.0.torch.b"]
    assert (
        differences.leaked_processes == ["pair.0.torch.a", "pair.0.torch.b"]
        and not differences.missing
    )
    differences = census.compare(named, Counter(["pair"]), Counter())
    assert differences.missing == ["pair.0.torch.a", "a process of pair.0.torch.a"]
    assert not differences.leaked_models and not differences.leaked_processes


def test_record_of_a_leaked_process_is_json() -> None:
    counts = census.Census(details=[census._details(os.getpid())])
    (details,) = json.loads(json.dumps(counts.as_dict()))["details"]
    assert sum(details["threads"].values()) >= 1


def test_interrupted_stream_keeps_its_results(tmp_path: Path) -> None:
    window = asking.Window(requests=7, failed=1).as_dict()
    verdict = {
        "model": "pair",
        "state": "rejected",
        "right": False,
        "problems": [],
        "seconds": 1.0,
    }
    held = {
        **census.Census(processes=3, leaked_models=["x"]).as_dict(),
        "generation": 2,
    }
    line = {
        "mode": "poll",
        "clients": 4,
        "at": 3.0,
        "between": window,
        "during": window,
    }
    whole = json.dumps({**line, "verdict": verdict, **held})
    (tmp_path / "00-poll.jsonl").write_text(f"{whole}\n{whole[:40]}")
    counts = streams.read(tmp_path)["poll"]
    assert (counts.pushes, counts.requests, counts.failed) == (1, 14, 2)
    assert (counts.wrong_verdicts, counts.leaked_models) == (1, 1) and counts.bad == 4


@pytest.mark.slow
@pytest.mark.live
def test_leaked_model_is_found_with_its_process(tmp_path: Path) -> None:
    """A former step that was not unloaded, as on the GPU host of docs/reliability-tests.md."""
    folder = pushing.publish_generation("pair", 1, tmp_path / "served")
    with serve(folder.parent, **FREE_PORTS, explicit=True) as server:
        control.update(server.http_url, folder)
        assert not census.take(server, folder.parent, "explicit").leaked_models
        former = published.step_names(folder)
        pushing.publish_generation("pair", 2, folder.parent)
        with control.connected(server.http_url, PLAIN, 60) as api:
            api.load(folder)
            counts = census.take(server, folder.parent, "explicit", wait=0)
            assert counts.leaked_models == counts.leaked_processes == sorted(former)
            assert {one["pid"] for one in counts.details} and not counts.missing
            api.unload(api.former_steps(folder))
        counts = census.take(server, folder.parent, "explicit")
        assert not counts.leaked_models and not counts.leaked_processes
        assert counts.processes == 3 and counts.server_mib > 0


@pytest.mark.slow
@pytest.mark.live
@pytest.mark.timeout(300)
@pytest.mark.parametrize("names", [0, 4])
def test_reloading_a_small_model_leaks_little_memory(
    tmp_path: Path, names: int
) -> None:
    """A load costs some KiB, which the page reports, and no MiB."""
    loads = reload.SAMPLES * 2
    counts = reload.run(
        tmp_path, "explicit", loads, new_names=not names, names=names or 1
    )
    assert counts.crashed_at is None
    assert len(counts.server_mib) == reload.SAMPLES
    assert (
        counts.end_mib and 0 < counts.start_mib < counts.end_mib < counts.start_mib + 16
    )


@pytest.mark.slow
@pytest.mark.live
@pytest.mark.timeout(600)
def test_results_of_streams_are_summed_by_mode(tmp_path: Path) -> None:
    words = ["--pushes=1", "--clients=2", "--pause=0.1"]
    results = streams.run(tmp_path, 2, words, 120)
    assert set(results) == {"poll", "explicit"}
    assert all(counts.pushes == 1 and not counts.bad for counts in results.values()), (
        results
    )


@pytest.mark.slow
@pytest.mark.live
@pytest.mark.timeout(600)
def test_overloaded_server_gives_correct_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limit, "MOST", 8)
    monkeypatch.setattr(limit, "RAMP_SECONDS", 2.0)
    monkeypatch.setattr(limit, "SAMPLE_SECONDS", 1.0)
    counts = limit.run(tmp_path, 0.4)
    assert (counts.failed, counts.wrong, counts.leaked_models, counts.missing) == (
        0,
        0,
        0,
        0,
    )
    assert (
        counts.requests > 0
        and counts.busy > 0
        and counts.ramp
        and len(counts.server_mib) > 5
    )
