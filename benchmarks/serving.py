"""What serving costs: the compute time of a live tritonserver against the engine alone.

    python -m benchmarks.serving --network resnet50 --network unet --batch 8
    python -m benchmarks.serving --network resnet50 --concurrent

Each network is built once. Its plan is kept in DIR/store, so an interrupted run continues. It is
published for the Python runtime in the settings of SETTINGS, served, and verified with each kind of
memory that tensors can be passed in. Then rounds of three calls alternate: the engine alone in this
process, requests to the server, and requests to a model without computation that has tensors of
the same sizes. The row has medians over the rounds, in milliseconds:

- `engine`: one call of the engine until it ends. `engine_graph`: the same as a CUDA graph.
  `gpu_work`: the GPU's share, from CUDA events around consecutive calls.
- `compute_infer`: Triton's statistic, the time in the runtime and the messages between Triton and
  the model's process. `compute_input`, `compute_output`: Triton's copies.
- `execute`: the part of `compute_infer` in the runtime's `execute`. `run`: the part of it in the
  call of the engine.
- `floor`: `compute_infer` of the model without computation.

Rows are appended to benchmarks/results/serving.jsonl. A row that exists for this GPU and TensorRT
is not measured again. `--concurrent` measures the requests per second of four clients and two
instances, and the calls per second of the engine alone. Without a GPU, it prints the server's times
for torch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from tritonclient import grpc

from benchmarks import models, records
from benchmarks.networks import NETWORKS
from builder import TensorSpec, conversion, engine, parity, triton
from builder.engine import flavor
from builder.engine.flavor import trt
from builder.manifest.spec import ModelSpec
from builder.parity.clients import GrpcClient, describe
from builder.parity.shared_memory import BODY, Regions, wire
from builder.pipeline import artifacts
from builder.serving import FREE_PORTS, Server, serve
from builder.store import Store
from builder.store.plans import Plans

GOLDENS = {8: "p0-opt", 32: "p0-max"}
WARM_UP, ROUNDS, REQUESTS = 25, 7, 30
"""Warm-up calls, more than the runtime makes before it captures a graph; rounds; calls of each
round.
"""
CLIENTS, INSTANCES, SECONDS = 4, 2, 3.0
COMPUTE = ("compute_input", "compute_infer", "compute_output")
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "plain": {"cuda_graphs": False},
    "mapped": {"keep_mapped": 16},
}
"""The manifest's `runtime` section by name. `mapped` differs only for CUDA shared memory."""
Measure = Callable[[], dict[str, float]]
IsMeasured = Callable[[dict[str, Any]], bool]
"""Whether such a row was measured before."""


@dataclass(frozen=True)
class Run:
    """A published network, and the settings and batch sizes to measure."""

    name: str
    folder: Path
    plan: bytes
    goldens: tuple[Any, ...]
    settings: Sequence[str]
    batches: Sequence[int]
    is_measured: IsMeasured

    def rows(
        self,
        url: str,
        variants: Mapping[str, str],
        memories: Mapping[str, Sequence[str]],
        **more: Any,
    ) -> Iterator[tuple[dict[str, Any], str, Any, str]]:
        """The start of each row to measure, its model, its golden, and the kind of memory.

        `variants` and `memories` have the model and the kinds of memory of each setting.
        """
        for setting, model in variants.items():
            ran = _verified(self.folder.parent, url, model, memories[setting])
            for batch, memory in product(self.batches, ran):
                about = {
                    "network": self.name,
                    "batch": batch,
                    "way": memory,
                    "setting": setting,
                    **more,
                }
                if not self.is_measured(about):
                    row = {**about, "answered_by": ran[memory]}
                    yield row, model, golden_of(self.goldens, batch), memory


def published(
    name: str,
    precision: str,
    options: Any,
    folder: Path,
    *,
    store: Path | None = None,
    serve_as: str = "python",
    batch: int | None = None,
) -> tuple[Path, bytes, tuple[Any, ...]]:
    """Publish the network. Returns its folder in a repository, its plan, and the goldens.

    With `batch`, all sizes of the plan are fixed, and Triton does not batch.
    """
    network = NETWORKS[name]
    tensor = network.spec if batch is None else fixed(network.spec, batch)
    traced = torch.jit.trace(network.module(), network.sample(2), check_trace=False)
    path = folder / f"{name}.pt"
    traced.save(str(path))
    spec = ModelSpec(
        name,
        path,
        (tensor,),
        (tensor.dims,),
        outputs=("y",),
        precision=precision,
    )
    converted = conversion.convert(
        traced, spec.inputs, precision=precision, output_names=spec.outputs
    )
    plan = Plans(Store(str(store or folder / "store"))).build(
        converted, options, lambda: engine.build(converted, options)
    )
    goldens = parity.record(traced, spec, spec.outputs)
    model = artifacts.of_conversion(spec, converted, plan, goldens, serve_as)
    return triton.publish(model, folder / "repository"), plan.data, goldens


def fixed(spec: TensorSpec, batch: int) -> TensorSpec:
    """Return the specification of an input with this batch size only."""
    return TensorSpec(spec.dtype, (batch, *spec.shape[1:]), name=spec.name)


def alone(plan: bytes, x: torch.Tensor) -> Measure:
    """Run a round of the engine alone on this input. Returns milliseconds per call, each awaited,
    and of the GPU's work.
    """
    from benchmarks.timed import Engine, milliseconds

    built, replayed, stream = Engine(plan), Engine(plan), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        graph = replayed.graph(x)

    def measured() -> dict[str, float]:
        with torch.cuda.stream(stream):
            call = built.bound(x)
            milliseconds(call, WARM_UP)
            return {
                "engine": awaited(call),
                "engine_graph": awaited(graph),
                "gpu_work": milliseconds(call, REQUESTS),
            }

    def awaited(call: Callable[[], Any]) -> float:
        stream.synchronize()
        started = time.perf_counter()
        for _ in range(REQUESTS):
            call()
            stream.synchronize()
        return (time.perf_counter() - started) / REQUESTS * 1e3

    return measured


def served(
    url: str, model: str, floor: str, golden: Any, regions: Regions | None
) -> Measure:
    """Run a round of requests of this golden, alternating with the empty model.

    Returns milliseconds per request from Triton's statistics, the runtime, and this process.
    """
    client, triton_client = grpc.InferenceServerClient(url), GrpcClient(url, 60)
    tensors = tensors_of(golden, regions)
    for name in [model, floor] * WARM_UP:
        client.infer(name, **tensors)

    def measured() -> dict[str, float]:
        describe(triton_client, model, golden.inputs)
        milliseconds = one_round(client, model, tensors)
        times = json.loads(describe(triton_client, model, golden.inputs)["times"])
        own = {name: times[name] / times["calls"] / 1e6 for name in ("execute", "run")}
        return {
            **milliseconds,
            **own,
            "floor": one_round(client, floor, tensors)["compute_infer"],
        }

    return measured


def tensors_of(golden: Any, regions: Regions | None) -> dict[str, Any]:
    """The arguments of `infer`: the golden's tensors in their regions, or the arrays."""
    if regions:
        return {"inputs": regions.inputs(grpc), "outputs": regions.outputs(grpc)}
    inputs = [
        grpc.InferInput(name, list(a.shape), wire(a)).set_data_from_numpy(a)
        for name, a in golden.inputs.items()
    ]
    return {"inputs": inputs}


def one_round(client: Any, model: str, tensors: dict[str, Any]) -> dict[str, float]:
    """Milliseconds of a request, from the client and from Triton's statistics, over REQUESTS."""
    before, started = _statistics(client, model), time.perf_counter()
    for _ in range(REQUESTS):
        client.infer(model, **tensors)
    seconds, after = time.perf_counter() - started, _statistics(client, model)
    return {
        "client": seconds / REQUESTS * 1e3,
        **{k: (after[k] - before[k]) / REQUESTS / 1e6 for k in COMPUTE},
    }


def _statistics(client: Any, model: str) -> dict[str, int]:
    (stats,) = client.get_inference_statistics(model).model_stats
    return {name: getattr(stats.inference_stats, name).ns for name in COMPUTE}


def in_turns(contenders: Sequence[Measure]) -> dict[str, float]:
    """Return the medians of all rounds. Each round measures every contender."""
    rounds = [
        {k: v for measured in contenders for k, v in measured().items()}
        for _ in range(ROUNDS)
    ]
    return {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}


def rows(run: Run) -> Iterator[dict[str, Any]]:
    """Yield one row for each batch size, kind of memory and setting."""
    variants = {
        setting: models.variant(run.folder, setting, runtime=SETTINGS[setting])
        for setting in run.settings
    }
    floor = models.floor(run.folder)
    with _serve(run, [*variants.values(), floor]) as server:
        url = server.grpc_url
        plan = run.plan if torch.cuda.is_available() else None
        for row, model, golden, memory in run.rows(url, variants, MEMORIES):
            yield row | _timed(url, model, floor, golden, memory, plan)


def _serve(run: Run, served_models: Sequence[str]) -> AbstractContextManager[Server]:
    return serve(
        run.folder.parent,
        explicit=True,
        models=list(served_models),
        client_shared_memory=True,
        **FREE_PORTS,
    )


MEMORIES = {
    "default": (BODY, "system", "cuda"),
    "plain": ("system", "cuda"),
    "mapped": ("cuda",),
}
"""The kinds of memory that tensors are passed in, by setting."""


def golden_of(goldens: tuple[Any, ...], batch: int) -> Any:
    """The golden of this batch size."""
    return next(one for one in goldens if one.name == GOLDENS[batch])


def _timed(
    url: str, model: str, floor: str, golden: Any, memory: str, plan: bytes | None
) -> dict[str, float]:
    with ExitStack() as stack:
        client = grpc.InferenceServerClient(url)
        regions = (
            stack.enter_context(Regions(memory, client, golden))
            if memory != BODY
            else None
        )
        contenders = [served(url, model, floor, golden, regions)]
        if plan is not None:
            (x,) = (torch.from_numpy(array).cuda() for array in golden.inputs.values())
            contenders.append(alone(plan, x))
        return in_turns(contenders)


def _verified(
    repository: Path, url: str, model: str, memories: Sequence[str]
) -> dict[str, Any]:
    """Return the kinds of memory with which verify passes, each with the library that ran. The
    others are not timed, and the reason is printed.
    """
    answered_by = {}
    gpu = torch.cuda.is_available()
    for memory in [memory for memory in memories if gpu or memory != "cuda"]:
        (verified,) = parity.verify(
            repository, None, url, [model], repeat=0, shared_memory=[memory]
        )
        if verified.passed:
            answered_by[memory] = verified.answered_by
        else:
            problems = [text for result in verified.results for text in result.problems]
            print(
                f"{model} {memory}: not timed: {verified.problems} {problems[:2]} {verified.why}",
                flush=True,
            )
    return answered_by


def concurrent(run: Run) -> Iterator[dict[str, Any]]:
    """Measure the requests per second of several clients with several instances, and the calls per
    second of the engine alone.
    """
    gpu = torch.cuda.is_available()
    variants = {
        s: models.variant(
            run.folder, f"{s}.{INSTANCES}", runtime=SETTINGS[s], instances=INSTANCES
        )
        for s in run.settings
    }
    memories = dict.fromkeys(variants, ("cuda",) if gpu else ("system",))
    with _serve(run, list(variants.values())) as server:
        url = server.grpc_url
        for row, model, golden, memory in run.rows(
            url, variants, memories, clients=CLIENTS
        ):
            row["instances"] = INSTANCES
            row["requests_s"] = _rate(url, model, golden, memory)
            if gpu:
                (x,) = (torch.from_numpy(a).cuda() for a in golden.inputs.values())
                row |= in_turns([alone(run.plan, x)])
                row["throughput"] = row["requests_s"] * row["engine"] / 1e3
            yield row


def _rate(url: str, model: str, golden: Any, memory: str) -> float:
    """Requests per second of CLIENTS threads, each with separate regions, after a warm-up."""

    def ask(until: float) -> int:
        client = grpc.InferenceServerClient(url)
        with (
            Regions(memory, client, golden)
            if memory != BODY
            else nullcontext() as regions
        ):
            tensors, count = tensors_of(golden, regions), 0
            for _ in range(WARM_UP):
                client.infer(model, **tensors)
            while time.perf_counter() < until - SECONDS:
                client.infer(model, **tensors)
            while time.perf_counter() < until:
                client.infer(model, **tensors)
                count += 1
        client.close()
        return count

    until = time.perf_counter() + 2 * SECONDS
    with ThreadPoolExecutor(CLIENTS) as pool:
        return sum(pool.map(ask, [until] * CLIENTS)) / SECONDS


def measured_before(args: argparse.Namespace) -> IsMeasured:
    """Whether such a row was measured on this machine before."""
    if args.again or not torch.cuda.is_available():
        return lambda about: False
    host = {**records.host(), "tensorrt": trt.__version__}
    common = {"precision": args.precision, "settings": args.optimization_level}
    known = {
        records.key(row)
        for row in records.read(records.SERVING)
        if row.get("method") == records.METHOD
    }
    return lambda about: records.key({**host, **common, **about}) in known


def measurements(
    name: str, settings: Sequence[str], batches: Sequence[int], several: bool
) -> Iterator[dict[str, Any]]:
    """The measurements of the rows of a run."""
    for setting, batch in product(settings, batches):
        for memory in ("cuda",) if several else MEMORIES[setting]:
            more = {"clients": CLIENTS} if several else {}
            yield {
                "network": name,
                "batch": batch,
                "way": memory,
                "setting": setting,
                **more,
            }


def main() -> None:
    """Print each row as it is measured, and keep it if a plan ran."""
    parser = argparse.ArgumentParser(
        description=" ".join((__doc__ or "").split("\n\n")[0].split())
    )
    parser.add_argument("--network", choices=sorted(NETWORKS), action="append")
    parser.add_argument("--precision", choices=("fp32", "tf32", "fp16"), default="fp16")
    parser.add_argument("--batch", type=int, choices=sorted(GOLDENS), action="append")
    parser.add_argument("--setting", choices=list(SETTINGS), action="append")
    parser.add_argument(
        "--concurrent", action="store_true", help="requests a second of several clients"
    )
    parser.add_argument(
        "--again", action="store_true", help="measure rows of the results again"
    )
    parser.add_argument(
        "--optimization-level", type=int, choices=range(6), help="of TensorRT's builder"
    )
    parser.add_argument("--folder", type=Path, default=Path("/tmp/trt-build-serving"))
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    args.folder.mkdir(parents=True, exist_ok=True)
    for name in args.network or ["resnet50"]:
        _network(name, args, flavor.name() == "tensorrt" and torch.cuda.is_available())


def _network(name: str, args: argparse.Namespace, gpu: bool) -> None:
    started, settings, batches = (
        time.monotonic(),
        args.setting or list(SETTINGS),
        args.batch or list(GOLDENS),
    )
    is_measured = measured_before(args)
    if all(
        is_measured(about)
        for about in measurements(name, settings, batches, args.concurrent)
    ):
        print(f"{name}: measured before (--again)")
        return
    options = engine.BuildOptions(optimization_level=args.optimization_level)
    files = published(name, args.precision, options, args.folder)
    print(f"{name}: published after {time.monotonic() - started:.1f} s", flush=True)
    measure = concurrent if args.concurrent else rows
    for row in measure(Run(name, *files, settings, batches, is_measured)):
        record = {
            **row,
            "precision": args.precision,
            "settings": args.optimization_level,
        }
        if gpu:
            if "compute_infer" in row:
                record["overhead"] = row["compute_infer"] / row["engine"] - 1
            record["tensorrt"] = trt.__version__
            records.append(records.SERVING, [{**record, **records.host()}])
        shown = {
            key: round(value, 3) if isinstance(value, float) else value
            for key, value in record.items()
        }
        print(json.dumps(shown), flush=True)
    print(f"{name}: done after {time.monotonic() - started:.1f} s", flush=True)


if __name__ == "__main__":
    main()
