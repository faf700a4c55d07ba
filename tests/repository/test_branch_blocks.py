"""Engines in the blocks of a branch on data: both branches match the module on a live server."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from builder.parity.clients import GrpcClient, describe
from builder.parity.served import read
from builder.repository import build_repository
from builder.serving import FREE_PORTS, serve
from tests.repository import networks

pytestmark = pytest.mark.live


@pytest.mark.slow
def test_outputs_come_from_the_branch_chosen_by_data(tmp_path: Path) -> None:
    networks.write(tmp_path, ["mixture"])
    (result,) = build_repository(
        tmp_path, tmp_path / "out", layout="fused", isolate=False
    )
    assert result.ok, result.error
    assert any("2 engines inside" in text for text in result.warnings)
    module = torch.jit.load(str(tmp_path / "mixture.pt"))
    with serve(tmp_path / "out", **FREE_PORTS) as server:
        client = GrpcClient(server.grpc_url, 60)
        branches = set()
        for seed in range(12):
            x = torch.randn(3, 8, generator=torch.Generator().manual_seed(seed)) * (
                1 + seed
            )
            response = client.infer("mixture", {"x": x.numpy()}).outputs["output"]
            np.testing.assert_allclose(
                response, module(x).detach().numpy(), rtol=1e-4, atol=1e-4
            )
            branches.add(
                bool(torch.special.bessel_j0(module.stem(x)).sum() + 9 * x.sum() > 0)
            )
        described = describe(client, "mixture", {"x": np.zeros((1, 8), np.float32)})
        client.close()
    assert branches == {True, False}
    assert {"3.0.yes.0.tensorrt", "3.0.no.1.tensorrt"} <= {
        part.split(":")[0] for part in described["trt_build.segments"].split()
    }
    files = {path.name for path in (tmp_path / "out/mixture/1").iterdir()}
    facts = json.loads((tmp_path / "out/mixture/1/plan.json").read_text())
    assert (
        "segment_3.pt" not in files
        and {"segment_3_0_yes_0.plan", "segment_3_0_condition.pt"} <= files
    )
    assert facts["segments"][3]["parts"][0]["kind"] == "branch"


@pytest.mark.slow
def test_blocks_too_small_for_an_engine_stay_in_torch(tmp_path: Path) -> None:
    networks.write(tmp_path, ["gated"])
    (result,) = build_repository(
        tmp_path, tmp_path / "out", layout="fused", isolate=False
    )
    assert result.ok and not any("engines inside" in text for text in result.warnings)
    assert not list((tmp_path / "out/gated/1").glob("*condition*"))


def test_models_with_a_data_branch_are_not_batched(tmp_path: Path) -> None:
    """A batch takes one branch for all its rows, which goldens may not show."""
    networks.write(tmp_path, ["mixture"])
    (result,) = build_repository(
        tmp_path, tmp_path / "out", layout="fused", isolate=False
    )
    assert result.ok, result.error
    facts = read(tmp_path / "out/mixture").sidecar["batching"]
    assert facts["max_batch_size"] == 0 and "a branch on data" in facts["reason"]
    manifest = yaml.safe_load((tmp_path / "mixture.yaml").read_text())
    (tmp_path / "mixture.yaml").write_text(
        yaml.safe_dump({**manifest, "batching": {"enabled": True}})
    )
    build_repository(tmp_path, tmp_path / "out", layout="fused", isolate=False)
    assert read(tmp_path / "out/mixture").sidecar["batching"]["max_batch_size"] == 4, (
        "the manifest can enable batching"
    )
