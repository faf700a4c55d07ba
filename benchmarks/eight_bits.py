"""The error of networks in reduced precision on goldens from their data and on normal goldens: the
figures behind docs/parity.md, measured on the CPU with the reference.

    python -m benchmarks.eight_bits [--only "U-Net (small)"] [--precision int8]

The data are smooth images from 0 to 1, a fifth of them held out. Activations get their ranges from
the other rows. `noise` and `largest` are the root mean square of the error and its largest element,
relative to the output's root mean square; `by_noise` is the largest error divided by that of as
many normally distributed ones.
"""

from __future__ import annotations

import argparse
import json
import math
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.networks import NETWORKS
from builder import TensorSpec, convert, lower, reference
from builder.parity import compare, to_numpy
from builder.pipeline.calibration import EVERY
from builder.precisions import QUANTIZED
from builder.quantization import quantize
from tests.networks.comparing import eager_of, flat, scripted_of, specs_of
from tests.networks.judging import SHIFT
from tests.networks.small import NETWORKS as SMALL

PRECISIONS = ("int8", "mixed", "fp8", "fp16", "bf16")
ROWS = 25
FAMILIES = (
    "ResNet MobileNetV2 U-Net DeepLab CenterNet ViT Conformer WaveNet Swin ConvNeXt PointNet"
    " Forecaster"
).split()
NAMED = (
    "Feature pyramid",
    "Super-resolution",
    "Autoencoder of volumes",
    "Whisper encoder",
    "Mixture of experts",
)
NAMES = (
    *(f"{name} (small)" for name in (*FAMILIES, *NAMED)),
    "mobilenet_v3",
    "resnet50",
)
"""Networks of one float input."""


def module_of(name: str) -> tuple[Any, list[TensorSpec], torch.Tensor]:
    """The traced module, its inputs, and a sample."""
    if name in NETWORKS:
        network = NETWORKS[name]
        sample = network.sample(2)
        module = torch.jit.trace(network.module(), sample, check_trace=False)
        return module, [network.spec], sample
    small = SMALL[name.removesuffix(" (small)")]
    (sample,) = small.inputs(small.cases[0])
    return scripted_of(small, eager_of(small, SHIFT), "traced"), specs_of(small), sample


def smooth(shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
    """A row from 0 to 1: random values at every eighth position with others between them, noise,
    and a random brightness.
    """
    x = torch.rand(shape, generator=generator)
    if len(shape) == 3:
        coarse = [max(size // 8, 2) for size in shape[1:]]
        low = torch.rand(1, shape[0], *coarse, generator=generator)
        (x,) = torch.nn.functional.interpolate(low, shape[1:], mode="bilinear")
    x = x + 0.05 * torch.randn(shape, generator=generator)
    gain = 0.3 + 0.7 * torch.rand(1, generator=generator)
    return (x * gain).clamp(0, 1)


def rows(name: str, precisions: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """One row for each precision, kind of goldens and output of the network."""
    module, specs, sample = module_of(name)
    generator = torch.Generator().manual_seed(5)
    shape = sample.shape[1:]
    data = torch.stack([smooth(shape, generator) for _ in range(ROWS)])
    held_out = data[EVERY - 1 :: EVERY]
    others = data[[at for at in range(ROWS) if at % EVERY != EVERY - 1]]
    goldens = {
        "held out": held_out,
        "normal": torch.randn(held_out.shape, generator=generator),
    }
    lowered = lower(module, specs=specs)
    for precision in precisions:
        graph = lowered
        if precision in QUANTIZED:
            batches = [[batch] for batch in others.split(4)]
            graph = quantize(lowered, batches, precision).lowered
        conversion = convert(graph, specs, precision=precision)
        for kind, x in goldens.items():
            about = {"network": name, "precision": precision, "goldens": kind}
            with torch.no_grad():
                expected = flat(module(x))
            pairs = zip(reference.run(conversion, [x]), expected, strict=True)
            for got, want in pairs:
                if want.is_floating_point():
                    yield about | measured(got, want, precision)


def measured(got: torch.Tensor, want: torch.Tensor, precision: str) -> dict[str, Any]:
    """The figures of one output."""
    outputs = {"y": to_numpy(got)}
    (y,) = compare(outputs, {"y": to_numpy(want)}, precision=precision).outputs
    rms = float(want.double().square().mean().sqrt())
    largest = (y.absolute or 0.0) / rms
    noise = y.noise or 0.0
    normal = noise * math.sqrt(2 * math.log(2 * want.numel()))
    figures = {
        "noise": noise,
        "largest": largest,
        "by_noise": largest / normal if normal else 0.0,
        "share": y.share or 0.0,
    }
    shown = {key: float(f"{figure:.3g}") for key, figure in figures.items()}
    return {"elements": want.numel(), **shown, "passed": y.passed}


def main() -> None:
    """Print each row as it is measured."""
    parser = argparse.ArgumentParser(
        description=" ".join((__doc__ or "").split("\n\n")[0].split())
    )
    parser.add_argument("--only", action="append", choices=NAMES)
    parser.add_argument("--precision", action="append", choices=PRECISIONS)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in args.only or NAMES:
        for row in rows(name, tuple(args.precision or PRECISIONS)):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
