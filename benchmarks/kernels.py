"""The GPU kernels of a network and their times: of our plan, or of torch.compile.

    python -m benchmarks.kernels engine --only vit_b --batch 32 --out rows.jsonl
    python3 -m benchmarks.kernels compile --only vit_b --batch 32 --out rows.jsonl

`engine` reads the plans with static profiles that `benchmarks.batch_sizes --stage build` left in
`--plans`, and needs TensorRT. `compile` needs triton. Both run in half precision. A row has the
median milliseconds of a call as a CUDA graph, and the kernels of one call, from torch.profiler:
name, number of runs, total milliseconds, the slowest first. The milliseconds of the kernels are
those of plain calls.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks import records, timed
from benchmarks.batch_sizes import DEFAULT_LEVEL, FOLDER, SIZES, folder_of
from benchmarks.networks import NETWORKS

MOST = 40
"""The number of kernels that a row lists."""


def of_engine(name: str, batch: int, args: argparse.Namespace) -> dict[str, Any]:
    """Return the time and kernels of our plan for this batch size."""
    folder = folder_of(args.plans, name, "fp16", args.level)
    engine = timed.Engine((folder / "static.plan").read_bytes(), SIZES.index(batch))
    x = NETWORKS[name].sample(batch).cuda()
    medians, failed = timed.medians({"engine": engine.graph}, [x])
    kernels = timed.kernels(engine.bound(x))
    return {"milliseconds": medians, "failed": failed, "kernels": kernels}


def of_compile(name: str, batch: int, args: argparse.Namespace) -> dict[str, Any]:
    """Return the time and kernels of torch.compile for this batch size."""
    network = NETWORKS[name]
    module = network.module().cuda().half()
    x = network.sample(batch).cuda()
    x = x if network.high else x.half()
    make = timed.compiled(module, args.mode)
    medians, failed = timed.medians({f"compile, {args.mode}": make}, [x])
    with torch.inference_mode():
        kernels = timed.kernels(make(x))
    return {"milliseconds": medians, "failed": failed, "kernels": kernels}


MEASUREMENTS: dict[str, Callable[[str, int, argparse.Namespace], dict[str, Any]]] = {
    "engine": of_engine,
    "compile": of_compile,
}


def rows(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a row for each network and batch size."""
    for name in args.only:
        for batch in args.batch:
            measured = MEASUREMENTS[args.way](name, batch, args)
            kernels = list(measured.pop("kernels").items())
            yield {
                "network": name,
                "precision": "fp16",
                "batch": batch,
                **measured,
                "kernel_ms": round(sum(spent for _, (_, spent) in kernels), 4),
                "kernels": [
                    [kernel, round(count, 2), round(spent, 4)]
                    for kernel, (count, spent) in kernels[:MOST]
                ],
                **records.host(),
            }


def main() -> int:
    """Write one JSON line for each row, and print its slowest kernels."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("way", choices=list(MEASUREMENTS))
    parser.add_argument("--only", nargs="+", choices=list(NETWORKS), required=True)
    parser.add_argument("--batch", nargs="+", type=int, default=[8, 32], choices=SIZES)
    parser.add_argument("--plans", type=Path, default=Path(FOLDER))
    parser.add_argument(
        "--level", type=int, default=DEFAULT_LEVEL, help="TensorRT's level"
    )
    parser.add_argument("--mode", default="max-autotune", help="of torch.compile")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    for row in rows(args):
        records.append(args.out, [row])
        print(json.dumps({**row, "kernels": row["kernels"][:8]}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
