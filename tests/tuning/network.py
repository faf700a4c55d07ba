"""`python -m tests.tuning network NAME --out FILE`: tune a network of the benchmarks.

On a host with a GPU and Triton's TensorRT backend:

    export TRT_BUILD_TRITONSERVER=/tmp/trtb/tritonserver
    python -m tests.tuning network resnet50 --out "$OUT/resnet50.json"

FILE is rewritten after each trial, so an interrupted run keeps its trials.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.networks import NETWORKS, Network
from builder import manifest
from builder.engine import gpu
from builder.repository import Settings
from builder.tuning import Goal, Trial, Tuned, TuneOptions, Values, tune

CONCURRENCY = (1, 8, 32, 64)
ONE_ROW = ("p0-min",)
"""The golden of the requests; it has one row."""


def write(
    name: str, network: Network, folder: Path, precision: str
) -> manifest.ModelSpec:
    """Write the traced network with its manifest."""
    torch.manual_seed(0)
    traced = torch.jit.trace(network.module(), network.sample(2), check_trace=False)
    traced.save(str(folder / f"{name}.pt"))
    spec = network.spec
    shape = ", ".join(map(str, spec.shape))
    dims = "".join(
        f"  {axis}: {{min: {low}, opt: {opt}, max: {high}}}\n"
        for axis, (low, opt, high) in spec.dims.items()
    )
    (folder / f"{name}.yaml").write_text(
        f"inputs: [{{name: {spec.name}, dtype: {spec.dtype}, shape: [{shape}]}}]\n"
        f"dims:\n{dims}outputs: [y]\nprecision: {precision}\n"
    )
    (spec,) = manifest.load(folder)
    return spec


def options(arguments: argparse.Namespace) -> TuneOptions:
    """Requests of one row, through CUDA shared memory if there is a GPU."""
    return TuneOptions(
        Goal(ms=arguments.limit_ms),
        Values(profiles=arguments.profiles, runtime=arguments.runtimes),
        trials=arguments.trials,
        confirmations=arguments.confirmations,
        seconds=arguments.seconds,
        concurrency=arguments.concurrency,
        memory="cuda" if gpu.current() else "none",
        goldens=ONE_ROW,
    )


class Record:
    """The record file: first the trials, at the end all results."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.file, self.began = arguments.out, time.monotonic()
        device = gpu.current()
        self.data: dict[str, Any] = {
            "network": arguments.network,
            "precision": arguments.precision,
            "gpu": device.name if device else None,
            "level_seconds": arguments.seconds,
            "concurrency": list(arguments.concurrency),
            "finished": False,
            "trials": [],
        }

    def trial(self, trial: Trial) -> None:
        """Add one measurement, of the search or of the confirmation."""
        self.data["trials"].append(asdict(trial))
        self._write()
        throughput = trial.figures.get("throughput", {}).get("value", 0.0)
        tail = trial.figures.get("latency_ms", {}).get("p99")
        print(
            f"{len(self.data['trials'])}. {trial.proposed_by}: {dict(trial.configuration)}:"
            f" {throughput:.0f}/s, p99 {tail} ms, {dict(trial.seconds)} s,"
            f" {trial.problem or 'held'}",
            flush=True,
        )

    def finish(self, tuned: Tuned) -> None:
        """Write all results, with the trials of the confirmation separate from those of the
        search.
        """
        self.data |= {**asdict(tuned), "finished": True}
        self._write()

    def _write(self) -> None:
        self.data["seconds"] = round(time.monotonic() - self.began, 1)
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps(self.data, indent=1) + "\n")


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """Parse the command line. By default only settings that need no other plan are searched."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.tuning network", description=__doc__
    )
    parser.add_argument("network", choices=sorted(NETWORKS))
    parser.add_argument(
        "--out", type=Path, required=True, help="the JSON file to write"
    )
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--confirmations", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each load level")
    parser.add_argument("--concurrency", type=_numbers, default=CONCURRENCY)
    parser.add_argument("--limit-ms", type=float, help="limit of p99")
    parser.add_argument("--profiles", type=_names, default=("one",), help="one,static")
    parser.add_argument("--runtimes", type=_names, default=("plan",), help="plan,torch")
    return parser.parse_args(words)


def main(words: Sequence[str]) -> None:
    """Tune the network and write the record."""
    args = parsed(words)
    record = Record(args)
    with tempfile.TemporaryDirectory(prefix="trt-build-network-") as name:
        folder = Path(name)
        (folder / "models").mkdir()
        spec = write(
            args.network, NETWORKS[args.network], folder / "models", args.precision
        )
        settings = Settings(store=folder / "store")
        record.finish(tune(spec, options(args), settings, on_trial=record.trial))
    data = record.data
    print(
        f"{spec.name}: {data['verdict']}: {data['best']}, {data['seconds']} s",
        flush=True,
    )
    print(
        f"default {data['before']}, best {data['after']} ({data['goal']})", flush=True
    )
