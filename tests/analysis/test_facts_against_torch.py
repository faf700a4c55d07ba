"""Inferred facts of operators' results agree with torch's results for random tensors."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from builder.analysis import Facts
from builder.lowering.passes.dtypes import bottom_up

DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
)
COMMON = (torch.float32, torch.int64, torch.bool, torch.float16, torch.float64)
MOST_DRAWS = 300
"""Random inputs for one call. torch rejects most of those of layers."""

# Calls of the tensors a, b and c, the numbers m and n, the fraction f, and the flag k.
ELEMENTWISE = """
    a + b; a - b; a * b; a / b; a // b; a % b; a + 1; a + 1.5; a * n; a * f; a / 2; 1 - a; 1.5 - a
    torch.rsub(a, 1); torch.rsub(a, 1.5); torch.pow(a, b); torch.pow(a, 2); torch.pow(a, 2.0)
    torch.pow(2, a); torch.pow(2.5, a)
    a == b; a != 1; a < b; a >= 1.5; torch.eq(a, n); torch.isnan(a); torch.isinf(a)
    torch.logical_and(a, b); torch.logical_xor(a, b); torch.logical_not(a); torch.isfinite(a)
    a & b; a | b; a ^ b; torch.bitwise_not(a); torch.bitwise_and(a, 1)
    torch.maximum(a, b); torch.minimum(a, b); torch.where(a, b, c); torch.where(a, b, 1)
    torch.where(a, b, 1.5); torch.where(a, 1.5, 2); torch.remainder(a, b); torch.remainder(a, 2)
    torch.remainder(a, 2.5); torch.fmod(a, 1.5); torch.floor_divide(a, b); torch.atan2(a, b)
    a.masked_fill(b, 1.5); a.masked_fill(b, c); torch.addcmul(a, b, c); torch.lerp(a, b, c)
    torch.div(a, b, rounding_mode="floor"); torch.div(a, 2, rounding_mode="trunc")
    torch.clamp(a, 0, 1); torch.clamp(a, 0.5, 1.5); torch.clamp(a, b, c); torch.clamp_min(a, 0.5)
    torch.exp(a); torch.sqrt(a); torch.rsqrt(a); torch.abs(a); torch.neg(a); torch.sign(a)
    torch.floor(a); torch.round(a); torch.sigmoid(a); torch.tanh(a); torch.relu(a); torch.square(a)
    torch.nn.functional.gelu(a); torch.nn.functional.silu(a); torch.nn.functional.hardtanh(a)
    torch.nn.functional.leaky_relu(a); torch.reciprocal(a); torch.erf(a); torch.real(a)
    torch.addcdiv(a, b, c); torch.hypot(a, b); torch.copysign(a, b); torch.nan_to_num(a)
    torch.multiply(a, b); torch.true_divide(a, b); torch.subtract(a, b); torch.xlogy(a, b)
"""
CASTS = """
    a.to(torch.float16); a.to(b); a.to(torch.int64, copy=True); a.to(torch.uint8); a.to(torch.bool)
    a.type_as(b); torch.zeros_like(a); torch.ones_like(a, dtype=torch.int32); a.contiguous()
    torch.full_like(a, 2); torch.full_like(a, 2.5, dtype=torch.int64); a.clone(); a.detach()
    torch.zeros([m, n]); torch.ones([2], dtype=torch.int32); torch.full([n], 2)
    torch.full([m, 2], 2.5); torch.full([2], True); torch.full([m], f, dtype=torch.float16)
    torch.arange(3); torch.arange(3.5); torch.arange(n); torch.arange(0, 3, dtype=torch.float16)
    torch.arange(0, 3.5, 1); a.new_zeros([2, n]); a.new_full([2], 1.5); torch.empty_like(a)
    torch.linspace(0, 1, 3); torch.eye(3); torch.view_as_real(a); a.to(a.dtype)
"""
SHAPES = """
    a.reshape([-1]); a.reshape([1, -1, 1]); a.view([-1, 1]); a.reshape([m, -1]); a.reshape([])
    a.reshape([2, 3]); a.reshape([b.size(0), -1]); a.view_as(b); a.flatten()
    a.flatten(1); a.flatten(0, 1); a.flatten(m, n); a.unflatten(0, [1, -1]); a.squeeze()
    a.squeeze(0); a.squeeze(m); a.unsqueeze(0); a.unsqueeze(-1); a.unsqueeze(m)
    a.transpose(0, 1); a.transpose(-1, -2); a.transpose(m, n); a.permute([1, 0]); a.t()
    a.permute([0, 2, 3, 1]); a.permute([m, n]); a.movedim(0, 1); a.swapaxes(0, 1)
    a.expand([2, 3]); a.expand([-1, 3, -1]); a.expand([m, n, 2, 3]); a.expand_as(b)
    a.repeat([2, 1, n]); a.tile([2]); a.select(0, 0); a.select(-1, m); a[0]; a[1:]; a[:, 1:n]
    a[None]; a[..., 0]; a[b]; a[b, c]; a[:, b]; a[b, None]; a.index_select(0, b); a.narrow(0, 0, 1)
    a.narrow(m, 0, n); a.flip([0]); a.roll([1], [0]); a.roll(n); a.gather(0, b)
    a.gather(m, b); a.scatter(0, b, c); a.scatter(0, b, 1.5); a.index_put([b], c)
    torch.cat([a, b]); torch.cat([a, b, c], 1); torch.cat([a, b], m); torch.stack([a, b])
    torch.stack([a, b, c], n); torch.nn.functional.pad(a, [1, 1]); a.tril(); a.triu(n)
    torch.constant_pad_nd(a, [1, 1], 0); torch.constant_pad_nd(a, [m, n], 1.5); a.diagonal()
    a.unfold(0, 2, 1); torch.atleast_1d(a); torch.broadcast_to(a, [2, 3]); torch.tril(a, -1)
    torch.take_along_dim(a, b, 0); torch.as_strided(a, [1, 2], [0, 0])
"""
REDUCTIONS = """
    a.sum(); a.sum(dtype=torch.int32); a.sum(0); a.sum([0, 1], True); a.sum(m); a.sum([m], k)
    a.sum([0], dtype=torch.float16); a.mean(); a.mean(-1); a.mean([0, -1], True); a.prod()
    a.prod(0); a.any(); a.all(); a.any(0); a.all(-1, True); torch.argmax(a); torch.argmin(a, 0)
    torch.argmax(a, 0, True); torch.argsort(a); torch.amax(a, [0]); torch.amin(a, [0, 1], True)
    a.max(); a.min(); torch.max(a, 0)[0]; torch.max(a, 0)[1]; torch.max(a, b); torch.norm(a)
    a.cumsum(0); a.cumsum(m, dtype=torch.int32); torch.sort(a)[0]; torch.sort(a)[1]
    torch.topk(a, 1)[0]; torch.topk(a, n)[1]; a.std(); a.var([0]); torch.logsumexp(a, [0])
    torch.nonzero(a); torch.argwhere(a); torch.softmax(a, 0); torch.softmax(a, m)
    torch.softmax(a, -1, torch.float16); torch.log_softmax(a, 0); torch.bucketize(a, b)
    torch.bucketize(a, b, out_int32=True); torch.searchsorted(a, b); torch.cumprod(a, 0)
    torch.count_nonzero(a); torch.bincount(a); torch.var_mean(a)[1]; torch.median(a)
"""
LAYERS = """
    torch.matmul(a, b); torch.mm(a, b); torch.bmm(a, b); torch.nn.functional.linear(a, b)
    torch.nn.functional.linear(a, b, c); torch.addmm(a, b, c); torch.baddbmm(a, b, c)
    torch.nn.functional.layer_norm(a, [2]); torch.nn.functional.layer_norm(a, [2], b, c)
    torch.layer_norm(a, [3, 2]); torch.group_norm(a, 2); torch.group_norm(a, 1, b, c)
    torch.batch_norm(a, None, None, b, c, False, 0.1, 1e-5, False)
    torch.conv1d(a, b); torch.conv1d(a, b, c); torch.conv2d(a, b); torch.conv2d(a, b, c, 2, 1)
    torch.conv2d(a, b, c, [1, 1], "same"); torch.conv3d(a, b); torch.conv_transpose2d(a, b, c)
    torch.conv_transpose1d(a, b); torch.conv2d(a, b, None, [1, 1], [1, 1], [1, 1], 2)
    torch._convolution(a, b, None, [1], [0], [1], False, [0], 1, False, False, True, True)
    torch.max_pool1d(a, 2); torch.max_pool2d(a, [2, 2]); torch.max_pool3d(a, [2, 2, 2])
    torch.nn.functional.avg_pool2d(a, [2, 2]); torch.avg_pool1d(a, 2)
    torch.nn.functional.adaptive_avg_pool2d(a, [1, 1]); torch.nn.functional.embedding(b, a)
    torch.nn.functional.scaled_dot_product_attention(a, b, c); torch.dropout(a, 0.5, False)
    torch._C._nn.upsample_nearest2d(a, None, [2.0, 2.0]); torch.pixel_shuffle(a, 1)
    torch.fake_quantize_per_tensor_affine(a, 0.5, 0, -128, 127); torch.dist(a, b)
    torch._C._nn.upsample_bilinear2d(a, [3, 3], False); torch.cross(a, b)
    torch.instance_norm(a, None, None, None, None, True, 0.1, 1e-5, False); torch.dot(a, b)
    torch.fake_quantize_per_channel_affine(a, b, c, 0, -128, 127); torch.outer(a, b)
"""
GROUPS = {
    "elementwise": ELEMENTWISE,
    "casts": CASTS,
    "shapes": SHAPES,
    "reductions": REDUCTIONS,
    "layers": LAYERS,
}


def calls(group: str) -> Iterator[Any]:
    """The function of each call."""
    text = group.replace("\n", ";")
    for expression in filter(None, (part.strip() for part in text.split(";"))):
        arguments = "a, b, c, m: int, n: int, f: float, k: bool"
        unit = torch.jit.CompilationUnit(
            f"def call({arguments}):\n    return {expression}\n"
        )
        yield expression, unit.call


def examples(chance: random.Random, generator: torch.Generator, fitting: bool) -> Any:
    """Three tensors of random dtypes and shapes; `fitting` ones often fit each other."""
    dtypes = [
        chance.choice(COMMON if chance.random() < 0.7 else DTYPES) for _ in range(3)
    ]
    if chance.random() < (0.8 if fitting else 0.5):
        dtypes = [torch.float32 if fitting else dtypes[0]] * 3
    for dtype in dtypes:
        rank = chance.choice([0, 1, 1, 2, 2, 2, 3, 3, 4, 4, 5])
        sizes = [chance.choice([2, 2, 2, 2, 1, 3, 0]) for _ in range(rank)]
        if fitting or chance.random() < 0.5:
            sizes = [2] * rank
        yield torch.randint(0, 2, sizes, generator=generator).to(dtype)


def facts_of(
    graph: Any, tensors: Sequence[torch.Tensor], chance: random.Random
) -> Facts:
    """The facts of the graph's values, with some of those of its inputs."""
    facts = Facts()
    for value, tensor in zip(graph.inputs(), tensors, strict=False):
        dtype = tensor.dtype if chance.random() < 0.6 else None
        facts.know(value, dtype, tensor.dim() if chance.random() < 0.6 else None)
    for node in bottom_up(graph):
        facts.learn(node)
    return facts


def count(
    expression: str,
    call: Callable[..., Any],
    chance: random.Random,
    group: str,
    most: int,
) -> int:
    """Compare the facts for `most` random inputs with the results of torch. Returns the number of
    facts.
    """
    stated, compared = 0, 0
    generator = torch.Generator().manual_seed(0)
    for _ in range(MOST_DRAWS):
        if compared == most:
            break
        tensors = list(examples(chance, generator, group == "layers"))
        numbers = (
            chance.choice([0, 1, -1]),
            chance.choice([1, 2]),
            0.5,
            chance.random() < 0.5,
        )
        try:
            result = call(*tensors, *numbers)
        except Exception:
            continue
        compared += 1
        graph = call.inlined_graph  # type: ignore[attr-defined]
        facts = facts_of(graph, tensors, chance)
        (output,) = graph.outputs()
        dtype, rank = facts.dtype(output), facts.rank(output)
        inputs = [(tensor.dtype, tensor.dim()) for tensor in tensors]
        assert dtype in (None, result.dtype), (
            expression,
            inputs,
            numbers,
            dtype,
            result.dtype,
        )
        assert rank in (None, result.dim()), (
            expression,
            inputs,
            numbers,
            rank,
            result.shape,
        )
        stated += (dtype is not None) + (rank is not None)
    return stated


@pytest.mark.parametrize("most", [2, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.parametrize("group", GROUPS)
def test_inferred_facts_match_results_of_torch(group: str, most: int) -> None:
    chance = random.Random(group)
    stated = {
        name: count(name, call, chance, group, most)
        for name, call in calls(GROUPS[group])
    }
    silent = [name for name, found in stated.items() if not found]
    assert len(silent) <= len(stated) // 8, "too few facts are stated to compare them"


TRACED = {
    "add": lambda x: x + 2,
    "mul": lambda x: x * 2.5,
    "div": lambda x: x / 2,
    "pow": lambda x: 2**x,
    "buffer": lambda x: x * torch.tensor(2.5, dtype=torch.float64),
    "int": lambda x: x + torch.tensor(2, dtype=torch.int64),
}


@pytest.mark.parametrize("name", TRACED)
def test_facts_of_traced_numbers_match_torch(name: str) -> None:
    """A trace has constants of rank 0, which torch's executor sometimes treats as numbers."""
    for dtype in (torch.float32, torch.float16, torch.int64, torch.int32, torch.bool):
        for rank in (0, 1, 2):
            x = torch.ones([2] * rank, dtype=dtype)
            traced: Any = torch.jit.trace(TRACED[name], x)  # type: ignore[no-untyped-call]
            graph, result = traced.graph, traced(x)
            (value,), (output,) = graph.inputs(), graph.outputs()
            facts = Facts()
            facts.know(value, dtype, rank)
            for node in bottom_up(graph):
                facts.learn(node)
            assert facts.dtype(output) in (None, result.dtype)
            assert facts.rank(output) in (None, rank)
