"""Attention of torch.nn in exported programs has one permutation for each tensor of heads."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import builder

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


class AfterConvolution(nn.Module):
    """As in Whisper: only the convolution's input has the size of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.encoder = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 16, batch_first=True, dropout=0.0
        )
        self.register_buffer("places", torch.randn(64, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x.transpose(1, 2)).transpose(1, 2)
        return self.encoder(y + self.places[: y.size(1)])


def exported(model: nn.Module, *inputs: Tensor) -> torch.export.ExportedProgram:
    axes = {0: Dim("batch", min=1, max=8), 1: Dim("length", min=3, max=9)}
    return torch.export.export(
        model.eval(), inputs, dynamic_shapes=(axes,) * len(inputs)
    )


def ids_of(sizes: tuple[int, int]) -> Tensor:
    ids = torch.ones(sizes, dtype=torch.int64)
    ids[:, 1:] = torch.randint(0, 2, (sizes[0], sizes[1] - 1))
    return ids


@pytest.mark.parametrize(
    ("model", "permutations", "transposes"),
    [  # three projections and one result of each attention
        (Layers(batch_first=True), 12, 0),
        (Layers(batch_first=False), 12, 2),
        (AfterConvolution(), 4, 2),
    ],
    ids=["batch first", "time first", "after convolution"],
)
def test_attention_has_one_permutation_for_each_tensor_of_heads(
    model: nn.Module, permutations: int, transposes: int
) -> None:
    torch.manual_seed(0)

    def inputs(*sizes: int) -> list[Tensor]:
        x = torch.randn(*sizes, WIDTH)
        return [x, ids_of(sizes)] if isinstance(model, Layers) else [x]

    lowered = builder.convert(exported(model, *inputs(3, 5))).lowered
    kinds = [node.kind() for node in lowered.graph.nodes()]
    attentions = permutations // 4
    assert kinds.count("aten::permute") == permutations
    # the keys are transposed for the product
    assert kinds.count("aten::transpose") == transposes + attentions
    assert not {"aten::unflatten", "aten::select", "aten::expand"} & set(kinds)
    for sizes in ((3, 5), (1, 3), (8, 9)):
        batch = inputs(*sizes)
        with torch.no_grad():
            torch.testing.assert_close(lowered.run(*batch), [model(*batch)])


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
