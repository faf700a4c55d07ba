"""Goldens reach the branches, comparisons and bounds of a module, or a warning names the unreached
ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from builder.manifest.spec import ModelSpec, TensorSpec
from builder.parity.recording import Recording, record_goldens
from builder.parity.work import TooMuchWork, Work

SPANS = {"batch": (1, 2, 4), "length": (1, 8, 32)}


def tensor(name: str, dtype: str, *shape: int | str) -> TensorSpec:
    dims = {axis: SPANS[axis] for axis in shape if isinstance(axis, str)}
    return TensorSpec(dtype, shape, dims, name)


X = tensor("x", "float32", "batch", "length")


class Rebinding(nn.Module):
    """The condition holds for large values only."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x.max() > 50.0):
            x = x * 2
        return x


class Shifted(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - 50.0).relu()


class Clamped(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.clamp(-300.0, 20.0)


class InPlace(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + 0
        return y.clamp_(max=7.0)


class Sized(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.size(1) > 13:
            x = x[:, :13]
        return x


class Guarded(nn.Module):
    """A module whose only unreached branch raises an error."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x < -1e30).any()):
            raise ValueError("too small")
        return x + 1


class Unreachable(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.sigmoid()
        if bool(y.max() > 2.0):
            y = y * 3
        return y


class Settings(nn.Module):
    """A module whose branches depend only on attributes, the device and the rank."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.wide:
            x = x * 2
        if self.training or x.is_cuda:
            x = x * 3
        is_batched = x.dim() == 2 or x.ndim == 2
        if not is_batched:
            x = x.unsqueeze(0)
        return x


class IllConditioned(nn.Module):
    """A module whose output above 1000 depends on the last bits of the input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x.max() > 1000.0):
            x = torch.sin(x * 1e7)
        return x


def recorded(
    module: nn.Module, tmp_path: Path, *inputs: TensorSpec, **more: Any
) -> Recording:
    """The recording of the module, scripted, saved and loaded."""
    path = tmp_path / "model.pt"
    torch.jit.script(module.eval()).save(str(path))
    spec = ModelSpec(
        "model", path, inputs or (X,), more.pop("profiles", (SPANS,)), **more
    )
    return record_goldens(torch.jit.load(str(path)).eval(), spec)


def extra_goldens(recording: Recording) -> list[Any]:
    return [golden for golden in recording.goldens if "reach" in golden.name]


@pytest.mark.parametrize("kind", [Rebinding, Shifted, Clamped, InPlace])
def test_values_are_varied_until_every_outcome_is_reached(
    kind: Any, tmp_path: Path
) -> None:
    recording = recorded(kind(), tmp_path)
    assert extra_goldens(recording)
    assert not recording.unreached
    for golden in extra_goldens(recording):
        output = kind()(torch.from_numpy(golden.inputs["x"]).clone())
        torch.testing.assert_close(torch.from_numpy(golden.outputs["output"]), output)


def test_loop_gets_a_golden_above_its_threshold(tmp_path: Path) -> None:
    class Loop(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            cur = torch.zeros_like(x[0])
            prev = torch.zeros_like(x[0])
            acc = torch.zeros_like(x[0])
            for t in range(x.size(0)):
                cur += (x[t] - 50.0).relu()
                acc = acc + (cur - prev)
                prev = cur
            return acc

    recording = recorded(Loop(), tmp_path)
    assert max(golden.inputs["x"].max() for golden in extra_goldens(recording)) > 50


def test_sizes_next_to_a_compared_number_are_tried(tmp_path: Path) -> None:
    dims = {"batch": (1, 2, 4), "length": (1, 8, 13)}
    assert recorded(
        Sized(), tmp_path, profiles=(dims,)
    ).warnings  # no such size in the profile
    dims = {"batch": (1, 2, 4), "length": (1, 8, 14)}
    recording = recorded(Sized(), tmp_path, profiles=(dims,))
    assert not recording.unreached


@pytest.mark.parametrize("kind", [Guarded, Settings])
def test_constant_and_raising_branches_are_not_required(
    kind: Any, tmp_path: Path
) -> None:
    recording = recorded(kind(), tmp_path)
    assert not [outcome for outcome in recording.unreached if outcome.is_branch]


def test_unreached_branch_is_a_warning_with_its_line(tmp_path: Path) -> None:
    (warning,) = recorded(Unreachable(), tmp_path).warnings
    assert "no golden reaches" in warning
    assert "test_golden_search.py" in warning and "condition: true" in warning
    assert "goldens: FILE.npz" in warning


def test_search_of_a_costly_module_ends_early_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Longer(nn.Module):
        """Takes as many steps as the largest value."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(int(x.abs().max())):
                x = x.sigmoid()
            return x.clamp(max=2.0)

    monkeypatch.setattr("builder.parity.golden_search.MOST_WORK", 10**8)
    (warning,) = recorded(Longer(), tmp_path).warnings
    assert "ended after" in warning and "goldens: FILE.npz" in warning


def test_operators_above_the_limit_of_work_are_stopped() -> None:
    work = Work(10**6)
    with work, pytest.raises(TooMuchWork, match="more than 1000000 operations"):
        for _ in range(10):
            torch.ones(4).add(1)
    assert work.exceeded and work.done < 2 * 10**6


def test_outputs_that_depend_on_rounding_are_not_recorded(tmp_path: Path) -> None:
    recording = recorded(IllConditioned(), tmp_path)
    assert not extra_goldens(recording)
    assert recording.warnings


def test_int8_gets_no_goldens_outside_its_ranges(tmp_path: Path) -> None:
    recording = recorded(Rebinding(), tmp_path, precision="int8")
    assert not extra_goldens(recording) and recording.warnings


def test_user_goldens_count_as_reached_outcomes(tmp_path: Path) -> None:
    high = np.full((2, 8), 100, np.float32)
    np.savez(tmp_path / "own.npz", x=high)
    recording = recorded(Rebinding(), tmp_path, goldens=tmp_path / "own.npz")
    assert not extra_goldens(recording) and not recording.unreached


def test_integers_and_masks_are_varied(tmp_path: Path) -> None:
    class Ids(nn.Module):
        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            if bool((ids == 5000).any()) or bool(mask.all()):
                ids = ids + 1
            return ids

    recording = recorded(
        Ids(),
        tmp_path,
        tensor("ids", "int64", "batch", 3),
        tensor("mask", "bool", "batch", 3),
    )
    assert not [outcome for outcome in recording.unreached if outcome.is_branch]
