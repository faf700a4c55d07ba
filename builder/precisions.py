"""One table of the precisions that a manifest may request."""

from __future__ import annotations

from typing import NamedTuple


class Precision(NamedTuple):
    """One precision. Dtypes have torch's names."""

    name: str

    half: str | None = None
    """The 16-bit dtype in which products are computed."""

    quantized: str | None = None
    """The 8-bit dtype to which the operands of products are rounded."""

    unquantized: str | None = None
    """The precision of everything that is not rounded to 8 bits; None if nothing is rounded."""

    least_sqnr: float | None = None
    """Minimum signal-to-quantization-noise ratio in dB. A product is not rounded to 8 bits if its
    own rounding leaves a lower one.
    """

    weights_only: bool = False
    """Whether only products with a weight are rounded to 8 bits. Products of two computed tensors
    are mostly those of attention, for which TensorRT has fused kernels in half. In 8 bits TensorRT
    does not fuse them: ViT-B took 1.57 times as long as in fp16 (docs/performance.md).
    """

    aliases: tuple[str, ...] = ()
    """Other names that users write."""


TABLE = (
    Precision("fp32", aliases=("float32", "float")),
    Precision("tf32"),
    Precision("fp16", half="float16", aliases=("float16", "half")),
    Precision("bf16", half="bfloat16", aliases=("bfloat16",)),
    Precision("int8", quantized="int8", unquantized="fp16"),
    Precision("fp8", quantized="float8_e4m3fn", unquantized="fp32"),
    Precision(
        "mixed",
        quantized="int8",
        unquantized="fp16",
        least_sqnr=30.0,
        weights_only=True,
    ),
)

PRECISIONS = tuple(entry.name for entry in TABLE)

FULL = tuple(entry.name for entry in TABLE if not entry.half and not entry.quantized)
"""The precisions with float32 tensors."""

QUANTIZED = tuple(entry.name for entry in TABLE if entry.quantized)
"""The precisions that round operands to 8 bits."""

ALIASES = {alias: entry.name for entry in TABLE for alias in entry.aliases}
