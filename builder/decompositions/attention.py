"""Attention, and the fused layers of torch.nn around it."""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch
from torch import Tensor

from builder.decompositions.registry import decomposition


def without_dropout(arguments: SimpleNamespace) -> str | None:
    """without dropout"""
    if arguments.dropout_p == 0:
        return None
    return (
        "dropout_p > 0 is random, so its output cannot be compared with a golden; call it with"
        " dropout_p=self.p if self.training else 0.0"
    )


def masked(scores: Tensor, mask: Tensor) -> Tensor:
    # a bool mask is true for the keys to keep; another mask is added
    if mask.dtype == torch.bool:
        scores = torch.masked_fill(scores, torch.logical_not(mask), -math.inf)
    else:
        scores = scores + mask
    return scores


def softmax_or_zeros(scores: Tensor) -> Tensor:
    # the softmax of a row of -inf would be NaN
    empty = torch.amax(scores, [-1], True) == -math.inf
    return torch.masked_fill(torch.softmax(scores, -1), empty, 0.0)


@decomposition("aten::scaled_dot_product_attention", when=without_dropout)
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Tensor:
    """softmax(query key^T scale + mask) value; zeros in a row whose keys are all masked"""
    if scale is None:
        factor = float(query.size(-1)) ** -0.5
    else:
        factor = scale
    if enable_gqa:
        k = torch.repeat_interleave(key, query.size(-3) // key.size(-3), -3)
        v = torch.repeat_interleave(value, query.size(-3) // value.size(-3), -3)
    else:
        k = key
        v = value
    scores = torch.matmul(query * factor, torch.transpose(k, -2, -1))
    if is_causal:
        rows = torch.arange(query.size(-2), device="cpu").unsqueeze(1)
        columns = torch.arange(key.size(-2), device="cpu").unsqueeze(0)
        scores = torch.masked_fill(scores, rows < columns, -math.inf)
    if attn_mask is not None:
        weights = softmax_or_zeros(masked(scores, attn_mask))
    else:
        weights = torch.softmax(scores, -1)
    return torch.matmul(weights, v)


def heads(x: Tensor, num_heads: int) -> Tensor:
    return x.reshape([x.size(0), x.size(1), num_heads, -1]).transpose(1, 2)


def projected(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weight: Tensor,
    bias: Tensor,
    embed_dim: int,
    num_heads: int,
) -> tuple[Tensor, Tensor, Tensor]:
    # the rows of `weight` and `bias` are those for the query, the key, and the value
    d = embed_dim
    q = heads(torch.ops.aten.linear(query, weight[:d], bias[:d]), num_heads)
    k = heads(torch.ops.aten.linear(key, weight[d : 2 * d], bias[d : 2 * d]), num_heads)
    v = heads(torch.ops.aten.linear(value, weight[2 * d :], bias[2 * d :]), num_heads)
    return q, k, v


def attend(q: Tensor, k: Tensor, mask: Tensor | None, mask_type: int | None) -> Tensor:
    # mask_type 0: (queries, keys), 1: (batch, keys), 2: (batch, heads, queries, keys). A mask that
    # is not bool masks its nonzero positions.
    scores = torch.matmul(q * float(q.size(-1)) ** -0.5, k.transpose(-2, -1))
    if mask is not None:
        hidden = mask.to(torch.bool)
        if mask_type is not None:
            if mask_type == 1:
                hidden = hidden.unsqueeze(1).unsqueeze(1)
        scores = torch.masked_fill(scores, hidden, -math.inf)
    return torch.softmax(scores, -1)


def merged(weights: Tensor, v: Tensor) -> Tensor:
    x = torch.matmul(weights, v).transpose(1, 2)
    return x.reshape([x.size(0), x.size(1), -1])


@decomposition("aten::_native_multi_head_attention")
def native_multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None,
    need_weights: bool,
    average_attn_weights: bool,
    mask_type: int | None,
) -> tuple[Tensor, Tensor]:
    """The fused attention of nn.MultiheadAttention in evaluation mode"""
    q, k, v = projected(query, key, value, qkv_weight, qkv_bias, embed_dim, num_head)
    weights = attend(q, k, mask, mask_type)
    result = torch.ops.aten.linear(merged(weights, v), proj_weight, proj_bias)
    if need_weights:
        if average_attn_weights:
            shown = torch.mean(weights, [1])
        else:
            shown = weights
    else:
        shown = torch.zeros([0], device="cpu")
    return result, shown


def normalized_if(
    condition: bool, x: Tensor, width: int, weight: Tensor, bias: Tensor, eps: float
) -> Tensor:
    if condition:
        x = torch.layer_norm(x, [width], weight, bias, eps)
    return x


def mlp(
    x: Tensor,
    weight_1: Tensor,
    bias_1: Tensor,
    weight_2: Tensor,
    bias_2: Tensor,
    use_gelu: bool,
) -> Tensor:
    x = torch.ops.aten.linear(x, weight_1, bias_1)
    if use_gelu:
        x = torch.ops.aten.gelu(x)
    else:
        x = torch.relu(x)
    x = torch.ops.aten.linear(x, weight_2, bias_2)
    return x


@decomposition("aten::_transformer_encoder_layer_fwd")
def transformer_encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None,
    mask_type: int | None,
) -> Tensor:
    """The fused layer of nn.TransformerEncoder in evaluation mode"""
    x = normalized_if(norm_first, src, embed_dim, norm_weight_1, norm_bias_1, eps)
    q, k, v = projected(x, x, x, qkv_weight, qkv_bias, embed_dim, num_heads)
    weights = attend(q, k, mask, mask_type)
    x = src + torch.ops.aten.linear(merged(weights, v), proj_weight, proj_bias)
    x = normalized_if(not norm_first, x, embed_dim, norm_weight_1, norm_bias_1, eps)
    y = normalized_if(norm_first, x, embed_dim, norm_weight_2, norm_bias_2, eps)
    x = x + mlp(y, ffn_weight_1, ffn_bias_1, ffn_weight_2, ffn_bias_2, use_gelu)
    return normalized_if(not norm_first, x, embed_dim, norm_weight_2, norm_bias_2, eps)
