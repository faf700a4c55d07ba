"""What TensorRT 8.6 refuses of the layers that it shares with 10, 11 and RTX: one table, asked by
dtype.

Seen on an H100 with 8.6.0, whose builder or network said so; the converters ask `takes` and compose
what it does not.
"""

from __future__ import annotations

from builder.engine import flavour

WHOLE = frozenset({"INT32"})
TRUTHS = frozenset({"BOOL"})
REALS = frozenset({"FLOAT", "HALF"})

REFUSED: dict[str, frozenset[str]] = {
    "TOPK": WHOLE,  # "only activation types allowed as input to this layer"
    "UNARY.NEG": WHOLE,  # "operation NEG not allowed on type Int32"
    "ELEMENTWISE.POW": WHOLE,  # "operation POW requires inputs with activation type"
    # "No support for kREFLECT, kFILL, kCLAMP slice mode with Myelin", which alone has bools
    **dict.fromkeys(("SLICE.FILL", "SLICE.CLAMP", "SLICE.REFLECT"), TRUTHS),
    # an average that rounds up divides by the whole window, beyond the padding too
    "POOLING.PADDED_UP": REALS,
    # "only per-tensor quantization for activation tensors" (developer guide)
    "QUANTIZE.CHANNELS": REALS,
    "CONDITIONAL.IN_LOOP": TRUTHS,  # one that gives a bool within a loop ends the process
    # "conditionally dependent shape tensors not supported"
    "CONDITIONAL.SIZES": WHOLE,
    # "No support for kREFLECT, kFILL, kCLAMP slice mode with Myelin", which compiles the bodies of
    # loops
    **dict.fromkeys(
        ("SLICE.FILL.IN_LOOP", "SLICE.CLAMP.IN_LOOP", "SLICE.REFLECT.IN_LOOP"), WHOLE | REALS
    ),
    # rows that a loop writes, chosen by their number: depending on each other they crash the
    # builder, else they mix
    "FILL.IN_LOOP": WHOLE | REALS,
    "QUANTIZE.CLIPPED": REALS,  # a CLIP before a quantisation is answered as if the scale were 1
    # "input/output with DataType Int8 in network without Q/DQ layers must have dynamic range set"
    "INPUT": frozenset({"INT8"}),
    # "output type can not be computed", of a cast to UINT8 and of an identity that is told so
    "OUTPUT": frozenset({"INT8", "UINT8"}),
}
"""By layer (and operation or mode), the DataTypes, by name, that 8.6 does not take."""


def takes(layer: str, dtype: str) -> bool:
    """Whether the TensorRT in use takes a DataType, by name, in a layer (`TOPK`, `UNARY.NEG`,
    ...).
    """
    return flavour.strongly_typed() or dtype not in REFUSED.get(layer, frozenset())
