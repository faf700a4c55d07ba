"""Our engines against the engines of TensorRT's own ONNX parser, torch eager and TorchScript, on this machine's GPU.

    python -m benchmarks.engine --export FOLDER --only resnet50        writes the ONNX files (where onnx is installed)
    python -m benchmarks.engine --onnx FOLDER --only resnet50 [--precision fp16] [--budget 500]

One engine for each network, road and precision (profile 1 to 32), timed at batch 1, 8 and 32. All contenders of a row
are timed alternately in the same run, with CUDA events after a warm-up, over several input sets, with and without CUDA
graphs for the engines; medians in milliseconds. Rows are appended to benchmarks/results/engine.jsonl with host,
versions and date; a row that stands there for this GPU and TensorRT is not measured again, so a run that was cut off
goes on.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.networks import NETWORKS, Network

RESULTS = Path(__file__).parent / "results" / "engine.jsonl"
BATCHES = (1, 8, 32)
WARM_UP, ROUNDS, CALLS, INPUT_SETS = 20, 15, 20, 3


def export(folder: Path, names: list[str]) -> None:
    """Write each network's ONNX file (opset 17, dynamic batch), of the same seeded weights."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        network = NETWORKS[name]
        traced = torch.jit.trace(network.module(), network.sample(2), check_trace=False)
        axes = {"x": {0: "batch"}, "y": {0: "batch"}}
        torch.onnx.export(traced, (network.sample(2),), folder / f"{name}.onnx", dynamo=False, opset_version=17,
                          input_names=["x"], output_names=["y"], dynamic_axes=axes)  # fmt: skip


class Timed:
    """A deserialised plan on its own stream, with fixed device buffers; `graph()` replays a captured enqueue."""

    def __init__(self, plan: bytes) -> None:
        from builder.engine.flavour import trt
        from builder.engine.network import logger

        self.runtime = trt.Runtime(logger())
        self.engine = self.runtime.deserialize_cuda_engine(plan)
        self.context = self.engine.create_execution_context()
        self.stream = torch.cuda.Stream()
        names = [self.engine.get_tensor_name(i) for i in range(self.engine.num_io_tensors)]
        modes = {name: self.engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT for name in names}
        self.input, self.output = (next(n for n in names if modes[n] == kind) for kind in (True, False))

    def bind(self, x: torch.Tensor) -> None:
        """Use this input (and an output buffer for it) from now on."""
        from builder.conversion.dtypes import from_trt

        self.x = x.to(from_trt(self.engine.get_tensor_dtype(self.input))).contiguous()
        self.context.set_input_shape(self.input, tuple(x.shape))
        shape = tuple(self.context.get_tensor_shape(self.output))
        self.y = torch.empty(shape, dtype=from_trt(self.engine.get_tensor_dtype(self.output)), device="cuda")
        self.context.set_tensor_address(self.input, self.x.data_ptr())
        self.context.set_tensor_address(self.output, self.y.data_ptr())
        self.captured = None

    def __call__(self) -> None:
        assert self.context.execute_async_v3(torch.cuda.current_stream().cuda_stream)

    def graph(self) -> Callable[[], None]:
        """The same enqueue as a CUDA graph."""
        self()
        torch.cuda.synchronize()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured, stream=self.stream):
            self()
        return captured.replay


def our_plan(network: Network, precision: str) -> tuple[bytes, dict[str, Any]]:
    """Lower, convert, build."""
    import builder
    from builder.engine import build

    traced = torch.jit.trace(network.module(), network.sample(2), check_trace=False)
    started = time.monotonic()
    conversion = builder.convert(traced, [network.spec], precision=precision)
    converted = time.monotonic() - started
    plan = build(conversion)
    facts = {"layers": conversion.network.num_layers, "convert_s": converted, "build_s": plan.facts["build_seconds"]}
    return plan.data, facts


def onnx_plan(path: Path, network: Network, precision: str) -> tuple[bytes, dict[str, Any]]:
    """The road of the same TensorRT's ONNX parser, with the same profile and flags."""
    from builder.engine import flavour
    from builder.engine.flavour import trt
    from builder.engine.network import logger, new_network

    trt_builder, net, _ = new_network()
    parser = trt.OnnxParser(net, logger())
    assert parser.parse(path.read_bytes()), parser.get_error(0).desc()
    config = trt_builder.create_builder_config()
    (config.set_flag if precision == "tf32" else config.clear_flag)(trt.BuilderFlag.TF32)
    if precision == "fp16" and not flavour.strongly_typed():
        config.set_flag(trt.BuilderFlag.FP16)
    profile = trt_builder.create_optimization_profile()
    profile.set_shape("x", *(network.spec.at(network.spec.dims, which) for which in range(3)))
    config.add_optimization_profile(profile)
    started = time.monotonic()
    plan = bytes(trt_builder.build_serialized_network(net, config))
    return plan, {"layers": net.num_layers, "build_s": time.monotonic() - started}


def medians(contenders: dict[str, Callable[[int], Callable[[], Any]]]) -> dict[str, float]:
    """Median milliseconds of one call of each contender, timed alternately; each is made for every input set."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for index in range(INPUT_SETS):
        calls = {name: make(index) for name, make in contenders.items()}
        for call in calls.values():
            for _ in range(WARM_UP):
                call()
        for _ in range(ROUNDS):
            for name, call in calls.items():
                times[name].append(_milliseconds(call))
    return {name: statistics.median(values) for name, values in times.items()}


def _milliseconds(call: Callable[[], Any]) -> float:
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    first.record()
    for _ in range(CALLS):
        call()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / CALLS


def rows(name: str, precision: str, onnx: Path, done: set[Any]) -> Iterator[dict[str, Any]]:
    """One row a batch size that is not done yet."""
    left = [batch for batch in BATCHES if (name, precision, batch) not in done]
    if not left:
        return
    network = NETWORKS[name]
    (ours, our_facts), (theirs, their_facts) = (
        our_plan(network, precision),
        onnx_plan(onnx / f"{name}.onnx", network, precision),
    )
    engines = {"ours": Timed(ours), "onnx": Timed(theirs)}
    half = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(precision, torch.float32)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    module = network.module().to("cuda", half)
    for batch in left:
        sets = [_on_gpu(network, batch, seed, half) for seed in range(INPUT_SETS)]
        script = torch.jit.freeze(torch.jit.trace(module, sets[0], check_trace=False))
        with torch.inference_mode():
            timed = medians({
                **{road: _bound(engine, sets) for road, engine in engines.items()},
                **{f"{road}_graph": _captured(engine, sets) for road, engine in engines.items()},
                "eager": lambda i, sets=sets: lambda: module(sets[i]),
                "torchscript": lambda i, sets=sets, script=script: lambda: script(sets[i]),
            })  # fmt: skip
            error = _error(engines["ours"], module.float(), network, batch)
            module.to(half)
        yield {"network": name, "precision": precision, "batch": batch, **_host(), "milliseconds": timed,
               "ours_by_onnx": timed["ours"] / timed["onnx"], "eager_by_ours": timed["eager"] / timed["ours"],
               "error": error, "ours": our_facts, "onnx": their_facts}  # fmt: skip


def _on_gpu(network: Network, batch: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    x = network.sample(batch).cuda().roll(seed, dims=-1)
    return x if network.high else x.to(dtype)


def _bound(engine: Timed, sets: list[torch.Tensor]) -> Callable[[int], Callable[[], Any]]:
    def make(index: int) -> Callable[[], Any]:
        engine.bind(sets[index])
        return engine

    return make


def _captured(engine: Timed, sets: list[torch.Tensor]) -> Callable[[int], Callable[[], Any]]:
    def make(index: int) -> Callable[[], Any]:
        engine.bind(sets[index])
        return engine.graph()

    return make


def _error(engine: Timed, module: Any, network: Network, batch: int) -> float:
    """The engine's worst difference from float32 eager, relative to the greatest value."""
    x = network.sample(batch).cuda()
    engine.bind(x)
    engine()
    torch.cuda.synchronize()
    truth = module(x)
    return float((engine.y.float() - truth).abs().max() / truth.abs().max())


def _host() -> dict[str, Any]:
    from builder.engine.flavour import trt

    return {"gpu": torch.cuda.get_device_name(), "tensorrt": trt.__version__, "torch": torch.__version__,
            "python": platform.python_version(), "date": datetime.date.today().isoformat()}  # fmt: skip


def _done() -> set[Any]:
    """(network, precision, batch) that stand in the results for this GPU and TensorRT."""
    host = _host()
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    found = (json.loads(line) for line in lines)
    return {(r["network"], r["precision"], r["batch"]) for r in found
            if all(r[k] == host[k] for k in ("gpu", "tensorrt"))}  # fmt: skip


def main() -> None:
    """Print each row as it is measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", choices=sorted(NETWORKS))
    parser.add_argument("--precision", action="append", choices=("fp32", "tf32", "fp16"))
    parser.add_argument("--onnx", type=Path, default=Path("/tmp/onnx"))
    parser.add_argument("--export", type=Path)
    parser.add_argument("--budget", type=float, default=float("inf"), help="begin no network after so many seconds")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    names = options.only or ["resnet50", "bert_base_128"]
    if options.export:
        return export(options.export, names)
    started, done = time.monotonic(), _done()
    RESULTS.parent.mkdir(exist_ok=True)
    for precision in options.precision or ["fp16"]:
        for name in names:
            if time.monotonic() - started > options.budget:
                print(f"out of budget before {name} {precision}")
                return None
            for row in rows(name, precision, options.onnx, done):
                with RESULTS.open("a") as results:
                    results.write(json.dumps(row) + "\n")
                print(json.dumps(row), flush=True)
    return None


if __name__ == "__main__":
    main()
