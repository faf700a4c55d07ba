"""What every test shares: which tests need the GPU, and torch kept to the cores that a test run may
use.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path
from types import SimpleNamespace

import hypothesis
import pytest

from tests.sources import remember_source_lines

os.environ.setdefault("OMP_NUM_THREADS", "1")
# a background job ignores it, and so would our children
signal.signal(signal.SIGINT, signal.default_int_handler)
remember_source_lines()
# a loaded machine exceeds any limit on the time of an example
hypothesis.settings.register_profile("no-deadline", deadline=None)
hypothesis.settings.load_profile("no-deadline")
# builds wait for each other over a lock in the cache
if worker := os.environ.get("PYTEST_XDIST_WORKER"):
    os.environ["TRT_BUILD_CACHE"] = f"/tmp/trt-build-cache-{worker}"
LONGEST = tuple(
    "repository cli pipeline parity serving networks processes partition quantization examples"
    " lowering".split()
)
"""Packages whose files take longest for their number of tests. They are run first, because one that
starts last leaves the other processes idle. With --dist loadfile this needs
`--no-loadscope-reorder`: xdist would order the files by their number of tests.
"""
ON_ENGINES = {Path(__file__).parent / name for name in ("conversion", "reference")}
"""Packages whose tests also run an engine where one can be built."""


@pytest.fixture(autouse=True)
def own_cache(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Give each test an empty cache, which is not the user's."""
    monkeypatch.setenv("TRT_BUILD_STORE_KEY", "the key of the tests")
    monkeypatch.setenv(
        "TRT_BUILD_CACHE",
        str(tmp_path_factory.getbasetemp() / f"cache-{uuid.uuid4().hex}"),
    )


@pytest.fixture(autouse=True, scope="session")
def stop_servers_at_once() -> Iterator[float]:
    """Kill servers, because Triton needs three seconds to unload a model. Tests of a normal stop
    use the fixture `normal_stop`. Yields the normal timeout.
    """
    from builder.serving import server  # imports numpy, which reads OMP_NUM_THREADS

    normal = server.STOP_TIMEOUT
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "STOP_TIMEOUT", 0.0)
        yield normal


@pytest.fixture(autouse=True, scope="session")
def no_flush_to_disk() -> Iterator[None]:
    """Let os.fsync only check its argument. Tests of publication called it ten thousand times and
    waited for the disk; no test can show what a power failure leaves.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: os.fstat(handle) and None)
        yield


@pytest.fixture
def normal_stop(monkeypatch: pytest.MonkeyPatch, stop_servers_at_once: float) -> None:
    from builder.serving import server

    monkeypatch.setattr(server, "STOP_TIMEOUT", stop_servers_at_once)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude modules and the list of tests from garbage collection: they stay until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(5000, 20, 20)
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Reverse the order of files in every second process of pytest-xdist. So each compiles half of
    the modules and reads the others from the cache. `pytest_collection_modifyitems` sorts them.
    """
    report = yield
    number = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    if isinstance(collector, pytest.Directory) and int(number) % 2:
        report.result.reverse()
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Where the tensorrt flavor can build, operators and the reference run on the engine too, so
    they count as `gpu`; elsewhere, tests marked `gpu` are skipped with the reason.
    """
    from builder.engine import flavor

    _limit_constants_of_hypothesis()
    items.sort(key=_start)  # stable: the order within a file stays
    engine_here = "tensorrt" in flavor.installed() and flavor.has_gpu()
    for item in items:
        if engine_here and ON_ENGINES & set(Path(item.path).parents):
            item.add_marker(pytest.mark.gpu)
        elif not engine_here and item.get_closest_marker("gpu"):
            item.add_marker(
                pytest.mark.skip(reason="needs a GPU and the tensorrt package")
            )


@pytest.fixture(autouse=True, scope="module")
def torch_loggers_propagate() -> None:
    """Let torch's loggers pass records on to the root logger. pytest adds its handlers to each
    logger that does not, three times for each test. Modules that torch imports late add loggers.
    """
    for name, logger in logging.root.manager.loggerDict.items():
        if isinstance(logger, logging.Logger) and name.partition(".")[0] == "torch":
            logger.propagate = True


def _limit_constants_of_hypothesis() -> None:
    """Let Hypothesis read constants from the sources of the manifest only. It would parse all of
    them, for three seconds in each process, and only the manifest's tests draw texts.
    """
    if providers := sys.modules.get("hypothesis.internal.conjecture.providers"):
        folder = str(Path(__file__).parents[1] / "builder" / "manifest")
        providers.is_local_module_file = lambda path: path.startswith(folder)


def pytest_collection_finish() -> None:
    """Seed devices that are not in use without a record of the call stack, which is deep here."""
    for name in ("torch.cuda", "torch.mtia", "torch.xpu"):
        if module := sys.modules.get(name):
            # torch.manual_seed would format the stack for each of them
            module.traceback = SimpleNamespace(format_stack=list)


def _start(item: pytest.Item) -> tuple[int, Path]:
    """When a test is started: the packages of LONGEST in their order, then all others."""
    package = item.path.parent.name
    order = LONGEST.index(package) if package in LONGEST else len(LONGEST)
    return order, item.path
