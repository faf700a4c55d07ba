"""What static profiles gain: `batch_sizes: [1, 8, 32]` against one profile from 1 to 32.

    python -m benchmarks.batch_sizes --only resnet50 bert_base_128 --out rows.jsonl

Two plans of each network in fp16: one with the profile 1, 8, 32, and one with a static profile for
each of these batches as well. Both are built with one timing cache, and timed alternately in the
same run with CUDA graphs at batch 1, 8 and 32; medians in milliseconds. The last line printed is
the geometric mean of the ratios. A GPU and full TensorRT are required.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import roads, timed
from benchmarks.networks import NETWORKS

SIZES = (1, 8, 32)
AXIS = "batch"


def plan(name: str, precision: str, level: int, cache: Path, static: bool) -> dict[str, Any]:
    """The plan's bytes, its profiles as (min, opt, max) of the batch, and the build's seconds."""
    import builder
    from builder.engine import BuildOptions, build

    network = NETWORKS[name]
    general = dict(network.spec.dims)
    profiles = [{**general, AXIS: (size, size, size)} for size in SIZES] if static else []
    conversion = builder.convert(
        roads.trace(network),
        [network.spec],
        precision=precision,
        profiles=[*profiles, general],
    )
    started = time.monotonic()
    built = build(conversion, BuildOptions(timing_cache=cache, optimization_level=level))
    seconds = time.monotonic() - started
    return {"data": built.data, "static": static, "build_s": round(seconds, 1)}


def rows(name: str, precision: str, level: int) -> Iterator[dict[str, Any]]:
    """One row for each batch size: milliseconds with one profile and with static profiles."""
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder, "timing.cache")
        one = plan(name, precision, level, cache, static=False)
        several = plan(name, precision, level, cache, static=True)
    for index, batch in enumerate(SIZES):
        engines = {
            "one": timed.Engine(one["data"]),
            "static": timed.Engine(several["data"], index),
        }
        x = NETWORKS[name].sample(batch).cuda()
        medians, failed = timed.medians({key: e.graph for key, e in engines.items()}, [x])
        yield {
            "network": name,
            "precision": precision,
            "level": level,
            "batch": batch,
            "ms": medians,
            "failed": failed,
            "build_s": {"one": one["build_s"], "static": several["build_s"]},
        }


def main() -> int:
    """Measure, write a line of JSON for each row, print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("--level", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    ratios = []
    with asked.out.open("a") as out:
        for name in asked.only:
            for row in rows(name, asked.precision, asked.level):
                out.write(json.dumps(row) + "\n")
                out.flush()
                ms = row["ms"]
                if {"one", "static"} <= ms.keys():
                    ratios.append(ms["static"] / ms["one"])
                    print(name, row["batch"], ms, f"{ratios[-1]:.3f}", row["build_s"], flush=True)
                else:
                    print(name, row["batch"], row["failed"], flush=True)
    if ratios:
        print(f"static / one profile: {math.exp(sum(map(math.log, ratios)) / len(ratios)):.3f}")
    return 0 if ratios else 1


if __name__ == "__main__":
    raise SystemExit(main())
