"""The Python runtime beside Triton's TensorRT backend, and the GPU memory of several instances.

    python -m benchmarks.backends --network resnet50 --network bert_base_128 --out rows.jsonl

Each network is built once in fp16 and published for both. Requests of batch 8 and 32 travel through
CUDA shared memory. `compute` is Triton's compute_infer in milliseconds, `engine` a call of the
engine alone in this process; both are medians of rounds that alternate. `memory_mib` is what the
GPU has less after a model is loaded and each instance may have answered, with 1 and 4 instances;
nothing else may use the GPU meanwhile. "shared" is the Python runtime with `share_engine`.
`requests_per_s` is measured with 8 clients that send the same batch through CUDA shared memory.
With `--fixed N`, the plans have the batch size N only, and only the memory is measured: Triton's
backend shares one engine between the instances of a plan without dynamic sizes. A GPU, full
TensorRT and a tritonserver with the TensorRT backend (TRT_BUILD_TRITONSERVER) are required.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tritonclient import grpc

from benchmarks import models, records, serving
from benchmarks.networks import NETWORKS
from builder import engine
from builder.parity.shared_memory import Regions, wire
from builder.serving import FREE_PORTS, serve

RUNTIMES = ("python", "tensorrt_plan")
INSTANCES = (1, 4)
CLIENTS = 8
SECONDS = 3.0
WARM_UP_SECONDS = 2.0


def published(
    name: str, folder: Path, level: int | None, batch: int | None
) -> dict[str, tuple[Path, bytes, Any]]:
    """Publish the network. Returns the model's folder, the plan, and the goldens by runtime."""
    options = engine.BuildOptions(optimization_level=level)
    by_runtime = {}
    for runtime in RUNTIMES:
        home = folder / runtime
        home.mkdir(parents=True, exist_ok=True)
        store = folder / "store"
        by_runtime[runtime] = serving.published(
            name,
            "fp16",
            options,
            home,
            store=store,
            serve_as=runtime,
            batch=batch,
        )
    return by_runtime


def answer_together(url: str, model: str, golden: Any) -> None:
    """Send enough requests at a time that every instance answers some."""

    def ask(_: int) -> None:
        client = grpc.InferenceServerClient(url)
        tensors = serving.tensors_of(golden, None)
        for _ in range(10):
            client.infer(model, **tensors)
        client.close()

    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(ask, range(CLIENTS)))


def memory(folder: Path, golden: Any, instances: int, shares: bool = False) -> float:
    """MiB of GPU memory of a model with this number of instances, in a server that already runs."""
    name = _variant(folder, instances, shares)
    with serve(folder.parent, explicit=True, models=[], **FREE_PORTS) as server:
        client = grpc.InferenceServerClient(server.grpc_url)
        before = torch.cuda.mem_get_info()[0]
        client.load_model(name)
        answer_together(server.grpc_url, name, golden)
        time.sleep(1)
        after = torch.cuda.mem_get_info()[0]
        client.close()
    return round((before - after) / 2**20, 1)


def _variant(folder: Path, instances: int, shares: bool) -> str:
    suffix = f"shared{instances}" if shares else f"x{instances}"
    return models.copied(
        folder, f"{folder.name}.{suffix}", instances, shares=shares
    ).name


def throughput(folder: Path, golden: Any, instances: int, shares: bool) -> float:
    """Requests per second of CLIENTS clients. The last response of each is compared."""
    name = _variant(folder, instances, shares)
    with (
        serve(
            folder.parent,
            explicit=True,
            models=[name],
            client_shared_memory=True,
            **FREE_PORTS,
        ) as server,
        ProcessPoolExecutor(CLIENTS, get_context("spawn")) as pool,
    ):
        jobs = [
            pool.submit(send_for, SECONDS, server.grpc_url, name, golden)
            for _ in range(CLIENTS)
        ]
        return round(sum(job.result() for job in jobs) / SECONDS, 1)


def send_for(seconds: float, url: str, model: str, golden: Any) -> int:
    """Send the golden in CUDA shared memory, after a warm-up. Returns the number of responses."""
    client = grpc.InferenceServerClient(url)
    count = 0
    with Regions("cuda", client, golden) as regions:
        tensors = serving.tensors_of(golden, regions)
        end = time.monotonic() + WARM_UP_SECONDS
        while time.monotonic() < end:
            client.infer(model, **tensors)
        end += seconds
        while time.monotonic() < end:
            client.infer(model, **tensors)
            count += 1
        for name, array in golden.outputs.items():
            received = regions.read(name, wire(array), array.shape)
            np.testing.assert_allclose(received, array, atol=0.05)
    return count


def compute(folder: Path, plan: bytes, golden: Any) -> dict[str, float]:
    """Medians of the rounds for a live server and for the engine alone."""
    name = models.copied(folder, f"{folder.name}.timed", 1).name
    (x,) = (torch.from_numpy(array).cuda() for array in golden.inputs.values())
    alone = serving.alone(plan, x)
    rounds: list[dict[str, float]] = []
    with serve(
        folder.parent,
        explicit=True,
        models=[name],
        client_shared_memory=True,
        **FREE_PORTS,
    ) as server:
        client = grpc.InferenceServerClient(server.grpc_url)
        with Regions("cuda", client, golden) as regions:
            tensors = serving.tensors_of(golden, regions)
            for _ in range(serving.WARM_UP):
                client.infer(name, **tensors)
            for _ in range(serving.ROUNDS):
                rounds.append({**serving.one_round(client, name, tensors), **alone()})
        client.close()
    return {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}


def requests_per_s(
    folder: Path, goldens: dict[int, Any], runtime: str
) -> dict[str, dict[int, float]]:
    """Throughput by kind of instances and batch size."""
    kinds = {f"{count} instances": (count, False) for count in INSTANCES}
    if runtime == "python":
        kinds["shared"] = (INSTANCES[-1], True)
    return {
        kind: {n: throughput(folder, golden, *chosen) for n, golden in goldens.items()}
        for kind, chosen in kinds.items()
    }


def rows(
    name: str, folder: Path, level: int | None, fixed: int | None
) -> Iterator[dict[str, Any]]:
    """Yield one row for each runtime: memory by number of instances, and times by batch size."""
    by_runtime = published(name, folder, level, fixed)
    for runtime, (model, plan, goldens) in by_runtime.items():
        row: dict[str, Any] = {"network": name, "runtime": runtime}
        if fixed is None:
            chosen = {n: serving.golden_of(goldens, n) for n in serving.GOLDENS}
            golden = chosen[8]
            row["times"] = {n: compute(model, plan, one) for n, one in chosen.items()}
        else:
            golden = goldens[0]
            row["fixed_batch"] = fixed
        row["memory_mib"] = {n: memory(model, golden, n) for n in INSTANCES}
        if runtime == "python":
            row["memory_mib"]["shared"] = memory(model, golden, INSTANCES[-1], True)
        if fixed is None:
            row["requests_per_s"] = requests_per_s(model, chosen, runtime)
        yield {**row, "plan_mib": round(len(plan) / 2**20, 1), **records.host()}


def main() -> int:
    """Print each row as it is measured, and write it to `--out`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--network", action="append", choices=sorted(NETWORKS))
    parser.add_argument("--level", type=int, choices=range(6))
    parser.add_argument("--fixed", type=int, help="the only batch size of the plans")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/trt-build-backends"))
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in args.network or ["resnet50"]:
        for row in rows(name, args.folder / name, args.level, args.fixed):
            records.append(args.out, [row])
            print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
