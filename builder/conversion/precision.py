"""The precision policy: which operators compute in half, which in float32, and which follow their
inputs.

TensorRT 10, 11 and RTX are strongly typed, so the policy writes casts into the network: the
floating-point arguments of a node are cast before it is converted. Network inputs and outputs keep
their dtypes. A weakly typed TensorRT chooses precisions itself if a builder flag allows it; there
the network stays float32, and the layers that the policy keeps in float32 are constrained. 8 bits
come from pairs of quantizing nodes in the graph, which builder.quantization inserts and
converters/quantize.py writes.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from builder.conversion.facts import is_tensor
from builder.conversion.packing import Rows
from builder.engine import ITensor, capabilities, trt
from builder.errors import UsageError
from builder.graph_types import Graph, Node
from builder.lowering import FP8_KIND
from builder.precisions import FULL, PRECISIONS, TABLE

if TYPE_CHECKING:
    from builder.conversion.context import ConversionContext


HALF: dict[str, torch.dtype] = {
    entry.name: getattr(torch, entry.half) for entry in TABLE if entry.half
}
"""The precisions that compute in 16 bits."""


@dataclass(frozen=True)
class Scheme:
    """An 8-bit precision: the operands of products are quantized to `dtype`, and everything else
    computes in the precision `unquantized`. A product whose quantization has an SQNR below
    `least_sqnr` dB also does, and with `weights_only` so does a product of two computed tensors.
    """

    dtype: torch.dtype
    unquantized: str
    least_sqnr: float | None = None
    weights_only: bool = False


SCHEMES = {
    entry.name: Scheme(
        getattr(torch, entry.quantized),
        entry.unquantized,
        entry.least_sqnr,
        entry.weights_only,
    )
    for entry in TABLE
    if entry.quantized and entry.unquantized
}

REDUCED = frozenset(
    "_convolution convolution conv1d conv2d conv3d conv_transpose1d conv_transpose2d"
    " conv_transpose3d linear matmul mm bmm addmm baddbmm addbmm addmv mv dot einsum"
    " scaled_dot_product_attention lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell"
    " rnn_relu_cell".split()
)
"""Products. With accumulation in float32, half costs one rounding of each operand. A weakly typed
TensorRT also uses kernels that accumulate in half, if they are faster (`f16f16_f16f16_f16`,
docs/parity.md).
"""

ALWAYS_FLOAT32 = frozenset(
    "softmax _softmax log_softmax _log_softmax layer_norm native_layer_norm group_norm"
    " instance_norm rms_norm sum mean prod cumsum cumprod logsumexp var std var_mean std_mean norm"
    " linalg_vector_norm frobenius_norm dist cdist cosine_similarity exp exp2 expm1 log log2 log10"
    " log1p pow reciprocal rsqrt erf erfc tan sinh cosh grid_sampler grid_sampler_2d"
    " grid_sampler_3d affine_grid_generator topk sort argsort stft".split()
)
"""Statistics, long sums, and functions whose error or range exceeds half precision: always
float32.
"""

FLOAT32_INSIDE = ("NORMALIZATION", "SOFTMAX")
"""Layer types that TensorRT computes in float32 for any input and output dtype
(INormalizationLayer's compute_precision is FLOAT by default; softmax sums in float32). For a weakly
typed TensorRT, constraining their inputs and outputs to float32 would only prevent attention
fusion.
"""

QUANTIZING = frozenset(
    "fake_quantize_per_tensor_affine fake_quantize_per_channel_affine fake_quantize_fp8".split()
)
"""Quantizers accept any dtype and return the dtype of their user: a cast on either side would hide
the pair from TensorRT.
"""


@dataclass(frozen=True)
class Policy:
    """With `half` None all dtypes are those of the module. `keep_fp32`: patterns of layer names
    (fnmatch). `typed`: whether TensorRT is strongly typed, so that casts define the precision; else
    layers are constrained.
    """

    half: torch.dtype | None = None
    keep_fp32: tuple[str, ...] = ()
    typed: bool = True
    masks: frozenset[str] = frozenset()
    """Values of the graph that a cast to `half` limits, because they would be infinite."""

    def dtype(
        self, operator: str, name: str, arguments: SimpleNamespace
    ) -> torch.dtype | None:
        """The dtype to which the floating-point arguments of `operator` (such as `linear`) with
        first layer `name` are cast; None: no cast.
        """
        if self.half is None or not self.typed or operator in QUANTIZING:
            return None
        if self._in_float32(operator, name):
            return torch.float32
        if operator in REDUCED:
            return self.half
        if any(_dtypes(arguments, self.half)):
            return self.half
        return None

    def constrains(self, operator: str, name: str) -> bool:
        """Whether the layers of `operator` must be constrained to float32."""
        return (
            self.half is not None
            and not self.typed
            and self._in_float32(operator, name)
        )

    def leaves_to_tensorrt(self, operator: str, name: str) -> bool:
        """Whether TensorRT may compute `operator` in float16, and chooses itself."""
        chooses = self.half == torch.float16 and not self.typed
        return (
            chooses
            and operator not in QUANTIZING
            and not self._in_float32(operator, name)
        )

    def spared(self, name: str) -> tuple[str, ...]:
        """The layer types that `constrain` does not change; none if the user requested float32 by
        name.
        """
        return () if self._named(name) else FLOAT32_INSIDE

    def _in_float32(self, operator: str, name: str) -> bool:
        return operator in ALWAYS_FLOAT32 or self._named(name)

    def _named(self, name: str) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.keep_fp32)


def policy(precision: str, keep_fp32: tuple[str, ...] = ()) -> Policy:
    """The policy for a manifest's `precision`. Raises UsageError if this TensorRT does not support
    it.
    """
    from builder.conversion import quantized

    scheme = SCHEMES.get(precision)
    reason = quantized.missing(scheme.dtype) if scheme else None
    if reason:
        raise UsageError(
            f"precision {precision!r}: {reason}",
            fix="use precision: int8 or mixed, or another --flavor",
        )
    computed = unquantized(precision)
    if computed in FULL:
        return Policy()
    if computed in HALF:
        return Policy(
            _half(precision, HALF[computed]),
            keep_fp32,
            capabilities.current().strongly_typed,
        )
    raise UsageError(
        f"unknown precision {precision!r}", fix=f"use one of {', '.join(PRECISIONS)}"
    )


def unquantized(precision: str) -> str:
    """The precision of all values that are not quantized, such as `fp16` for `mixed`."""
    scheme = SCHEMES.get(precision)
    return scheme.unquantized if scheme else precision


def reduces(precision: str) -> bool:
    """Whether the precision uses float16 or bfloat16."""
    return unquantized(precision) in HALF


def _half(precision: str, dtype: torch.dtype) -> torch.dtype:
    """The dtype, if this TensorRT supports it. A version without bfloat16 would silently compute in
    float32.
    """
    from builder.conversion import dtypes
    from builder.conversion.unconvertible import Unconvertible

    try:
        dtypes.to_trt(dtype)
    except Unconvertible as missing:
        raise UsageError(
            f"precision {precision!r}: {missing.reason}", fix="use precision: fp16"
        ) from missing
    return dtype


def quantizes(graph: Graph) -> bool:
    """Whether the graph has quantization to 8 bits."""
    kinds = (
        "aten::fake_quantize_per_tensor_affine",
        "aten::fake_quantize_per_channel_affine",
        FP8_KIND,
    )
    return any(graph.findNode(kind) is not None for kind in kinds)


def constrain(net: Any, first: int, spared: tuple[str, ...]) -> None:
    """For a weakly typed TensorRT, constrain the floating-point layers from index `first` on to
    float32, except those of the types `spared`.
    """
    for index in range(first, net.num_layers):
        layer = net.get_layer(index)
        free = layer.type.name in ("CONSTANT", *spared)
        if not free and layer.get_output(0).dtype == trt.DataType.FLOAT:
            layer.precision = trt.DataType.FLOAT


def _dtypes(arguments: SimpleNamespace, half: torch.dtype) -> Any:
    """For each computed tensor argument, whether it is already half."""
    for value in vars(arguments).values():
        items = value if isinstance(value, list) else [value]
        for item in items:
            tensor = item.padded if isinstance(item, Rows) else item
            if is_tensor(tensor):
                yield _is(tensor, half)


def _is(tensor: ITensor, half: torch.dtype) -> bool:
    from builder.conversion import dtypes

    return dtypes.from_trt(tensor.dtype) == half


def computed(
    ctx: ConversionContext,
    policy: Policy,
    operator: str,
    name: str,
    arguments: SimpleNamespace,
) -> torch.dtype | None:
    """The dtype to which the policy casts the arguments: float32 for a product of 8-bit operands if
    half does not have one of their scales. TensorRT wants both scales in one dtype.
    """
    from builder.conversion import quantized

    dtype = policy.dtype(operator, name, arguments)
    if dtype is None or dtype != policy.half or operator not in REDUCED:
        return dtype
    for value in vars(arguments).values():
        if not is_tensor(value):
            continue
        source = ctx.facts(value).quantized
        if source and not quantized.fits(source.scale, dtype):
            return torch.float32
    return dtype


MASKED = -1.5 * 2.0**15
"""Where a mask of float32 in half ends. Its rounding step is 32, so the sum with scores up to 16 is
the same for all, as in float32; and no score makes it infinite.
"""


def limited(ctx: ConversionContext, mask: ITensor, *, typed: bool) -> ITensor:
    """The mask, with finite elements of at least MASKED. A softmax of a row whose elements are all
    infinite in half would be NaN, unlike in the module.

    A weakly typed TensorRT limits the infinite ones, too: a comparison has no output of float32
    that could be constrained, and in half all of them would be infinite.
    """
    if not typed:
        return ctx.elementwise("MAX", mask, ctx.like_scalar(mask, MASKED))
    infinite = ctx.elementwise("EQUAL", mask, ctx.like_scalar(mask, -torch.inf))
    finite = ctx.elementwise("MAX", mask, ctx.like_scalar(mask, MASKED))
    return ctx.net.add_select(infinite, mask, finite).get_output(0)


def limit_masks(
    ctx: ConversionContext, node: Node, values: Sequence[Any], policy: Policy
) -> list[Any]:
    """The values of a node's inputs. The float32 ones among the policy's masks are limited; for a
    weakly typed TensorRT in layers that are constrained to float32, because in half the masks would
    be infinite before.
    """
    first = ctx.net.num_layers
    names = [value.debugName() for value in node.inputs()]
    results = [
        limited(ctx, value, typed=policy.typed)
        if name in policy.masks and _is_float32(value)
        else value
        for name, value in zip(names, values, strict=True)
    ]
    if not policy.typed:
        constrain(ctx.net, first, ())
    return results


def joins_mask(
    ctx: ConversionContext, node: Node, values: Sequence[Any], policy: Policy
) -> bool:
    """Whether the node reads masks of the policy and other float32 values, as a sum with scores."""
    names = [value.debugName() for value in node.inputs()]
    masks = [
        name in policy.masks
        for name, value in zip(names, values, strict=True)
        if _is_float32(value)
    ]
    return any(masks) and not all(masks)


def adds_masks(node: Node, policy: Policy) -> bool:
    """Whether the node adds masks of the policy, whose sum may be infinite in half."""
    tensors = [v for v in node.inputs() if v.type().kind() == "TensorType"]
    masks = [v for v in tensors if v.debugName() in policy.masks]
    return len(masks) > 1 and masks == tensors


def _is_float32(value: object) -> bool:
    return is_tensor(value) and _is(value, torch.float32)


def touches_mask(node: Node, policy: Policy) -> bool:
    """Whether the node reads or computes a mask of the policy."""
    values = (*node.inputs(), *node.outputs())
    return any(value.debugName() in policy.masks for value in values)


def apply(
    ctx: ConversionContext, arguments: SimpleNamespace, dtype: torch.dtype
) -> None:
    """Cast the floating-point tensors among the arguments, in place. A warning names a constant
    that overflows half.
    """
    for name, value in vars(arguments).items():
        if isinstance(value, list):
            setattr(
                arguments, name, [_cast(ctx, element, dtype, name) for element in value]
            )
        else:
            setattr(arguments, name, _cast(ctx, value, dtype, name))


def _cast(ctx: ConversionContext, value: object, dtype: torch.dtype, name: str) -> Any:
    if isinstance(value, torch.Tensor):
        return _constant(ctx, value, dtype, name)
    if isinstance(value, Rows):
        return replace(value, padded=_cast(ctx, value.padded, dtype, name))
    if is_tensor(value) and ctx.dtype(value).is_floating_point:
        return _tensor(ctx, value, dtype)
    if _becomes_constant(value, name):
        number: Any = value
        narrow = _narrowed(ctx, torch.tensor(float(number)), dtype, name)
        if narrow is not None:
            return narrow.item()
    return value


def overflows(
    ctx: ConversionContext, operator: str, arguments: SimpleNamespace, half: torch.dtype
) -> bool:
    """For a weakly typed TensorRT: whether a constant exceeds the range of `half`, so that the node
    must stay in float32. The fill value of a mask is replaced by the largest `half`, because -3e38
    in float32 would be -inf in half. A warning names both cases.
    """
    values = vars(arguments)
    if not any(
        is_tensor(value) and ctx.dtype(value).is_floating_point
        for value in values.values()
    ):
        return False
    is_beyond = False
    for name, value in values.items():
        is_number = _becomes_constant(value, name)
        wide = torch.tensor(float(value)) if is_number else value
        if not isinstance(wide, torch.Tensor):
            continue
        narrow = _narrowed(ctx, wide, half, name)
        if narrow is None:
            continue
        if is_number and operator == "masked_fill":
            setattr(arguments, name, narrow.item())
        else:
            is_beyond = True
    return is_beyond


def _becomes_constant(value: object, name: str) -> bool:
    """Whether the number becomes a constant of the tensors' dtype."""
    return isinstance(value, float) or (isinstance(value, int) and name in OPERANDS)


OPERANDS = ("other", "value")
"""Arguments that are operands even if they are integers; other integers are axes and sizes.
"""


def _tensor(ctx: ConversionContext, tensor: ITensor, dtype: torch.dtype) -> Any:
    """The tensor in `dtype`: its original before it was widened, or dequantized again, else a cast
    layer.
    """
    from builder.conversion import quantized

    if ctx.dtype(tensor) == dtype:
        return tensor
    narrow = ctx.facts(tensor).wide_of
    if narrow is not None and ctx.dtype(narrow) == dtype:
        return narrow
    dequantized = quantized.dequantize_again(ctx, tensor, dtype)
    if dequantized is None:
        return ctx.cast(tensor, dtype)
    return dequantized


def _constant(
    ctx: ConversionContext, value: torch.Tensor, dtype: torch.dtype, name: str
) -> torch.Tensor:
    if not value.is_floating_point():
        return value
    narrow = _narrowed(ctx, value, dtype, name)
    if narrow is None:
        return value.to(dtype)
    return narrow


def _narrowed(
    ctx: ConversionContext, value: torch.Tensor, dtype: torch.dtype, name: str
) -> torch.Tensor | None:
    """The constant in `dtype`, with a warning, if finite values exceed its range; else None."""
    if not value.is_floating_point() or not value.numel():
        return None
    # aminmax makes no copies of large weights
    low, high = (bound.item() for bound in value.aminmax())
    most = max(-low, high)
    if most <= torch.finfo(dtype).max or not bool(
        (torch.isinf(value.to(dtype)) & torch.isfinite(value)).any()
    ):
        return None
    ctx.warn(
        f"`{name}` has values beyond {dtype}'s range ({most:.3g}): keep this node in float32"
    )
    return _saturated(value, dtype)


def _saturated(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Clamp finite values to the range of `dtype`. Attention masks use the smallest float32, and
    softmax of a fully masked row of infinities would be NaN, unlike in the module.
    """
    most = torch.finfo(dtype).max
    return torch.where(value.isinf(), value, value.clamp(-most, most)).to(dtype)
