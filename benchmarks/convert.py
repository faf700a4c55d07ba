"""Lowering and conversion against the usual pipeline: torch.onnx.export and TensorRT's ONNX parser.

    python benchmarks/convert.py [--only resnet50] [--runs 5] [--linear] [--clock cpu] [--json]

Both pipelines take the same traced file, loaded for each run (which is not counted), to an
INetworkDefinition of the same flavor, alternately and in this process, after one warm-up; the
ratio is that of the medians. --clock cpu counts what the process itself took, for a machine that
others use as well (with OMP_NUM_THREADS=1: several threads would count several times). ONNX's
exporter is that of TorchScript (dynamo=False): the other one takes no TorchScript. --linear
measures our cost per node on chains of 500, 2,000 and 8,000 operators instead; benchmarks/memory.py
measures what conversion holds above the module.
"""

from __future__ import annotations

import argparse
import functools
import gc
import io
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

import builder
from benchmarks import records, sizes
from benchmarks.networks import NETWORKS, Chain, Network
from builder.engine.flavor import trt
from builder.engine.network import logger, new_network

DEFAULT = ("resnet50", "bert_base_128", "efficientnet_b0", "chain_4000")


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def seconds(call: Callable[[], Any], clock: str = "wall") -> float:
    """Time one call, by wall clock or by the processor time of this process."""
    start = CLOCKS[clock]()
    call()
    return CLOCKS[clock]() - start


def ours(traced: Any, network: Network) -> Any:
    """Lower and convert."""
    return builder.convert(traced, [network.spec])


def onnx_pipeline(traced: Any, network: Network, sample: torch.Tensor) -> Any:
    """Export and parse. The whole network must be parsed."""
    buffer = io.BytesIO()
    axes = {"x": {0: "batch"}}
    torch.onnx.export(
        traced,
        (sample,),
        buffer,
        dynamo=False,
        input_names=["x"],
        output_names=["y"],
        dynamic_axes=axes,
        opset_version=17,
    )
    onnx_network = new_network()
    parser = trt.OnnxParser(onnx_network[1], logger())
    assert parser.parse(buffer.getvalue()), parser.get_error(0).desc()
    return onnx_network, parser


def file_of(network: Network) -> bytes:
    """Trace and save the network."""
    buffer = io.BytesIO()
    torch.jit.save(
        torch.jit.trace(network.module(), network.sample(2), check_trace=False), buffer
    )
    return buffer.getvalue()


def compare(name: str, runs: int, clock: str) -> dict[str, Any]:
    """Return the medians of both methods in seconds, their ratio, and trt-build's time by phase."""
    network, times = NETWORKS[name], []
    sample, file = network.sample(2), file_of(network)

    def timed(pipeline: Callable[..., Any], *arguments: Any) -> float:
        """Time a run on a new module: the exporter adds data to the module each time."""
        module = torch.jit.load(io.BytesIO(file))
        return seconds(lambda: pipeline(module, *arguments), clock)

    layers = ours(torch.jit.load(io.BytesIO(file)), network).network.num_layers
    parsed = onnx_pipeline(torch.jit.load(io.BytesIO(file)), network, sample)[0][
        1
    ].num_layers
    gc.collect()
    gc.freeze()  # the exporter's imports slow every garbage collection
    for _ in range(runs):
        times.append(
            (
                timed(ours, network),
                timed(builder.lower),
                timed(onnx_pipeline, network, sample),
            )
        )
    conversion, lowering, export_time = (
        statistics.median(column) for column in zip(*times, strict=True)
    )
    return {
        "network": name,
        "ours": conversion,
        "lowering": lowering,
        "onnx": export_time,
        "ratio": conversion / export_time,
        "layers": layers,
        "onnx_layers": parsed,
    }


def linear(runs: int, clock: str) -> list[dict[str, Any]]:
    """Measure the cost per node on chains of three sizes: medians of rounds, in which every size
    converts the same number of nodes.
    """
    depths = (167, 667, 2667)
    networks = [
        Network(lambda depth=depth: Chain(depth), NETWORKS["chain_4000"].spec)
        for depth in depths
    ]
    pipelines = [
        functools.partial(
            ours, torch.jit.trace(n.module(), n.sample(2), check_trace=False), n
        )
        for n in networks
    ]
    medians = sizes.medians(
        [functools.partial(seconds, pipeline, clock) for pipeline in pipelines],
        depths,
        runs,
    )
    return [
        {
            "nodes": 3 * depth,
            "seconds": median,
            "microseconds_per_node": median / 3 / depth * 1e6,
        }
        for depth, median in zip(depths, medians, strict=True)
    ]


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", choices=sorted(NETWORKS))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--linear", action="store_true")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    names, runs, clock = options.only or DEFAULT, options.runs, options.clock
    rows = (
        linear(runs, clock)
        if options.linear
        else (compare(name, runs, clock) for name in names)
    )
    for row in rows:
        records.show(row, options.json, 4)


if __name__ == "__main__":
    main()
