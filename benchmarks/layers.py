"""Layers of our network and of the ONNX parser's for the same module: `python -m benchmarks.layers
--onnx FOLDER`.

Needs no GPU where TensorRT-RTX is installed; `--precision fp16` writes our casts. One row for
each network: the number of layers of each type in each pipeline, without those that both have.
"""

from __future__ import annotations

import argparse
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from benchmarks.networks import NETWORKS


def count(network: Any) -> Counter[str]:
    """The number of layers of each type. Element-wise, unary and activation layers count by
    operation.
    """
    return Counter(
        _kind(network.get_layer(index)) for index in range(network.num_layers)
    )


def _kind(layer: Any) -> str:
    return str(layer.type).rpartition(".")[2].lower()


def ours(name: str, precision: str) -> Any:
    """Return trt-build's Conversion of a traced network."""
    import builder

    network = NETWORKS[name]
    traced = torch.jit.trace(network.module(), network.sample(2), check_trace=False)
    return builder.convert(traced, [network.spec], precision=precision)


def theirs(path: Path) -> tuple[Any, ...]:
    """Return (builder, network, parser) of the ONNX parser: the network is valid while all three
    exist.
    """
    from builder.engine.flavor import trt
    from builder.engine.network import logger, new_network

    trt_builder, network, _ = new_network()
    parser = trt.OnnxParser(network, logger())
    assert parser.parse_from_file(str(path)), parser.get_error(0).desc()
    return trt_builder, network, parser


def main() -> None:
    """Print one line for each network and method."""
    parser = argparse.ArgumentParser(
        description=" ".join((__doc__ or "").split("\n\n")[0].split())
    )
    parser.add_argument("--onnx", type=Path, default=Path("/tmp/onnx"))
    parser.add_argument("--only", action="append", choices=sorted(NETWORKS))
    parser.add_argument("--precision", default="fp32")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in options.only or NETWORKS:
        file = options.onnx / f"{name}.onnx"
        if not file.exists():
            continue
        conversion, parsed = ours(name, options.precision), theirs(file)
        own, other = count(conversion.network), count(parsed[1])
        print(f"{name}: ours {own.total()}, onnx {other.total()}")
        print(
            "   only ours:",
            dict((own - other).most_common()),
            "only onnx:",
            dict((other - own).most_common()),
        )


if __name__ == "__main__":
    main()
