"""Functionalization: every alias has the written value, through views, branches, loops and
containers; otherwise the write is refused.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import builder
from builder.errors import LoweringError
from builder.lowering import ir, reset
from builder.lowering.passes.functionalize.counting import COUNTS


def slice_assignment(x):
    y = x.clone()
    y[:, 0] = 5
    y[-1] = 0
    y[:, 1:-1] = 7.0
    y[..., ::2] = x[..., ::2] * 3
    return y + 1


def empty_slices_assigned(x):
    y = x.clone()
    y[2:1] = 3
    y[:, 3:-3] = 9
    y[:, -1:1] = 2
    y[:, 1:-1] = 4
    y[-3:2] = 5
    return y


def view_sees_write_to_base(x):
    y = x.clone()
    z = y[0]
    y += 1
    return z * 2, y


def base_sees_write_to_view_of_view(x):
    y = x.clone()
    z = y.view(-1)
    z[1:3].mul_(3)
    return y, z


def sibling_chunks(x):
    a, b = x.clone().chunk(2, 1)
    a.mul_(b)
    b.add_(a)
    return a, b


def split_and_its_base(x):
    y = x.clone()
    a, b = y.split([1, 3], 1)
    a.zero_()
    b.add_(1)
    return y, a


def unbound_rows(x):
    y = x.clone()
    rows = y.unbind(0)
    rows[1].fill_(3)
    return y, rows[0], rows[1]


def transposed_and_permuted(x):
    y = x.clone()
    y.transpose(0, 1)[1:].fill_(2)
    y.permute(1, 0)[0] = 9
    y.unsqueeze(0).squeeze(0).t().select(0, 2).neg_()
    return y


def unsqueezed_in_place(x):
    y = x.clone()
    z = y[0]
    y.unsqueeze_(0)
    y.relu_()
    return y, z


def unsqueezed_in_place_under_a_transposed_view(x):
    y = x.clone()
    z = y[1:]
    z.transpose_(0, 1)
    y.unsqueeze_(0)
    y.mul_(2)
    return y, z


def reads_other_elements_of_the_same_memory(x):
    y = x.clone()
    half = y.size(1) // 2
    y[:, half:] += y[:, : y.size(1) // 2]
    y[..., 0] = y[..., 1]
    y[1:, 0] += y[:-1, 3]
    y[:, ::2] *= y[:, 1::2]
    y[0] -= y[-1]
    a, b = y.chunk(2, 1)
    a += b
    y[1:].add_(y[1:])
    return y


def writes_keep_dtype(x):
    y = (x * 3).int()
    y.add_(torch.tensor(3))
    z = y > 0
    y.eq_(1)
    h = (x * 3).half()
    h.mul_(x.double())
    return y, z, h


def variants_with_another_overload_name(x):
    y = (x * 9).int()
    y.floor_divide_(y.abs() + 2)
    z = x.abs()
    z.pow_(x[0])
    z.ldexp_(x.sign())
    return y, z


def masks(x):
    y = x.clone()
    y[x > 0] = 0.5
    y.masked_fill_(y > 1, 1.0)
    y.index_put_([torch.tensor([0, 2])], x[1], accumulate=True)
    y.scatter_(1, torch.zeros(3, 1, dtype=torch.long), 4.0)
    return y


def copies(x):
    y = torch.zeros(3, 4)
    y.copy_(x[0])
    y[1].copy_(torch.ones(4, dtype=torch.long))
    return y


def written_in_a_branch(x):
    y = x.clone()
    z = y[1]
    if bool(x.sum() > 0):
        y[0] = 1
        if bool(x.sum() > 2):
            z += 1
    else:
        y.zero_()
    return y, z


def written_in_a_loop(x):
    y = torch.zeros_like(x)
    for i in range(2):
        y[i] = x[i] * i
    return y


def written_in_a_loop_of_unknown_length(x):
    y = x.clone()
    z = y[0]
    seen = [x]
    for i in range(int(x.sum().item()) % 5 + 2):
        y.add_(i)
        seen.append(y * 2)
    return y, z, torch.stack(seen)


def recurrent(x):
    rows = x.unbind(0)
    out = torch.zeros_like(x)
    h = rows[0]
    for i in range(x.size(0)):
        h = torch.tanh(h + rows[i])
        out[i] = h
    return out, h


def while_loop_until_large_sum(x):
    y = x.clone()
    iterations = 0
    while bool(y.sum() < 100):
        y[0] += 10
        iterations += 1
    return y, iterations


def lists(x):
    items = [x]
    items.append(x + 1)
    items[0] = x * 2
    items += [x]
    items.insert(0, x - 1)
    last = items.pop()
    return torch.cat(items), last


def element_of_a_list(x):
    y = x.clone()
    items = [y, x]
    items[0].add_(1)
    return y, torch.stack(items)


def list_grown_in_a_branch(x):
    items = [x]
    if x.size(0) > 1:
        items.append(x + 1)
    else:
        items.append(x * 2)
    return items[1]


def dictionary(x):
    found = {"a": x}
    found["b"] = x + 1
    found["b"].add_(1)
    return found["a"], found["b"]


def constant_lists(x):
    shape = [1, 2]
    shape += [4]
    same = shape
    same += same
    return x * shape[2] + len(shape), torch.zeros(shape[:2])


def dictionary_updated(x):
    found = {"a": x}
    more = {"b": x + 1, "a": x * 2}
    found.update(more)
    found.setdefault("c", x - 1).add_(1)
    found["b"].mul_(2)
    return more["b"], found["a"], found["c"], len(found)


def dictionary_copied_and_read(x):
    found = {"a": x, "b": x + 1}
    copy = found.copy()
    copy["a"] = x * 2
    found.clear()
    found.update({"q": copy.pop("a")})
    return found["q"], copy["b"], found.get("zz", x), "a" in copy


def dictionary_read_with_an_unknown_key(x):
    found = {3: x * 2, 5: x}
    found[3].add_(1)
    found[7] = x * 3
    return found.get(x.size(0), x + 1), found.get(x.size(1), x + 1)


def list_cut_at_a_size(x):
    parts = [x * 2, x + 0, x * 3]
    parts[0].add_(1)
    return torch.stack(parts[: x.size(0) - 1]), torch.stack(parts[1:])


def dictionary_iterated(x):
    weights = {"a": 1, "b": 2}
    weights.update({"a": 5})
    total = torch.zeros_like(x)
    for key, weight in weights.items():
        if key != "b":
            total = total + x * weight
    for value in weights.values():
        total = total + value
    return total, len(weights.keys())


def parts_of_complex_numbers(x):
    y = torch.fft.fftn(x)
    real, imaginary = y.real, y.imag
    real += 1
    imaginary[:, 0] = 2
    z = torch.view_as_real(y)
    z[..., 1].mul_(3)
    w = torch.view_as_complex(x.reshape(3, 2, 2).clone())
    w.mul_(2)
    return y, z, real, torch.view_as_real(w)


def dropout_returns_its_input(x):
    y = x.clone()
    z = torch.dropout(y, 0.5, False)
    z.add_(1)
    return y, z


def unbound_rows_iterated(x):
    y = x.clone()
    y[0] = 2
    for row in y.unbind(1):
        row.add_(1)
    rows = y.unbind(0)
    rows[-1].mul_(3)
    return y


def lists_sorted(x):
    a, b, c = [4, 3], [2, 7, 6, 7], [3, 4]
    a.sort()
    b.remove(7)
    b.sort(reverse=True)
    c *= 2
    c.sort()
    return x.reshape(a), x * len(b) * b[0], x * c[1] * c[2]


def list_as_long_as_another(x):
    """As in Viterbi decoding: a list is read from its end into another, which is reversed."""
    kept = []
    for i in range(1, 4):
        if i != 2:
            kept.append(x * i)
    path = [x]
    for i in range(len(kept)):
        path.append(kept[len(kept) - 1 - i] + path[-1])
        if i == 1:
            path.pop(0)
    for i in range(len(path) - 1, -1, -1):
        path[i] = path[i] + i
    path.reverse()
    return torch.cat(path), x * len(path)


def list_as_long_as_another_in_a_branch(x):
    parts, y = [x, x + 1], x.clone()
    if bool(x.sum() > 0):
        parts.append(x * 2)
        for i in range(len(parts)):
            parts[i] = parts[i] * 3
            y[i].add_(i)
    else:
        parts.append(y)
    parts.reverse()
    return torch.cat(parts), y


def written_without_gradient(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    z = y.requires_grad_(False)
    z.add_(1)
    y[:, 0] = 5
    return y, z


def diagonals(x):
    y = (x * 3).int()
    y.t().fill_diagonal_(1.5)
    tall = torch.cat([x, x, x, x]).fill_diagonal_(2, wrap=True)
    cube = x.new_zeros(3, 3, 3)
    for i in range(x.size(0)):
        cube.fill_diagonal_(i + 2)
        cube[i, :, i:].fill_diagonal_(i - 3)
    return y, tall, cube


SUPPORTED = [
    diagonals,
    written_without_gradient,
    slice_assignment,
    empty_slices_assigned,
    view_sees_write_to_base,
    base_sees_write_to_view_of_view,
    sibling_chunks,
    split_and_its_base,
    unbound_rows,
    transposed_and_permuted,
    unsqueezed_in_place,
    unsqueezed_in_place_under_a_transposed_view,
    reads_other_elements_of_the_same_memory,
    writes_keep_dtype,
    variants_with_another_overload_name,
    masks,
    copies,
    written_in_a_branch,
    written_in_a_loop,
    written_in_a_loop_of_unknown_length,
    recurrent,
    while_loop_until_large_sum,
    lists,
    element_of_a_list,
    list_grown_in_a_branch,
    dictionary,
    dropout_returns_its_input,
    constant_lists,
    dictionary_updated,
    dictionary_copied_and_read,
    dictionary_read_with_an_unknown_key,
    dictionary_iterated,
    list_cut_at_a_size,
    parts_of_complex_numbers,
    unbound_rows_iterated,
    lists_sorted,
    list_as_long_as_another,
    list_as_long_as_another_in_a_branch,
]


@pytest.mark.parametrize("function", SUPPORTED)
def test_outputs_match_and_no_in_place_write_remains(
    function: Callable[..., Any],
) -> None:
    lowered = builder.lower(torch.jit.script(function).graph)
    kinds = [node.kind() for node in ir.walk(lowered.graph) if "!" in node.schema()]
    assert not kinds
    for scale in (-1, 0.3, 2):
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1)) * scale
        expected = function(x.clone())
        expected = expected if isinstance(expected, tuple) else (expected,)
        for output, expected_output in zip(
            lowered.run(x.clone()), map(torch.as_tensor, expected), strict=True
        ):
            torch.testing.assert_close(output, expected_output, rtol=0, atol=0)


def written_pixels(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.permute(1, 0).float().div_(255.0).sub_(0.5)
    return y, x + 1


def written_cast_to_the_same_dtype(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.to(torch.uint8)
    y.add_(1)
    return y, x.float()


def written_cast_and_back(x: Tensor) -> tuple[Tensor, Tensor]:
    half = x.half()
    y = half.float()
    y.mul_(3)
    return y, half


def filled_diagonal(pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = pixels.clone()
    z = y[:, 1:]
    w = z.fill_diagonal_(50)
    y.t().fill_diagonal_(7)
    return y, z, w.add_(1)


@pytest.mark.parametrize(
    "function",
    [
        written_pixels,
        written_cast_to_the_same_dtype,
        written_cast_and_back,
        filled_diagonal,
    ],
)
def test_writes_to_an_input_of_known_dtype(
    function: Callable[..., Any],
) -> None:
    """Whether a cast copies depends on the dtype before it."""
    x = torch.arange(6, dtype=torch.uint8).reshape(2, 3)
    lowered = builder.lower(
        torch.jit.script(function), specs=[builder.TensorSpec("uint8", (2, 3))]
    )
    expected = function(x.clone())
    torch.testing.assert_close(lowered.run(x.clone()), expected, rtol=0, atol=0)


def test_loop_over_written_list_is_unrolled() -> None:
    lowered = builder.lower(torch.jit.script(list_as_long_as_another).graph)
    assert not ir.nodes_of(
        lowered.graph, "prim::Loop", "aten::len", "aten::__getitem__"
    )


def reshaped_then_base_read(x):
    y = x.reshape(-1)
    y.add_(1)
    return x


def reshaped_after_a_write(x):
    y = x.clone()
    y[0] = 2
    y.flatten()[3:7].add_(1)
    return y


def chunks_iterated(x):
    y = x.clone()
    for part in y.chunk(2, 1):
        part.add_(1)
    return y


def through_an_expanded_view(x):
    y = x.sum(0, keepdim=True).expand(3, 4)
    y += 1
    return y


def through_an_optional(x):
    y = x.clone()
    z: Tensor | None = None
    if bool(x.sum() > 0):
        z = y
    if z is not None:
        z += 1
    return y


def through_an_optional_list(x):
    y = x.clone()
    z: list[Tensor] | None = None
    if bool(x.sum() > 0):
        z = [y]
    if z is not None:
        z[0] += 1
    return y


def _weight_plus(x, w):
    w += 1
    return x + w


def shifted_in_place(x):
    y = x.clone()
    y[:, 1:] = y[:, :-1]
    return y


def shifted_twice(x):
    y = x.clone()
    y[:, 1:][0].add_(y[:, :-1][0])
    return y


def divided_by_its_first_column(x):
    y = x.clone()
    y /= y[:, :1]
    return y


def scattered_from_itself(x):
    y = x.clone()
    return y.masked_scatter_(y > 0, y)


def through_a_broadcast_tensor(x):
    y = x[0].clone().broadcast_to([3, 4])
    return y.index_put_([torch.tensor([0])], x[1])


def through_a_grid(x):
    y = torch.meshgrid([x[0] + 1, x[1] + 1], indexing="ij")[0]
    y[y > 0] = 0.0
    return y


def row_of_a_grid(x):
    y = torch.meshgrid([x[0] + 1, x[1] + 1], indexing="ij")[1]
    y[0].add_(1)
    return y


def other_memory(x):
    y = x.clone()
    y.set_(x + 1)
    return y


def other_sizes(x):
    y = x.clone()
    z = y[1]
    y.resize_(2, 2)
    return y, z


UNDECIDABLE = [
    reshaped_then_base_read,
    reshaped_after_a_write,
    chunks_iterated,
    through_an_expanded_view,
    through_an_optional,
    through_an_optional_list,
    shifted_in_place,
    shifted_twice,
    divided_by_its_first_column,
    scattered_from_itself,
    through_a_broadcast_tensor,
    through_a_grid,
    row_of_a_grid,
    other_memory,
    other_sizes,
]


@pytest.mark.parametrize("function", UNDECIDABLE)
def test_undecidable_writes_are_refused_with_source_line(
    function: Callable[..., Any],
) -> None:
    with pytest.raises(LoweringError, match=r"aten::\w+_ writes in place") as caught:
        builder.lower(torch.jit.script(function).graph)
    assert "test_functionalize.py" in caught.value.where and "clone" in caught.value.fix


def wrapped_diagonal_of_a_view(x):
    return torch.cat([x, x, x])[:, :2].fill_diagonal_(1, wrap=True)


def test_wrapped_diagonal_of_a_view_is_refused() -> None:
    with pytest.raises(LoweringError, match="depend on strides"):
        builder.lower(torch.jit.script(wrapped_diagonal_of_a_view).graph)


def test_write_to_constant_is_refused() -> None:
    with pytest.raises(LoweringError, match="changes a constant"):
        builder.lower(torch.jit.script(_weight_plus).graph, params=[torch.ones(4)])


class _Renormalized(torch.nn.Module):
    def __init__(self, read: str = "") -> None:
        super().__init__()
        self.read = read
        self.words = torch.nn.Embedding(4, 3, max_norm=0.5)
        self.groups = torch.nn.Embedding(4, 3, max_norm=0.7, norm_type=1.0)
        self.groups.weight = (
            self.words.weight if read == "shared" else self.groups.weight
        )

    def forward(self, index: Tensor) -> Tensor:
        words = self.words(index)
        if self.read == "weight":
            return F.linear(words, self.words.weight)
        if self.read == "before":
            words = F.embedding(3 - index, self.words.weight)
        if self.read == "written":
            words = words + F.embedding(index.fill_(3), self.words.weight)
        return words + self.groups(index) * self.words(3 - index)


def test_rows_of_embeddings_are_renormalized_once() -> None:
    module = _Renormalized().eval()
    indices = torch.tensor([1, 0, 1]), torch.tensor([3, 2])
    traced = torch.jit.trace(deepcopy(module), indices[:1], check_trace=False)
    lowered = builder.lower(traced)
    for index in (*indices, *indices):
        torch.testing.assert_close(lowered.run(index)[0], module(index))


@pytest.mark.parametrize("read", ["shared", "weight", "before", "written"])
def test_renormalized_weights_with_other_readers_are_refused(read: str) -> None:
    index = torch.tensor([1, 0, 1])
    traced = torch.jit.trace(_Renormalized(read).eval(), index, check_trace=False)
    with pytest.raises(LoweringError, match="embedding_renorm_") as caught:
        builder.lower(traced)
    assert "set its max_norm to None" in caught.value.fix


def _module_with_state(line: str) -> torch.jit.ScriptModule:
    module = torch.nn.Module()
    annotations = torch.jit.annotations
    module.sizes = torch.jit.Attribute([1, 2], annotations.List[int])
    module.kept = torch.jit.Attribute(
        {"a": torch.zeros(1)}, annotations.Dict[str, torch.Tensor]
    )
    module.seen = torch.jit.Attribute([torch.zeros(1)], annotations.List[torch.Tensor])
    module.deep = torch.jit.Attribute(
        {"a": [1]}, annotations.Dict[str, annotations.List[int]]
    )
    module.pair = torch.jit.Attribute(
        ([1], 2), annotations.Tuple[annotations.List[int], int]
    )
    module.register_buffer("count", torch.zeros(2))
    module.register_buffer("part", module.count[:1] if "part" in line else None)
    module.own = torch.jit.Attribute([torch.zeros(1)], annotations.List[torch.Tensor])
    module.tied = torch.jit.Attribute(
        [module.count[1:]], annotations.List[torch.Tensor]
    )
    module.calls = 0
    module.warned = False
    module.scale = torch.jit.Attribute(None, annotations.Optional[torch.Tensor])
    module.length = torch.jit.Attribute(None, annotations.Optional[int])
    setattr(
        module, f"own{abs(hash(line))}", 0
    )  # torch shares the class of equal modules
    scripted = torch.jit.script(module)
    body = "\n    ".join(re.split("; |\n", line))
    scripted.define(f"def forward(self, x):\n    {body}\n")
    return scripted


STATE_WRITES = {
    "read after the write": "self.sizes.append(3); return x * len(self.sizes)",
    "read before the write": "n = len(self.sizes); self.sizes.append(3); return x * n",
    "element of a loop": """
        for i in range(len(self.seen)):
            if self.seen[i].numel() < x.numel():
                self.seen[i] = torch.ones(x.size(0))
        return x * self.seen[0]""",
    "element of data": """
        if self.seen[0].numel() < x.numel():
            self.seen[0] = x * 2
        return x * self.seen[0]""",
    "element of an element": """
        if self.seen[0].numel() < x.numel():
            self.seen[0] = self.seen[0] + torch.ones(x.size(0))
        return x * self.seen[0]""",
    "element that is written": """
        if self.seen[0].numel() < x.numel():
            self.seen[0] = torch.ones(x.size(0))
        self.seen[0].add_(1)
        return x * self.seen[0]""",
    "element that is written in an alias": """
        if self.seen[0].numel() < x.numel():
            ones = torch.ones(x.size(0))
            self.seen[0] = ones
            ones.add_(x)
        return x * self.seen[0]""",
    "element": "self.sizes[0] = self.sizes[0] + 1; return x * self.sizes[0]",
    "through an alias": "sizes = self.sizes; sizes += [3]; return x * len(sizes)",
    "through a container": "c = [self.sizes]; c[0].reverse(); return x * self.sizes[0]",
    "dictionary": "self.kept['a'] = self.kept['a'] + x; return self.kept['a']",
    "dictionary update": "self.kept.update({'b': x}); return x * len(self.kept)",
    "list of tensors": "self.seen.append(x); return torch.cat(self.seen)",
    "list in a dictionary": "e = self.deep['a']; e.append(3); return x * len(self.deep['a'])",
    "list in a tuple": "e = self.pair[0]; e.append(3); return x * len(self.pair[0])",
    "count": "self.calls += 1; return x * self.calls",
    "count that decides": "self.calls += 1; return x if self.calls > 1 else -x",
    "count in a buffer": "self.count += 1; return x * self.count[0]",
    "read before the cast": "y = x * self.part; self.part = self.part.to(x.dtype); return y",
    "sum of sizes": """
        length = self.length
        if length is None:
            self.length = x.size(0)
        else:
            self.length = length + x.size(0)
        length = self.length
        assert length is not None
        return x * length""",
    "set from data where it is None": """
        if self.scale is None:
            self.scale = x * 3
        scale = self.scale
        assert scale is not None
        return x * scale""",
    "written where it was None": """
        if self.scale is None:
            self.scale = torch.zeros(1)
        scale = self.scale
        assert scale is not None
        scale[0] += x.sum()
        return x + scale""",
    "filled from data where it is None": """
        if self.scale is None:
            scale = torch.zeros(1)
            scale.add_(x.sum())
            self.scale = scale
        scale = self.scale
        assert scale is not None
        return x + scale""",
    "random where it is None": """
        if self.scale is None:
            self.scale = torch.rand(1)
        scale = self.scale
        assert scale is not None
        return x + scale""",
    "read beside the cast": """
        part = self.part
        self.part = part.to(torch.float16)
        return part.to(torch.float64) * x""",
    "element beside the cast": """
        seen = self.seen
        self.seen = [one.to(torch.float16) for one in seen]
        return x * seen[0]""",
    "flag of the first call": """
        y = x if self.warned else -x
        if not self.warned:
            self.warned = True
        return y""",
    "size of the previous call": """
        y = x * self.calls
        self.calls = x.size(0)
        return y""",
    "data in a tensor of sizes": """
        if self.scale is None:
            scale = torch.zeros(x.size(0))
            scale[:1] = x[:1]
            self.scale = scale
        scale = self.scale
        assert scale is not None
        return x * scale""",
    "cast in a branch": """
        if bool(x.sum() > 0):
            self.part = self.part.to(x.dtype)
        return x * self.part""",
    "cast and write": """
        self.part = self.part.to(x.dtype)
        self.part.add_(1)
        return x * self.part""",
    "cast and append": """
        self.seen = [one.to(x.dtype) for one in self.seen]
        self.seen.append(x)
        return x * len(self.seen)""",
    "message and result": """
        if not self.warned:
            print(x)
            self.warned = True
        return x if self.warned else -x""",
    "doubled": "self.count.add_(self.count); self.count = x; return x * 2",
    "last result": "y = x + self.count; self.count.copy_(x); return y",
    "mean": "self.count.mul_(0.9).add_(x); return x * self.count",
    "view of a buffer": "self.count[:1].add_(x[:1]); return x * self.count",
    "buffer in a list": "for one in [self.count]:;     one.add_(1); return x * self.count",
    "stored tensor": "self.count = self.kept['a']; self.count.add_(1); return x * self.kept['a']",
    "buffer in an object": "self.scale = self.count; self.count.add_(1); return self.scale",
    "count that ends a loop": """
        self.calls += 1
        y = x
        while bool(y.sum() < self.calls):
            y = y + 1
        return y""",
    "count that raises": """
        self.calls += 1
        if self.calls > 3:
            raise ValueError("enough")
        return x * 2""",
    "count in a branch of a loop": """
        y = x
        for i in range(2):
            if self.calls > 3:
                y = y + 1
            self.calls += 1
        return y""",
    "index of a ring": """
        self.count[self.calls % 2] = x.sum()
        self.calls += 1
        return x * self.calls""",
    "count in memory that is read": "self.count += 1; return x + self.part",
    "count in a tensor of a list": "self.count += 1; return x + self.tied[0]",
    "sum into another tensor": "y = x * 2; y.add_(self.count); self.count = x; return y",
    "attribute of one branch": "if bool(x.sum() > 0):;     self.calls = 3; return x * self.calls",
    "attribute of a loop": "for i in range(x.size(0)):;     self.calls = i; return x * self.calls",
}


@pytest.mark.parametrize("line", STATE_WRITES.values(), ids=STATE_WRITES)
def test_write_to_list_or_dictionary_of_model_is_refused(line: str) -> None:
    """The write was dropped silently, so a request did not see the state of earlier ones."""
    with pytest.raises(
        LoweringError,
        match=r"writes state to the module's attribute|changes a constant of the model",
    ):
        builder.lower(_module_with_state(textwrap.dedent(line).lstrip("\n")))


UNREAD_WRITES = {
    "attribute": "self.sizes = [x.size(0)]; return x * 2",
    "attribute in a branch": "if bool(x.sum() > 0):;     self.calls = 3; return x * 2",
    "count": "self.calls += 1; return x * 2",
    "count in a buffer": "self.count += x.sum(); return x * 2",
    "message": "if not self.warned:;     print(x);     self.warned = True; return x * 2",
    "message of a count": """
        self.calls += 1
        if self.calls % 100 == 0:
            print(self.calls)
        return x * 2""",
    "last input": "self.count.copy_(x); return x * 2",
    "mean": "self.count.mul_(0.9).add_(x.mean(), alpha=0.1); return x * 2",
    "new mean": "self.count = self.count * 0.9 + x.mean() * 0.1; return x * 2",
    "view of a buffer": "self.count[:1] += x.sum(); return x * 2",
    "result of add": "torch.add(self.count, x, out=self.count); return x * 2",
    "ring": "self.count[self.calls % 2] = x.sum(); self.calls += 1; return x * 2",
    "count that starts again": """
        self.calls = self.calls + x.size(0)
        if self.calls > 3:
            self.calls = 0
        return x * 2""",
    "extended list": "self.sizes += [3]; return x * 2",
    "list and its length": """
        self.sizes.append(x.size(0))
        self.calls = len(self.sizes)
        return x * 2""",
    "list of tensors": "self.seen.append(x); return x * 2",
    "dictionary": "self.kept['a'] = self.kept['a'] + x; return x * 2",
    "buffer in a list": "for one in [self.count]:;     one.add_(1); return x * 2",
    "queue beside the input": """
        self.count = torch.cat([self.count[1:], x[:1]])
        self.count[0] = 3
        return x * 2""",
}


LOCAL_WRITES = {
    "list": "self.sizes = [3]; self.sizes.append(4); return x * len(self.sizes)",
    "result": "y = x * 2; self.count = y; self.count.add_(1); return y",
    "written tensor": "y = x * 2; self.count = y.add_(1); self.count += 1; return y",
    "both branches": """
        if bool(x.sum() > 0):
            self.calls = 3
        else:
            self.calls = 4
        return x * self.calls""",
    "later branch": """
        self.count = x
        if bool(x.sum() > 0):
            self.count = self.count * 2
        return x * self.count""",
    "branch that raises": """
        if bool(x.sum() > 5):
            raise ValueError("large")
        else:
            self.calls = 4
        return x * self.calls""",
    "loop": """
        self.count = x
        for i in range(x.size(0)):
            self.count = self.count + i
            if bool(self.count.sum() > 4):
                self.count = self.count / 2
        return self.count""",
    "set where it is None": """
        if self.scale is None:
            self.scale = torch.ones(1) * 3
        scale = self.scale
        assert scale is not None
        return x * scale""",
    "set by a long chain where it is None": f"""
        if self.scale is None:
            self.scale = torch.ones(1){" / 1" * 600}
        scale = self.scale
        assert scale is not None
        return x * scale""",
    "filled where it is None": """
        if self.scale is None:
            scale = torch.zeros(3)
            scale[1:] += 2
            self.scale = scale
        scale = self.scale
        assert scale is not None
        y = x * 2
        y += scale.sum()
        return y""",
    "cast": "self.part = self.part.to(x.dtype); return x * self.part",
    "cast list": """
        self.seen = [one.to(x.dtype) for one in self.seen]
        return x * self.seen[0] + len(self.seen)""",
    "inside a loop": """
        y = x
        for i in range(x.size(0) + 2):
            self.calls = i * 2
            y = y + self.calls
        return y""",
}


@pytest.mark.parametrize("body", LOCAL_WRITES.values(), ids=LOCAL_WRITES)
def test_attribute_that_each_call_writes_first_is_local(body: str) -> None:
    """No value of it survives a call, so the served model needs no state."""
    scripted = _module_with_state(textwrap.dedent(body).lstrip("\n"))
    lowered = builder.lower(scripted)
    for x in (torch.tensor([2.0]), torch.tensor([-1.0, 0.5]), torch.tensor([4.0])):
        torch.testing.assert_close(lowered.run(x.clone())[0], scripted(x.clone()))


CACHES = {
    "tensor": """
        if self.scale is None:
            self.scale = torch.arange(x.size(0)).sum()
        scale = self.scale
        assert scale is not None
        return x * scale""",
    "two at once": """
        if self.scale is None or self.length is None:
            self.scale = torch.ones(x.size(0))
            self.length = x.numel()
        scale, length = self.scale, self.length
        assert scale is not None and length is not None
        return x * (scale.sum() + length)""",
    "number with a tensor": """
        if x.size(0) > self.calls or self.scale is None:
            self.calls = x.size(0)
            self.scale = torch.arange(x.size(0)).sum()
        scale = self.scale
        assert scale is not None
        return x * scale * self.calls""",
    "from a list that is read elsewhere": """
        sizes = [x.size(0)]
        if self.scale is None:
            self.scale = torch.ones(sizes[0])
        if self.length is None:
            self.length = sizes[0]
        scale, length = self.scale, self.length
        assert scale is not None and length is not None
        return x * (scale.sum() + length)""",
    "element of a list": """
        if self.seen[0].numel() < x.numel():
            self.seen[0] = torch.ones(x.size(0)) * x.size(0)
        return x * self.seen[0][: x.numel()] * len(self.seen)""",
    "element beside a tensor that is written": """
        if self.seen[0].numel() < x.numel():
            a, b = torch.meshgrid([torch.arange(x.size(0)), torch.arange(2)])
            self.seen[-1] = (a + b)[:, 1] * x.size(0)
        results = [x * 2]
        results[0][:1] += 1
        return results[0] * self.seen[0][: x.numel()]""",
    "early return": """
        scale = self.scale
        if scale is not None:
            if scale.numel() >= x.numel():
                return x * scale[0]
        scale = torch.ones(x.size(0))
        scale[0:] = x.size(0)
        self.scale = scale
        return x * scale""",
}


@pytest.mark.parametrize("body", CACHES.values(), ids=CACHES)
def test_value_of_sizes_that_forward_caches_is_computed_in_each_call(body: str) -> None:
    """torch uses the value of the first call for later sizes, too."""
    scripted = _module_with_state(textwrap.dedent(body).lstrip("\n"))
    lowered = builder.lower(scripted)
    names = [attribute.full_name for attribute in lowered.cached_attributes]
    written = re.findall(r"self\.(\S+) = ", body)
    assert names == [name.replace("-1", "0") for name in written]
    first, later = torch.ones(5), torch.ones(2)
    torch.testing.assert_close(lowered.run(first)[0], scripted(first))
    assert not torch.equal(lowered.run(later)[0], scripted(later))
    reset(scripted, lowered.cached_attributes)
    torch.testing.assert_close(lowered.run(later)[0], scripted(later))


def test_element_of_a_list_that_two_attributes_hold_is_refused() -> None:
    body = textwrap.dedent(CACHES["element of a list"]).strip()
    scripted = _module_with_state(body + " + self.own[0]")
    scripted.define("def tie(self):\n    self.own = self.seen\n")
    builder.lower(scripted)
    scripted.tie()
    with pytest.raises(LoweringError, match="writes state to the module's attribute"):
        builder.lower(scripted)


class _Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kept = torch.zeros(1)

    def forward(self, x: Tensor) -> Tensor:
        self.kept = x * 2
        return x + 1


class _Layers(torch.nn.Module):
    """Reads what each of its layers stores."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = _Layer(), _Layer()

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(self.first(x))
        return y + self.first.kept * self.second.kept


@pytest.mark.parametrize("shared", [False, True])
def test_attributes_of_two_layers_of_one_class_are_distinct(shared: bool) -> None:
    scripted = torch.jit.script(_Layers())
    if shared:
        scripted._c.setattr("second", scripted._c.getattr("first"))
        with pytest.raises(LoweringError, match="attribute 'kept'"):
            builder.lower(scripted)
        return
    x = torch.randn(3)
    torch.testing.assert_close(builder.lower(scripted).run(x)[0], scripted(x))


UNREAD = [textwrap.dedent(line).lstrip("\n") for line in UNREAD_WRITES.values()]


COPIES = {
    "copy": "t = self.sizes.copy(); t.append(1); return x * len(t) * len(self.sizes)",
    "sum": "t = self.sizes + [3]; t.append(4); return x * len(t) * len(self.sizes)",
    "elements": "t = [self.seen[0]]; t.append(x); return torch.cat(t) + self.seen[0]",
    "beside a nested list": "t = [5]; t.append(1); return x * (t[1] + self.pair[0][0])",
}


@pytest.mark.parametrize(
    "line",
    [*UNREAD_WRITES.values(), *COPIES.values()],
    ids=[*UNREAD_WRITES, *COPIES],
)
def test_write_to_unread_state_or_to_copy_of_model_list_is_allowed(line: str) -> None:
    line = textwrap.dedent(line).lstrip("\n")
    scripted, x = _module_with_state(line), torch.tensor([2.0])
    lowered = builder.lower(scripted)
    outputs = [lowered.run(x)[0] for _ in range(2)]
    assert not scripted.calls and not scripted.count.any()
    named = {f"self.{one.full_name}" for one in lowered.unread_attributes}
    assert named == (set(re.findall(r"self\.\w+", line)) if line in UNREAD else set())
    for output in outputs:
        torch.testing.assert_close(output, scripted(x))


def test_tuple_at_unknown_list_index_is_refused() -> None:
    def f(x):
        pairs = [(x, 1), (x + 1, 2)]
        chosen = pairs[int(x.sum()) % 2]
        return chosen[0] * chosen[1]

    with pytest.raises(
        LoweringError, match="a tuple is selected from a list"
    ) as caught:
        builder.lower(torch.jit.script(f).graph)
    assert "test_functionalize.py" in caught.value.where


def test_list_is_extended_by_constant_list() -> None:
    def f(x):
        shape = [x.size(0)]
        shape.extend([2, 2])
        shape += [1]
        return x.reshape(shape)

    x = torch.randn(3, 4)
    torch.testing.assert_close(
        builder.lower(torch.jit.script(f).graph).run(x)[0], f(x), rtol=0, atol=0
    )


def carried_alias_of_written_tensor(x):
    cur = torch.zeros_like(x[0])
    prev = torch.zeros_like(x[0])
    acc = torch.zeros_like(x[0])
    for t in range(x.size(0)):
        cur += (x[t] - 0.5).relu()
        acc = acc + (cur - prev)
        prev = cur
    return acc


def carried_view_of_written_tensor(x):
    cur = x.clone()
    first = torch.zeros_like(x[0])
    acc = torch.zeros_like(x[0])
    for t in range(x.size(0)):
        cur.add_(t + 1)
        acc = acc + first
        first = cur[0]
    return acc


def aliased_in_one_branch_and_filled_in_the_other(x):
    w = x.clone()
    a = torch.zeros_like(x)
    total = torch.zeros_like(x)
    for t in range(x.size(0)):
        if bool(x[t].sum() > 0):
            a = w
        else:
            w.fill_(t + 3.0)
        total = total + a
    return total


def carried_in_an_inner_loop(x):
    cur = torch.zeros_like(x)
    prev = torch.zeros_like(x)
    acc = torch.zeros_like(x)
    for t in range(x.size(0)):
        for s in range(x.size(1)):
            cur += x[t, s].relu()
            acc = acc + (cur - prev)
        prev = cur
    return acc


def rebound_in_an_inner_loop(x):
    cur = torch.zeros_like(x)
    prev = torch.zeros_like(x)
    acc = torch.zeros_like(x)
    for t in range(x.size(0)):
        cur += x[t].relu().sum()
        acc = acc + (cur - prev)
        for _s in range(x.size(1)):
            prev = cur
    return acc


def swapped_while_one_is_written(x):
    a, b = x.clone(), x.clone() + 1
    for t in range(x.size(0)):
        a += x[t]
        a, b = b, a
    return a, b


def two_names_of_one_new_tensor(x):
    a, b = x + 1, x + 2
    acc = torch.zeros_like(x)
    for t in range(x.size(0)):
        a.mul_(2)
        acc = acc + b
        new = x * t
        a, b = new, new.view(-1).view(3, 4)
    return acc


def list_with_written_tensor(x):
    items = [x]
    cur = x.clone()
    acc = torch.zeros_like(x)
    for t in range(x.size(0)):
        cur += x[t]
        acc = acc + items[-1]
        items.append(cur)
    return acc


def list_of_lists_with_written_tensor(x):
    items = [[x]]
    cur = x.clone()
    acc = torch.zeros_like(x)
    for t in range(x.size(0)):
        cur += x[t]
        acc = acc + items[-1][0]
        items.append([cur])
    return acc


def tuple_with_written_tensor(x):
    items = (x, x + 1)
    cur = x.clone()
    acc = torch.zeros_like(x)
    for t in range(x.size(0)):
        cur += x[t]
        acc = acc + items[0] + items[1]
        items = (cur, items[0])
    return acc


def optional_written_tensor(x):
    prev: torch.Tensor | None = None
    cur = x.clone()
    acc = torch.zeros_like(x)
    for t in range(x.size(0)):
        cur += x[t]
        if prev is not None:
            acc = acc + prev
        prev = cur
    return acc


def written_at_the_end_and_read_at_the_start(x):
    cur = x.clone()
    prev = x + 1
    acc = torch.zeros_like(x)
    for t in range(x.size(0)):
        acc = acc + prev
        prev = cur
        cur += x[t]
    return acc


def carried_over_two_iterations(x):
    cur, one, two = x.clone(), x + 1, x + 2
    acc = torch.zeros_like(x)
    for t in range(x.size(0)):
        cur += x[t]
        acc = acc + two
        two = one
        one = cur
    return acc


def written_through_carried_alias(x):
    cur, prev = x.clone(), x + 1
    acc = torch.zeros_like(x)
    while bool(acc.sum() < 20):
        acc = acc + cur.abs() + 1
        prev.add_(1)
        prev = cur
    return acc, cur


def read_after_the_loop(x):
    cur, prev = x.clone(), x + 1
    for t in range(x.size(0)):
        cur += x[t]
        prev = cur
    return prev


def recurrent_with_fresh_state(x):
    """As in an RNN: the next iteration reads no alias of a written tensor."""
    h = torch.zeros_like(x[0])
    seen = [h]
    for t in range(x.size(0)):
        h = torch.tanh(x[t] + h)
        h += 1
        seen.append(h * 1)
    return h, torch.stack(seen)


def element_at_an_unknown_index_written(x):
    p = x.clone()
    q = x + 1
    items = [p, q]
    items[int(x.sum()) % 2].add_(1)
    return p, q


def element_at_an_unknown_index_read_after_a_write(x):
    p = x.clone()
    q = x + 1
    items = [p, q]
    r = items[int(x.sum()) % 2]
    p.add_(1)
    return r


def list_in_a_list_at_an_unknown_index(x):
    p = x.clone()
    q = x + 1
    items = [[p], [q]]
    r = items[int(x.sum()) % 2]
    r.append(x)
    return items[0][0], torch.stack(items[1])


def elements_of_a_list_with_swapped_items(x):
    p = x.clone()
    q = x + 1
    for i in range(x.size(0)):
        items = [p, q]
        r = items[i % 2]
        r.add_(i)
        p, q = q, p
    return p, q


def elements_written_in_a_loop(x):
    items = [x.clone(), x + 1, x + 2]
    for i in range(x.size(0)):
        items[i].add_(i)
    return items[0], items[1], items[2]


def elements_read_in_a_loop_that_writes_one(x):
    items = [x.clone(), x + 1, x + 2]
    s = x
    for i in range(x.size(0)):
        s = s + items[i]
        items[0].add_(1)
    return s


def either_list_written(x):
    p = x.clone()
    q = x + 1
    one, other = [p, q], [q, p]
    items = one if bool(x.sum() > 0) else other
    items[0].add_(1)
    return p, q


def dictionary_with_an_unknown_key(x):
    p = x.clone()
    items = {x.size(0): p}
    items[3].add_(1)
    return p


ALIASES = [
    carried_alias_of_written_tensor,
    carried_view_of_written_tensor,
    aliased_in_one_branch_and_filled_in_the_other,
    carried_in_an_inner_loop,
    rebound_in_an_inner_loop,
    swapped_while_one_is_written,
    two_names_of_one_new_tensor,
    list_with_written_tensor,
    list_of_lists_with_written_tensor,
    tuple_with_written_tensor,
    optional_written_tensor,
    written_at_the_end_and_read_at_the_start,
    carried_over_two_iterations,
    written_through_carried_alias,
    read_after_the_loop,
    recurrent_with_fresh_state,
    element_at_an_unknown_index_written,
    element_at_an_unknown_index_read_after_a_write,
    list_in_a_list_at_an_unknown_index,
    elements_of_a_list_with_swapped_items,
    elements_written_in_a_loop,
    elements_read_in_a_loop_that_writes_one,
    either_list_written,
    dictionary_with_an_unknown_key,
]


@pytest.mark.parametrize("function", ALIASES)
def test_alias_of_written_memory_has_written_value(
    function: Callable[..., Any],
) -> None:
    """Equal to torch or refused, but never the value of an earlier iteration."""
    graph = torch.jit.script(function).graph
    if function not in (read_after_the_loop, recurrent_with_fresh_state):
        with pytest.raises(LoweringError, match="writes in place") as refused:
            builder.lower(graph)
        assert "test_functionalize.py" in refused.value.where
        return
    lowered = builder.lower(graph)
    for scale in (-1, 0.3, 2):
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1)) * scale
        expected = function(x.clone())
        expected = expected if isinstance(expected, tuple) else (expected,)
        torch.testing.assert_close(lowered.run(x.clone()), expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("template", "arguments", "text"),
    [
        ("layer{}", (3,), "layer3"),
        ("{}.{}!", ("a", 1), "a.1!"),
        ("none", (), "none"),
        ("{:.2f}", (3,), None),
        ("{{}}", (3,), None),
        ("{}", (), None),
        ("{}{}", (3,), None),
    ],
)
def test_only_templates_with_plain_braces_are_formatted(
    template: str, arguments: tuple[int | str, ...], text: str | None
) -> None:
    assert COUNTS["aten::format"](template, *arguments) == text
