"""How long the reference takes for ResNet-50 at batch 1, as a multiple of torch's own time for it
on the CPU.

    python -m benchmarks.reference [--runs 15] [--json]

The network is what builder.convert makes of the module, with random weights. Both run alternately
on the same input and threads, after a warm-up; the ratio is that of the medians, and reading the
network back is part of every run of the reference. The aim is a ratio below 3; exit status 1 above
it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import builder
from benchmarks.networks import NETWORKS
from builder import reference

AIM = 3.0


def seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(runs: int) -> dict[str, float]:
    """Return the medians over alternating runs in seconds, their ratio, and the largest relative
    difference of the outputs.
    """
    network = NETWORKS["resnet50"]
    x = network.sample(1)
    model = torch.jit.trace(network.module(), x, check_trace=False)
    conversion = builder.convert(model, [network.spec])
    with torch.no_grad():
        expected = model(x)
        (output,) = reference.run(conversion, [x])
        pairs = [
            (seconds(lambda: model(x)), seconds(lambda: reference.run(conversion, [x])))
            for _ in range(runs)
        ]
    by_torch, by_reference = (
        statistics.median(times) for times in zip(*pairs, strict=True)
    )
    error = float((output - expected).abs().max() / expected.abs().max())
    return {
        "torch": by_torch,
        "reference": by_reference,
        "ratio": by_reference / by_torch,
        "difference": error,
        "layers": conversion.network.num_layers,
        "threads": torch.get_num_threads(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=" ".join((__doc__ or "").split("\n\n")[0].split())
    )
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = measure(options.runs)
    if options.json:
        print(json.dumps(result))
    else:
        print(
            f"ResNet-50, batch 1, {result['layers']} layers, {result['threads']} threads,"
            f" {options.runs} runs each"
        )
        print(f"  torch      {result['torch'] * 1e3:8.1f} ms")
        print(
            f"  reference  {result['reference'] * 1e3:8.1f} ms, {result['ratio']:.2f} times torch"
            f" (aim: below {AIM:g})"
        )
        print(f"  worst relative difference {result['difference']:.1e}")
    return 0 if result["ratio"] < AIM else 1


if __name__ == "__main__":
    sys.exit(main())
