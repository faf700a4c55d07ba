"""How the runtime calls an engine: what it asks once, what each time, and when as a CUDA graph."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from builder.lowering import lower
from builder.triton import publish
from tests.serving import fakes
from tests.triton.artifacts import scorer

PROFILES = ((1, 1, 1), (2, 4, 8))


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> fakes.Driver:
    made = fakes.Driver()
    monkeypatch.setitem(sys.modules, "tensorrt", fakes.tensorrt(made))
    fakes.LOG.clear()
    fakes.PLAN.clear()
    return made


@pytest.fixture
def modules(driver: fakes.Driver) -> dict[str, Any]:
    model, found = fakes.runtime()
    found["graphs"].driver = lambda: driver
    return {**found, "model": model}


def declared(plan: fakes.Plan, wide: Sequence[str] = ()) -> dict[str, Any]:
    """plan.json's `serving` of a plan whose inputs are [batch, 3]; `wide` are int64 in the
    module.
    """
    names = {"FLOAT": "float32", "INT32": "int32", "BOOL": "bool"}
    sides = {
        side: [
            {"name": n, "dtype": "int64" if n in wide else names[d], "shape": [-1, 3]}
            for n, d in tensors.items()
        ]
        for side, tensors in (("inputs", plan.inputs), ("outputs", plan.outputs))
    }
    profiles = [
        {
            n: dict(zip(("min", "opt", "max"), ([b, 3] for b in p), strict=True))
            for n in plan.inputs
        }
        for p in PROFILES
    ]
    return {**sides, "profiles": profiles}


def engine(
    modules: dict[str, Any],
    plan: fakes.Plan,
    tmp_path: Path,
    wide: Sequence[str] = (),
    steady: int = 3,
) -> Any:
    fakes.PLAN.append(plan)
    (tmp_path / "model.plan").write_bytes(b"plan")
    stream = SimpleNamespace(cuda_stream=7)
    made = modules["engine"].Engine(
        tmp_path / "model.plan", "tensorrt", declared(plan, wide), "cpu", stream, True
    )
    made.steady = steady
    return made


def doubling(**more: Any) -> fakes.Plan:
    return fakes.Plan(
        {"x": "FLOAT"}, {"y": "FLOAT"}, lambda x: [x * 2], lambda shape: [shape], **more
    )


def ask(one: Any, batch: int, seed: int) -> None:
    x = torch.full((batch, 3), float(seed))
    (y,) = one.run([x])
    assert y.shape == x.shape and bool((y == 2 * seed).all()), (batch, seed, y)


def test_alternating_shapes_are_right_with_and_without_graphs(
    modules: dict[str, Any], driver: fakes.Driver, tmp_path: Path
) -> None:
    one = engine(modules, doubling(), tmp_path)
    for seed, batch in enumerate(
        [1, 4, 8, 2, 1, 1, 1, 1, 4, 4, 4, 4, 4, 1, 8, 8, 8, 8, 2, 1, 8, 4] * 2, 1
    ):
        ask(one, batch, seed)
    assert driver.launched > 8 and one.steady == 3


def test_a_steady_call_asks_tensorrt_for_nothing_but_to_run(
    modules: dict[str, Any], driver: fakes.Driver, tmp_path: Path
) -> None:
    one = engine(modules, plan := doubling(), tmp_path, steady=0)
    x = torch.ones(4, 3)
    one.run([x])
    plan.asked.clear()
    for _ in range(5):
        one.run([x])
    assert plan.asked == {"execute": 5} and not driver.made


def test_a_captured_call_does_not_run_the_context_again(
    modules: dict[str, Any], driver: fakes.Driver, tmp_path: Path
) -> None:
    one = engine(modules, plan := doubling(), tmp_path)
    for seed in range(10):
        ask(one, 4, seed)
    assert plan.asked["execute"] == 3 + 1, "three plain ones and the captured one"
    assert driver.launched == 1 + 7, "the one that is compared, and seven answers"


def test_a_context_that_takes_other_shapes_loses_its_graph_and_the_other_profile_keeps_its_own(
    modules: dict[str, Any], driver: fakes.Driver, tmp_path: Path
) -> None:
    one = engine(modules, doubling(), tmp_path)
    for seed in range(4):
        ask(one, 1, seed)
        ask(one, 4, seed)
    assert len(driver.graphs) == 2
    ask(one, 8, 5)
    assert len(driver.graphs) == 1
    launched = driver.launched
    ask(one, 1, 6)
    assert driver.launched == launched + 1


@pytest.mark.parametrize(
    "how", ["refused by TensorRT", "made invalid", "another answer"]
)
def test_what_cannot_be_captured_goes_on_without(
    modules: dict[str, Any], driver: fakes.Driver, tmp_path: Path, how: str
) -> None:
    calls = iter(range(100))
    drifting = fakes.Plan(
        {"x": "FLOAT"},
        {"y": "FLOAT"},
        lambda x: [x * 2 + next(calls)],
        lambda shape: [shape],
    )
    plan = drifting if how == "another answer" else doubling()
    one = engine(modules, plan, tmp_path)
    driver.takes_captures, driver.refuses = (
        how != "refused by TensorRT",
        900 * (how == "made invalid"),
    )
    outputs = [one.run([torch.zeros(4, 3)])[0][0, 0].item() for _ in range(8)]
    assert outputs == ([0, 1, 2, 4, 5, 6, 7, 8] if plan is drifting else [0] * 8)
    assert driver.made == 1 and driver.capturing is None and not driver.graphs
    assert ["without CUDA graphs" in line for line in fakes.LOG] == [True]


def test_shapes_that_depend_on_data_come_through_an_allocator_and_are_not_captured(
    modules: dict[str, Any], driver: fakes.Driver, tmp_path: Path
) -> None:
    plan = fakes.Plan(
        {"x": "FLOAT"},
        {"kept": "FLOAT", "y": "FLOAT"},
        lambda x: [x[x[:, 0] > 0], x * 2],
        lambda shape: [(-1, 3), shape],
    )
    one = engine(modules, plan, tmp_path)
    for step in range(8):
        x = torch.ones(8, 3)
        x[: step % 5] = -1
        kept, y = one.run([x])
        assert kept.shape == (8 - step % 5, 3) and bool((y == 2 * x).all())
    assert not driver.made


def test_outputs_that_depend_on_what_inputs_hold_are_never_bound_before(
    modules: dict[str, Any], driver: fakes.Driver, tmp_path: Path
) -> None:
    one = engine(modules, plan := doubling(by_value=True), tmp_path)
    for seed in range(5):
        ask(one, 4, seed)
    assert not driver.made and plan.asked["set_output_allocator"] == 1


def test_int64_is_narrowed_going_in_and_widened_coming_out(
    modules: dict[str, Any], driver: fakes.Driver, tmp_path: Path
) -> None:
    plan = fakes.Plan(
        {"n": "INT32"}, {"m": "INT32"}, lambda n: [n + 1], lambda shape: [shape]
    )
    one = engine(modules, plan, tmp_path, wide=("n", "m"))
    for value in range(6):
        (m,) = one.run([torch.full((2, 3), value)])
        assert m.dtype == torch.int64 and bool((m == value + 1).all())
    assert driver.launched


def test_tensors_that_do_not_lie_in_a_row_are_laid_so(
    modules: dict[str, Any], driver: fakes.Driver, tmp_path: Path
) -> None:
    one = engine(modules, doubling(), tmp_path, steady=0)
    x = torch.arange(12.0).view(3, 4).t()
    (y,) = one.run([x])
    assert bool((y == 2 * x).all())


def test_calls_are_remembered_in_a_bounded_number(
    modules: dict[str, Any],
    driver: fakes.Driver,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(modules["engine"], "CALLS", 2)
    one = engine(modules, doubling(), tmp_path)
    for seed, batch in enumerate([2, 3, 4, 5, 2, 3, 2, 2, 2, 2, 5], 1):
        ask(one, batch, seed)
        assert len(one.calls.values) <= 2 and len(driver.graphs) <= 1


def model(
    modules: dict[str, Any], plan: fakes.Plan, tmp_path: Path, **runtime: Any
) -> Any:
    """The whole of model.py, answered by the fake plan on the CPU."""
    made = engine(modules, plan, tmp_path)
    answering = modules["executors"]
    folder = tmp_path / "served" / "1"
    folder.mkdir(parents=True)
    facts = {"serving": declared(plan), "flavour": "tensorrt", "runtime": runtime}
    (folder / "plan.json").write_text(json.dumps(facts))
    executor = answering.PlanExecutor.__new__(answering.PlanExecutor)
    executor.device, executor.engine, executor.stays, executor.landing = (
        "cpu",
        made,
        True,
        None,
    )
    executor.stream = SimpleNamespace(synchronize=lambda: None)
    modules["model"].executor = lambda *_: executor
    served = modules["model"].TritonPythonModel()
    served.initialize(
        {
            "model_repository": str(folder.parent),
            "model_version": "1",
            "model_name": "m",
            "model_config": '{"max_batch_size": 8}',
        }
    )
    served.thread = threading.get_ident()  # there is no stream to take
    return served


def test_requests_are_answered_alone_and_in_batches_and_a_bad_one_fails_alone(
    modules: dict[str, Any], driver: fakes.Driver, tmp_path: Path
) -> None:
    served = model(modules, doubling(), tmp_path)
    for seed in range(6):
        (response,) = served.execute(
            [fakes.Request(["y"], x=torch.full((4, 3), float(seed)))]
        )
        assert bool((response.tensors["y"] == 2 * seed).all())
        sent = [
            fakes.Request(["y"], x=torch.full((2, 3), float(seed + n)))
            for n in range(3)
        ]
        bad = fakes.Request(["y"], x=torch.ones(9, 3))
        *good, refused = served.execute([*sent, bad])
        assert [
            bool((one.tensors["y"] == 2 * (seed + n)).all())
            for n, one in enumerate(good)
        ] == [True] * 3
        assert "input 'x' has shape [9, 3]" in refused.error


def test_a_server_without_parameters_of_responses_is_asked_once(
    modules: dict[str, Any], driver: fakes.Driver, tmp_path: Path
) -> None:
    served = model(modules, doubling(), tmp_path)
    fakes.Response.refused = 0
    for _ in range(4):
        served.execute([fakes.Request([], x=torch.ones(1, 3))])
    assert fakes.Response.refused == 1


@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (3, 1 << 19), (1, (1 << 20) + 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.int64])
def test_staging_brings_all_of_a_tensor_there_and_back(
    modules: dict[str, Any], shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    staging = modules["memory"].Staging(pinned=False)
    for seed in range(2):
        source = torch.randint(
            0, 2, shape, generator=torch.Generator().manual_seed(seed)
        ).to(dtype)
        target = torch.zeros(shape, dtype=dtype)
        staging.upload(target, source)
        assert torch.equal(target, source)
        assert torch.equal(staging.download(target), source)


class Head(torch.nn.Module):
    """Products of every kind, one of them in a block."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(1, 2, 3), torch.nn.Conv2d(2, 2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        if bool(x.sum() > 0):
            y = self.second(y)
        return y.flatten(1) @ y.flatten(1).t()


@pytest.fixture
def torchs_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """torch's places for TF32, as they stand in a fresh process, and again afterwards."""
    # torch.testing's OpInfo, in the same process, freezes them
    flags = torch.backends.flags_frozen.__globals__
    monkeypatch.setitem(flags, "__allow_nonbracketed_mutation_flag", True)
    settings: list[Any] = [torch.backends.cuda.matmul, torch.backends.cudnn]
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = False, True
    yield settings
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = False, True


@pytest.mark.parametrize("precision", [None, "fp32", "fp16", "tf32"])
def test_torch_on_a_gpu_multiplies_in_float32_unless_the_precision_is_tf32(
    modules: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    torchs_own: list[Any],
    precision: str,
) -> None:
    graph = lower(torch.jit.script(Head().eval()))
    graph.save(tmp_path / "segment_0.pt")
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    modules["segments"]._device = lambda args: ("cpu:0", "it stands for a GPU")
    sides = {"inputs": [{"name": "x"}], "outputs": [{"name": "y"}]}
    facts = {
        "serving": sides,
        "segments": [{"kind": "torch", **sides}],
        "precision": precision,
    }
    served = modules["segments"].SegmentsExecutor(tmp_path, facts, {})
    (runner,) = served.segments.runners
    allowed = precision == "tf32"
    assert [setting.allow_tf32 for setting in torchs_own] == [allowed] * 2
    parameters = [
        node.inputsAt(12).toIValue()
        for node in runner.module.graph.findAllNodes("aten::_convolution")
    ]
    assert parameters == [allowed] * 2
    x = torch.ones(1, 1, 8, 8)
    torch.testing.assert_close(runner.run([x])[0], graph.run(x)[0])


class Watch(TorchDispatchMode):
    """Notes what makes or moves data."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if operator.overloadpacket in (
            torch.ops.aten.clone,
            torch.ops.aten.copy_,
            torch.ops.aten._to_copy,
        ):
            self.seen.append(str(operator))
        return operator(*args, **(kwargs or {}))


@pytest.mark.parametrize("lends", [True, False])
def test_what_stays_on_the_gpu_lies_in_a_row_before_the_stream_is_awaited(
    modules: dict[str, Any], lends: bool
) -> None:
    """Triton reads the memory at once, on another stream: a copy that is enqueued later may be read
    before it is made (seen on an H200: the places that CUDA's nonzero lays by columns were read as
    rows).
    """
    by_columns, view = (
        torch.arange(58).view(2, 29).t(),
        torch.arange(12.0).view(3, 4)[:, 1],
    )
    watch, awaited = Watch(), []
    stream = SimpleNamespace(synchronize=lambda: awaited.append(len(watch.seen)))
    with watch:
        kept = modules["output_transfer"].outputs_for_triton(
            [by_columns, view], stream, True, lends
        )
        given = [modules["tensors"].from_torch("y", tensor) for tensor in kept]
    assert awaited == [len(watch.seen)] == [2], watch.seen
    assert torch.equal(given[0]._value, by_columns) and torch.equal(
        given[1]._value, view
    )


def test_an_empty_answer_has_the_strides_that_triton_expects(
    modules: dict[str, Any],
) -> None:
    """nonzero of zeros has the strides (1, 0), which torch takes for contiguous and Triton does
    not.
    """
    nothing = torch.nonzero(torch.zeros(1, 4))
    given = modules["tensors"].from_torch("y", nothing)._value
    assert (
        given.shape == (0, 2)
        and given.dtype == torch.int64
        and given.stride() == (2, 1)
    )


FLIPPED = ["1/lowered.pt", "1/plan.json", "1/model.py", "1/trt_build_runtime/call.py"]


@pytest.mark.parametrize("name", [*FLIPPED, "trt-build.json"])
@pytest.mark.parametrize("where", [0.1, 0.5, 0.9])
def test_a_flipped_bit_keeps_the_model_from_loading(
    tmp_path: Path, name: str, where: float
) -> None:
    """Weights with one other bit load, and answer with other numbers."""
    folder = publish(scorer(serve_as="python"), tmp_path / "repository")
    _, modules = fakes.runtime()
    assert modules["integrity"].check(folder)
    data = bytearray((folder / name).read_bytes())
    data[int(len(data) * where)] ^= 1
    (folder / name).write_bytes(data)
    with pytest.raises(RuntimeError, match=r"is not as it was published|is damaged"):
        modules["integrity"].check(folder)


def test_an_edited_config_does_not_keep_the_model_from_loading(tmp_path: Path) -> None:
    folder = publish(scorer(serve_as="python"), tmp_path / "repository")
    (folder / "config.pbtxt").write_text(
        "# edited\n" + (folder / "config.pbtxt").read_text()
    )
    _, modules = fakes.runtime()
    assert modules["integrity"].check(folder)


def test_of_profiles_with_the_same_optimum_the_tightest_is_taken() -> None:
    ranges = [(1, 8, 32), (8, 8, 8), (1, 1, 1)]
    profiles = [
        {"x": {"min": [low, 3], "opt": [opt, 3], "max": [high, 3]}}
        for low, opt, high in ranges
    ]
    shapes = fakes.runtime()[1]["shapes"].Profiles(
        {"inputs": [{"name": "x"}], "profiles": profiles}
    )
    found = [shapes.find([torch.empty(batch, 3)]) for batch in (8, 7, 1, 2, 33)]
    assert found == [1, 0, 2, 0, None]


@pytest.mark.parametrize("gpu", [True, False])
def test_an_unloaded_model_ends_its_process_on_a_gpu(
    modules: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu: bool
) -> None:
    """There, a thread of Triton's stub may never end, and the stub waits for it."""
    served = model(modules, doubling(), tmp_path)
    ended: list[int] = []
    monkeypatch.setattr(modules["model"], "is_stub", lambda: True)
    monkeypatch.setattr(modules["model"], "has_gpu", lambda: gpu)
    monkeypatch.setattr(modules["model"].os, "_exit", ended.append)
    served.finalize()
    assert served.executor is None
    assert ended == ([0] if gpu else [])
