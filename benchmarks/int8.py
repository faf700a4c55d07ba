"""What 8 bits gain over half: int8 and mixed plans against fp16 plans of the same networks.

    python -m benchmarks.int8 --only resnet50 bert_base_128 --jobs 2 --out rows.jsonl

Each network is calibrated on random inputs and built in fp16, mixed and int8, and in int8 without
quantized residual operands where it has residual additions. In `int8, half stem`, the first
convolution is not quantized. With `--static`, each plan has a static profile for each of these
batches instead of one profile for all. The plans of a network share one timing cache, unless they
are built `--apart`. They are kept in `--plans`. When all are built, they are timed
alternately in the same run with CUDA graphs at batch 8 and 32; medians in milliseconds.
`sqnr` is each plan's signal to noise ratio in dB against float32 torch, `top1` the share of rows
with the same largest output. `layers` are the slowest layers of each plan at batch 32 from
TensorRT's profiler, in milliseconds. Weights and inputs are random. A GPU and full TensorRT are
required.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import time
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import pipelines, plans, records, timed
from benchmarks.batch_sizes import AXIS
from benchmarks.networks import NETWORKS, Network
from benchmarks.plans import Task

SIZES = (8, 32)
VARIANTS = ("fp16", "mixed", "int8", "int8, float residuals", "int8, half stem")
FIRST = ("stem*",)
SLOWEST = 30
"""The number of layers that a row lists."""
CALIBRATION = 4
"""The number of batches of 8 for calibration."""


def plan(
    name: str, variant: str, level: int | None, cache: Path, static: bool
) -> bytes:
    """Build the plan. Facts of its quantization and build are written beside `cache`."""
    import builder
    from builder.engine import BuildOptions, build
    from builder.lowering import lower

    network = NETWORKS[name]
    cache.parent.mkdir(parents=True, exist_ok=True)
    precision, _, changed = variant.partition(", ")
    graph: Any = lower(pipelines.trace(network), specs=[network.spec])
    facts: dict[str, Any] = {}
    if precision != "fp16":
        graph, facts = _quantized(graph, network, precision, changed)
    started = time.monotonic()
    profiles = [
        {**network.spec.dims, AXIS: (size, size, size)} for size in SIZES if static
    ]
    conversion = builder.convert(
        graph, [network.spec], precision=precision, profiles=profiles or None
    )
    built = build(
        conversion, BuildOptions(timing_cache=cache, optimization_level=level)
    )
    facts["build_s"] = round(time.monotonic() - started, 1)
    (cache.parent / f"{variant}.json").write_text(json.dumps(facts))
    return built.data


def _quantized(
    lowered: Any, network: Network, precision: str, changed: str
) -> tuple[Any, dict[str, Any]]:
    """Return the quantized graph, and how many products and additions are quantized."""
    from builder.quantization import quantize

    defining: Any = importlib.import_module(quantize.__module__)
    batches = [[network.sample(8).roll(shift, dims=-1)] for shift in range(CALIBRATION)]
    original_additions = defining.additions
    if changed == "float residuals":
        defining.additions = lambda *_: []
    skip = FIRST if changed == "half stem" else ()
    try:
        quantized = quantize(lowered, batches, precision, skip=skip)
    finally:
        defining.additions = original_additions
    is_quantized = [layer.quantized for layer in quantized.layers]
    facts = {
        "products": f"{sum(is_quantized)} of {len(is_quantized)}",
        "additions": quantized.additions,
    }
    return quantized.lowered, facts


def chains(
    home: Path,
    name: str,
    variants: Sequence[str],
    level: int | None,
    apart: bool,
    static: bool,
) -> list[list[Task]]:
    """Return the builds of a network: in one process, or in one each if they are built `apart`.

    Plans that are built apart do not share a timing cache.
    """
    tasks = []
    for variant in variants:
        cache = home / (f"{variant}.cache" if apart else "timing.cache")
        make = partial(plan, name, variant, level, cache, static)
        tasks.append(Task(home / f"{variant}.plan", make))
    return plans.chained(tasks, apart)


def rows(
    home: Path, name: str, variants: Sequence[str], static: bool
) -> Iterator[dict[str, Any]]:
    """Yield one row for each batch size, for the plans in the folder `home`."""
    network = NETWORKS[name]
    built = [variant for variant in variants if (home / f"{variant}.plan").exists()]
    if not built:
        return
    facts = {
        variant: json.loads((home / f"{variant}.json").read_text()) for variant in built
    }
    truth_of = network.module().cuda()
    for number, batch in enumerate(SIZES):
        engines = _engines(home, built, number if static else 0)
        x = network.sample(batch).roll(7, dims=-1).cuda()
        yield {
            "network": name,
            "batch": batch,
            **_measured(engines, truth_of, x),
            "facts": facts,
            **({"layers": _slowest(engines, x)} if batch == max(SIZES) else {}),
            **records.host(),
        }


def _engines(home: Path, built: Sequence[str], profile: int) -> dict[str, timed.Engine]:
    return {
        variant: timed.Engine((home / f"{variant}.plan").read_bytes(), profile)
        for variant in built
    }


def _measured(
    engines: dict[str, timed.Engine], truth_of: torch.nn.Module, x: torch.Tensor
) -> dict[str, Any]:
    """Return the times of the engines, and how far their outputs are from torch's."""
    with torch.inference_mode():
        truth = truth_of(x).float()
        outputs = {variant: engine(x).float() for variant, engine in engines.items()}
    medians, refused = timed.medians({key: e.graph for key, e in engines.items()}, [x])
    return {
        "ms": medians,
        "sqnr": {key: _sqnr(output, truth) for key, output in outputs.items()},
        "top1": {key: _agreement(output, truth) for key, output in outputs.items()},
        "failed": refused,
    }


def _slowest(
    engines: dict[str, timed.Engine], x: torch.Tensor
) -> dict[str, dict[str, float]]:
    slowest = {}
    for variant, engine in engines.items():
        layers = list(engine.layers(x).items())
        slowest[variant] = {name: round(spent, 4) for name, spent in layers[:SLOWEST]}
        slowest[variant]["total"] = round(sum(spent for _, spent in layers), 4)
    return slowest


def _sqnr(output: torch.Tensor, truth: torch.Tensor) -> float:
    noise = float((output - truth).square().sum())
    return (
        round(10 * math.log10(float(truth.square().sum()) / noise), 1)
        if noise
        else math.inf
    )


def _agreement(output: torch.Tensor, truth: torch.Tensor) -> float:
    axis = 1 if truth.dim() == 4 else -1
    same = output.argmax(axis) == truth.argmax(axis)
    return round(float(same.float().mean()), 3)


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--only", nargs="+", default=list(NETWORKS), choices=list(NETWORKS)
    )
    parser.add_argument("--variant", action="append", choices=VARIANTS)
    parser.add_argument("--static", action="store_true", help="a profile per batch")
    plans.add_options(parser, "/tmp/trt-build-int8")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def main() -> int:
    """Build, measure, write one JSON line for each row, and print it."""
    args = parse()
    warnings.simplefilter("ignore")
    variants = args.variant or VARIANTS
    levels = plans.levels(args)
    kind = "-static" if args.static else ""
    homes = {
        name: args.plans / f"{name}-{levels.get(name)}{kind}" for name in args.only
    }
    if args.stage != "time":
        tasks: list[list[Task]] = []
        for name, home in homes.items():
            level = levels.get(name)
            apart = name in args.apart
            tasks += chains(home, name, variants, level, apart, args.static)
        plans.build_all(tasks, args)
    if args.stage == "build":
        return 0
    count = 0
    for name, home in homes.items():
        for row in rows(home, name, variants, args.static):
            row["static"] = args.static
            records.append(args.out, [row])
            print(json.dumps(row), flush=True)
            count += 1
    return 0 if count else 1


if __name__ == "__main__":
    raise SystemExit(main())
