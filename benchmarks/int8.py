"""What 8 bits gain over half: int8 and mixed plans against fp16 plans of the same networks.

    python -m benchmarks.int8 --only resnet50 bert_base_128 --out rows.jsonl

Each network is calibrated on random inputs and built in fp16, mixed and int8, and in int8 without
quantized residual operands where it has residual additions. The plans of a network share one
timing cache. They are timed alternately in the same run with CUDA graphs at batch 8 and 32;
medians in milliseconds. `sqnr` is each plan's signal to noise ratio in dB against float32 torch,
`top1` the share of rows with the same largest output. Weights and inputs are random. A GPU and
full TensorRT are required.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import roads, timed
from benchmarks.networks import NETWORKS

SIZES = (8, 32)
VARIANTS = ("fp16", "mixed", "int8", "int8, float residuals")
CALIBRATION = 4
"""The number of batches of 8 for calibration."""


def plan(name: str, variant: str, level: int | None, cache: Path) -> tuple[bytes, dict[str, Any]]:
    """Build the plan. Returns it with facts of its quantization and build."""
    import builder
    from builder.engine import BuildOptions, build
    from builder.lowering import lower
    from builder.quantization import quantize

    network = NETWORKS[name]
    precision, _, changed = variant.partition(", ")
    defining: Any = importlib.import_module(quantize.__module__)
    lowered = lower(roads.trace(network), specs=[network.spec])
    facts: dict[str, Any] = {}
    graph: Any = lowered
    if precision != "fp16":
        batches = [[network.sample(8).roll(shift, dims=-1)] for shift in range(CALIBRATION)]
        found = defining.additions
        if changed:
            defining.additions = lambda *_: []
        try:
            quantized = quantize(lowered, batches, precision)
        finally:
            defining.additions = found
        done = [layer.quantized for layer in quantized.layers]
        facts = {"products": f"{sum(done)} of {len(done)}", "additions": quantized.additions}
        graph = quantized.lowered
    started = time.monotonic()
    conversion = builder.convert(graph, [network.spec], precision=precision)
    built = build(conversion, BuildOptions(timing_cache=cache, optimization_level=level))
    return built.data, {**facts, "build_s": round(time.monotonic() - started, 1)}


def rows(name: str, variants: Sequence[str], level: int | None) -> Iterator[dict[str, Any]]:
    """Yield one row for each batch size."""
    network = NETWORKS[name]
    facts, engines, failed = {}, {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for variant in variants:
            try:
                data, facts[variant] = plan(name, variant, level, Path(folder, "timing.cache"))
            except Exception as refusal:
                failed[variant] = f"{type(refusal).__name__}: {refusal}"[:300]
                continue
            engines[variant] = timed.Engine(data)
    truth_of = network.module().cuda()
    for batch in SIZES:
        x = network.sample(batch).roll(7, dims=-1).cuda()
        with torch.inference_mode():
            truth = truth_of(x).float()
            outputs = {variant: engine(x).float() for variant, engine in engines.items()}
        medians, refused = timed.medians({key: e.graph for key, e in engines.items()}, [x])
        yield {
            "network": name,
            "batch": batch,
            "ms": medians,
            "sqnr": {key: _sqnr(output, truth) for key, output in outputs.items()},
            "top1": {key: _agreement(output, truth) for key, output in outputs.items()},
            "failed": {**failed, **refused},
            "facts": facts,
        }


def _sqnr(output: torch.Tensor, truth: torch.Tensor) -> float:
    noise = float((output - truth).square().sum())
    return round(10 * math.log10(float(truth.square().sum()) / noise), 1) if noise else math.inf


def _agreement(output: torch.Tensor, truth: torch.Tensor) -> float:
    axis = 1 if truth.dim() == 4 else -1
    same = output.argmax(axis) == truth.argmax(axis)
    return round(float(same.float().mean()), 3)


def main() -> int:
    """Measure, write one JSON line for each row, and print it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--variant", action="append", choices=VARIANTS)
    parser.add_argument("--level", type=int)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    count = 0
    with args.out.open("a") as out:
        for name in args.only:
            for row in rows(name, args.variant or VARIANTS, args.level):
                line = json.dumps(row)
                out.write(line + "\n")
                out.flush()
                print(line, flush=True)
                count += 1
    return 0 if count else 1


if __name__ == "__main__":
    raise SystemExit(main())
