"""What replacing the weights of a plan costs, against building it.

    python -m benchmarks.refit --only resnet50 --precision fp16 --out rows.jsonl

A plan of each network is built with the option `refit`, with an empty timing cache. Other weights
are then put into it, and a second plan is built from those, with the timing cache of the first.
One line of JSON for each network: seconds of both builds and of the refit, the largest difference
between the answers of the refitted and the built plan relative to the largest answer, and the
milliseconds of both at batch 8. A GPU and full TensorRT are required.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks import timed
from benchmarks.networks import NETWORKS

BATCH = 8


def conversion(name: str, precision: str, *, changed: bool) -> Any:
    """Convert the network with its seeded weights, or with others."""
    import builder

    network = NETWORKS[name]
    module = network.module()
    if changed:
        torch.manual_seed(1)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.mul_(1 + 0.1 * torch.randn_like(parameter))
    traced = torch.jit.trace(module, network.sample(2), check_trace=False)
    return builder.convert(traced, [network.spec], precision=precision)


def row(name: str, precision: str, level: int) -> dict[str, Any]:
    """The measurements of one network."""
    from builder.engine import BuildOptions, build, refit

    with tempfile.TemporaryDirectory() as folder:
        options = BuildOptions(
            refit=True,
            optimization_level=level,
            timing_cache=Path(folder, "timing.cache"),
        )
        old, new = (
            conversion(name, precision, changed=changed) for changed in (False, True)
        )
        first = build(old, options)
        assert refit.structure(old.network) == refit.structure(new.network)
        replaced = refit.refit(first, new, refit.digests(old.network), options)
        built = build(new, options)
    engines = {
        "refitted": timed.Engine(replaced.data),
        "built": timed.Engine(built.data),
    }
    x = NETWORKS[name].sample(BATCH).cuda()
    medians, failed = timed.medians(
        {key: engine.graph for key, engine in engines.items()}, [x]
    )
    stale = timed.Engine(first.data)(x).float()
    outputs = {key: engine(x).float().clone() for key, engine in engines.items()}
    largest = outputs["built"].abs().max()
    return {
        "network": name,
        "precision": precision,
        "level": level,
        "cold_s": first.facts["build_seconds"],
        "warm_s": built.facts["build_seconds"],
        "refit_s": replaced.facts["build_seconds"],
        "difference": float(
            (outputs["refitted"] - outputs["built"]).abs().max() / largest
        ),
        "difference_of_weights": float(
            (stale - outputs["built"]).abs().max() / largest
        ),
        "ms": medians,
        "failed": failed,
    }


def main() -> int:
    """Measure each network, then write and print its row."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--only", nargs="+", default=["resnet50"], choices=list(NETWORKS)
    )
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("--level", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    for name in args.only:
        measured = row(name, args.precision, args.level)
        print(json.dumps(measured), flush=True)
        with args.out.open("a") as out:
            out.write(json.dumps(measured) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
