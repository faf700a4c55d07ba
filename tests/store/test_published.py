"""A published model is stale if one of its files or anything that it was built from has changed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builder.engine import BuildOptions
from builder.errors import UsageError
from builder.manifest import load
from builder.manifest.spec import ModelSpec, Tolerance
from builder.store import Hashes, published, reason_to_rebuild, record, request

MANIFEST = (
    "inputs:\n  - {name: x, dtype: float32, shape: [batch, 4]}\ndims:\n  batch: {min: 1, opt: 2,"
    " max: 8}\n"
)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder with one model; the content of its file does not matter."""
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "net.pt").write_bytes(b"weights")
    (folder / "net.yaml").write_text(MANIFEST)
    return folder


@pytest.fixture
def hashes(tmp_path: Path) -> Hashes:
    return Hashes(tmp_path / "hashes.json")


def spec_of(models: Path) -> ModelSpec:
    return load(models)[0]


def published_model(
    folder: Path, expected: dict[str, Any], steps: list[str] | None = None
) -> Path:
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.plan").write_bytes(b"plan")
    files = {"1/model.plan": hashlib.sha256(b"plan").hexdigest()}
    (folder / published.SIDECAR).write_text(
        json.dumps({"name": folder.name, "files": files, "steps": steps or []})
    )
    record(
        folder,
        expected,
        {"model": {"key": "0", "parts": {}, "because": ""}},
        {"layers": 3},
    )
    return folder


def test_equal_request_is_not_stale(
    models: Path, tmp_path: Path, hashes: Hashes
) -> None:
    expected = request(spec_of(models), hashes)
    folder = published_model(tmp_path / "out" / "net", expected)
    assert reason_to_rebuild(folder, request(spec_of(models), hashes), hashes) is None
    assert json.loads((folder / published.SIDECAR).read_text())["name"] == "net"
    assert {path.name for path in folder.iterdir()} == {"1", published.SIDECAR}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: (m / "net.pt").write_bytes(b"others"), "source changed"),
        (
            lambda m: (m / "net.yaml").write_text(MANIFEST + "precision: fp16\n"),
            "precision fp32 -> fp16",
        ),
        (
            lambda m: (m / "net.yaml").write_text(MANIFEST.replace("max: 8", "max: 9")),
            "[1, 2, 8] -> [1, 2, 9]",
        ),
        (
            lambda m: (m / "net.yaml").write_text(
                MANIFEST + "tolerance: {rtol: 0.1}\n"
            ),
            "tolerance.rtol none -> 0.1",
        ),
        (lambda m: (m / "net.yaml").write_text(MANIFEST + "# a comment\n"), None),
    ],
)
def test_change_of_file_or_manifest_is_named(
    models: Path,
    tmp_path: Path,
    hashes: Hashes,
    change: Callable[[Path], Any],
    words: str | None,
) -> None:
    folder = published_model(tmp_path / "out" / "net", request(spec_of(models), hashes))
    change(models)
    reason = reason_to_rebuild(folder, request(spec_of(models), hashes), hashes)
    assert reason is None if words is None else words in str(reason)


def test_goldens_are_keyed_by_content_not_location(
    models: Path, hashes: Hashes
) -> None:
    import dataclasses

    import numpy

    numpy.savez(models / "g.npz", x=numpy.ones((2, 4), "float32"))
    spec = dataclasses.replace(spec_of(models), goldens=models / "g.npz")
    first = request(spec, hashes)
    assert (
        request(dataclasses.replace(spec, name="other", manifest=None), hashes) == first
    )
    numpy.savez(models / "g.npz", x=numpy.zeros((2, 4), "float32"))
    assert request(spec, hashes)["goldens"] != first["goldens"]


def test_every_field_of_a_spec_is_in_the_request(models: Path, hashes: Hashes) -> None:
    """This includes fields that are added later."""
    known = set(request(spec_of(models), hashes))
    unread = {"name", "path", "manifest", "limits", "targets"}
    assert set(ModelSpec.__dataclass_fields__) - unread <= known


def test_request_has_options_versions_and_hash_of_own_code(
    models: Path, hashes: Hashes
) -> None:
    expected = request(spec_of(models), hashes, serve_as="python", layout="fused")
    assert (expected["serve_as"], expected["layout"]) == ("python", "fused")
    assert expected["tensorrt"]
    assert {"torch", "polygraphy"} <= set(expected["packages"])
    assert len(expected["trt_build"]) == 64
    assert json.loads(json.dumps(expected)) == expected
    assert Tolerance().rtol is None
    assert expected["tolerance"] == {"rtol": None, "atol": None, "noise": None}


def test_required_timing_cache_is_in_the_request(
    models: Path, tmp_path: Path, hashes: Hashes
) -> None:
    cache = tmp_path / "a.cache"
    cache.write_bytes(b"one")
    strict = BuildOptions(timing_cache=cache, error_on_timing_cache_miss=True)
    first = request(spec_of(models), hashes, options=strict)
    cache.write_bytes(b"two")
    assert request(spec_of(models), hashes, options=strict) != first


@pytest.mark.parametrize("damage", ["altered", "removed", "step"])
def test_damaged_publication_is_stale(
    models: Path, tmp_path: Path, hashes: Hashes, damage: str
) -> None:
    expected = request(spec_of(models), hashes)
    step = published_model(tmp_path / "out" / "net_0", {})
    folder = published_model(tmp_path / "out" / "net", expected, ["net_0"])
    assert reason_to_rebuild(folder, expected, hashes) is None
    if damage == "altered":
        (folder / "1" / "model.plan").write_bytes(b"PLAN")
    elif damage == "removed":
        (folder / "1" / "model.plan").unlink()
    else:
        (step / published.SIDECAR).unlink()
    assert "is damaged" in str(reason_to_rebuild(folder, expected, hashes))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"request": 3}',
        '{"request": {}, "plans": {"model": 4}}',
        '{"request": {}, "files": 6}',
    ],
)
def test_malformed_sidecar_is_no_publication(
    tmp_path: Path, hashes: Hashes, text: str
) -> None:
    assert reason_to_rebuild(tmp_path, {}, hashes) == "not published before"
    (tmp_path / published.SIDECAR).write_text(text)
    assert reason_to_rebuild(tmp_path, {}, hashes) == "not published before"


def test_hash_is_cached_until_the_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, cache = tmp_path / "file", tmp_path / "cache" / "hashes.json"
    file.write_bytes(b"one")
    with Hashes(cache) as hashes:
        first = hashes.sha256(file)
    assert not cache.exists()  # the file is too new to trust its times
    _make_old(file)
    # the change time cannot be set
    monkeypatch.setattr("builder.store.hashes.RACY_SECONDS", -1)
    with Hashes(cache) as hashes:
        assert hashes.sha256(file) == first
    cached = json.loads(cache.read_text())
    assert cached[str(file)][-1] == first
    cached[str(file)][-1] = "from the cache"
    cache.write_text(json.dumps(cached))
    assert Hashes(cache).sha256(file) == "from the cache"
    before = file.stat()
    file.write_bytes(b"two")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))  # as tar and rsync do
    assert Hashes(cache).sha256(file) == hashlib.sha256(b"two").hexdigest()


def test_hash_of_a_file_that_changes_while_it_is_read_is_not_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(path: Path) -> str:
        path.write_bytes(b"longer than before")
        return "mixed"

    (tmp_path / "file").write_bytes(b"one")
    monkeypatch.setattr("builder.store.hashes.RACY_SECONDS", -1)
    monkeypatch.setattr("builder.store.hashes.sha256", changed)
    with Hashes(tmp_path / "cache") as hashes:
        assert hashes.sha256(tmp_path / "file") == "mixed"
    assert not (tmp_path / "cache").exists()


def _make_old(file: Path) -> None:
    os.utime(file, (1_000_000_000, 1_000_000_000))


@pytest.mark.parametrize(
    "text",
    ["", "null", "[1]", '{"/x": 3', '{"FILE": 3}', '{"FILE": []}', '{"FILE": [1]}'],
)
def test_malformed_cache_of_hashes_is_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / "hashes.json").write_text(text.replace("FILE", str(tmp_path / "file")))
    (tmp_path / "file").write_bytes(b"one")
    assert (
        Hashes(tmp_path / "hashes.json").sha256(tmp_path / "file")
        == hashlib.sha256(b"one").hexdigest()
    )


@pytest.mark.parametrize("key", ["request", "plans", "result", "files"])
def test_changed_sidecar_is_damage(
    models: Path, tmp_path: Path, hashes: Hashes, key: str
) -> None:
    expected = request(spec_of(models), hashes)
    folder = published_model(tmp_path / "out" / "net", expected)
    record = json.loads((folder / published.SIDECAR).read_text())
    record[key] = {**record[key], "more": {"key": "0", "parts": {}, "because": ""}}
    (folder / published.SIDECAR).write_text(json.dumps(record))
    assert (
        reason_to_rebuild(folder, expected, hashes)
        == "trt-build.json of the published model is damaged"
    )


@pytest.mark.parametrize("step", ["../net", "/etc", "net", 3])
def test_step_outside_the_repository_is_damage(
    tmp_path: Path, hashes: Hashes, step: object
) -> None:
    folder = published_model(tmp_path / "out" / "net", {})
    published.write(
        folder, {**published.read(folder / published.SIDECAR), "steps": [step]}
    )
    damaged = list(published.damaged(folder, hashes))
    assert damaged == ([] if step == "net" else [published.SIDECAR])


@pytest.mark.parametrize(
    "record",
    [
        *(
            {"files": {name: "0"}}
            for name in ("../x", "/x", "", ".", "a//b", "a/../b", "\0")
        ),
        *({"steps": [name]} for name in ("../x", "a/b", "..")),
        *({"retired": {name: 0}} for name in ("../x", "a/b")),
        *({"kept": {name: "0"}} for name in ("../1", "-1", "\u0663", "9" * 5000)),
        *({"version": number} for number in (0, -1, True, 10**9, "../1")),
    ],
    ids=lambda record: str(record)[:40],
)
def test_sidecar_with_path_outside_the_model_is_ignored(
    tmp_path: Path, record: dict[str, object]
) -> None:
    folder = published_model(tmp_path / "net", {})
    assert published.sidecar(folder) is not None
    published.write(folder, {**published.read(folder / published.SIDECAR), **record})
    assert published.sidecar(folder) is None
    assert published.versions(folder) == []


def test_only_folders_of_a_repository_are_models(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UsageError, match="contains no model"):
        published.model_names(tmp_path)
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
    assert published.model_names(tmp_path) == ["a", "b"]


def test_hash_of_a_pipe_raises_os_error(tmp_path: Path, hashes: Hashes) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        hashes.sha256(tmp_path / "pipe")
