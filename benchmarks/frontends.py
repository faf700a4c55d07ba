"""Engines of the TorchScript module against engines of the exported program of the same module.

    python -m benchmarks.frontends [--networks lstm unet] [--precision fp16] [--budget 500]

Both engines of a network have the same weights, dynamic batch, profile (1 to 32) and builder
options. They are built with one timing cache, the TorchScript one first, so that equal layers use
the same tactics. They are timed alternately in the same run at batch 8 and 32, one input each, with
CUDA events after a warm-up, and once more as CUDA graphs; medians in milliseconds. `ratio` is the
exported program's by the TorchScript module's. `repeat_ratio` is that of the TorchScript plan
loaded a second time, which shows the noise of the measurement. `--rebuild` also builds the
TorchScript engine again from the filled cache; `rebuilt_ratio` is its time by the first one's,
which shows the noise of building.

Rows are appended to benchmarks/results/frontends.jsonl, and to $OUT, as they are measured. No
network begins after the budget. A GPU and full TensorRT are required.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import fleet, pipelines, records, timed
from benchmarks.engine import PRECISIONS, set_tf32
from benchmarks.networks import NETWORKS, Network

RESULTS = records.RESULTS / "frontends.jsonl"
BATCHES = (8, 32)
DEFAULT = ("lstm", "unet", "bert_base_128", "vit_b", "resnet50")
"""Networks whose engines are built in about a minute each, the fastest first."""


def export(network: Network) -> torch.export.ExportedProgram:
    """Export the seeded module, with the batch sizes of its `spec`."""
    low, _, high = network.spec.dims["batch"]
    batch = torch.export.Dim("batch", min=low, max=high)
    return torch.export.export(
        network.module(), (network.sample(2),), dynamic_shapes=({0: batch},)
    )


def plan(
    source: Any, network: Network, precision: str, level: int | None, cache: Path | None
) -> tuple[bytes, dict[str, Any]]:
    """Build the plan of a TorchScript module or exported program. Returns it with facts of its
    build.

    The timing cache is read if it exists, and extended.
    """
    import builder
    from builder.engine import BuildOptions, build

    started = time.monotonic()
    conversion = builder.convert(source, [network.spec], precision=precision)
    converted = time.monotonic() - started
    built = build(
        conversion, BuildOptions(timing_cache=cache, optimization_level=level)
    )
    facts = {
        "layers": conversion.network.num_layers,
        "convert_s": round(converted, 3),
        "build_s": built.facts["build_seconds"],
    }
    return built.data, facts


def rows(
    name: str,
    precision: str,
    level: int | None,
    batches: Sequence[int],
    rebuild: bool = False,
) -> Iterator[records.Row]:
    """Yield one row for each batch size. Raises the errors of conversion and TensorRT."""
    network = NETWORKS[name]
    plans, facts = _plans(network, precision, level, rebuild)
    engines = {kind: timed.Engine(data) for kind, data in plans.items()}
    for kind, engine in engines.items():
        facts[kind]["engine_layers"] = engine.engine.num_layers
    engines["repeat"] = timed.Engine(plans["script"])
    from builder.engine.flavor import trt

    set_tf32(precision == "tf32")
    for batch in batches:
        x = network.sample(batch).cuda()
        yield {
            "network": name,
            "precision": precision,
            "batch": batch,
            "settings": "" if level is None else f"builder_optimization_level={level}",
            **records.host(),
            "tensorrt": trt.__version__,
            **measured(engines, x),
            "difference": _difference(engines, x),
            "facts": facts,
        }


def _plans(
    network: Network, precision: str, level: int | None, rebuild: bool
) -> tuple[dict[str, bytes], dict[str, dict[str, Any]]]:
    """Build the plans by kind of build, with facts of each."""
    traced = pipelines.trace(network)
    sources = {"script": traced, "export": export(network)}
    if rebuild:
        sources["rebuilt"] = traced
    plans, facts = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for kind, source in sources.items():
            cache = Path(folder, "timing.cache")
            plans[kind], facts[kind] = plan(source, network, precision, level, cache)
            print(f"built {kind}: {json.dumps(facts[kind])}", flush=True)
    return plans, facts


def measured(engines: Mapping[str, Any], x: torch.Tensor) -> dict[str, Any]:
    """Return the median milliseconds of each engine and of each as a CUDA graph, and their
    ratios.
    """
    medians, failed = timed.medians(
        {kind: engine.bound for kind, engine in engines.items()}, [x]
    )
    # separate: a failed capture may leave the context unusable
    graphs: dict[str, timed.Make] = {
        kind: engine.graph for kind, engine in engines.items()
    }
    try:
        captured, refused = timed.medians(graphs, [x])
    except RuntimeError as refusal:
        captured, refused = (
            {},
            dict.fromkeys(graphs, str(refusal).partition("\n")[0][:200]),
        )
    return {
        **_named(medians, ""),
        **_named(captured, "_graph"),
        "failed": {**failed, **{f"{kind}_graph": why for kind, why in refused.items()}},
    }


def _named(medians: Mapping[str, float], suffix: str) -> dict[str, float]:
    """Return the columns of the row; a ratio only if both times exist."""
    row = {
        f"ours_{kind}{suffix}_ms": medians[kind]
        for kind in ("script", "export")
        if kind in medians
    }
    names = {"export": "ratio", "repeat": "repeat_ratio", "rebuilt": "rebuilt_ratio"}
    if "script" in medians:
        for kind, name in names.items():
            if kind in medians:
                row[f"{name}{suffix}"] = medians[kind] / medians["script"]
    return row


def _difference(engines: Mapping[str, Any], x: torch.Tensor) -> float:
    """The largest difference of both outputs, relative to the largest value."""
    script, exported = (
        engines[kind](x).float().clone() for kind in ("script", "export")
    )
    return float((script - exported).abs().max() / script.abs().max())


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--networks",
        nargs="+",
        default=list(DEFAULT),
        choices=sorted(NETWORKS),
        metavar="NAME",
    )
    parser.add_argument("--precision", default="fp16", choices=PRECISIONS)
    parser.add_argument(
        "--batches", type=int, nargs="+", default=list(BATCHES), metavar="N"
    )
    parser.add_argument("--optimization-level", type=int, choices=range(6))
    parser.add_argument(
        "--rebuild", action="store_true", help="build from TorchScript twice"
    )
    parser.add_argument(
        "--budget",
        type=float,
        default=float("inf"),
        help="begin no network after so many seconds",
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Print each row as it is measured. Returns 0 unless a network failed."""
    args = parse(arguments)
    warnings.simplefilter("ignore")
    pipelines.warm_up()
    jobs = [(name, args.precision) for name in args.networks]
    settings = (args.optimization_level, args.batches, args.rebuild)
    return fleet.measured(
        fleet.claimed(jobs, None, time.time() + args.budget),
        lambda name, precision: rows(name, precision, *settings),
        RESULTS,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
