"""The layers and dtypes that this version refuses or computes incorrectly, with the error messages,
and messages of its builder in error logs.

Observed on an H100 with the messages of 8.6.0's builder or network. Converters check
`ctx.capabilities.takes`, and decompose unsupported operations.
"""

from __future__ import annotations

import re

WHOLE = frozenset({"INT32"})
TRUTHS = frozenset({"BOOL"})
REALS = frozenset({"FLOAT", "HALF"})
ALL = WHOLE | TRUTHS | REALS

REFUSED: dict[str, frozenset[str]] = {
    "TOPK": WHOLE,  # "only activation types allowed as input to this layer"
    "UNARY.NEG": WHOLE,  # "operation NEG not allowed on type Int32"
    "ELEMENTWISE.POW": WHOLE,  # "operation POW requires inputs with activation type"
    # "No support for kREFLECT, kFILL, kCLAMP slice mode with Myelin", which alone has bools
    **dict.fromkeys(("SLICE.FILL", "SLICE.CLAMP", "SLICE.REFLECT"), TRUTHS),
    # "expected shape [2, 0, 0, 32]", where a size is dynamic
    "SLICE.WRAP.DYNAMIC": ALL,
    # two reshapes become one, which then copies the axis of the first one's input
    "SHUFFLE.COPIED_AXIS": ALL,
    # an average that rounds up divides by the whole window, including beyond the padding
    "POOLING.PADDED_UP": REALS,
    # "only per-tensor quantization for activation tensors" (developer guide)
    "QUANTIZE.CHANNELS": REALS,
    # `if ...: break` ends a loop late, and a loop without iterations changes values
    "CONDITIONAL.WITH_LOOP": ALL,
    "RECURRENCE.SWAPPED": ALL,  # `a, b = b, a` in a loop gives other values
    # `a = a / 2; c = a + 1`, where no iteration reads c: its last value is that of another
    # iteration, or the builder crashes
    "RECURRENCE.UNREAD": ALL,
    # a branch whose condition depends on the result of a branch takes the wrong block
    "CONDITIONAL.CHAINED": ALL,
    # "conditionally dependent shape tensors not supported"
    "CONDITIONAL.SIZES": WHOLE,
    # "No support for kREFLECT, kFILL, kCLAMP slice mode with Myelin", which compiles the bodies of
    # loops
    **dict.fromkeys(
        ("SLICE.FILL.IN_LOOP", "SLICE.CLAMP.IN_LOOP", "SLICE.REFLECT.IN_LOOP"),
        WHOLE | REALS,
    ),
    # The indexed rows that a loop writes: if they depend on each other, the builder crashes, else
    # they are mixed up.
    "FILL.IN_LOOP": WHOLE | REALS,
    # "refitUtils.cpp::buildRefitEngine::71 ... Assertion engine failed", for quantized weights with
    # one scale and with a scale for each channel
    "DECONVOLUTION": frozenset({"INT8"}),
    # float32 sums of rounding errors are computed incorrectly after a cast from half: 1.0 // 0.1
    # gives 10 instead of 9
    "ELEMENTWISE.EXACT_REMAINDER": frozenset({"HALF"}),
    # Myelin computes with 1e38 instead of an infinity if all elements of a constant are that
    "CONSTANT.INFINITY": frozenset({"FLOAT"}),
    # the sum of an attention's product and of a product that is computed beside it
    "ELEMENTWISE.PARALLEL_PRODUCTS": REALS,
    "QUANTIZE.CLIPPED": REALS,  # a CLIP before a quantization is computed as if the scale were 1
    # "input/output with DataType Int8 in network without Q/DQ layers must have dynamic range set"
    "INPUT": frozenset({"INT8"}),
    # "output type can not be computed", of a cast to UINT8 and of an identity whose type is set
    "OUTPUT": frozenset({"INT8", "UINT8"}),
}
"""For each layer (with operation or mode, and context), the names of the unsupported DataTypes."""

PADS_IN_LOOP = (
    "TensorRT 8.6 cannot build a loop of unknown length that pads in its body"
)
WRITES_IN_LOOP = (
    "TensorRT 8.6 crashes, or mixes rows up, where a loop of unknown length"
    " writes some of them"
)
BRANCH_AND_LOOP = (
    "the network has a loop of unknown length and a branch: TensorRT 8.6 computes such"
    " networks incorrectly"
)
SWAP_IN_LOOP = (
    "a loop of unknown length exchanges carried values: TensorRT 8.6 computes such loops"
    " incorrectly"
)
UNREAD_IN_LOOP = (
    "a loop of unknown length carries a value that no iteration reads: TensorRT 8.6 computes such"
    " loops incorrectly"
)
CHAINED_BRANCHES = (
    "the condition of a branch depends on the result of another branch: TensorRT 8.6 computes such"
    " networks incorrectly"
)
BRANCH_OF_SIZES = (
    "TensorRT 8.6 cannot build a branch that selects a number computed from sizes (by"
    " {})"
)
NEWER = "use TensorRT 10 or newer"
NEWER_OR_FIXED = f"{NEWER}, or give the loop a fixed trip count"
"""The fix if the body of a loop is refused."""
NEWER_OR_BOTH = f"{NEWER}, or compute both numbers and choose one of them"

HARMLESS = (
    "myelinCache.h::deserializeFromBuffer",
    "The timing cache will not be used!",
)
"""Messages about every timing cache that 8.5 and 8.6 wrote themselves, even if the
build succeeds.
"""

UNCOMPILED = re.compile(r"any implementation for node \{ForeignNode")
"""Myelin, which compiles the layers between two names as one, failed. Observed with GPT-NeoX, whose
attention and feed-forward layers are parallel. With a single sequence length it builds.
"""
