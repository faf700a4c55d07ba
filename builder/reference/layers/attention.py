"""IAttention, rotary embedding, and key and value caches. IAttention is two layers; its input layer
has all tensors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from builder.engine import ILayer
from builder.reference.dtypes import REDUCED, in_float32
from builder.reference.registry import evaluates


@evaluates("ATTENTION_INPUT")
def attention(layer: ILayer, *operands: Tensor) -> Tensor:
    """normalize(query x key^T + mask) x value, of (B, Hq, Sq, D), (B, Hkv, Skv, D) twice. Hq is a
    multiple of Hkv.

    A bool mask is true where attention is allowed; other masks are added. The caller applies the
    scale, because TensorRT has none. Computed in float32, rounded once to the query's dtype.
    """
    options = layer.attention
    _only_padded(options)
    value_of = {id(layer.get_input(i)): value for i, value in enumerate(operands)}
    wide = [
        operand.float() if operand.dtype in REDUCED else operand
        for operand in operands[:3]
    ]
    query, key, value = wide
    groups = query.shape[1] // key.shape[1]
    key = key.repeat_interleave(groups, dim=1)
    value = value.repeat_interleave(groups, dim=1)
    scores = query @ key.mT
    allowed = _allowed(options, scores)
    if options.mask is not None:
        mask = value_of[id(options.mask)]
        if mask.dtype == torch.bool:
            allowed = mask
        else:
            scores = scores + mask.float()
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -torch.inf)
    if options.norm_op.name == "SOFTMAX":
        scores = torch.softmax(scores, -1)
    return (scores @ value).to(operands[0].dtype)


def _only_padded(options: object) -> None:
    forms = [
        getattr(options, name).name
        for name in ("query_form", "key_value_form")
        if hasattr(options, name)
    ]
    if any(form != "PADDED_BHND" for form in forms):
        raise ValueError("the reference does not evaluate packed sequences")
    for name in ("normalization_quantize_scale", "key_value_lengths", "query_lengths"):
        if getattr(options, name, None) is not None:
            raise ValueError(f"attention with {name} has no evaluation")


def _allowed(options: Any, scores: Tensor) -> Tensor | None:
    """Which keys each query may attend to: those up to its own position, aligned at the upper left
    or the lower right corner.
    """
    if hasattr(options, "causal_kind"):
        kind = options.causal_kind.name
    else:
        kind = "UPPER_LEFT" if options.causal else "NONE"
    if kind == "NONE":
        return None
    queries, keys = scores.shape[-2:]
    shift = keys - queries if kind == "LOWER_RIGHT" else 0
    return torch.ones(queries, keys, dtype=torch.bool).tril(shift)


@evaluates("ATTENTION_OUTPUT")
def attention_output(layer: ILayer, x: Tensor) -> Tensor:
    """The result of the input layer of the same IAttention."""
    return x


@evaluates("ROTARY_EMBEDDING")
@in_float32
def rotary_embedding(
    layer: ILayer, x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None = None
) -> Tensor:
    """The first `rotary_embedding_dim` (0: all) elements of x's last axis, with each pair rotated
    by its position's angle.

    x is (B, N, S, H). cos and sin are (B, S, H / 2), or (positions, H / 2) indexed by positions (B,
    S). If `interleaved`, a pair is two adjacent elements, else an element of the first half and the
    corresponding one of the second half.
    """
    turned = layer.rotary_embedding_dim or x.shape[-1]
    if positions is not None:
        cos = cos[positions.long()]
        sin = sin[positions.long()]
    cos = cos.unsqueeze(1)
    sin = sin.unsqueeze(1)
    head = x[..., :turned]
    unrotated = x[..., turned:]
    half = turned // 2
    if layer.interleaved:
        pairs = head.reshape(*head.shape[:-1], half, 2)
    else:
        pairs = head.reshape(*head.shape[:-1], 2, half).mT
    a = pairs[..., 0]
    b = pairs[..., 1]
    x = a * cos - b * sin
    y = a * sin + b * cos
    rotated = torch.stack([x, y], dim=-1)
    if not layer.interleaved:
        rotated = rotated.mT
    return torch.cat([rotated.flatten(-2), unrotated], dim=-1)


@evaluates("KV_CACHE_UPDATE")
def kv_cache_update(
    layer: ILayer,
    cache: Tensor,
    update: Tensor,
    starts: Tensor,
    lengths: Tensor | None = None,
) -> Tensor:
    """The cache (B, N, Smax, H) with update (B, N, S, H) written from position starts[b] on for
    each batch item.
    """
    if hasattr(layer, "update_form") and layer.update_form.name != "PADDED_BHND":
        raise ValueError("the reference does not evaluate packed sequences")
    result = cache.clone()
    for item, start in enumerate(starts.tolist()):
        if start < 0 or start + update.shape[2] > cache.shape[2]:
            raise ValueError(
                f"an update of {update.shape[2]} from {start} on does not fit {cache.shape[2]}"
            )
        result[item, :, start : start + update.shape[2]] = update[item]
    return result
