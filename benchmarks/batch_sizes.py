"""What static profiles gain: `batch_sizes: [1, 8, 32]` against one profile, and the alternatives.

    python -m benchmarks.batch_sizes --only resnet50 bert_base_128 --level mobilenet_v3=1 --jobs 2

Three plans of each network: `one` with the profile 1, 8, 32; `static` with a static profile for
each of these batches as well; `onnx`, the network of TensorRT's ONNX parser with the profiles of
`static`. The plans of a network share one timing cache, unless they are built `--apart`. They are
built in `--jobs` processes and kept in `--plans`, so an interrupted run continues. When all are
built, they are timed alternately with eager and TorchScript at batch 1, 8 and 32, plain and as CUDA
graphs; medians in milliseconds.

`benchmarks.compiled` measures torch.compile, in a Python that has triton, and eager again. Rows are
appended to benchmarks/results/batch_sizes.jsonl, and to $OUT. A GPU and full TensorRT are required.
"""

from __future__ import annotations

import argparse
import gc
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch

from benchmarks import pipelines, plans, records, timed
from benchmarks.networks import NETWORKS, Network
from benchmarks.plans import Task

Profile = Mapping[str, tuple[int, int, int]]

FOLDER = "/tmp/trt-build-batch-sizes"
"""The default of `--plans`."""
SIZES = (1, 8, 32)
AXIS = "batch"
ORDER = (
    "vit_b",
    "bert_base_384",
    "resnet50",
    "bert_base_128",
    "unet",
    "lstm",
    "mobilenet_v3",
    "efficientnet_b0",
)
"""The networks that the page compares. Those with the longest builds at level 3 come first."""
ENGINES = ("one", "static", "onnx")
DEFAULT_LEVEL = 3
"""TensorRT's default optimization level."""


def profiles(network: Network, static: bool) -> list[Profile]:
    """Return the static profiles, if requested, followed by that of `dims`."""
    general: Profile = dict(network.spec.dims)
    sizes = SIZES if static else ()
    return [*({**general, AXIS: (size, size, size)} for size in sizes), general]


def ours(name: str, precision: str, level: int, cache: Path, static: bool) -> bytes:
    """Return the plan of trt-build's network."""
    import builder
    from builder.engine import BuildOptions, build

    network = NETWORKS[name]
    cache.parent.mkdir(parents=True, exist_ok=True)
    conversion = builder.convert(
        pipelines.trace(network),
        [network.spec],
        precision=precision,
        profiles=profiles(network, static),
    )
    built = build(
        conversion, BuildOptions(timing_cache=cache, optimization_level=level)
    )
    return bytes(built.data)


def onnx(name: str, precision: str, level: int, cache: Path) -> bytes:
    """Return the plan of the ONNX parser's network, with the static profiles.

    Raises `pipelines.Refused` if TensorRT does not build it.
    """
    cache.parent.mkdir(parents=True, exist_ok=True)
    path = pipelines.export(cache.parent, name)
    network = NETWORKS[name]
    plan, _ = pipelines.onnx(
        path, network, precision, level, cache, profiles(network, static=True)
    )
    return plan


def folder_of(plans: Path, name: str, precision: str, level: int) -> Path:
    """Return the folder with the plans of a network: one.plan, static.plan and onnx.plan."""
    return plans / f"{name}-{precision}-{level}"


def chains(
    name: str,
    folder: Path,
    precision: str,
    level: int,
    engines: Sequence[str],
    apart: bool,
) -> list[list[Task]]:
    """Return the builds of a network: in one process, or in one each if they are built `apart`.

    Plans that are built apart do not share a timing cache.
    """
    home = folder_of(folder, name, precision, level)

    def cache(kind: str) -> Path:
        return home / kind / "timing.cache" if apart else home / "timing.cache"

    builds: dict[str, Callable[[], bytes]] = {
        "one": partial(ours, name, precision, level, cache("one"), static=False),
        "static": partial(ours, name, precision, level, cache("static"), static=True),
        "onnx": partial(onnx, name, precision, level, cache("onnx")),
    }
    tasks = [Task(home / f"{kind}.plan", builds[kind]) for kind in engines]
    return plans.chained(tasks, apart)


def rows(name: str, folder: Path, precision: str, level: int) -> Iterator[records.Row]:
    """Yield one row for each batch size, for the plans in `folder`."""
    network = NETWORKS[name]
    home = folder_of(folder, name, precision, level)
    files = {
        kind: home / f"{kind}.plan"
        for kind in ENGINES
        if (home / f"{kind}.plan").exists()
    }
    if not files:
        return
    module = network.module().cuda()
    if precision == "fp16":
        module = module.half()
    for index, batch in enumerate(SIZES):
        x = network.sample(batch).cuda()
        engines = {
            kind: timed.Engine(path.read_bytes(), 0 if kind == "one" else index)
            for kind, path in files.items()
        }
        sample = x if network.high else x.to(next(module.parameters()).dtype)
        torch_ways = {
            "eager": lambda _, x=sample: timed.eager(module)(x),
            "torchscript": lambda _, x=sample: timed.torchscript(module, x)(x),
        }
        plain, failed = timed.medians(
            {**{kind: engine.bound for kind, engine in engines.items()}, **torch_ways},
            [x],
        )
        graphs, refused = timed.medians(
            {kind: e.graph for kind, e in engines.items()}, [x]
        )
        yield {
            "network": name,
            "precision": precision,
            "settings": f"level {level}",
            "setting": ", ".join(files),
            "batch": batch,
            "milliseconds": plain,
            "graphs": graphs,
            "failed": {**failed, **refused},
            **records.host(),
        }
        del engines
        gc.collect()
        torch.cuda.empty_cache()


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--only", nargs="+", default=list(ORDER), choices=list(NETWORKS)
    )
    parser.add_argument("--precision", default="fp16")
    plans.add_options(parser, FOLDER)
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=ENGINES)
    return parser.parse_args()


def main() -> int:
    """Build, measure, and print each row."""
    args = parse()
    warnings.simplefilter("ignore")
    levels = {**dict.fromkeys(args.only, DEFAULT_LEVEL), **plans.levels(args)}
    if args.stage != "time":
        tasks_of_all: list[list[Task]] = []
        for name in args.only:
            is_apart = name in args.apart
            tasks_of_all += chains(
                name, args.plans, args.precision, levels[name], args.engines, is_apart
            )
        plans.build_all(tasks_of_all, args)
    if args.stage == "build":
        return 0
    count = 0
    for name in args.only:
        for row in rows(name, args.plans, args.precision, levels[name]):
            records.append(records.PROFILES, [row])
            print(json.dumps(row), flush=True)
            count += bool(row["milliseconds"])
    return 0 if count else 1


if __name__ == "__main__":
    raise SystemExit(main())
