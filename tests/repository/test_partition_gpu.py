"""Partitioned models on a GPU: plans run in both layouts, and boundary tensors stay on the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.engine import BuildOptions
from builder.parity.clients import GrpcClient, describe
from builder.parity.served import read
from builder.repository import build_repository
from builder.serving import find
from tests.parity.asserting import assert_passed
from tests.repository import networks
from tests.repository.partitioned import Served, serve_and_verify
from tests.serving.judge import judging

pytestmark = [pytest.mark.gpu, pytest.mark.live]

MODELS = list(networks.CASES)
QUICK = BuildOptions(optimization_level=0)
"""The tests check outputs, not speed."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    networks.write(folder, MODELS)
    return folder


@pytest.fixture(scope="module", params=["fused", "ensemble"])
def served(
    request: pytest.FixtureRequest,
    models: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Served]:
    """Both layouts use plans of one store, so each plan is built once."""
    yield from serve_and_verify(
        models,
        tmp_path_factory.mktemp("served") / "out",
        request.param,
        serve_as="python",
        options=QUICK,
        store=models.parent / "store",
    )


def test_every_plan_runs_on_the_gpu(served: Served) -> None:
    assert {
        name: str(r.error or "") for name, r in served.built.items()
    } == dict.fromkeys(MODELS, "")
    for name, parity in served.verified.items():
        assert_passed(parity)
        expected = (
            "plan" if ".tensorrt" in name else "torch" if ".torch" in name else "plan"
        )
        assert expected in (parity.answered_by or ""), (
            name,
            parity.answered_by,
            parity.why,
        )
        assert "cuda:0" in (parity.device or ""), (name, parity.device, parity.why)


def test_engines_in_branches_run_on_the_gpu(served: Served) -> None:
    if any(served.repository.glob("mixture.0.tensorrt.*")):
        pytest.skip("in an ensemble the torch step has the complete branch")
    golden = read(served.repository / "mixture").goldens[0]
    client = GrpcClient(served.server.grpc_url, 60)
    record = describe(client, "mixture", golden.inputs)
    client.close()
    blocks = [
        part
        for part in record["trt_build.segments"].split()
        if ".yes." in part or ".no." in part
    ]
    assert any(part.endswith("tensorrt:plan") for part in blocks), record
    assert not any(part.endswith("tensorrt:torch") for part in blocks), record


def test_ensemble_boundary_tensors_stay_on_the_gpu(served: Served) -> None:
    steps = sorted(path.name for path in served.repository.glob("*.[1-9].*"))
    if not steps:
        pytest.skip("the fused layout has no steps")
    client = GrpcClient(served.server.grpc_url, 60)
    for name in steps:
        model = name.split(".")[0]
        client.infer(model, read(served.repository / model).goldens[0].inputs)
        own = next(iter(read(served.repository / name).goldens))
        record = describe(client, name, read(served.repository / name).wire(own).inputs)
        assert "cuda" in record["trt_build.inputs_on"], (name, record)
    client.close()


BACKENDS = {"tensorrt_plan": "tensorrt", "pytorch_libtorch": "pytorch", "": "python"}
"""The backend of each platform of a step."""


def test_triton_accepts_the_configs_of_an_ensemble(
    models: Path, tmp_path: Path
) -> None:
    """A config whose backend this server lacks is valid up to the missing library.

    The torch step is for the PyTorch backend unless the server is known to have none. Steps whose
    backend the server has are served in tests/serving/test_backend_gpu.py.
    """
    backends = find().backends()
    platform = "pytorch_libtorch" if backends is None or "pytorch" in backends else ""
    settings = {"only": ["salient"], "options": QUICK, "store": models.parent / "store"}
    (result,) = build_repository(
        models, tmp_path / "out", layout="ensemble", **settings
    )
    assert result.ok, result.error
    folders = {networks.base(path.name): path for path in (tmp_path / "out").iterdir()}
    configs = {name: read(path).config for name, path in folders.items()}
    platforms = {name: config.platform for name, config in configs.items()}
    assert platforms == {
        "salient": "ensemble",
        "salient.0.tensorrt": "tensorrt_plan",
        "salient.1.torch": platform,
        "salient.2.tensorrt": "tensorrt_plan",
    }
    with judging() as judge:
        for name in set(platforms) - {"salient"}:
            if BACKENDS[platforms[name]] in (backends or ()):
                continue
            assert judge((folders[name] / "config.pbtxt").read_text()) is None, name
