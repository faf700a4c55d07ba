"""Goldens in the store: they are read bit for bit as they were recorded."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from builder import parity, pipeline
from builder.engine import BuildOptions
from builder.manifest import ModelSpec, load
from builder.parity import Recording, Recordings
from builder.parity.coverage import Outcome
from builder.repository import ModelResult, Settings, build_repository, request_of
from builder.store import Hashes, goldens_key
from builder.store.request import ELSEWHERE, SERVED
from builder.triton import Golden
from tests.cli.conftest import Small, save

ARRAYS = {
    "half": np.asarray([1.5, np.nan, np.inf], np.float16),
    "brain": np.asarray([[1.5, -0.0]], ml_dtypes.bfloat16),
    "flags": np.asarray([True, False]),
    "number": np.asarray(3.25, np.float64),
    "empty": np.zeros((0, 4), np.int64),
    "transposed": np.arange(6, dtype=np.float32).reshape(2, 3).T,
}
RECORDING = Recording(
    (
        Golden("p0-opt", ARRAYS, {"y": ARRAYS["half"]}),
        Golden("p0-min", {}, {"y": ARRAYS["brain"]}),
    ),
    (Outcome(3, "prim::If", "model.py:7", "true"),),
    ("golden p0-max has the axes {'batch': 2}",),
)


def recordings(tmp_path: Path, key: str = "0" * 64, **more: Any) -> Recordings:
    return Recordings(str(tmp_path / "store"), key, **more)


def test_stored_recording_round_trips(tmp_path: Path) -> None:
    assert (
        recordings(tmp_path).find(["y"]) is None and not recordings(tmp_path).exists()
    )
    recordings(tmp_path).keep(RECORDING, ["y"])
    recording = recordings(tmp_path).find(["y"])
    assert recording is not None and recordings(tmp_path).exists()
    assert (recording.unreached, recording.reduced) == (
        RECORDING.unreached,
        RECORDING.reduced,
    )
    assert [golden.name for golden in recording.goldens] == ["p0-opt", "p0-min"]
    for one, other in zip(recording.goldens, RECORDING.goldens, strict=True):
        for side, expected in (
            (one.inputs, other.inputs),
            (one.outputs, other.outputs),
        ):
            assert list(side) == list(expected)
            for name, array in expected.items():
                assert (
                    side[name].dtype == array.dtype and side[name].shape == array.shape
                )
                assert side[name].tobytes() == array.tobytes()


@pytest.mark.parametrize(
    "other", [np.float32(-0.0), np.float32(1), np.float64(0), np.zeros(1, np.float32)]
)
def test_arrays_with_other_bits_dtype_or_shape_differ(other: Any) -> None:
    zero, nan = np.zeros((), np.float32), np.full((), np.nan, np.float32)
    assert parity.same_bits(zero, zero.copy()) and parity.same_bits(nan, nan.copy())
    assert not parity.same_bits(zero, np.asarray(other))


def test_other_keys_other_outputs_and_rebuild_find_no_recording(tmp_path: Path) -> None:
    recordings(tmp_path).keep(RECORDING, ["y"])
    assert recordings(tmp_path, "1" * 64).find(["y"]) is None
    assert recordings(tmp_path).find(["z"]) is None
    assert recordings(tmp_path, rebuild=True).find(["y"]) is None


@pytest.mark.parametrize("damage", ["removed", "other bytes"])
def test_damaged_file_is_ignored_with_a_warning(tmp_path: Path, damage: str) -> None:
    recordings(tmp_path).keep(RECORDING, ["y"])
    for file in (tmp_path / "store" / "files").glob("*/*"):
        file.unlink() if damage == "removed" else file.write_bytes(b"no golden")
    stored = recordings(tmp_path)
    assert stored.find(["y"]) is None
    assert "recorded again" in stored.warnings[0]
    stored.keep(RECORDING, ["y"])
    assert recordings(tmp_path).find(["y"]) is not None


def test_recording_signed_with_another_key_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRT_BUILD_STORE_KEY", "the key of another builder")
    recordings(tmp_path).keep(RECORDING, ["y"])
    monkeypatch.setenv("TRT_BUILD_STORE_KEY", "the key of this builder")
    stored = recordings(tmp_path)
    assert stored.find(["y"]) is None
    assert "is not signed with this builder's key" in stored.warnings[0]


def test_recording_with_dtype_unknown_to_npz_is_not_stored(tmp_path: Path) -> None:
    small = Golden("p0-max", {}, {"y": np.zeros(2, ml_dtypes.float8_e4m3fn)})
    recordings(tmp_path).keep(Recording((*RECORDING.goldens, small)), ["y"])
    assert not recordings(tmp_path).exists()


def test_unusable_store_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file")
    stored = recordings(tmp_path)
    assert stored.find(["y"]) is None
    stored.keep(RECORDING, ["y"])
    assert stored.warnings


def build(models: Path, out: Path, store: Path, **more: Any) -> ModelResult:
    settings = Settings(store=store, share=True, **more)
    (result,) = build_repository(models, out, settings, isolate=False)
    assert result.ok, result.error
    return result


def test_targets_with_different_options_share_goldens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second build publishes the same goldens without running the original module."""
    models, store = save(Small(), tmp_path / "net.pt").parent, tmp_path / "store"
    options = BuildOptions(compute_capabilities=((8, 6),))
    build(models, tmp_path / "a", store, options=options)
    recorded: list[str] = []
    original = parity.record_goldens

    def record(module: Any, spec: ModelSpec, *more: Any) -> Recording:
        recorded.append(spec.precision)
        return original(module, spec, *more)

    monkeypatch.setattr(parity, "record_goldens", record)
    options = BuildOptions(compute_capabilities=((8, 9),))
    build(models, tmp_path / "b", store, options=options)
    assert recorded == []
    names = sorted(path.name for path in (tmp_path / "a" / "net" / "goldens").iterdir())
    assert names
    for name in names:
        one, other = (tmp_path / out / "net" / "goldens" / name for out in "ab")
        assert one.read_bytes() == other.read_bytes()
    build(
        models, tmp_path / "c", store, precision="fp16"
    )  # another tolerance needs other goldens
    assert recorded == ["fp16"]


def test_goldens_key_covers_every_field_that_recording_reads(tmp_path: Path) -> None:
    """The key has every field that recording reads, by value or as the hash of a file."""
    read: set[str] = set()

    class Watched(ModelSpec):
        def __getattribute__(self, name: str) -> Any:
            if name in ModelSpec.__dataclass_fields__:
                read.add(name)
            return super().__getattribute__(name)

    (spec,) = load(save(Small(), tmp_path / "net.pt"))
    fields = {
        field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)
    }
    pipeline.stages.record(
        pipeline.stages.lower(pipeline.stages.load(Watched(**fields)))
    )
    assert {"inputs", "profiles", "precision", "state", "name"} <= read
    assert not read & set(SERVED)
    assert read & set(ELSEWHERE) <= {"name", "path", "manifest", "goldens", "libraries"}


def test_goldens_key_depends_on_models_not_machines(tmp_path: Path) -> None:
    (spec,) = load(save(Small(), tmp_path / "net.pt"))
    (order,) = Settings().orders([spec], tmp_path / "out")
    with Hashes() as hashes:
        request = request_of(order, hashes)
    key = goldens_key("net", request)
    elsewhere = {"gpu": {"name": "H100"}, "tensorrt": "8.6.0", "flavor": "tensorrt"}
    assert goldens_key("net", {**request, **elsewhere}) == key
    assert goldens_key("other", request) != key
    for part in ("source", "precision", "inputs", "packages", "trt_build", "libraries"):
        assert goldens_key("net", {**request, part: "changed"}) != key


def test_models_with_equal_files_have_different_goldens(tmp_path: Path) -> None:
    """The model's name seeds the values."""
    models = tmp_path / "models"
    models.mkdir()
    for name in ("net", "twin"):
        save(Small(), models / f"{name}.pt")
    settings = Settings(store=tmp_path / "store", share=True)
    results = build_repository(models, tmp_path / "out", settings, isolate=False)
    assert all(result.ok for result in results)
    one, other = (
        tmp_path / "out" / name / "goldens" / "p0-opt.npz" for name in ("net", "twin")
    )
    assert one.read_bytes() != other.read_bytes()
