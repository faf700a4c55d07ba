"""Partitioned models on a real server, in both layouts, over both protocols."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from builder.engine import flavor
from tests.parity.asserting import assert_passed
from tests.repository import networks
from tests.repository.partitioned import Served, serve_and_verify

pytestmark = [pytest.mark.live, pytest.mark.slow]

KINDS = {
    "salient": ("tensorrt", "torch", "tensorrt"),
    "detector": ("tensorrt", "torch"),
    "gated": ("tensorrt", "torch", "tensorrt"),
    "regions": ("tensorrt", "torch", "tensorrt"),
    "mixture": ("tensorrt", "torch", "tensorrt", "torch", "tensorrt", "torch"),
    "decoder": ("tensorrt", "torch"),
    "crossings": ("tensorrt", "torch", "tensorrt"),
    "watermarked": ("tensorrt", "torch", "tensorrt"),
}


@pytest.fixture(scope="module", params=["fused", "ensemble"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    models = tmp_path_factory.mktemp("models")
    networks.write(models)
    repository = tmp_path_factory.mktemp("served") / "repository"
    yield from serve_and_verify(models, repository, request.param)


def test_every_model_is_built_in_segments(served: Served) -> None:
    assert {
        name: (r.ok, str(r.error or "")) for name, r in served.built.items()
    } == dict.fromkeys(KINDS, (True, ""))
    assert {name: result.segments for name, result in served.built.items()} == KINDS
    assert {result.layout for result in served.built.values()} == {served.layout}


def test_every_model_and_step_matches_the_module(served: Served) -> None:
    for parity in served.verified.values():
        assert_passed(parity)
        assert {"http", "grpc"} <= {result.protocol for result in parity.results}
        assert parity.answered_by in _expected_executors(served.layout), (
            parity.name,
            parity.answered_by,
            parity.why,
        )


def _expected_executors(layout: str) -> tuple[str, ...]:
    """The possible values of `answered_by`. Engines run only on a GPU."""
    if not ("tensorrt" in flavor.installed() and flavor.has_gpu()):
        return ("torch",)
    return ("plan+torch",) if layout == "fused" else ("plan", "torch", "plan+torch")


def test_repository_contains_models_and_ensemble_steps(served: Served) -> None:
    steps = {
        f"{name}.{n}.{kind}"
        for name, kinds in KINDS.items()
        for n, kind in enumerate(kinds)
    }
    assert {*map(networks.base, served.verified)} == set(KINDS) | (
        steps if served.layout == "ensemble" else set()
    )
    for name in set(served.verified) - set(KINDS):
        sidecar = json.loads((served.repository / name / "trt-build.json").read_text())
        assert sidecar["internal"] and sidecar["step_of"] == name.split(".")[0]


def test_warnings_name_the_operators_in_torch(served: Served) -> None:
    assert any(
        "aten::_unique2" in text or "masked_select" in text
        for text in served.built["salient"].warnings
    )
    assert any("prim::Loop" in text for text in served.built["decoder"].warnings)
