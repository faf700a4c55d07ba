"""One table of the precisions that a manifest may request."""

from __future__ import annotations

from typing import NamedTuple


class Precision(NamedTuple):
    """One precision. Dtypes have torch's names."""

    name: str

    half: str | None = None
    """The dtype of 16 bits in which products compute."""

    quantized: str | None = None
    """The dtype of 8 bits that the operands of products are rounded to."""

    rest: str | None = None
    """The precision of all that is not rounded to 8 bits; None if nothing is rounded."""

    least_sqnr: float | None = None
    """In dB: a product whose own rounding leaves a lower signal-to-quantization-noise ratio is not
    rounded to 8 bits."""

    aliases: tuple[str, ...] = ()
    """Other words that users write."""


TABLE = (
    Precision("fp32", aliases=("float32", "float")),
    Precision("tf32"),
    Precision("fp16", half="float16", aliases=("float16", "half")),
    Precision("bf16", half="bfloat16", aliases=("bfloat16",)),
    Precision("int8", quantized="int8", rest="fp16"),
    Precision("fp8", quantized="float8_e4m3fn", rest="fp32"),
    Precision("mixed", quantized="int8", rest="fp16", least_sqnr=30.0),
)

PRECISIONS = tuple(entry.name for entry in TABLE)

FULL = tuple(entry.name for entry in TABLE if not entry.half and not entry.quantized)
"""The precisions that keep float32 in memory."""

ALIASES = {alias: entry.name for entry in TABLE for alias in entry.aliases}
