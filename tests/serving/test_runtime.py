"""How the runtime calls an engine: cached bindings, CUDA graphs, staging and integrity checks."""

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


def serving_facts(plan: fakes.Plan, wide: Sequence[str] = ()) -> dict[str, Any]:
    """The key `serving` of plan.json for inputs of shape [batch, 3].

    Tensors in `wide` are int64 in the module.
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
        tmp_path / "model.plan",
        "tensorrt",
        serving_facts(plan, wide),
        "cpu",
        stream,
        True,
    )
    made.steady = steady
    return made


def doubling_plan(**more: Any) -> fakes.Plan:
    return fakes.Plan(
        {"x": "FLOAT"}, {"y": "FLOAT"}, lambda x: [x * 2], lambda shape: [shape], **more
    )


def check_run(one: Any, batch: int, seed: int) -> None:
    x = torch.full((batch, 3), float(seed))
    (y,) = one.run([x])
    assert y.shape == x.shape and bool((y == 2 * seed).all()), (batch, seed, y)


def test_alternating_shapes_give_correct_outputs(
    modules: dict[str, Any], driver: fakes.Driver, tmp_path: Path
) -> None:
    one = engine(modules, doubling_plan(), tmp_path)
    for seed, batch in enumerate(
        [1, 4, 8, 2, 1, 1, 1, 1, 4, 4, 4, 4, 4, 1, 8, 8, 8, 8, 2, 1, 8, 4] * 2, 1
    ):
        check_run(one, batch, seed)
    assert driver.launched > 8 and one.steady == 3


def test_repeated_call_only_executes(
    modules: dict[str, Any], driver: fakes.Driver, tmp_path: Path
) -> None:
    one = engine(modules, plan := doubling_plan(), tmp_path, steady=0)
    x = torch.ones(4, 3)
    one.run([x])
    plan.calls.clear()
    for _ in range(5):
        one.run([x])
    assert plan.calls == {"execute": 5} and not driver.captured


def test_captured_call_launches_only_the_graph(
    modules: dict[str, Any], driver: fakes.Driver, tmp_path: Path
) -> None:
    one = engine(modules, plan := doubling_plan(), tmp_path)
    for seed in range(10):
        check_run(one, 4, seed)
    assert plan.calls["execute"] == 3 + 1, "three runs and the captured one"
    assert driver.launched == 1 + 7, "one compared launch and seven launches"


def test_new_shape_discards_only_the_graph_of_its_profile(
    modules: dict[str, Any], driver: fakes.Driver, tmp_path: Path
) -> None:
    one = engine(modules, doubling_plan(), tmp_path)
    for seed in range(4):
        check_run(one, 1, seed)
        check_run(one, 4, seed)
    assert len(driver.graphs) == 2
    check_run(one, 8, 5)
    assert len(driver.graphs) == 1
    launched = driver.launched
    check_run(one, 1, 6)
    assert driver.launched == launched + 1


@pytest.mark.parametrize(
    "how", ["refused by TensorRT", "invalidated", "different outputs"]
)
def test_failed_capture_continues_without_graphs(
    modules: dict[str, Any], driver: fakes.Driver, tmp_path: Path, how: str
) -> None:
    calls = iter(range(100))
    drifting = fakes.Plan(
        {"x": "FLOAT"},
        {"y": "FLOAT"},
        lambda x: [x * 2 + next(calls)],
        lambda shape: [shape],
    )
    plan = drifting if how == "different outputs" else doubling_plan()
    one = engine(modules, plan, tmp_path)
    driver.accepts_captures, driver.capture_error = (
        how != "refused by TensorRT",
        900 * (how == "invalidated"),
    )
    outputs = [one.run([torch.zeros(4, 3)])[0][0, 0].item() for _ in range(8)]
    assert outputs == ([0, 1, 2, 4, 5, 6, 7, 8] if plan is drifting else [0] * 8)
    assert driver.captured == 1 and driver.capturing is None and not driver.graphs
    assert ["without CUDA graphs" in line for line in fakes.LOG] == [True]


def test_data_dependent_shapes_use_an_allocator_and_no_graph(
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
        first_output, y = one.run([x])
        assert first_output.shape == (8 - step % 5, 3) and bool((y == 2 * x).all())
    assert not driver.captured


def test_outputs_shaped_by_input_values_use_an_allocator(
    modules: dict[str, Any], driver: fakes.Driver, tmp_path: Path
) -> None:
    one = engine(modules, plan := doubling_plan(by_value=True), tmp_path)
    for seed in range(5):
        check_run(one, 4, seed)
    assert not driver.captured and plan.calls["set_output_allocator"] == 1


def test_int64_inputs_are_narrowed_and_outputs_widened(
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


def test_noncontiguous_input_is_made_contiguous(
    modules: dict[str, Any], driver: fakes.Driver, tmp_path: Path
) -> None:
    one = engine(modules, doubling_plan(), tmp_path, steady=0)
    x = torch.arange(12.0).view(3, 4).t()
    (y,) = one.run([x])
    assert bool((y == 2 * x).all())


def test_number_of_cached_calls_is_bounded(
    modules: dict[str, Any],
    driver: fakes.Driver,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(modules["engine"], "CALLS", 2)
    one = engine(modules, doubling_plan(), tmp_path)
    for seed, batch in enumerate([2, 3, 4, 5, 2, 3, 2, 2, 2, 2, 5], 1):
        check_run(one, batch, seed)
        assert len(one.calls.values) <= 2 and len(driver.graphs) <= 1


def model(
    modules: dict[str, Any], plan: fakes.Plan, tmp_path: Path, **runtime: Any
) -> Any:
    """The complete model.py with the fake plan on the CPU."""
    plan_engine = engine(modules, plan, tmp_path)
    answering = modules["executors"]
    folder = tmp_path / "served" / "1"
    folder.mkdir(parents=True)
    facts = {"serving": serving_facts(plan), "flavor": "tensorrt", "runtime": runtime}
    (folder / "plan.json").write_text(json.dumps(facts))
    executor = answering.PlanExecutor.__new__(answering.PlanExecutor)
    executor.device, executor.engine, executor.stays, executor.host_outputs = (
        "cpu",
        plan_engine,
        True,
        None,
    )
    executor.stream = SimpleNamespace(synchronize=lambda: None)
    modules["model"].executor = lambda *_, **__: executor
    served = modules["model"].TritonPythonModel()
    served.initialize(
        {
            "model_repository": str(folder.parent),
            "model_version": "1",
            "model_name": "m",
            "model_config": '{"max_batch_size": 8}',
        }
    )
    served.thread = threading.get_ident()  # skips setting the stream
    return served


def test_invalid_request_fails_without_the_rest_of_its_batch(
    modules: dict[str, Any], driver: fakes.Driver, tmp_path: Path
) -> None:
    served = model(modules, doubling_plan(), tmp_path)
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


def test_unsupported_response_parameters_are_tried_once(
    modules: dict[str, Any], driver: fakes.Driver, tmp_path: Path
) -> None:
    served = model(modules, doubling_plan(), tmp_path)
    fakes.Response.refused = 0
    for _ in range(4):
        served.execute([fakes.Request([], x=torch.ones(1, 3))])
    assert fakes.Response.refused == 1


@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (3, 1 << 19), (1, (1 << 20) + 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.int64])
def test_staging_uploads_and_downloads_every_element(
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


def test_staging_uploads_one_element_of_a_larger_tensor(
    modules: dict[str, Any],
) -> None:
    source = torch.arange(3.0).as_strided((1, 1), (3, 3), 2)
    assert source.is_contiguous() and source.reshape(-1).stride() == (3,)
    target = torch.zeros(1, 1)
    modules["memory"].Staging(pinned=False).upload(target, source)
    assert torch.equal(target, source)


class Head(torch.nn.Module):
    """Convolutions and a matrix product, one of them in a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(1, 2, 3), torch.nn.Conv2d(2, 2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        if bool(x.sum() > 0):
            y = self.second(y)
        return y.flatten(1) @ y.flatten(1).t()


@pytest.fixture
def tf32_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """torch's settings of TF32 with their default values, which are restored afterwards."""
    # OpInfo of torch.testing freezes them if it runs in the same process
    flags = torch.backends.flags_frozen.__globals__
    monkeypatch.setitem(flags, "__allow_nonbracketed_mutation_flag", True)
    settings: list[Any] = [torch.backends.cuda.matmul, torch.backends.cudnn]
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = False, True
    yield settings
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = False, True


@pytest.mark.parametrize("precision", [None, "fp32", "fp16", "tf32"])
def test_torch_on_a_gpu_uses_tf32_only_if_requested(
    modules: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tf32_settings: list[Any],
    precision: str,
) -> None:
    graph = lower(torch.jit.script(Head().eval()))
    graph.save(tmp_path / "segment_0.pt")
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    modules["segments"]._device = lambda args: ("cpu:0", "the CPU replaces a GPU")
    sides = {"inputs": [{"name": "x"}], "outputs": [{"name": "y"}]}
    facts = {
        "serving": sides,
        "segments": [{"kind": "torch", **sides}],
        "precision": precision,
    }
    served = modules["segments"].SegmentsExecutor(tmp_path, facts, {})
    (runner,) = served.segments.runners
    allowed = precision == "tf32"
    assert [setting.allow_tf32 for setting in tf32_settings] == [allowed] * 2
    parameters = [
        node.inputsAt(12).toIValue()
        for node in runner.module.graph.findAllNodes("aten::_convolution")
    ]
    assert parameters == [allowed] * 2
    x = torch.ones(1, 1, 8, 8)
    torch.testing.assert_close(runner.run([x])[0], graph.run(x)[0])


def test_operator_without_a_cuda_kernel_runs_on_the_cpu(
    modules: dict[str, Any], tmp_path: Path
) -> None:
    graph = lower(torch.jit.script(Head().eval()))
    graph.save(tmp_path / "segment_0.pt")
    executor = modules["by_torch"].TorchExecutor(tmp_path / "segment_0.pt", "a GPU")
    reason = "\"addmm_cuda\" not implemented for 'Byte'"

    def failing(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError(f"The following operation failed:\nRuntimeError: {reason}")

    executor.runs_on, executor.module = "meta", failing  # meta replaces the GPU
    x = torch.ones(1, 1, 8, 8)
    for _ in range(2):
        torch.testing.assert_close(executor.run([x])[0], graph.run(x)[0])
    assert [message for message in fakes.LOG if reason in message] == [
        f"trt-build: segment_0 runs on the CPU from now on: RuntimeError: {reason}"
    ]
    executor.runs_on, executor.module = "meta", torch.jit.script(Head().eval())
    with pytest.raises(RuntimeError):  # another error is not hidden
        executor.run([x[0, 0, 0]])
    assert executor.runs_on == "meta"


class CopyRecorder(TorchDispatchMode):
    """Records operators that copy data."""

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


@pytest.mark.parametrize("returns_buffers", [True, False])
def test_gpu_outputs_are_contiguous_before_synchronization(
    modules: dict[str, Any], returns_buffers: bool
) -> None:
    """Triton reads the memory on another stream after synchronization. A later copy may not be
    finished: on an H200, indices that CUDA's nonzero stores by columns were read as rows.
    """
    transposed, view = (
        torch.arange(58).view(2, 29).t(),
        torch.arange(12.0).view(3, 4)[:, 1],
    )
    recorder, copies_at_synchronization = CopyRecorder(), []
    stream = SimpleNamespace(
        synchronize=lambda: copies_at_synchronization.append(len(recorder.seen))
    )
    with recorder:
        kept = modules["output_transfer"].outputs_for_triton(
            [transposed, view], stream, True, returns_buffers
        )
        given = [modules["tensors"].from_torch("y", tensor) for tensor in kept]
    assert copies_at_synchronization == [len(recorder.seen)] == [2], recorder.seen
    assert torch.equal(given[0]._value, transposed) and torch.equal(
        given[1]._value, view
    )


def test_empty_output_has_the_strides_that_triton_expects(
    modules: dict[str, Any],
) -> None:
    """nonzero of zeros has the strides (1, 0), contiguous for torch but not for Triton."""
    nothing = torch.nonzero(torch.zeros(1, 4))
    given = modules["tensors"].from_torch("y", nothing)._value
    assert (
        given.shape == (0, 2)
        and given.dtype == torch.int64
        and given.stride() == (2, 1)
    )


CHECKED_FILES = [
    "1/lowered.pt",
    "1/plan.json",
    "1/model.py",
    "1/trt_build_runtime/call.py",
]


@pytest.mark.parametrize("name", [*CHECKED_FILES, "trt-build.json"])
@pytest.mark.parametrize("where", [0.1, 0.5, 0.9])
def test_model_with_a_flipped_bit_does_not_load(
    tmp_path: Path, name: str, where: float
) -> None:
    """Without the check, weights with a flipped bit load and give wrong outputs."""
    folder = publish(scorer(serve_as="python"), tmp_path / "repository")
    _, modules = fakes.runtime()
    assert modules["integrity"].check(folder)
    data = bytearray((folder / name).read_bytes())
    data[int(len(data) * where)] ^= 1
    (folder / name).write_bytes(data)
    with pytest.raises(RuntimeError, match=r"is not as it was published|is damaged"):
        modules["integrity"].check(folder)


def test_model_with_an_edited_config_loads(tmp_path: Path) -> None:
    folder = publish(scorer(serve_as="python"), tmp_path / "repository")
    (folder / "config.pbtxt").write_text(
        "# edited\n" + (folder / "config.pbtxt").read_text()
    )
    _, modules = fakes.runtime()
    assert modules["integrity"].check(folder)


def test_smallest_of_the_profiles_with_the_same_optimum_is_used() -> None:
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
def test_unloaded_model_ends_its_process_only_on_a_gpu(
    modules: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu: bool
) -> None:
    """On a GPU, a thread of Triton's stub may never end, and the stub waits for it."""
    served = model(modules, doubling_plan(), tmp_path)
    ended: list[int] = []
    monkeypatch.setattr(modules["model"], "is_stub", lambda: True)
    monkeypatch.setattr(modules["model"], "has_gpu", lambda: gpu)
    monkeypatch.setattr(modules["model"].os, "_exit", ended.append)
    served.finalize()
    assert served.executor is None
    assert ended == ([0] if gpu else [])
