"""The casts of autocast are operators of the graph, with the numbers of torch's own."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import builder
from builder.errors import LoweringError
from builder.frontends.export import autocast
from builder.lowering import ir, source_location
from builder.manifest import ModelSpec, TensorSpec
from builder.pipeline.stages import Loaded, _autocast_warnings, lower

pytestmark = pytest.mark.filterwarnings("ignore")


class Nested(nn.Module):
    """Casts of all kinds: to bfloat16, to float32, of different inputs, and none inside."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        with torch.autocast("cpu"):
            low = self.layer(x)
            with torch.autocast("cpu", enabled=False):
                full = self.layer(low.float())
            loss = nn.functional.mse_loss(low, x, reduction="none")
            joined = torch.cat([low, x], 1)
        return low, full, loss, joined, self.norm(low.float())


class Composite(nn.Module):
    """Autocast casts inside of these operators."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 4, batch_first=True)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.bilinear = nn.Bilinear(4, 4, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        self.calls.add_(1)
        with torch.autocast("cpu"):
            hidden, _ = self.lstm(x[:, None])
            mixed, _ = self.attention(hidden, hidden, hidden)
            mixed[:, 0, 0] = 1
            product = torch.einsum("bi,bj->bij", x, x)
        return mixed, product, self.bilinear(x, x)


class Projected(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 6, proj_size=2)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu"):
            return self.lstm(x[None])[0]  # type: ignore[no-any-return]


class Bidirectional(nn.Module):
    """torch.export asserts float32 for the result of the LSTM, which is bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 6, bidirectional=True)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        with torch.autocast("cpu"):
            hidden, (last, _) = self.lstm(x[None])
        return hidden.float(), last.float()


class InBranch(nn.Module):
    """A branch inside a region, which torch.export writes as calls that enter and leave it."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.float16):
            return torch.cond(
                x.sum() > 0, lambda y: y @ y.t(), lambda y: y.t() @ y * 2, (x,)
            )


class Resized(nn.Module):
    """torch's parts of these operators fix the batch of the example."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(1, 4, 3, padding=1)
        self.norm, self.groups = nn.BatchNorm1d(4), nn.GroupNorm(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.float16):
            y = self.norm(self.convolution(x[:, None]))
            y = nn.functional.interpolate(y, scale_factor=2.0, mode="linear")
            return self.groups(y.float())  # type: ignore[no-any-return]


SLOW = {Projected, Bidirectional}
"""Variants of the LSTM of Composite."""


@pytest.mark.parametrize(
    "module",
    [
        pytest.param(module, marks=pytest.mark.slow) if module in SLOW else module
        for module in (Nested, Composite, Projected, Bidirectional, InBranch, Resized)
    ],
)
def test_program_with_autocast_has_the_numbers_of_torch(
    module: type[nn.Module],
) -> None:
    torch.manual_seed(0)
    model = module().eval()
    square = module is InBranch
    shapes = None if square else ({0: Dim("batch", min=1, max=8)},)
    program = torch.export.export(model, (torch.randn(4, 4),), dynamic_shapes=shapes)
    lowered = builder.lower(program)
    original = builder.frontends.ExportedModule(program)
    for x in (torch.randn(4, 4), 2 - torch.randn(4 if square else 5, 4)):
        with torch.no_grad():
            try:
                expected = model(x)
            except RuntimeError as error:
                if "primitive descriptor" not in str(error):
                    raise
                pytest.skip("torch has no bfloat16 LSTM for this CPU")
        outputs = expected if isinstance(expected, tuple) else (expected,)
        for tensors in (lowered.run(x), original(x)):
            torch.testing.assert_close(tuple(tensors), outputs, rtol=0, atol=0)


def test_nodes_of_autocast_have_module_path_and_source_location() -> None:
    program = torch.export.export(Nested().eval(), (torch.randn(2, 4),))
    lowered = builder.lower(program)
    linear, _ = ir.nodes_of(lowered.graph, "aten::linear")
    assert linear.getModuleHierarchy() == "layer(Linear)"
    assert "test_autocast.py:" in source_location(linear)


def test_traced_sizes_of_the_example_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(autocast, "_NOT_DECOMPOSED", frozenset())
    shapes = ({0: Dim("batch", min=1, max=8)},)
    program = torch.export.export(
        Resized().eval(), (torch.randn(4, 4),), dynamic_shapes=shapes
    )
    with pytest.raises(LoweringError, match="the sizes of the example only"):
        autocast.with_explicit_casts(program)


class OnGpu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cuda", dtype=torch.float16):
            return x @ x.t()


def test_autocast_of_another_device_casts_nothing_and_is_warned_of() -> None:
    x = torch.randn(3, 4)
    program = torch.export.export(OnGpu(), (x,), strict=True)
    module = builder.frontends.ExportedModule(program)
    spec = TensorSpec("float32", (3, 4), name="x")
    lowered = lower(Loaded(ModelSpec("m", Path("m.pt2"), (spec,)), module))
    torch.testing.assert_close(lowered.graph.run(x)[0], x @ x.t(), rtol=0, atol=0)
    (warning,) = _autocast_warnings(lowered)
    assert "'cuda'" in warning and "`precision`" in warning


def test_tensors_of_another_device_are_refused_with_the_line() -> None:
    program = torch.export.export(Nested().eval(), (torch.randn(2, 4),))
    meta = program.graph.find_nodes(op="placeholder")[-1].meta
    meta["val"] = SimpleNamespace(device=torch.device("cuda"))
    with pytest.raises(LoweringError, match="tensors on the device cuda") as caught:
        autocast.with_explicit_casts(program)
    assert "test_autocast.py:" in caught.value.where
    assert "precision" in caught.value.fix
