"""How long splitting takes as graphs grow: `python -m benchmarks.partition_linear [NODES ...]
[--graph KIND] [--keep]`.

The graphs have a dynamic batch:

- `chain`: layers (sum, activation) with an FFT after every hundred nodes;
- `branches`: four such chains, written interleaved and joined at the end;
- `sizes`: a chain that sums its sizes, so that numbers depend on all nodes before;
- `islands`: an FFT after every fourth node, so that all TensorRT segments are too small and are
  merged into their neighbors.

Printed are the wall-clock seconds of shapes, trial and split(), the CPU seconds of split(), and its
microseconds of CPU a node. `--keep` appends the rows to benchmarks/results/partition_linear.jsonl.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks import records
from builder.lowering import LoweredGraph
from builder.manifest.spec import TensorSpec
from builder.partition import split
from builder.partition.shapes import infer_shapes
from builder.partition.support import support

BATCH = {"batch": (1, 4, 8)}
SPECS = (TensorSpec("float32", ("batch", 8), BATCH, "x"),)
GRAPHS = {
    "chain": (1, 50, False),
    "branches": (4, 50, False),
    "sizes": (1, 50, True),
    "islands": (1, 3, False),
}
"""For each kind: the number of chains, the pairs of nodes between FFTs, and whether sizes are
summed up.
"""
RESULTS = records.RESULTS / "partition_linear.jsonl"


def graph(nodes: int, kind: str = "chain") -> LoweredGraph:
    """Create a lowered graph of about this many nodes."""
    chains, interval, sizes = GRAPHS[kind]
    lines = [
        "graph(%x : Tensor, %w : Tensor):",
        "  %one : int = prim::Constant[value=1]()",
    ]
    lines += [
        "  %last : int = prim::Constant[value=-1]()",
        "  %none : NoneType = prim::Constant()",
    ]
    lines += [
        "  %eight : int = prim::Constant[value=8]()",
        "  %n : int = prim::Constant[value=0]()",
    ]
    values, size = ["x"] * chains, "n"
    for index in range(nodes // (4 if sizes else 2)):
        value = values[index % chains]
        if index // chains % interval == interval - 1:
            lines.append(
                f"  %f{index} : Tensor = aten::fft_rfft(%{value}, %none, %last, %none)"
            )
            lines.append(
                f"  %v{index} : Tensor = aten::fft_irfft(%f{index}, %eight, %last, %none)"
            )
        else:
            lines.append(f"  %a{index} : Tensor = aten::add(%{value}, %w, %one)")
            lines.append(f"  %v{index} : Tensor = aten::relu(%a{index})")
        values[index % chains] = f"v{index}"
        if sizes:
            lines.append(f"  %s{index} : int = aten::size(%v{index}, %last)")
            lines.append(f"  %n{index} : int = aten::add(%{size}, %s{index})")
            size = f"n{index}"
    lines.append(
        f"  %list : Tensor[] = prim::ListConstruct({', '.join(f'%{value}' for value in values)})"
    )
    lines += [
        "  %joined : Tensor = aten::cat(%list, %last)",
        f"  %end : Tensor = aten::add(%joined, %{size}, %one)",
    ]
    return _with_weight(torch._C.parse_ir("\n".join([*lines, "  return (%end)"])))


def _with_weight(parsed: Any) -> LoweredGraph:
    """Set %w to a constant: the text form of a graph has no tensors."""
    weight = next(v for v in parsed.inputs() if v.debugName() == "w")
    constant = parsed.create("prim::Constant", 1)
    constant.t_("value", torch.ones(8))
    constant.insertBefore(next(iter(parsed.nodes())))
    constant.output().setType(torch._C.TensorType.get())
    weight.replaceAllUsesWith(constant.output())
    parsed.eraseInput(1)
    return LoweredGraph(parsed, ("x",), ("y",))


def timed(call: Callable[[], Any]) -> tuple[float, float, Any]:
    """Return (wall-clock seconds, CPU seconds, the result)."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = call()
    return time.perf_counter() - wall, time.process_time() - cpu, result


def measure(nodes: int, kind: str = "chain") -> dict[str, Any]:
    """Seconds of each stage and of the whole."""
    lowered = graph(nodes, kind)
    shapes_s, _, shapes = timed(lambda: infer_shapes(lowered, SPECS, (BATCH,)))
    trial_s, _, _ = timed(lambda: support(lowered, SPECS, (BATCH,), shapes))
    split_s, cpu_s, parts = timed(lambda: split(lowered, SPECS, (BATCH,)))
    seconds = {
        "shapes_s": shapes_s,
        "trial_s": trial_s,
        "split_s": split_s,
        "split_cpu_s": cpu_s,
    }
    return {
        "graph": kind,
        "nodes": nodes,
        "segments": len(parts.segments),
        **{name: round(value, 3) for name, value in seconds.items()},
        "cpu_us_a_node": round(cpu_s / nodes * 1e6, 1),
    }


def host() -> dict[str, Any]:
    """The time and machine of a measurement."""
    return {
        "host": f"{platform.machine()}, {os.cpu_count()} cores",
        "load": round(os.getloadavg()[0], 1),
        **records.software(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "nodes", type=int, nargs="*", default=[1250, 2500, 5000, 10000, 20000]
    )
    parser.add_argument("--graph", choices=GRAPHS, action="append")
    parser.add_argument("--keep", action="store_true")
    chosen = parser.parse_args()
    measure(200)
    print(
        f"{'graph':9} {'nodes':>6} {'segments':>8} {'shapes':>7} {'trial':>7} {'split':>7}"
        f" {'CPU s':>7} {'us/node':>8}"
    )
    for kind in chosen.graph or GRAPHS:
        for nodes in chosen.nodes:
            row = measure(nodes, kind)
            stages = " ".join(
                f"{row[key]:7.2f}"
                for key in ("shapes_s", "trial_s", "split_s", "split_cpu_s")
            )
            print(
                f"{kind:9} {nodes:6d} {row['segments']:8d} {stages} {row['cpu_us_a_node']:8.0f}",
                flush=True,
            )
            if chosen.keep:
                records.append(RESULTS, [{**row, **host()}])


if __name__ == "__main__":
    main()
