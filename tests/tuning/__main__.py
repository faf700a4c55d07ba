"""`python -m tests.tuning`: tune against brute force, over every configuration of two models.

Each configuration is built, served and measured as `trt-build tune` does it. Then searches with a
fifth of the trials run over that table. One measurement is noisy, so the chosen configurations and
the best of the table are measured again alternately. Their medians are compared. Run it on a host
without other load.

`python -m tests.tuning network NAME` tunes a network of the benchmarks instead (network.py).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from builder import manifest, serving
from builder.repository import Settings
from builder.tuning import Goal, Trial, TuneOptions, Values
from builder.tuning.search import Measure, search
from builder.tuning.space import Configuration, key
from builder.tuning.tune import _Run
from tests.tuning import network

OUT = Path(__file__).with_name("measured.json")
VALUES = Values(
    instances=(1, 2, 3),
    max_batch=(1, 4, 16),
    queue_delay_us=(0, 1000, 4000),
    preferred=("none", "half"),
)
SEEDS = 10
BEST = 6
"""The number of best configurations of the table that are measured again."""
ROUNDS = 4
"""The number of repeated measurements of each."""


class LargeLinear(torch.nn.Module):
    """A model whose weights are read once per batch, so batching increases throughput."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(1024, 2048), torch.nn.Linear(2048, 1024)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = torch.tanh(self.last(torch.relu(self.first(x))))
        return x


class Convolutions(torch.nn.Module):
    """A model whose work grows with each row, so instances increase throughput."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(3, 16, 3, 1, 1),
            torch.nn.ReLU(),
            torch.nn.Conv2d(16, 32, 3, 1, 1),
            torch.nn.ReLU(),
            torch.nn.AdaptiveAvgPool2d(1),
        )
        self.head = torch.nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x).flatten(1))


MODELS = {
    "wide": (LargeLinear, "[batch, 1024]"),
    "convolutions": (Convolutions, "[batch, 3, 64, 64]"),
}


def write(folder: Path) -> None:
    """Write the two models with their manifests."""
    torch.manual_seed(0)
    for name, (module, shape) in MODELS.items():
        torch.jit.script(module().eval()).save(str(folder / f"{name}.pt"))
        (folder / f"{name}.yaml").write_text(
            f"inputs: [{{name: x, dtype: float32, shape: {shape}}}]\n"
            "dims: {batch: {min: 1, opt: 4, max: 16}}\noutputs: [y]\n"
        )


def measure_model(spec: manifest.ModelSpec, options: TuneOptions) -> dict[str, Any]:
    """All configurations of one model, the proposals of the queueing model, and search results."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "repository"
        folder.mkdir()
        run = _Run(spec, options, Settings(), folder, None, None)
        run.prepare()
        run.connect(
            stack,
            stack.enter_context(
                serving.serve(folder, explicit=True, **serving.FREE_PORTS)
            ),
        )
        default = run._measure(run.space.default, "default")
        proposed = run._proposed(default)
        table = {key(default.configuration): default}
        for configuration in run.space:
            if key(configuration) not in table:
                table[key(configuration)] = run._measure(configuration, "brute force")
                print(len(table), "of", len(run.space), dict(configuration), flush=True)
        found = {
            "name": spec.name,
            "default": run.space.default,
            "dimensions": {d.name: d.values for d in run.space.dimensions},
            "proposed": proposed,
            "configurations": [
                {"configuration": t.configuration, "score": t.score}
                for t in table.values()
            ],
        }
        return found | {"searches": searches(run, table, proposed)}


def searches(
    run: _Run, table: dict[Any, Trial], proposed: list[Configuration]
) -> dict[str, Any]:
    """Search the table with a fifth of the trials for each seed. Then measure the chosen
    configurations and the best of the table again.
    """
    trials = len(run.space) // 5
    chosen = [
        best(
            search(
                run.space,
                measure_from_table(table),
                trials=trials,
                first=lambda _: proposed,
                seed=seed,
            )
        )
        for seed in range(SEEDS)
    ]
    ranked = sorted(table.values(), key=score, reverse=True)[:BEST]
    again = {key(one.configuration): one.configuration for one in (*ranked, *chosen)}
    scores: dict[Any, list[float]] = {name: [] for name in again}
    for _ in range(ROUNDS):
        for name, configuration in again.items():
            scores[name].append(score(run._measure(configuration, "again")))
            print("again", dict(configuration), scores[name][-1], flush=True)
    medians = {name: statistics.median(found) for name, found in scores.items()}
    highest = max(medians.values())
    shares = [medians[key(one.configuration)] / highest for one in chosen]
    return {
        "trials": trials,
        "configurations": len(run.space),
        "share_of_optimum_by_seed": [round(share, 4) for share in shares],
        "share_of_table_by_seed": [
            round(score(one) / score(ranked[0]), 4) for one in chosen
        ],
        "measured_again": [
            {
                "configuration": configuration,
                "scores": scores[name],
                "median": medians[name],
            }
            for name, configuration in again.items()
        ],
    }


def measure_from_table(table: dict[Any, Trial]) -> Measure:
    """A measure function that reads the table."""
    return lambda configuration, by: table[key(configuration)]


def score(trial: Trial) -> float:
    """The score of a trial; 0 if it does not meet the limit."""
    return trial.score or 0.0


def best(trials: list[Trial]) -> Trial:
    """The trial with the highest score."""
    return max(trials, key=score)


def main() -> None:
    """Measure both models and write the table that the tests read."""
    if sys.argv[1:2] == ["network"]:
        network.main(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=1.5, help="of each load level")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    began = time.monotonic()
    options = TuneOptions(Goal(), VALUES, seconds=args.seconds, concurrency=(4, 16))
    with tempfile.TemporaryDirectory() as name:
        write(Path(name))
        models = [measure_model(spec, options) for spec in manifest.load(Path(name))]
    data = {"seconds": round(time.monotonic() - began), "models": models}
    args.out.resolve().write_text(json.dumps(data, indent=1) + "\n")
    print(json.dumps({one["name"]: one["searches"] for one in models}, indent=1))


if __name__ == "__main__":
    main()
