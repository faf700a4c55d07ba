"""Our engines against the engines of TensorRT's own ONNX parser, torch eager, TorchScript and
torch.compile.

    python -m benchmarks.engine [--only resnet50] [--precision fp16] [--gpus auto] [--budget 500]

One engine for each network, pipeline and precision (profile 1 to 32), timed at batch 1, 8 and 32.
All contenders of a row are timed alternately in the same run, with CUDA events after a warm-up,
over several input sets, the engines with and without CUDA graphs; medians in milliseconds. Both
engines are built with one timing cache, ours first with an empty one (cold) and, for the precisions
of --warm, once more at the end (warm). A cache is of one GPU, TensorRT and --set.

Rows are appended to benchmarks/results/engine.jsonl, and to $OUT, with host, versions and date. A
row that the file has for this GPU and these versions is not measured again (--again does), so an
interrupted run continues. `--gpus auto` shares the jobs among all GPUs, one process each. `--set
NAME=VALUE` changes a module's constant for an experiment, which the row records.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib
import json
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks import fleet, pipelines, records, timed
from benchmarks.networks import NETWORKS, Network

BATCHES, INPUT_SETS = (1, 8, 32), 3
PRECISIONS = ("fp16", "tf32", "fp32")
ORDER = (
    "efficientnet_b0",
    "mobilenet_v3",
    "resnet50",
    "bert_base_384",
    "vit_b",
    "bert_base_128",
    "lstm",
    "unet",
    "vit_b_packed",
)
"""The longest builds come first, so that no GPU begins one when the others have finished."""


def rows(
    name: str, precision: str, options: argparse.Namespace, left: list[int]
) -> Iterator[records.Row]:
    """Yield one row for each batch size of `left`."""
    network = NETWORKS[name]
    path = pipelines.export(options.onnx, name)
    cache = timing_cache(name, precision, options)
    cache.parent.mkdir(parents=True, exist_ok=True)
    plans = {"ours": pipelines.ours(network, precision, options.level, cache)}
    refused = {}
    try:
        plans["onnx"] = pipelines.onnx(path, network, precision, options.level, cache)
    except (
        pipelines.Refused
    ) as refusal:  # TensorRT 8.6 cannot build an engine of its own parser's LSTM
        refused["onnx"] = str(refusal)
    facts = {pipeline: built for pipeline, (_, built) in plans.items()}
    if precision in options.warm and "cold_s" in facts["ours"]:
        facts["ours"].update(_warm(network, precision, options, cache))
    engines = {pipeline: timed.Engine(plan) for pipeline, (plan, _) in plans.items()}
    for pipeline, engine in engines.items():
        facts[pipeline]["engine_layers"] = engine.engine.num_layers
    modules = _modules(network, precision)
    for batch in left:
        measured = _measured(
            network, precision, engines, modules, batch, options.compile
        )
        measured["failed"].update(refused)
        yield {
            "network": name,
            "precision": precision,
            "batch": batch,
            "settings": _settings(options),
            **_host(),
            **measured,
            **facts,
        }
    if options.layers:
        of = {"network": name, "precision": precision, "settings": _settings(options)}
        _write_layers(options, of, engines)


def timing_cache(name: str, precision: str, options: argparse.Namespace) -> Path:
    """The timing cache file for one network on this GPU, with this TensorRT and these settings.

    With a shared file, the first build of an experiment would be a warm one.
    """
    host = _host()
    measured = json.dumps([host["gpu"], host["tensorrt"], _settings(options)])
    return (
        Path(options.timing)
        / f"{name}-{precision}-{hashlib.sha256(measured.encode()).hexdigest()[:12]}.cache"
    )


def _write_layers(
    options: argparse.Namespace, of: dict[str, Any], engines: dict[str, timed.Engine]
) -> None:
    """Write the time of each layer at batch 8: TensorRT's layers and the GPU's kernels, for both
    engines.
    """
    x = NETWORKS[of["network"]].sample(8).cuda()
    for pipeline, engine in engines.items():
        row = {**of, "road": pipeline, "batch": 8, "layers": engine.layers(x)}
        if options.kernels:
            row["kernels"] = timed.kernels(engine.bound(x))
        with options.layers.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def _warm(
    network: Network, precision: str, options: argparse.Namespace, cache: Path
) -> dict[str, Any]:
    _, built = pipelines.ours(network, precision, options.level, cache)
    return {"warm_s": built["warm_s"], "convert_again_s": built["convert_s"]}


def _modules(
    network: Network, precision: str
) -> tuple[torch.nn.Module, torch.nn.Module]:
    """Return the module in float32 as the reference, and in the precision's dtype for timing."""
    half = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(precision, torch.float32)
    return network.module().cuda(), network.module().to("cuda", half)


def _measured(
    network: Network,
    precision: str,
    engines: dict[str, timed.Engine],
    modules: tuple[torch.nn.Module, torch.nn.Module],
    batch: int,
    with_compile: bool,
) -> dict[str, Any]:
    """Return the medians of all contenders, their ratios, and each engine's error."""
    truth, module = modules
    wide = [
        network.sample(batch).cuda().roll(seed, dims=-1) for seed in range(INPUT_SETS)
    ]
    set_tf32(False)
    error = _errors(engines, truth, wide[0])
    set_tf32(precision == "tf32")
    sets = (
        wide if network.high else [x.to(next(module.parameters()).dtype) for x in wide]
    )
    contenders: dict[str, timed.Make] = {
        **{pipeline: engine.bound for pipeline, engine in engines.items()},
        "eager": timed.eager(module),
        "torchscript": timed.torchscript(module, sets[0]),
        **({"compile": timed.compiled(module)} if with_compile else {}),
    }
    medians, failed = timed.medians(contenders, sets)
    # separate: a failed capture may leave the context unusable
    graphs, refused = _graphs(engines, sets)
    medians, failed = {**medians, **graphs}, {**failed, **refused}
    return {"milliseconds": medians, "failed": failed, **_ratios(medians), **error}


def _graphs(
    engines: dict[str, timed.Engine], sets: list[torch.Tensor]
) -> tuple[dict[str, float], dict[str, str]]:
    """Return both engines as CUDA graphs."""
    graphs: dict[str, timed.Make] = {
        f"{pipeline}_graph": engine.graph for pipeline, engine in engines.items()
    }
    try:
        return timed.medians(graphs, sets)
    except RuntimeError as refusal:
        return {}, dict.fromkeys(
            graphs, f"{type(refusal).__name__}: {str(refusal).splitlines()[0][:200]}"
        )


def set_tf32(allowed: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed


def _ratios(medians: dict[str, float]) -> dict[str, float]:
    pairs = {
        "ours_by_onnx": ("ours", "onnx"),
        "ours_by_onnx_graph": ("ours_graph", "onnx_graph"),
        "eager_by_ours": ("eager", "ours"),
    }
    return {
        name: medians[a] / medians[b]
        for name, (a, b) in pairs.items()
        if a in medians and b in medians
    }


def _errors(
    engines: dict[str, timed.Engine], module: torch.nn.Module, x: torch.Tensor
) -> dict[str, float]:
    """The largest difference of each engine from float32 eager, relative to the largest value."""
    with torch.inference_mode():
        truth = module(x)
        outputs = {pipeline: engine(x).float() for pipeline, engine in engines.items()}
    largest = {
        pipeline: float((y - truth).abs().max() / truth.abs().max())
        for pipeline, y in outputs.items()
    }
    return {
        {"ours": "error", "onnx": "onnx_error"}[pipeline]: error
        for pipeline, error in largest.items()
    }


def _host() -> records.Row:
    from builder.engine.flavor import trt

    return {**records.host(), "tensorrt": trt.__version__}


def _settings(options: argparse.Namespace) -> str:
    level = (
        [] if options.level is None else [f"builder_optimization_level={options.level}"]
    )
    return " ".join([*level, *options.set])


def change(assignment: str) -> None:
    """Set a constant of a module: `builder.conversion.converters.sequences.WRITTEN_OUT=64`."""
    target, _, value = assignment.partition("=")
    module, _, name = target.rpartition(".")
    owner = importlib.import_module(module)
    if not hasattr(owner, name):
        raise SystemExit(f"{module} has no {name}")
    setattr(owner, name, ast.literal_eval(value))


def work(jobs: list[fleet.Job], options: argparse.Namespace) -> int:
    """Measure the remaining jobs on this process's GPU. The exit code reports whether a job
    failed.
    """
    warnings.simplefilter("ignore")
    pipelines.warm_up()
    for assignment in options.set:
        change(assignment)
    host = {**_host(), "settings": _settings(options)}

    def remaining(name: str, precision: str) -> Iterable[records.Row]:
        left = [
            b
            for b in BATCHES
            if options.again or not _is_recorded(host, name, precision, b)
        ]
        return rows(name, precision, options, left) if left else ()

    taken = fleet.claimed(jobs, options.claims, options.until)
    return fleet.measured(taken, remaining, records.ENGINES)


def _is_recorded(host: records.Row, name: str, precision: str, batch: int) -> bool:
    key = records.key({**host, "network": name, "precision": precision, "batch": batch})
    comparable = (
        row
        for row in records.read(records.ENGINES)
        if row.get("method") == records.METHOD
    )
    return any(records.key(row) == key for row in comparable)


def parse(arguments: list[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=" ".join((__doc__ or "").split("\n\n")[0].split())
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=sorted(NETWORKS),
        help="networks; all by default",
    )
    parser.add_argument(
        "--precision",
        action="append",
        choices=PRECISIONS,
        help="in this order; fp16, tf32, fp32",
    )
    parser.add_argument(
        "--warm",
        action="append",
        choices=[*PRECISIONS, "none"],
        help="measure warm builds of; fp16",
    )
    parser.add_argument(
        "--onnx", type=Path, default=Path("/tmp/onnx"), help="folder of the ONNX files"
    )
    parser.add_argument(
        "--timing",
        type=Path,
        default=Path("/tmp/timing"),
        help="folder of the timing caches",
    )
    parser.add_argument(
        "--layers",
        type=Path,
        help="append each engine's layers with their times to this file",
    )
    parser.add_argument(
        "--kernels", action="store_true", help="kernels, too; slows what is timed after"
    )
    parser.add_argument(
        "--export", action="store_true", help="write the ONNX files, and no more"
    )
    parser.add_argument(
        "--again", action="store_true", help="measure rows of the results again"
    )
    parser.add_argument("--compile", action="store_true", help="torch.compile, too")
    parser.add_argument(
        "--builder-optimization-level", dest="level", type=int, choices=range(6)
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="change a module's constant",
    )
    parser.add_argument(
        "--budget",
        type=float,
        default=float("inf"),
        help="begin no job after so many seconds",
    )
    parser.add_argument("--gpus", default="1", help="how many GPUs, or auto for all")
    parser.add_argument("--claims", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.warm = options.warm or ["fp16"]
    options.until = options.until or time.time() + options.budget
    return options


def main(arguments: list[str]) -> int:
    """Print each row as it is measured. Returns 0 unless a job failed."""
    options = parse(arguments)
    names = options.only or list(ORDER)
    jobs = [
        (name, precision)
        for precision in options.precision or PRECISIONS
        for name in names
    ]
    if options.export:
        for name in names:
            pipelines.export(options.onnx, name)
        return 0
    from builder.engine import gpu

    uuids = [device.uuid for device in gpu.devices()]
    count = len(uuids) if options.gpus == "auto" else int(options.gpus)
    if options.claims or count <= 1:
        return work(jobs, options)
    return fleet.run("benchmarks.engine", arguments, uuids[:count], options.until)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
