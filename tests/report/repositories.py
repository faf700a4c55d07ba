"""A repository with published models and records of commands."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from builder.bench import LevelResult, ModelBench
from builder.bench.results import Estimate
from builder.manifest import Tolerance
from builder.parity import GoldenResult, ModelParity, compare
from builder.parity.served import read
from builder.report import records
from builder.triton import publish
from builder.tuning.search import DEFAULT, SAMPLED, Trial
from tests.triton.artifacts import scorer

HOSTILE = "<script>alert('1')</script>|`*\x1b[31m"
"""A model name that must be escaped in every format."""
NAMES = ("checked", "stale", "unchecked", "wrong")


def write(folder: Path) -> Path:
    """Publish the models of NAMES and write records.

    `checked` passed verify, `stale` has records of another version, `unchecked` has none, and
    `wrong` failed verify. The build of HOSTILE failed.
    """
    repository = folder / "repository"
    for name in NAMES:
        publish(scorer(name=name), repository)
    error = {
        "kind": "ModelFileError",
        "message": f"cannot load {HOSTILE}",
        "exit_code": 1,
    }
    failed = {"name": HOSTILE, "ok": False, "error": error, "seconds": {"load": 0.5}}
    records.keep(repository, records.BUILD, {"models": [failed]})
    results = [
        parity(repository, name, 1.0 if name == "wrong" else 1e-6) for name in NAMES[:2]
    ]
    results.append(parity(repository, "wrong", 1.0))
    rows = [{**one.as_dict(), "spread": one.spread()} for one in results]
    records.keep(repository, records.VERIFY, {"models": rows})
    levels = tuple(level(count, 100.0 * count, 2.0 * count) for count in (1, 2, 4))
    bench = [
        ModelBench(name, "grpc", "none", ("p0-min",), levels) for name in NAMES[:2]
    ]
    records.keep(repository, records.BENCH, {"models": [asdict(one) for one in bench]})
    node = {"operator": "aten::relu", "location": "model.py:7", "function": "relu"}
    differs = {
        "name": "wrong",
        "passed": False,
        "problem": "'scores' differs",
        "node": node,
    }
    records.keep(repository, records.BISECT, {"models": [differs]})
    records.keep(repository, records.TUNE, {"models": [tuned("checked")]})
    publish(scorer(name="stale", tolerance=Tolerance(rtol=0.1)), repository)
    return repository


def tuned(name: str) -> dict[str, Any]:
    """A result of tune: two configurations that meet the limit, and one that failed."""
    default = {"instances": 1, "queue_delay_us": 0}
    trials = [
        Trial(
            {**default, "instances": count},
            DEFAULT if count == 1 else SAMPLED,
            None if count == 3 else 100.0 * count,
            "p99 is 25.00 ms at c1" if count == 3 else None,
            {
                "throughput": {"value": 100.0 * count},
                "latency_ms": {"p50": 2.0, "p99": 9.0 * count},
            },
        )
        for count in (1, 2, 3)
    ]
    return {
        "name": name,
        "goal": "highest throughput with p99 <= 20 ms",
        "verdict": "better",
        "gain": 2.0,
        "trials": [asdict(trial) for trial in trials],
    }


def parity(repository: Path, name: str, error: float) -> ModelParity:
    """A result of verify whose outputs differ by at most `error`."""
    model = read(repository / name)
    random = np.random.default_rng(0)
    results = []
    for golden in model.goldens:
        reply = {
            output: (array + error * random.uniform(-1, 1, array.shape)).astype(
                array.dtype
            )
            if array.dtype.kind == "f"
            else array
            for output, array in golden.outputs.items()
        }
        comparison = compare(reply, golden, model.tolerance)
        results.append(
            GoldenResult(golden.name, "grpc", comparison, None, 1.5, 2.5, (1.0, 2.0))
        )
    return ModelParity(
        name, "python", "torch", "cpu", "no GPU", tuple(results), has_plan=True
    )


def level(concurrency: int, rate: float, latency: float) -> LevelResult:
    """One load of a benchmark; latencies in milliseconds."""
    names = {"p50": 1.0, "p90": 1.5, "p99": 3.0}
    server: dict[str, Any] = {
        "success": 1000,
        "failed": 0,
        "executions": 400,
        "rows": 2000,
        "ms": {
            "queue": 0.1,
            "compute_input": 0.1,
            "compute_infer": 1.0,
            "compute_output": 0.1,
        },
        "batch_sizes": {"1": 300, "2": 60, "8": 40},
        "batch_ms": {"1": 1.0, "2": 1.2, "8": 2.4},
    }
    return LevelResult(
        load=f"c{concurrency}",
        concurrency=concurrency,
        rate=None,
        requests=1000,
        errors={},
        examples={},
        dropped=0,
        seconds=2.0,
        warm_up_seconds=0.5,
        steady=True,
        throughput=Estimate(rate, rate * 0.95, rate * 1.05),
        rows_per_second=rate * 2,
        latency_ms={
            name: Estimate(
                latency * factor, latency * factor * 0.9, latency * factor * 1.1
            )
            for name, factor in names.items()
        },
        mean_ms=latency * 1.1,
        processes=1,
        client_cpu=0.2,
        client_ms=0.1,
        send_delay_ms=0.0,
        client_limited=None,
        server=server,
    )
