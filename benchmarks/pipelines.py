"""The two pipelines from a module to a plan: trt-build, and torch.onnx.export with TensorRT's ONNX
parser.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.networks import NETWORKS, Chain, Network, normalized

PlanAndFacts = tuple[bytes, dict[str, Any]]
"""A plan and its facts: layers of the network, layers of the engine, seconds."""


class Refused(Exception):
    """The ONNX parser's engine is not available for comparison; the message is the reason."""


def export(folder: Path, name: str) -> Path:
    """Export the network to an ONNX file (opset 17, dynamic batch, the same seeded weights), unless
    it exists.

    The module is exported, not its trace: for a trace the exporter does not know the ranks that it
    needs.
    """
    from filelock import FileLock

    folder.mkdir(parents=True, exist_ok=True)
    path, network = folder / f"{name}.onnx", NETWORKS[name]
    with FileLock(f"{path}.lock"):
        if not path.exists():
            module, sample = network.module(), network.sample(2)
            axes = {"x": {0: "batch"}, "y": {0: "batch"}}
            torch.onnx.export(
                module,
                (sample,),
                f"{path}.part",
                dynamo=False,
                opset_version=17,
                input_names=["x"],
                output_names=["y"],
                dynamic_axes=axes,
            )
            os.replace(f"{path}.part", path)
    return path


def trace(network: Network) -> Any:
    """Trace the module: both methods start from the trace."""
    return torch.jit.trace(network.module(), network.sample(2), check_trace=False)


def warm_up() -> None:
    """Start CUDA and load TensorRT and trt-build, so that these seconds count for no network."""
    import builder
    from builder.engine import build

    image = builder.TensorSpec("float32", (1, 8, 8, 8), name="x")
    chain = torch.jit.trace(
        torch.nn.Sequential(Chain(1), normalized(8, 8, 1)).eval(),
        torch.randn(1, 8, 8, 8),
    )
    build(builder.convert(chain, [image]))


def ours(
    network: Network, precision: str, level: int | None, cache: Path
) -> PlanAndFacts:
    """Lower, convert and build. The timing cache is read if it exists, and the measurements are
    merged into it.
    """
    import builder
    from builder.engine import build
    from builder.engine.build import BuildOptions

    traced, warm = trace(network), cache.exists()
    started = time.monotonic()
    conversion = builder.convert(traced, [network.spec], precision=precision)
    converted = time.monotonic() - started
    plan = build(conversion, BuildOptions(timing_cache=cache, optimization_level=level))
    seconds = {
        "convert_s": round(converted, 3),
        "warm_s" if warm else "cold_s": plan.facts["build_seconds"],
    }
    return plan.data, {"layers": conversion.network.num_layers, **seconds}


def onnx(
    path: Path,
    network: Network,
    precision: str,
    level: int | None,
    cache: Path,
    profiles: Sequence[Mapping[str, tuple[int, int, int]]] = (),
) -> PlanAndFacts:
    """Build the parser's network with the same flags and timing cache.

    Layers that both networks share are then built from the same tactics, so a difference in time
    comes from the networks. `profiles` are sizes (minimum, optimum, maximum) of the dynamic axes;
    by default those of the network.
    """
    from builder.engine import capabilities
    from builder.engine.flavor import trt
    from builder.engine.network import logger, new_network

    # it would be float32, which cannot be compared with half precision
    if precision == "fp16" and capabilities.current().strongly_typed:
        raise Refused(
            f"TensorRT {trt.__version__} computes in the file's types, and the exported file is"
            " float32"
        )
    trt_builder, net, messages = new_network()
    parser = trt.OnnxParser(net, logger())
    assert parser.parse(path.read_bytes()), parser.get_error(0).desc()
    config = trt_builder.create_builder_config()
    (config.set_flag if precision == "tf32" else config.clear_flag)(
        trt.BuilderFlag.TF32
    )
    if precision == "fp16":
        config.set_flag(trt.BuilderFlag.FP16)
    if level is not None:
        config.builder_optimization_level = level
    for dims in profiles or [network.spec.dims]:
        profile = trt_builder.create_optimization_profile()
        profile.set_shape("x", *(network.spec.at(dims, which) for which in range(3)))
        config.add_optimization_profile(profile)
    measured = config.create_timing_cache(cache.read_bytes() if cache.exists() else b"")
    config.set_timing_cache(measured, ignore_mismatch=False)
    started = time.monotonic()
    plan = trt_builder.build_serialized_network(net, config)
    if plan is None:
        raise Refused(
            next(
                (
                    message
                    for message in reversed(messages)
                    if "cuda" not in message.lower()
                ),
                "no engine, no reason",
            )
        )
    seconds = round(time.monotonic() - started, 3)
    cache.write_bytes(bytes(config.get_timing_cache().serialize()))
    return bytes(plan), {"layers": net.num_layers, "shared_cache_s": seconds}
