"""Bags of embeddings, composed of a matrix product."""

from __future__ import annotations

from builder.conversion.composing import compose, function

_BAG = (
    "count = offsets.size(0)",
    "if include_last_offset:",
    "    count = count - 1",
    "places = torch.arange(indices.size(0)).unsqueeze(0)",
    "starts = torch.narrow(offsets, 0, 0, count).unsqueeze(1)",
    "if include_last_offset:",
    "    ends = torch.narrow(offsets, 0, 1, count).unsqueeze(1)",
    "else:",
    "    last = torch.full([1], indices.size(0), dtype=offsets.dtype)",
    "    ends = torch.cat([torch.narrow(offsets, 0, 1, count - 1), last], 0).unsqueeze(1)",
    "inside = torch.logical_and(places >= starts, places < ends)",
    "if padding_idx is not None:",
    "    if padding_idx >= 0:",
    "        inside = torch.logical_and(inside, (indices != padding_idx).unsqueeze(0))",
    "rows = torch.index_select(weight, 0, indices)",
    "if per_sample_weights is not None:",
    "    rows = rows * per_sample_weights.unsqueeze(1)",
    "sizes = torch.sum(inside, [1])",
    "if mode == 2:",
    "    outside = torch.logical_not(inside).unsqueeze(2)",
    (
        "    each = torch.masked_fill(rows.unsqueeze(0).expand([count, -1, -1]), outside,"
        " -float('inf'))"
    ),
    "    bags = torch.amax(each, [1])",
    "    bags = torch.where((sizes == 0).unsqueeze(1), torch.zeros_like(bags), bags)",
    "else:",
    "    bags = torch.matmul(inside.to(rows.dtype), rows)",
    "    if mode == 1:",
    "        bags = bags / torch.clamp_min(sizes, 1).unsqueeze(1).to(rows.dtype)",
    "return bags, torch.argmax(inside.to(torch.int), 0), sizes, torch.zeros([0], dtype=torch.long)",
)
_FROM_THE_END = (
    "if padding_idx is not None:",
    "    if padding_idx < 0:",
    "        padding_idx = padding_idx + weight.size(0)",
)
_BAG_INPUTS = (
    "weight: Tensor, indices: Tensor, offsets: Tensor, scale_grad_by_freq: bool, mode: int, sparse:"
    " bool, "
)
_BAG_DOC = (
    "the sum, mean or maximum of the rows of each bag, by a matrix of which index is in which bag"
)
_BAGS = (
    "Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq{}, int mode{}, bool"
    " sparse{}, "
)
_FOUR = "(Tensor, Tensor, Tensor, Tensor)"
_USUAL = (
    _BAGS.format("=False", "=0", "=False")
    + "Tensor? per_sample_weights=None, bool include_last_offset=False"
)
_BAG_TAIL = "per_sample_weights: Optional[Tensor], include_last_offset: bool"
compose(
    __name__,
    {
        f"aten::embedding_bag({_USUAL}) -> {_FOUR}": (
            _BAG_DOC,
            function(_BAG_INPUTS + _BAG_TAIL, "padding_idx = -1", *_BAG),
        ),
        f"aten::embedding_bag.padding_idx({_BAGS.format('', '', '')}Tensor? per_sample_weights, bool include_last_offset, int? padding_idx) -> {_FOUR}": (
            _BAG_DOC,
            function(
                f"{_BAG_INPUTS}{_BAG_TAIL}, padding_idx: Optional[int]", *_FROM_THE_END, *_BAG
            ),
        ),
        f"aten::_embedding_bag({_USUAL}, int padding_idx=-1) -> {_FOUR}": (
            _BAG_DOC,
            function(f"{_BAG_INPUTS}{_BAG_TAIL}, padding_idx: int", *_BAG),
        ),
    },
    note="the first output; the places that training asks for are not computed",
)
