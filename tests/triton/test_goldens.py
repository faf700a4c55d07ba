"""Goldens on disk: bfloat16 too, and never a pickle."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from builder.triton import Golden, goldens


def test_bfloat16_and_scalar_tensors_round_trip(tmp_path: Path) -> None:
    x = np.array([1.5, -2.25], dtype=ml_dtypes.bfloat16)
    golden = Golden(
        "p0-opt",
        {"x:0": x},
        {"y": np.float32(3).reshape(()), "flag": np.array([True, False])},
    )
    goldens.save([golden], tmp_path)
    (loaded,) = goldens.load(tmp_path)
    assert (
        loaded.inputs["x:0"].dtype == ml_dtypes.bfloat16
        and (loaded.inputs["x:0"] == x).all()
    )
    assert loaded.outputs["y"].shape == () and loaded.outputs["flag"].dtype == np.bool_


def test_a_pickled_object_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "bad.npz", **{"input:x": np.array([{"a": 1}], dtype=object)})
    with pytest.raises(ValueError, match="pickle"):
        goldens.load(tmp_path)
