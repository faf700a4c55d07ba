"""How much of each default tolerance real networks need: the figures behind docs/parity.md,
measured on the CPU.

    python -m benchmarks.tolerances [--only resnet50] [--batch 1]

Each network is run by torch with its arithmetic rounded as the precision rounds it: for tf32 the
operands of every product to 10 bits of mantissa, for fp16 and bf16 the operands of every product
and the result of every operator that the policy does not keep in float32; sums stay in float32, as
in TensorRT's kernels. For fp32 the truth is float64. `needed` is the least tolerance, as a share of
the default, with which every element would have passed; `noise` the root mean square of the error
relative to the output's.
"""

from __future__ import annotations

import argparse
import json
import warnings
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.networks import NETWORKS
from builder.conversion.precision import ALWAYS_FLOAT32, HALF, REDUCED
from builder.parity.tolerances import default_tolerance

PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
MOVES = (
    "view",
    "reshape",
    "permute",
    "transpose",
    "expand",
    "slice",
    "select",
    "cat",
    "t",
    "unsqueeze",
    "squeeze",
)


class Rounded(TorchDispatchMode):
    """Runs every operator with operands and results rounded to the precision."""

    def __init__(self, precision: str) -> None:
        super().__init__()
        self.precision = precision

    def __torch_dispatch__(
        self, operator: Any, types: Any, arguments: Any = (), named: Any = None
    ) -> Any:
        name = operator.overloadpacket.__name__.strip("_")
        product = (
            name in REDUCED or name == "scaled_dot_product_flash_attention_for_cpu"
        )
        if product:
            arguments = [self._tree(argument) for argument in arguments]
        result = operator(*arguments, **(named or {}))
        stays = self.precision == "tf32" or name in ALWAYS_FLOAT32 or name in MOVES
        return result if stays else self._tree(result)

    def _tree(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return rounded(value, self.precision)
        return (
            type(value)(map(self._tree, value))
            if isinstance(value, (list, tuple))
            else value
        )


def rounded(tensor: torch.Tensor, precision: str) -> torch.Tensor:
    """Return the float32 tensor's values rounded to the precision, in float32."""
    if tensor.dtype != torch.float32:
        return tensor
    if precision in HALF:
        return tensor.to(HALF[precision]).to(torch.float32)
    bits = tensor.contiguous().view(torch.int32)
    # round to nearest even at 10 bits
    return ((bits + 0x0FFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)


def row(name: str, precision: str, batch: int) -> dict[str, Any]:
    """Return the required tolerances of one network in one precision."""
    network = NETWORKS[name]
    module, x = network.module(), network.sample(batch)
    with torch.inference_mode():
        truth = (
            module(x)
            if precision != "fp32"
            else module.double()(x if network.high else x.double())
        )
    with torch.no_grad():
        if precision == "fp32":
            output = network.module()(x)
        else:
            with Rounded(precision):
                output = module(x)
    truth, error = truth.double(), (output.double() - truth.double()).abs()
    rms, wanted = truth.square().mean().sqrt(), default_tolerance("float32", precision)
    allowed = (wanted.atol or 0) * rms + (wanted.rtol or 0) * truth.abs()
    return {
        "network": name,
        "precision": precision,
        "needed": round(float((error / allowed).max()), 4),
        "noise": float(f"{float(error.square().mean().sqrt() / rms):.3g}"),
        "worst_by_rms": float(f"{float(error.max() / rms):.3g}"),
    }


def main() -> None:
    """Print each row as it is measured."""
    parser = argparse.ArgumentParser(
        description=" ".join((__doc__ or "").split("\n\n")[0].split())
    )
    parser.add_argument("--only", action="append", choices=sorted(NETWORKS))
    parser.add_argument("--batch", type=int, default=1)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in args.only or NETWORKS:
        for precision in PRECISIONS:
            print(json.dumps(row(name, precision, args.batch)), flush=True)


if __name__ == "__main__":
    main()
