"""Attention of torch.nn is rewritten with few permutes and keeps its results."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import builder
from builder.frontends import ExportedModule

WIDTH, HEADS = 8, 2


class Layers(nn.Module):
    """An encoder layer and a decoder layer, with a padding mask."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        sizes = {"dim_feedforward": 16, "dropout": 0.0, "batch_first": batch_first}
        self.encoder = nn.TransformerEncoderLayer(WIDTH, HEADS, **sizes)
        self.decoder = nn.TransformerDecoderLayer(WIDTH, HEADS, **sizes)
        self.batch_first = batch_first

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        mask = ids == 0
        rows = x if self.batch_first else x.transpose(0, 1)
        memory = self.encoder(rows, src_key_padding_mask=mask)
        out = self.decoder(rows, memory, memory_key_padding_mask=mask)
        return out if self.batch_first else out.transpose(0, 1)


class Split(nn.Module):
    """A layer whose result is split into heads, similar to torch's attention."""

    def __init__(self, write: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 6)
        self.packed = nn.Linear(WIDTH, 3 * WIDTH)
        self.write = write

    def forward(self, x: Tensor) -> Tensor:
        return self.write(self, x)


def _heads(rows: Tensor, batch: int, heads: int = HEADS) -> Tensor:
    time = rows.shape[0]
    joined = rows.reshape(time, batch * heads, WIDTH // heads).transpose(0, 1)
    return joined.reshape(batch, heads, time, WIDTH // heads)


def _stacked(model: nn.Module, rows: Tensor) -> Tensor:
    parts = model.packed(rows).unflatten(-1, (3, WIDTH))
    return parts.unsqueeze(0).transpose(0, -2).squeeze(-2).contiguous()


def as_torch_does(model: nn.Module, x: Tensor) -> Tensor:
    q, k, v = (_heads(part, x.shape[0]) for part in _stacked(model, x.transpose(0, 1)))
    attended = nn.functional.scaled_dot_product_attention(q, k, v).permute(2, 0, 1, 3)
    rows = model.outer(attended.reshape(x.shape[1] * x.shape[0], WIDTH))
    return rows.reshape(x.shape[1], x.shape[0], 6).transpose(0, 1)


def with_part_used_twice(model: nn.Module, x: Tensor) -> Tensor:
    parts = _stacked(model, x.transpose(0, 1))
    q, k, v = (_heads(part, x.shape[0]) for part in parts)
    return nn.functional.scaled_dot_product_attention(q, k, v) * parts[1].sum()


def with_rows_used_twice(model: nn.Module, x: Tensor) -> Tensor:
    rows = x.transpose(0, 1)
    heads = _heads(model.inner(rows), x.shape[0])
    return (heads @ heads.transpose(2, 3)).sum() + rows


def with_other_heads(model: nn.Module, x: Tensor) -> Tensor:
    """Splits the joined axis into other sizes than those that were joined."""
    rows = (
        model.inner(x.transpose(0, 1))
        .reshape(x.shape[1], x.shape[0] * 2, 4)
        .transpose(0, 1)
    )
    return rows.reshape(2, x.shape[0], x.shape[1], 4) + 0.0


def with_another_order(model: nn.Module, x: Tensor) -> Tensor:
    heads = _heads(model.inner(x.transpose(0, 1)), x.shape[0])
    rows = model.outer(
        heads.permute(2, 0, 3, 1).reshape(x.shape[1] * x.shape[0], WIDTH)
    )
    return rows.reshape(x.shape[1], x.shape[0], 6).transpose(0, 1)


def with_time_and_batch_exchanged(model: nn.Module, x: Tensor) -> Tensor:
    heads = _heads(model.inner(x.transpose(0, 1)), x.shape[0])
    rows = model.outer(
        heads.permute(2, 0, 1, 3).reshape(x.shape[1] * x.shape[0], WIDTH)
    )
    return rows.reshape(x.shape[0], x.shape[1], 6)


def with_following_layer(model: nn.Module, x: Tensor) -> Tensor:
    """The transposed result is read by a layer that splits it into heads itself."""
    heads = _heads(model.inner(x.transpose(0, 1)), x.shape[0])
    rows = model.inner(
        heads.permute(2, 0, 1, 3).reshape(x.shape[1] * x.shape[0], WIDTH)
    )
    back = rows.reshape(x.shape[1], x.shape[0], WIDTH).transpose(0, 1)
    return _heads(model.inner(back), x.shape[1])


def with_a_negative_part(model: nn.Module, x: Tensor) -> Tensor:
    parts = _stacked(model, x)
    return _heads(parts[-1], x.shape[1]) + _heads(parts[0], x.shape[1])


def with_mask_used_twice(model: nn.Module, x: Tensor) -> Tensor:
    q = _heads(model.inner(x.transpose(0, 1)), x.shape[0])
    mask = (x[:, None, None, :, 0] * 2.0).expand(-1, HEADS, -1, -1)
    return nn.functional.scaled_dot_product_attention(q, q, q, mask) + mask.sum()


PATTERNS = [
    as_torch_does,
    with_part_used_twice,
    with_rows_used_twice,
    with_other_heads,
    with_another_order,
    with_time_and_batch_exchanged,
    with_following_layer,
    with_a_negative_part,
    with_mask_used_twice,
]


def exported(model: nn.Module, *inputs: Tensor) -> torch.export.ExportedProgram:
    axes = {0: Dim("batch", min=1, max=8), 1: Dim("length", min=1, max=9)}
    return torch.export.export(
        model.eval(), inputs, dynamic_shapes=(axes,) * len(inputs)
    )


def kinds_of(program: torch.export.ExportedProgram) -> list[str]:
    return [node.kind() for node in ExportedModule(program).graph.nodes()]


@pytest.mark.parametrize("batch_first", [True, False])
def test_attention_has_one_permute_per_tensor_of_heads(batch_first: bool) -> None:
    torch.manual_seed(0)
    model = Layers(batch_first)
    ids = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0]])
    program = exported(model, torch.randn(3, 5, WIDTH), ids)
    kinds = kinds_of(program)
    assert (
        kinds.count("aten::permute") == 12
    )  # 3 projections and 1 result of 3 attentions
    assert kinds.count("aten::transpose") == (0 if batch_first else 2)
    assert not {"aten::unflatten", "aten::select", "aten::expand"} & set(kinds)
    conversion = builder.convert(program)
    for sizes in ((3, 5), (1, 2), (8, 9)):
        x, ids = torch.randn(*sizes, WIDTH), torch.ones(sizes, dtype=torch.int64)
        ids[:, 1:] = torch.randint(0, 2, (sizes[0], sizes[1] - 1))
        with torch.no_grad():
            wanted = model(x, ids)
        torch.testing.assert_close(
            builder.reference.run(conversion, [x, ids]), [wanted]
        )


@pytest.mark.parametrize("write", PATTERNS, ids=lambda write: write.__name__)
def test_similar_patterns_keep_the_results_of_the_module(
    write: Callable[[nn.Module, Tensor], Tensor],
) -> None:
    torch.manual_seed(0)
    model = Split(write)
    program = exported(model, torch.randn(3, 5, WIDTH))
    conversion = builder.convert(program)
    for sizes in ((3, 5), (4, 4), (1, 2)):
        x = torch.randn(*sizes, WIDTH)
        with torch.no_grad():
            wanted = model(x)
        torch.testing.assert_close(builder.reference.run(conversion, [x]), [wanted])


def test_fallback_of_attention_marks_all_its_nodes() -> None:
    model = nn.TransformerEncoderLayer(WIDTH, HEADS, 16, batch_first=True)
    program = exported(model, torch.randn(3, 5, WIDTH))
    lowered = builder.lower(program, fallback_modules=("self_attn",))
    marked = {
        node.kind()
        for node in lowered.graph.nodes()
        if node.hasAttribute("run_in_torch")
    }
    assert marked >= {
        "aten::linear",
        "aten::permute",
        "aten::scaled_dot_product_attention",
    }
