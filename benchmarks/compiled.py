"""torch alone, on this machine's GPU: eager, TorchScript and torch.compile of the same networks.

    python3 -m benchmarks.compiled [--only resnet50] [--precision fp16] [--batch 32]
                                   [--mode max-autotune] [--budget 300]

`--mode` names modes of torch.compile beside its default: `reduce-overhead` uses CUDA graphs, and
`max-autotune` also measures kernels. This is for a Python that has triton but no TensorRT.
benchmarks/engine.py and benchmarks/batch_sizes.py run in one that has TensorRT but no triton. Their
rows have the same networks, inputs and method, and eager, which both have, shows how far they
compare. Rows go to benchmarks/results/torch.jsonl and $OUT.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Sequence

import torch

from benchmarks import records, timed
from benchmarks.engine import BATCHES, INPUT_SETS, ORDER, PRECISIONS, set_tf32
from benchmarks.networks import NETWORKS

MODES = ("reduce-overhead", "max-autotune")


def row(
    name: str, precision: str, batch: int, modes: Sequence[str] = ()
) -> records.Row:
    """Return the medians of one network, precision and batch size."""
    network = NETWORKS[name]
    module = network.module().to(
        "cuda", torch.float16 if precision == "fp16" else torch.float32
    )
    set_tf32(precision == "tf32")
    sets = [
        network.sample(batch).cuda().roll(seed, dims=-1) for seed in range(INPUT_SETS)
    ]
    sets = (
        sets if network.high else [x.to(next(module.parameters()).dtype) for x in sets]
    )
    contenders = {
        "eager": timed.eager(module),
        "torchscript": timed.torchscript(module, sets[0]),
        "compile": timed.compiled(module),
        **{f"compile, {mode}": timed.compiled(module, mode) for mode in modes},
    }
    medians, failed = timed.medians(contenders, sets)
    return {
        "network": name,
        "precision": precision,
        "batch": batch,
        "settings": "",
        **records.host(),
        "milliseconds": medians,
        "failed": failed,
    }


def main(arguments: list[str]) -> int:
    """Print each row as it is measured."""
    parser = argparse.ArgumentParser(
        description=" ".join((__doc__ or "").split("\n\n")[0].split())
    )
    parser.add_argument("--only", action="append", choices=sorted(NETWORKS))
    parser.add_argument("--precision", action="append", choices=PRECISIONS)
    parser.add_argument("--batch", action="append", type=int, choices=BATCHES)
    parser.add_argument("--mode", action="append", default=[], choices=MODES)
    parser.add_argument(
        "--budget",
        type=float,
        default=float("inf"),
        help="begin no row after so many seconds",
    )
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    started = time.monotonic()
    for precision in options.precision or ["fp16"]:
        for name in options.only or ORDER:
            for batch in options.batch or BATCHES:
                if time.monotonic() - started > options.budget:
                    print(
                        f"out of budget before {name} {precision} {batch}", flush=True
                    )
                    return 0
                measured = row(name, precision, batch, options.mode)
                records.append(records.TORCH, [measured])
                print(json.dumps(measured), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
