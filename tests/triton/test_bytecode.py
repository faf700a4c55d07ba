"""No server finds a change in a model that it has just loaded: Python compiles in memory alone."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from builder.serving import FREE_PORTS, control, serve
from builder.triton import candidate, history, publish
from tests.triton.artifacts import Raise, artifact, pair, tensor


def blocks_pycache(model: Path) -> bool:
    """Whether Python cannot create `__pycache__` beside model.py and in the runtime."""
    folders = (model / "1", model / "1/trt_build_runtime")
    return all((folder / "__pycache__").is_file() for folder in folders)


def test_published_promoted_and_candidate_models_block_pycache(tmp_path: Path) -> None:
    folder = publish(pair(1), tmp_path / "a")
    history.promote(folder, tmp_path / "b")
    one = candidate.add(folder, tmp_path / "c")
    for repository, ensemble in (("a", "pair"), ("b", "pair"), ("c", one.name)):
        steps = [
            path for path in (tmp_path / repository).iterdir() if path.name != ensemble
        ]
        assert len(steps) == 2 and all(map(blocks_pycache, steps)), repository


def test_model_without_pycache_files_can_be_promoted(tmp_path: Path) -> None:
    inputs = (tensor("x", "float32", "batch", 2),)
    folder = publish(
        artifact(Raise(1), inputs, ("y",), serve_as="python"), tmp_path / "a"
    )
    for file in folder.rglob("__pycache__"):
        file.unlink()
    assert history.promote(folder, tmp_path / "b").state == "promoted"
    assert blocks_pycache(tmp_path / "b/model")


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["explicit", "poll"])
def test_server_with_write_access_loads_each_model_once(
    tmp_path: Path, mode: str
) -> None:
    """Without the files it loads both steps twice (Triton 24.10)."""
    folder = publish(pair(1), tmp_path / "repository")
    log = tmp_path / "server.log"
    polling = {"poll_seconds": 1} if mode == "poll" else {"explicit": True}
    with serve(folder.parent, **FREE_PORTS, log_path=log, **polling) as server:
        if mode == "explicit":
            control.update(server.http_url, folder)
        else:
            time.sleep(4)
    loads = [line for line in log.read_text().splitlines() if '"loading: pair.' in line]
    assert len(loads) == 2, loads
