"""Builds real models on 1 and on 2 GPUs of one host, and compares wall times and results."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import nn

from benchmarks.networks import Bert, Network, ResNet, ids, image
from builder import TensorSpec
from builder.farm import Farm, Outcome, Target, build_on_farm
from builder.farm.config import Retries
from builder.repository import Settings

STORE_BYTES = 80 << 20
BATCH = {"min": 1, "opt": 4, "max": 8}
TARGET = "gpu"
MEASURED = ("1/model.plan", "1/plan.json")
"""Files that depend on measurements: the plan's tactics, and the build time."""
CONFIG = "config.pbtxt"
ENVIRONMENT = ("PYTHONPATH", "PYTHONHOME")
"""Environment variables that builds receive on machines with an unusual Python installation."""


def networks(count: int) -> dict[str, Network]:
    """Create `count` networks of different widths, half of them convolutional. They share no
    timings.
    """
    found = {}
    for number in range(count):
        step = number // 2
        if number % 2 == 0:
            width = 48 + 16 * step
            found[f"residual_{width}"] = Network(_residual(width), image(128))
        else:
            width = 256 + 128 * step
            found[f"bert_{width}"] = Network(_bert(width), ids(64), high=30522)
    return found


def _residual(width: int) -> Callable[[], nn.Module]:
    return partial(ResNet, width, (1, 1, 1), 100)


def _bert(width: int) -> Callable[[], nn.Module]:
    return lambda: Bert(layers=2, width=width, heads=width // 64)


def write_models(folder: Path, count: int) -> dict[str, Network]:
    """Write the networks as traced files with manifests."""
    folder.mkdir(parents=True)
    found = networks(count)
    for name, network in found.items():
        traced = torch.jit.trace(network.module(), network.sample(2), check_trace=False)
        traced.save(str(folder / f"{name}.pt"))
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(_manifest(network.spec)))
    return found


def _manifest(spec: TensorSpec) -> dict[str, Any]:
    return {
        "inputs": [{"name": spec.name, "dtype": spec.dtype, "shape": list(spec.shape)}],
        "dims": {"batch": BATCH},
        "outputs": ["y"],
    }


@dataclass(frozen=True)
class Build:
    """The build settings of each model; `verify` is as in a farm file.

    `takes` is the share of a GPU: with 0.5 one model is converted while another one is built.
    """

    precision: str
    level: int
    verify: str
    takes: float


def gpus(builds: int, counts: Sequence[int], how: Build) -> dict[str, Any]:
    """Build the same models on each number of GPUs, from an empty store and timing cache."""
    root = Path(tempfile.mkdtemp(prefix="farm-gpus-"))
    began = time.monotonic()
    made = write_models(root / "models", builds)
    row: dict[str, Any] = {"builds": builds, **asdict(how)}
    row["devices"] = devices(max(counts))
    built: dict[int, list[Outcome]] = {}
    for count in counts:
        row[f"{count} GPUs"], built[count] = _timed(root, count, max(counts), how)
        print(
            json.dumps(row), file=sys.stderr, flush=True
        )  # the next run may be interrupted
    first, *others = counts
    row["compared"] = {
        f"{first} and {other} GPUs": compared(root, first, other, built, made)
        for other in others
    }
    row["seconds_in_all"] = round(time.monotonic() - began, 1)
    shutil.rmtree(root)
    return row


def devices(wanted: int) -> list[str]:
    """The names of this host's GPUs. Raises SystemExit if TensorRT needs more than there are."""
    from builder.engine import flavor, gpu

    names = [device.name for device in gpu.devices()]
    if flavor.chosen() == "tensorrt" and len(names) < wanted:
        raise SystemExit(
            f"{wanted} GPUs are required, and this host has {len(names)}: use --gpus"
        )
    return names


def _timed(
    root: Path, count: int, most: int, how: Build
) -> tuple[dict[str, Any], list[Outcome]]:
    """Run on a Ray node with `count` GPUs. A build has the same cores in each run."""
    import ray

    os.environ["TRT_BUILD_CACHE"] = str(root / f"cache-{count}")
    cores = os.cpu_count() or 1
    cpus = max(1, int(cores * how.takes) // most)
    target = Target(TARGET, cpus=cpus, gpus=how.takes, precision=how.precision,
                    verify=how.verify, build={"optimization_level": how.level})  # fmt: skip
    farm = Farm(
        "connected", (target,), retries=Retries(0, 0.1), environment=ENVIRONMENT
    )
    slots = max(cores, int(most / how.takes))
    ray.init(address="local", num_gpus=count, num_cpus=slots, include_dashboard=False,
             object_store_memory=STORE_BYTES, log_to_driver=False)  # fmt: skip
    try:
        began = time.monotonic()
        settings = Settings(store=root / f"store-{count}")
        outcomes = build_on_farm(root / "models", root / f"out-{count}", farm, settings)
        wall = time.monotonic() - began
    finally:
        ray.shutdown()
    timing = [*(root / f"store-{count}").glob("timing/*/*.cache")]
    return {
        **_described(outcomes, wall, count / how.takes),
        "timing_caches": len(timing),
    }, outcomes


def _described(
    outcomes: Sequence[Outcome], wall: float, at_once: float
) -> dict[str, Any]:
    stages: dict[str, float] = {}
    for one in outcomes:
        for stage, seconds in dict((one.result or {}).get("seconds", {})).items():
            stages[stage] = round(stages.get(stage, 0.0) + seconds, 2)
    tasks = sum(one.seconds for one in outcomes)
    return {
        "wall_seconds": round(wall, 1),
        "task_seconds": {one.model: one.seconds for one in outcomes},
        "efficiency": round(tasks / at_once / wall, 3),
        "stage_seconds_of_all": stages,
        "published": sum(one.published == "published" for one in outcomes),
        "verified": [(one.result or {}).get("verified") for one in outcomes],
        "warnings": [
            text for one in outcomes for text in (one.result or {}).get("warnings", ())
        ],
        "failed": {
            one.model: str(one.error) for one in outcomes if one.error is not None
        },
    }


def compared(
    root: Path,
    one: int,
    other: int,
    built: dict[int, list[Outcome]],
    made: dict[str, Network],
) -> dict[str, Any]:
    """Compare two runs: keys, files that do not depend on measurements, and outputs."""
    keys = [{done.model: done.key for done in built[count]} for count in (one, other)]
    models = [done.model for done in built[one] if done.published]
    folders = [
        [root / f"out-{count}" / TARGET / name for count in (one, other)]
        for name in models
    ]
    return {
        "requests_equal": keys[0] == keys[1],
        "plan_keys_equal": all(_plan_keys(a) == _plan_keys(b) for a, b in folders),
        "files_that_differ": sorted(
            {name for pair in folders for name in _different(*pair)}
        ),
        "files_that_must_not_differ": sorted(
            {
                name
                for pair in folders
                for name in _different(*pair)
                if name not in MEASURED
            }
        ),
        "plans_equal": sum("1/model.plan" not in _different(*pair) for pair in folders),
        "answers": {
            name: _answers(*pair, made[name])
            for name, pair in zip(models, folders, strict=True)
        },
    }


def _plan_keys(folder: Path) -> dict[str, str]:
    from tests.farm.test_cluster import read_record

    return {label: plan["key"] for label, plan in read_record(folder)["plans"].items()}


def _different(one: Path, other: Path) -> list[str]:
    from tests.farm.test_cluster import read_record

    files = [read_record(folder)["files"] for folder in (one, other)]
    names = files[0].keys() | files[1].keys()
    differing = sorted(
        name for name in names if files[0].get(name) != files[1].get(name)
    )
    return [
        name for name in differing if name != CONFIG or _config(one) != _config(other)
    ]


def _config(folder: Path) -> str:
    """The config without the hash of the plan."""
    from tests.farm.test_cluster import read_record

    plan = str(read_record(folder)["files"].get(MEASURED[0]))
    return (folder / CONFIG).read_text().replace(plan, "the plan")


def _answers(one: Path, other: Path, network: Network) -> dict[str, Any] | str:
    """Check the plans of both on their goldens. Returns the largest difference between their
    outputs for another input, relative to the largest output.
    """
    from builder.engine import Engine, flavor
    from builder.parity import verify_engines

    if not flavor.has_gpu() or flavor.chosen() != "tensorrt":
        return "no GPU runs them here"
    verdicts = [
        verify_engines(path.parent, [path.name], repeat=0) for path in (one, other)
    ]
    passed = [all(done.passed for done in found) for found in verdicts]
    plans = [path / "1" / "model.plan" for path in (one, other)]
    if not all(plan.is_file() for plan in plans):
        return {
            "goldens_within_tolerance": passed,
            "difference": "torch runs a part of the model",
        }
    x, outputs = network.sample(5), []
    for plan in plans:
        with Engine(plan.read_bytes()) as engine:
            outputs.append(engine(x)[0].float())
    difference = (outputs[0] - outputs[1]).abs().max() / outputs[0].abs().max()
    return {"goldens_within_tolerance": passed, "difference": float(difference)}
