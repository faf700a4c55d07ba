"""What serving costs: a live tritonserver's own compute time against the engine alone, on this machine's GPU.

    python -m benchmarks.serving [--network resnet50] [--precision fp16] [--optimization-level N] [--folder DIR]

The network is built once (its plan is kept in DIR/store, so a run that was cut off goes on), published for the Python
runtime, served, verified in every way in which tensors can travel, and then timed: rounds of calls of the engine alone
in this process and of requests to the server take turns. The server's times are of Triton's statistics (compute_infer
is what the runtime itself takes; input and output are Triton's copies), means over a round; the table has the medians
over the rounds, in milliseconds. `engine` is one call of the engine, its end awaited, which is what a server does too;
`gpu_work` is the share of it that the GPU works, of CUDA events around calls in a row. A row a batch size and way is
appended to benchmarks/results/serving.jsonl. Where no GPU answers the server's own times are printed, of torch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from tritonclient import grpc

from benchmarks import records
from benchmarks.networks import NETWORKS
from builder import conversion, engine, parity, triton
from builder.engine import flavour
from builder.engine.flavour import trt
from builder.manifest.spec import ModelSpec
from builder.parity.shared_memory import BODY, Regions, wire
from builder.repository import single
from builder.serving import serve
from builder.store import Store
from builder.store.plans import Plans

GOLDENS = {8: "p0-opt", 32: "p0-max"}
WARM_UP, ROUNDS, REQUESTS = 10, 7, 30
COMPUTE = ("compute_input", "compute_infer", "compute_output")


def published(name: str, precision: str, options: Any, folder: Path) -> tuple[Path, bytes, tuple[Any, ...]]:
    """The repository with the network's plan, the plan, and the goldens."""
    network = NETWORKS[name]
    traced = torch.jit.trace(network.module(), network.sample(2), check_trace=False)
    path = folder / f"{name}.pt"
    traced.save(str(path))
    spec = ModelSpec(name, path, (network.spec,), (network.spec.dims,), outputs=("y",), precision=precision)
    converted = conversion.convert(traced, spec.inputs, precision=precision, output_names=spec.outputs)
    plan = Plans(Store(str(folder / "store"))).build(converted, options, lambda: engine.build(converted, options))
    goldens = parity.record(traced, spec, spec.outputs)
    triton.publish(single.artifact(spec, converted, plan, goldens, "python"), folder / "repository")
    return folder / "repository", plan.data, goldens


def alone(plan: bytes, x: torch.Tensor) -> Callable[[], dict[str, float]]:
    """A round of the engine alone on this input: milliseconds a call, awaited one by one, and of the GPU's work."""
    from benchmarks.timed import Engine, milliseconds

    built, stream = Engine(plan), torch.cuda.Stream()

    def measured() -> dict[str, float]:
        with torch.cuda.stream(stream):
            call = built.bound(x)
            milliseconds(call, WARM_UP)
            started = time.perf_counter()
            for _ in range(REQUESTS):
                call()
                stream.synchronize()
            awaited = (time.perf_counter() - started) / REQUESTS
            return {"engine": awaited * 1e3, "gpu_work": milliseconds(call, REQUESTS)}

    return measured


def served(client: Any, model: str, golden: Any, regions: Regions | None) -> Callable[[], dict[str, float]]:
    """A round of requests of this golden: milliseconds a request, as Triton's statistics have it and as we see it."""
    tensors = {"inputs": regions.inputs(grpc), "outputs": regions.outputs(grpc)} if regions else _bodies(golden)

    def measured() -> dict[str, float]:
        for _ in range(WARM_UP):
            client.infer(model, **tensors)
        before, started = _statistics(client, model), time.perf_counter()
        for _ in range(REQUESTS):
            client.infer(model, **tensors)
        seconds, after = time.perf_counter() - started, _statistics(client, model)
        return {"client": seconds / REQUESTS * 1e3, **{k: (after[k] - before[k]) / REQUESTS / 1e6 for k in COMPUTE}}

    return measured


def _bodies(golden: Any) -> dict[str, Any]:
    inputs = [grpc.InferInput(name, list(a.shape), wire(a)).set_data_from_numpy(a) for name, a in golden.inputs.items()]
    return {"inputs": inputs}


def _statistics(client: Any, model: str) -> dict[str, int]:
    (stats,) = client.get_inference_statistics(model).model_stats
    return {name: getattr(stats.inference_stats, name).ns for name in COMPUTE}


def rows(name: str, repository: Path, plan: bytes, goldens: tuple[Any, ...], gpu: bool) -> Iterator[dict[str, Any]]:
    """One row a batch size and way, each with the medians of its rounds."""
    with serve(repository, http_port=0, grpc_port=0, metrics_port=0) as server:
        wanted = (BODY, "system", "cuda") if gpu else (BODY, "system")
        found = {way: _verified(repository, server.grpc_url, name, way) for way in wanted}
        ways = [way for way, verified in found.items() if verified.passed]
        client = grpc.InferenceServerClient(server.grpc_url)
        for batch, kind in GOLDENS.items():
            golden = next(one for one in goldens if one.name == kind)
            for way in ways:
                with Regions(way, client, golden) if way != BODY else nullcontext() as regions:
                    contenders = [served(client, name, golden, regions)]
                    if gpu:
                        (x,) = (torch.from_numpy(array).cuda() for array in golden.inputs.values())
                        contenders.append(alone(plan, x))
                    rounds = [{k: v for measured in contenders for k, v in measured().items()} for _ in range(ROUNDS)]
                times = {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
                yield {"network": name, "batch": batch, "way": way, "answered_by": found[way].answered_by, **times}
        client.close()


def _verified(repository: Path, grpc_url: str, name: str, way: str) -> Any:
    """What verify finds this way; where it fails the way is not timed, and why is printed."""
    (verified,) = parity.verify(repository, None, grpc_url, [name], repeat=0, shared_memory=[way])
    if not verified.passed:
        problems = [text for result in verified.results for text in result.problems]
        print(f"{way}: not timed: {verified.problems} {problems[:2]} {verified.why}", flush=True)
    return verified


def main() -> None:
    """Print a row as it is measured, and keep it where a plan answered."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--network", choices=sorted(NETWORKS), default="resnet50")
    parser.add_argument("--precision", choices=("fp32", "tf32", "fp16"), default="fp16")
    parser.add_argument("--optimization-level", type=int, choices=range(6), help="of TensorRT's builder")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/trt-build-serving"))
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    asked.folder.mkdir(parents=True, exist_ok=True)
    gpu = flavour.name() == "tensorrt" and torch.cuda.is_available()
    options = engine.BuildOptions(optimization_level=asked.optimization_level)
    started = time.monotonic()
    repository, plan, goldens = published(asked.network, asked.precision, options, asked.folder)
    print(f"published after {time.monotonic() - started:.1f} s", flush=True)
    for row in rows(asked.network, repository, plan, goldens, gpu):
        said = {**row, "precision": asked.precision, "settings": asked.optimization_level}
        if gpu:
            said |= {"overhead": row["compute_infer"] / row["engine"] - 1, "tensorrt": trt.__version__}
            records.append(records.SERVING, [{**said, **records.host()}])
        shown = {key: round(value, 3) if isinstance(value, float) else value for key, value in said.items()}
        print(json.dumps(shown), flush=True)
    print(f"done after {time.monotonic() - started:.1f} s")


if __name__ == "__main__":
    main()
