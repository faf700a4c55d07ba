"""How long splitting takes as graphs grow: `python benchmarks/partition_linear.py [NODES ...]`.

The graph is a chain of layers (matrix product, bias, activation) with an FFT after every hundred nodes, over a dynamic
batch. Printed are seconds and microseconds a node, of each stage and of split() as a whole.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch

from builder.lowering import LoweredGraph
from builder.manifest.spec import TensorSpec
from builder.partition import split
from builder.partition.shapes import infer
from builder.partition.support import support

BATCH = {"batch": (1, 4, 8)}
SPECS = (TensorSpec("float32", ("batch", 8), BATCH, "x"),)
EVERY = 100


def graph(nodes: int) -> LoweredGraph:
    """A lowered graph of about so many nodes."""
    lines = ["graph(%x : Tensor, %w : Tensor):", "  %one : int = prim::Constant[value=1]()"]
    lines += ["  %last : int = prim::Constant[value=-1]()", "  %none : NoneType = prim::Constant()"]
    lines += ["  %eight : int = prim::Constant[value=8]()"]
    value = "x"
    for index in range(nodes // 2):
        if index % (EVERY // 2) == EVERY // 2 - 1:
            lines.append(f"  %f{index} : Tensor = aten::fft_rfft(%{value}, %none, %last, %none)")
            lines.append(f"  %v{index} : Tensor = aten::fft_irfft(%f{index}, %eight, %last, %none)")
        else:
            lines.append(f"  %a{index} : Tensor = aten::add(%{value}, %w, %one)")
            lines.append(f"  %v{index} : Tensor = aten::relu(%a{index})")
        value = f"v{index}"
    text = "\n".join([*lines, f"  return (%{value})"])
    parsed = torch._C.parse_ir(text)
    weight = next(v for v in parsed.inputs() if v.debugName() == "w")
    first = next(iter(parsed.nodes()))
    constant = parsed.create("prim::Constant", 1)
    constant.t_("value", torch.ones(8))
    constant.insertBefore(first)
    constant.output().setType(torch._C.TensorType.get())
    weight.replaceAllUsesWith(constant.output())
    parsed.eraseInput(1)
    return LoweredGraph(parsed, ("x",), ("y",))


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    result = call()
    return time.perf_counter() - begin, result


def measure(nodes: int) -> dict[str, float]:
    """Seconds of each stage and of the whole."""
    lowered = graph(nodes)
    seconds = {}
    seconds["shapes"], shapes = timed(lambda: infer(lowered, SPECS, (BATCH,)))
    seconds["trial"], _ = timed(lambda: support(lowered, SPECS, (BATCH,), shapes))
    seconds["split"], parts = timed(lambda: split(lowered, SPECS, (BATCH,)))
    seconds["segments"] = float(len(parts.segments))
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nodes", type=int, nargs="*", default=[1250, 2500, 5000, 10000, 20000])
    measure(200)
    print(f"{'nodes':>6} {'segments':>8} {'shapes s':>9} {'trial s':>8} {'split s':>8} {'us a node':>10}")
    for nodes in parser.parse_args().nodes:
        found = measure(nodes)
        stages = " ".join(f"{found[key]:8.2f}" for key in ("shapes", "trial", "split"))
        print(f"{nodes:6d} {found['segments']:8.0f} {stages} {found['split'] / nodes * 1e6:10.0f}", flush=True)


if __name__ == "__main__":
    main()
