"""How long lowering takes for graphs of 500, 2,000 and 8,000 nodes, and how much memory it takes
for a model with 1 GB of weights.

    python -m benchmarks.lowering [--memory] [--rounds 5] [--json]

Processor time on one thread. Each round times every size once more, the small graphs as often as it
takes to lower as many nodes as the large one has; what counts is the median of the rounds. Every
layer has weights of its own. The cost per node at 8,000 nodes must be at most 1.3 times that at
500: exit code 1 if not.
"""

from __future__ import annotations

import argparse
import functools
import gc
import io
import json
import sys
import time
import warnings
from typing import Any

import torch

import builder
from benchmarks import sizes
from benchmarks.memory import reset_peak, resident
from builder.lowering import ir

SIZES = (500, 2000, 8000)
LIMIT = 1.3

# One block each; {i} is the input value, {o} the output value, {p} a prefix that keeps names
# unique.
CONV = """
  %{p}c : Tensor = aten::conv2d(%{i}, %{p}w0, %{p}w1, %two, %two, %two, %one)
  %{p}n : Tensor = aten::batch_norm(%{p}c, %{p}w2, %{p}w2, %{p}w2, %{p}w2, %no, %eps, %eps, %no)
  %{p}d : Tensor = aten::dropout(%{p}n, %eps, %no)
  %{p}s : Tensor = aten::add_(%{p}d, %{i}, %one)
  %{o} : Tensor = aten::relu_(%{p}s)"""
CONV_HEAD = """
  %one : int = prim::Constant[value=1]()
  %two : int[] = prim::Constant[value=[1, 1]]()
  %no : bool = prim::Constant[value=0]()
  %eps : float = prim::Constant[value=0.001]()"""
CONV_WEIGHTS = ((2, 2, 3, 3), (2,), (2,))

BLOCK = """
  %{p}n : Tensor = aten::layer_norm(%{i}, %width, %{p}w2, %{p}w2, %eps, %no)
  %{p}q : Tensor = aten::linear(%{p}n, %{p}w0, %{p}w1)
  %{p}b : int = aten::size(%{p}q, %zero)
  %{p}t : int = aten::size(%{p}q, %one)
  %{p}l : int[] = prim::ListConstruct(%{p}b, %{p}t, %heads, %minus)
  %{p}v : Tensor = aten::view(%{p}q, %{p}l)
  %{p}h : Tensor = aten::transpose(%{p}v, %one, %heads)
  %{p}a : Tensor = aten::scaled_dot_product_attention(%{p}h, %{p}h, %{p}h, %none, %nil, %no, %none, %no)
  %{p}y : Tensor = aten::transpose(%{p}a, %one, %heads)
  %{p}z : Tensor = aten::reshape(%{p}y, %flat)
  %{p}k : Tensor = aten::contiguous(%{p}z, %zero)
  %{p}o : Tensor = aten::linear(%{p}k, %{p}w0, %{p}w1)
  %{p}r : Tensor = aten::add_(%{p}o, %{i}, %one)
  %{p}f : Tensor = aten::addmm(%{p}w1, %{p}r, %{p}w0, %one, %one)
  %{p}e : Tensor = aten::silu(%{p}f)
  %{o} : Tensor = aten::add(%{p}e, %{p}r, %one)"""
BLOCK_HEAD = """
  %zero : int = prim::Constant[value=0]()
  %one : int = prim::Constant[value=1]()
  %heads : int = prim::Constant[value=2]()
  %minus : int = prim::Constant[value=-1]()
  %no : bool = prim::Constant[value=0]()
  %none : NoneType = prim::Constant()
  %nil : float = prim::Constant[value=0.]()
  %eps : float = prim::Constant[value=0.001]()
  %width : int[] = prim::Constant[value=[8]]()
  %flat : int[] = prim::Constant[value=[-1, 8]]()"""
BLOCK_WEIGHTS = ((8, 8), (8,), (8,))

KINDS = {
    "conv-bn-relu": (CONV_HEAD, CONV, CONV_WEIGHTS),
    "transformer": (BLOCK_HEAD, BLOCK, BLOCK_WEIGHTS),
}


def synthetic(kind: str, nodes: int) -> tuple[Any, list[torch.Tensor]]:
    """Create a graph of about `nodes` nodes, and the weights for its trailing inputs. Each block
    has separate weights.
    """
    head, block, shapes = KINDS[kind]
    arguments, weights, lines, value = ["%x : Tensor"], [], [head], "x"
    generator = torch.Generator().manual_seed(0)
    for number in range(nodes // (block.count("\n") or 1)):
        lines.append(block.format(i=value, o=f"v{number}", p=f"p{number}"))
        arguments += [f"%p{number}w{index} : Tensor" for index in range(len(shapes))]
        weights += [torch.rand(shape, generator=generator) for shape in shapes]
        value = f"v{number}"
    return (
        ir.C.parse_ir(
            f"graph({', '.join(arguments)}):"
            + "".join(lines)
            + f"\n  return (%{value})"
        ),
        weights,
    )


def measure(kind: str, rounds: int) -> list[dict[str, Any]]:
    """Return the median seconds of a run and the microseconds per input node, for each size."""
    graphs = [synthetic(kind, nodes) for nodes in SIZES]
    medians = sizes.medians(
        [functools.partial(_timed, *one) for one in graphs], SIZES, rounds
    )
    return [
        _row(kind, graph, params, seconds)
        for (graph, params), seconds in zip(graphs, medians, strict=True)
    ]


def _row(
    kind: str, graph: Any, params: list[torch.Tensor], seconds: float
) -> dict[str, Any]:
    count = _count(graph)
    lowered = _count(builder.lower(graph, params).graph)
    return {
        "kind": kind,
        "nodes": count,
        "lowered": lowered,
        "seconds": seconds,
        "us_per_node": seconds / count * 1e6,
    }


def _count(graph: Any) -> int:
    """Count the nodes that a converter would visit: all except constants, at every depth."""
    return sum(node.kind() != "prim::Constant" for node in ir.walk(graph))


def _timed(graph: Any, params: list[torch.Tensor]) -> float:
    gc.collect()
    start = time.process_time()
    builder.lower(graph, params)
    return time.process_time() - start


def memory(megabytes: int = 1024, layers: int = 16) -> dict[str, float]:
    """The peak resident memory in MB while a scripted model with this much weight is lowered,
    beyond that of the loaded model.
    """
    width = int((megabytes / layers * 2**20 / 4) ** 0.5)
    model = torch.nn.Sequential(
        *(torch.nn.Linear(width, width, bias=False) for _ in range(layers))
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        buffer = io.BytesIO()
        torch.jit.save(torch.jit.script(model), buffer)
        del model
        buffer.seek(0)
        module = torch.jit.load(buffer)
    del buffer
    reset_peak()
    before = resident()[0] / 2**20
    lowered = builder.lower(module)
    peak = resident()[1] / 2**20
    assert lowered.outputs == ("output",)
    return {
        "weights_mb": layers * width * width * 4 / 2**20,
        "before_mb": before,
        "peak_mb": peak,
        "extra_mb": peak - before,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=" ".join(__doc__.split("\n\n")[0].split())
    )
    parser.add_argument(
        "--memory",
        action="store_true",
        help="measure memory for 1 GB of weights as well",
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for kind in KINDS:
        builder.lower(
            *synthetic(kind, 100)
        )  # decompositions are compiled once in each process
    rows = [row for kind in KINDS for row in measure(kind, options.rounds)]
    ratios = {k: _ratio([row for row in rows if row["kind"] == k]) for k in KINDS}
    report: dict[str, Any] = {"rows": rows, "ratios": ratios}
    if options.memory:
        report["memory"] = memory()
    print(json.dumps(report, indent=2) if options.json else _table(report))
    return int(max(ratios.values()) > LIMIT)


def _ratio(rows: list[dict[str, Any]]) -> float:
    return float(rows[-1]["us_per_node"] / rows[0]["us_per_node"])


def _table(report: dict[str, Any]) -> str:
    lines = [f"{'graph':14} {'nodes':>6} {'lowered':>8} {'seconds':>8} {'us/node':>8}"]
    for row in report["rows"]:
        lines.append(
            "{kind:14} {nodes:6} {lowered:8} {seconds:8.3f} {us_per_node:8.1f}".format(
                **row
            )
        )
    lines += [
        f"{kind}: cost per node at 8,000 is {ratio:.2f} times that at 500"
        for kind, ratio in report["ratios"].items()
    ]
    if "memory" in report:
        line = (
            "{weights_mb:.0f} MB of weights: {before_mb:.0f} MB loaded, {peak_mb:.0f} at the peak,"
            " {extra_mb:.0f} more"
        )
        lines.append(line.format(**report["memory"]))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
