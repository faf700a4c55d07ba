"""Latency of a model in segments on a live server: fused, as an ensemble, and by torch alone.

    python -m benchmarks.partition [--requests N] [--case NAME ...] [--budget SECONDS] [--keep]
    python -m benchmarks.partition --table

One client sends one request at a time over gRPC: the opt golden. torch alone is the same model with
everything in torch, served by the same runtime. Times are in milliseconds. With a GPU and the
`tensorrt` flavor, plans run the segments. Otherwise torch runs all of them, and only the layouts
differ. Both layouts take their plans from one store. No case begins after the budget.

`--keep` appends a row for each to benchmarks/results/partition.jsonl. `--table` writes the rows of
that file and of partition_linear.jsonl into docs/partition.md.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor, nn

from benchmarks import records, tables
from builder.engine import flavor
from builder.parity.clients import GrpcClient, describe
from builder.parity.served import read
from builder.repository import build_repository
from builder.serving import FREE_PORTS, serve

RESULTS = records.RESULTS / "partition.jsonl"
LINEAR = RESULTS.with_name("partition_linear.jsonl")
PAGE = Path(__file__).parent.parent / "docs" / "partition.md"


class Broken(nn.Module):
    """A CNN with a Bessel function, which only torch computes, between two blocks: `breaks` of
    them.
    """

    def __init__(self, channels: int, breaks: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.blocks = nn.ModuleList(self._block(channels) for _ in range(breaks + 1))

    @staticmethod
    def _block(channels: int) -> nn.Module:
        convolutions = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        return nn.Sequential(
            *(part for conv in convolutions for part in (conv, nn.ReLU()))
        )

    def forward(self, image: Tensor) -> Tensor:
        y = torch.relu(self.first(image))
        for index, block in enumerate(self.blocks):
            if index:
                y = torch.special.bessel_j0(y)
            y = block(y)
        return y


CASES = {
    "small, 1 break": (8, 1, 16),
    "large, 1 break": (32, 1, 64),
    "small, 3 breaks": (8, 3, 16),
    "large, 3 breaks": (32, 3, 64),
    "wide, 1 break": (128, 1, 128),
}
"""The cases as (channels, breaks, pixels along an edge)."""
ALL = {"min_block_size": 1}
"""Keeps every engine, however small, because the layouts are compared and not the rule that merges
small segments.
"""
LAYOUTS = {
    "torch alone": ("auto", {"ops": ["aten::*"]}),
    "fused": ("fused", ALL),
    "ensemble": ("ensemble", ALL),
}


def publish(folder: Path, case: str, name: str, store: Path) -> tuple[Path, int]:
    """Publish one case in one layout. Returns the repository, and the number of segments."""
    channels, splits, size = CASES[case]
    layout, fallback = LAYOUTS[name]
    folder.mkdir(parents=True)
    torch.manual_seed(0)
    torch.jit.script(Broken(channels, splits).eval()).save(str(folder / "m.pt"))
    inputs = [{"name": "image", "dtype": "float32", "shape": ["batch", 3, size, size]}]
    dims = {"batch": {"min": 1, "opt": 1, "max": 2}}
    (folder / "m.yaml").write_text(
        yaml.safe_dump({"inputs": inputs, "dims": dims, "fallback": fallback})
    )
    (result,) = build_repository(
        folder,
        folder / "out",
        layout=layout,
        serve_as="python",
        store=store,
        isolate=False,
    )
    if result.error:
        raise result.error
    return folder / "out", len(result.segments)


def measure(repository: Path, requests: int) -> dict[str, Any]:
    """Return the median and 95th percentile of one request's milliseconds, and the library that ran
    it.
    """
    golden = next(g for g in read(repository / "m").goldens if g.name == "p0-opt")
    with serve(repository, **FREE_PORTS) as server:
        client = GrpcClient(server.grpc_url, 60)
        times = []
        for _ in range(requests + 10):
            begin = time.perf_counter()
            client.infer("m", golden.inputs)
            times.append((time.perf_counter() - begin) * 1e3)
        steps = sorted(
            path.name for path in repository.iterdir() if path.name.startswith("m.")
        )
        reports = [
            describe(client, name, read(repository / name).goldens[0].inputs)
            for name in steps or ["m"]
        ]
        client.close()
    median, late = np.percentile(times[10:], (50, 95))
    executors = "+".join(
        sorted(
            {
                part
                for one in reports
                for part in one["trt_build.answered_by"].split("+")
            }
        )
    )
    return {
        "median_ms": round(float(median), 3),
        "p95_ms": round(float(late), 3),
        "answered_by": executors,
        "device": reports[0]["trt_build.device"],
    }


def host() -> dict[str, Any]:
    """The time and machine of a measurement, and its versions."""
    from importlib.metadata import version

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "gpu": gpu,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "flavor": flavor.name(),
        "tensorrt": flavor.trt.__version__,
        "tritonserver_of": f"nvidia-pytriton {_version(version)}",
        **records.software(),
    }


def _version(version: Any) -> str:
    try:
        return str(version("nvidia-pytriton"))
    except Exception:  # a host that has its files without its metadata
        return "(unknown)"


def rows(cases: list[str], requests: int, budget: float) -> Iterator[dict[str, Any]]:
    """Yield one row for each case and layout."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        for case in cases:
            if time.monotonic() - begin > budget:
                print(f"{case}: left out, the budget of {budget:g} s is spent")
                continue
            for name in LAYOUTS:
                folder = Path(scratch, case.replace(" ", "_"), name.replace(" ", "_"))
                repository, segments = publish(
                    folder, case, name, Path(scratch, "store")
                )
                yield {
                    "case": case,
                    "way": name,
                    "segments": segments,
                    **measure(repository, requests),
                    **host(),
                }


def table(results: Path = RESULTS) -> str:
    """Format the newest row of each case, layout and machine as Markdown."""
    newest: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in records.read(results):
        where = row["gpu"] or f"CPU, {row['cores']} cores"
        newest[where, row["case"], row["way"]] = row
    lines = [
        "| where | model | segments | " + " | ".join(LAYOUTS) + " | measured |",
        "|---" * (4 + len(LAYOUTS)) + "|",
    ]
    for where, case in dict.fromkeys(key[:2] for key in newest):
        case_rows = [newest.get((where, case, name)) for name in LAYOUTS]
        last = next(row for row in reversed(case_rows) if row)
        medians = [f"{row['median_ms']:.2f}" if row else "" for row in case_rows]
        versions = f"{last['date']}, {last['flavor']} {last['tensorrt']}, torch {last['torch']}"
        lines.append(
            f"| {where} | {case} | {last['segments']} | {' | '.join(medians)} | {versions} |"
        )
    return "\n".join(lines)


def linear_table(results: Path = LINEAR) -> str:
    """Format the newest row of each kind of graph and size as Markdown."""
    newest = {(row["graph"], row["nodes"]): row for row in records.read(results)}
    lines = [
        "| graph | nodes | segments | seconds | CPU seconds | CPU us a node | load | measured |",
        "|---" * 8 + "|",
    ]
    for (graph, nodes), row in sorted(newest.items()):
        figures = (
            f"{row['split_s']:.2f} | {row['split_cpu_s']:.2f} | {row['cpu_us_a_node']:.0f} |"
            f" {row['load']}"
        )
        where = f"{row['date']}, {row['host']}, torch {row['torch']}"
        lines.append(
            f"| {graph} | {nodes:,} | {row['segments']} | {figures} | {where} |"
        )
    return "\n".join(lines)


def page(text: str) -> str:
    """Return the page with its two tables from the results. The tables are between markers."""
    for mark, content in (("partition", table()), ("partition_linear", linear_table())):
        begin, end = f"<!-- {mark}.jsonl -->\n", f"<!-- end of {mark}.jsonl -->"
        text = tables.between(text, begin, end, f"{content}\n")
    return text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--case", choices=CASES, action="append")
    parser.add_argument("--budget", type=float, default=600.0, help="seconds")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--table", action="store_true")
    chosen = parser.parse_args()
    if chosen.table:
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        return
    print(f"{'case':14} {'way':12} {'median':>8} {'p95':>8}  answered by")
    for row in rows(chosen.case or list(CASES), chosen.requests, chosen.budget):
        print(
            f"{row['case']:14} {row['way']:12} {row['median_ms']:8.2f} {row['p95_ms']:8.2f} "
            f" {row['answered_by']}"
        )
        if chosen.keep:
            records.append(RESULTS, [row])


if __name__ == "__main__":
    main()
