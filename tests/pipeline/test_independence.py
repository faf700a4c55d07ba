"""Requests are joined only if no row changes another's answer, also for values of no golden."""

from __future__ import annotations

from pathlib import Path
from typing import List  # noqa: UP035  # TorchScript's

import pytest
import torch
from torch import Tensor, nn

from builder import manifest, pipeline
from builder.pipeline import Order, independence
from builder.triton import EnsembleArtifact, batching
from tests.pipeline import models


class LimitOfAll(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / torch.clamp(x.abs().max(), min=100.0)


class ThresholdOfAll(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x.view(-1).max(dim=0)[0] > 100, x * 2, x)


class NanInAny(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        bad = torch.isnan(x).sum(0).sum(0) > 0
        return torch.where(bad, torch.zeros_like(x), x)


class GreatestSoFar(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cummax(torch.clamp(x, min=50.0), 0)[0]


class LeastOfLarge(nn.Module):
    """Only a large row's own answer changes."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.clamp(x.amin(0), min=100.0)


class WithoutRepeats(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        equal = (x[:, None] == x[None]).all(-1)
        return torch.where(
            torch.tril(equal, -1).any(1)[:, None], torch.zeros_like(x), x
        )


class LittleOfAll(nn.Module):
    """The change is within the rounding of 16-bit numbers, and beyond that of float32."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x[:-1], x[-1:] * 1.0005])


class Positions(nn.Module):
    """Integers that change by less than a hundredth."""

    def forward(self, x: Tensor) -> Tensor:
        return x.argsort(0) + 2000


class PaddedToLongest(nn.Module):
    """The other rows of a batch decide the size of a row's answer."""

    def forward(self, x: Tensor) -> Tensor:
        rows: List[Tensor] = []  # noqa: UP006
        for i in range(x.size(0)):
            rows.append(x[i][: 1 + int(x[i, 0] > 100.0)])
        return nn.utils.rnn.pad_sequence(rows, batch_first=True)


class Independent(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(1, keepdim=True)).sin().cumsum(1).softmax(1)


class InSteps(nn.Module):
    """An ensemble of three steps; the last one depends on the whole batch."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.special.bessel_j0((x.exp() * 2).relu() + 1)
        z = y.relu() * 2 + 1
        return z / torch.clamp(z.amax(0), min=1e4)


MIXING = (
    LimitOfAll,
    ThresholdOfAll,
    NanInAny,
    GreatestSoFar,
    LeastOfLarge,
    WithoutRepeats,
    LittleOfAll,
    Positions,
    PaddedToLongest,
)


class MeanOfLargeBatch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.size(0) > 8:
            x = x - x.mean(0)
        return x * 2


class MeanOfSevens(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.size(0) % 7 == 0:
            x = x - x.mean(0)
        return x * 2


class MeanOfFull(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.size(0) // 4 > 3:
            x = x - x.mean(0)
        return x * 2


def built(
    folder: Path, module: nn.Module, more: str = "", most: int = 4, **options: str
) -> object:
    source = models.save(folder / "models", module, more)
    text = (source / "m.yaml").read_text().replace("max: 4", f"max: {most}")
    (source / "m.yaml").write_text(text)
    (spec,) = manifest.load(source / "m.pt")
    order = Order(spec, folder / "out", **options)
    return pipeline.check(order, pipeline.Clock("m", lambda *_: None)).artifact


@pytest.mark.parametrize("most", [2, 4])
@pytest.mark.parametrize("module", MIXING)
def test_rows_that_mix_are_not_joined(
    tmp_path: Path, module: type[nn.Module], most: int
) -> None:
    choice = batching.choose(built(tmp_path, module(), most=most))
    assert choice.max_batch_size == 0
    assert "depends on its batch's other rows, if these are" in choice.reason


@pytest.mark.parametrize(
    ("module", "size"), [(MeanOfLargeBatch, 9), (MeanOfSevens, 7), (MeanOfFull, 16)]
)
def test_rows_that_mix_in_batches_of_some_sizes_are_not_joined(
    tmp_path: Path, module: type[nn.Module], size: int
) -> None:
    choice = batching.choose(built(tmp_path, module(), most=16))
    assert choice.max_batch_size == 0
    assert choice.reason.endswith(f"in a batch of {size}")


class CountOfSome(nn.Module):
    """Large rows change all columns equally, which the mean removes."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.01 * (x > 1.5).float().sum(0)
        return x - x.mean(1, keepdim=True)


class Numbered(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1e-4 * torch.arange(x.size(0)).unsqueeze(1)


@pytest.mark.parametrize("module", [CountOfSome, Numbered])
def test_rows_that_mix_in_the_largest_golden_are_not_joined(
    tmp_path: Path, module: type[nn.Module]
) -> None:
    choice = batching.choose(built(tmp_path, module(), most=16))
    assert choice.max_batch_size == 0
    assert choice.reason.endswith("is another one in a batch of 16")


class Amplified(nn.Module):
    """Rounding of the input changes the output beyond the tolerance, and so does the batch size,
    as other kernels do.
    """

    def forward(self, x: Tensor) -> Tensor:
        return x + (x * (1 + 2e-7 * x.size(0)) * 1e6).sin() * 5e-3


@pytest.mark.parametrize("module", [Independent, Amplified])
def test_independent_rows_are_joined(tmp_path: Path, module: type[nn.Module]) -> None:
    assert batching.choose(built(tmp_path, module())).max_batch_size == 4


def test_equal_rows_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of integers has neither NaN nor infinite rows."""
    runs = []

    class Counted(independence.Runner):
        def __call__(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
            runs.append(inputs["x"])
            return super().__call__(inputs)

    monkeypatch.setattr(independence, "Runner", Counted)
    source = models.save(tmp_path / "models", models.Whole())
    text = (source / "m.yaml").read_text().replace("float32", "int64")
    (source / "m.yaml").write_text(text)
    (spec,) = manifest.load(source / "m.pt")
    order = Order(spec, tmp_path / "out")
    checked = pipeline.check(order, pipeline.Clock("m", lambda *_: None))
    assert batching.choose(checked.artifact).max_batch_size == 4
    # alone, beside itself, and two other rows, alone and beside it
    assert [len(rows) for rows in runs[:6]] == [1, 3, 1, 3, 1, 3]
    # in a full batch, and the largest golden and its rows
    assert [len(rows) for rows in runs[6:]] == [1, 4, 4, 1, 1, 1, 1]


def test_manifest_may_demand_joined_requests(tmp_path: Path) -> None:
    artifact = built(tmp_path, LimitOfAll(), "batching: {enabled: true}\n")
    assert batching.choose(artifact).max_batch_size == 4


def test_step_of_an_ensemble_that_mixes_rows_is_not_batched(tmp_path: Path) -> None:
    artifact = built(
        tmp_path, InSteps(), "fallback: {min_block_size: 1}\n", layout="ensemble"
    )
    assert isinstance(artifact, EnsembleArtifact)
    sizes = [batching.choose(step).max_batch_size for step in artifact.steps]
    assert sizes[-1] == 0 < sizes[0]
