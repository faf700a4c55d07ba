"""Models on Triton's TensorRT backend, if the installed tritonserver has it."""

from __future__ import annotations

import json
import shutil
import urllib.request
from pathlib import Path

import pytest
import torch

from builder.engine import BuildOptions
from builder.errors import UsageError
from builder.parity import ModelParity, verify
from builder.repository import build_repository
from builder.serving import FREE_PORTS, serve
from builder.serving.installation import find
from builder.triton import merge
from tests.cli.conftest import manifest_of
from tests.parity.asserting import assert_passed
from tests.parity.test_examples_gpu import TOLERANCES
from tests.repository import networks
from tests.repository import stateful as sequence_models

pytestmark = [pytest.mark.gpu, pytest.mark.live, pytest.mark.slow]

EXAMPLES = Path(__file__).parents[2] / "examples" / "models"
QUICK = BuildOptions(optimization_level=0)
"""The tests check outputs, not speed."""

PROFILES = """\
inputs:
  - {name: x, dtype: float32, shape: [batch, 16]}
profiles:
  - {batch: {min: 1, opt: 1, max: 1}}
  - {batch: {min: 1, opt: 4, max: 8}}
outputs: [y]
"""
PLAIN = manifest_of(16, opt=4)
SECTION = (
    PLAIN
    + """\
versions: {keep: 2, serve: 2}
triton:
  instance_group:
    - kind: KIND_GPU
      count: 2
      rate_limiter: {resources: [{name: slots, count: 1}], priority: 2}
  dynamic_batching: {default_queue_policy: {max_queue_size: 64, timeout_action: REJECT}}
  response_cache: {enable: true}
  metric_tags: {team: search}
"""
)
GRAPHS = PLAIN + "batching: {graphs: [1, 4]}\n"


@pytest.fixture(scope="module", autouse=True)
def backend() -> None:
    backends = find().backends()
    if backends is None or "tensorrt" not in backends:
        pytest.skip("tritonserver has no TensorRT backend")


def small(folder: Path, name: str, manifest: str) -> Path:
    """A models folder with one network of two layers."""
    folder.mkdir(exist_ok=True)
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.Tanh()).eval()
    torch.jit.script(layers).save(str(folder / f"{name}.pt"))
    (folder / f"{name}.yaml").write_text(manifest)
    return folder


def published(models: Path, repository: Path, **options: object) -> Path:
    results = build_repository(
        models, repository, serve_as="tensorrt_plan", options=QUICK, **options
    )
    assert all(result.ok for result in results), [
        str(result.error) for result in results
    ]
    return repository


def verify_served(repository: Path, **options: object) -> list[ModelParity]:
    with serve(repository, **FREE_PORTS, client_shared_memory=True) as server:
        found = verify(repository, server.http_url, server.grpc_url, **options)
    for parity in found:
        assert_passed(parity)
    return found


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_examples_are_run_by_their_plans(tmp_path: Path, precision: str) -> None:
    models = tmp_path / "models"
    shutil.copytree(EXAMPLES, models)
    if not list(models.glob("*.pt")):
        pytest.skip("make demo writes the example models")
    for manifest in models.glob("*.yaml"):
        with manifest.open("a") as text:
            text.write(TOLERANCES.get((manifest.stem, precision), ""))
    repository = published(models, tmp_path / "repository", precision=precision)
    for parity in verify_served(repository, shared_memory=("none", "cuda")):
        assert parity.answered_by == "plan", (parity.name, parity.why)


def test_backend_keeps_implicit_state(tmp_path: Path) -> None:
    models = sequence_models.write(tmp_path, "recognizer", "filter")
    verify_served(published(models, tmp_path / "repository"))


def test_profiles_and_triton_section_are_served(
    tmp_path: Path,
) -> None:
    models = small(tmp_path / "models", "profiles", PROFILES)
    small(models, "section", SECTION)
    repository = published(models, tmp_path / "repository")
    with serve(repository, **FREE_PORTS, client_shared_memory=True) as server:
        results = verify(repository, server.http_url, server.grpc_url)
        url = f"http://{server.http_url}/v2/models/section/config"
        with urllib.request.urlopen(url, timeout=10) as response:
            config = json.load(response)
    for parity in results:
        assert_passed(parity)
    (group,) = config["instance_group"]
    assert group["count"] == 2 and group["rate_limiter"]["priority"] == 2
    assert [int(one) for one in config["version_policy"]["specific"]["versions"]] == [1]
    assert config["response_cache"]["enable"] and config["metric_tags"] == {
        "team": "search"
    }


def test_ensemble_of_plans_and_torch_steps_passes(tmp_path: Path) -> None:
    networks.write(
        tmp_path / "models", ["salient", "decoder", "detector", "gated", "regions"]
    )
    repository = published(
        tmp_path / "models", tmp_path / "repository", layout="ensemble"
    )
    verify_served(repository, repeat=0)


def test_merged_repository_serves_the_plan_of_the_gpu(tmp_path: Path) -> None:
    models = small(tmp_path / "models", "section", SECTION)
    one = published(models, tmp_path / "one")
    merge([one], tmp_path / "merged")
    assert (
        "cc_model_filenames"
        in (tmp_path / "merged" / "section" / "config.pbtxt").read_text()
    )
    verify_served(tmp_path / "merged")


def test_graphs_are_refused_for_the_tensorrt_backend(tmp_path: Path) -> None:
    models = small(tmp_path / "models", "graphs", GRAPHS)
    (result,) = build_repository(
        models, tmp_path / "repository", serve_as="tensorrt_plan", options=QUICK
    )
    assert not result.ok and isinstance(result.error, UsageError)
    assert "graphs" in str(result.error)
