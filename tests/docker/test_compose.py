"""docker-compose.yml as it is read, without a Docker engine: what the GPU's profile would start,
and what TORCH_INDEX reaches.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder.cli.health import health_command
from builder.triton import environment

from .conftest import composes, run

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text()
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(TEXT)["services"]
DOCKERFILE = (ROOT / "docker" / "cpu.Dockerfile").read_text()
GPU, CPU = SERVICES["triton-gpu"], SERVICES["triton-cpu"]
INDEX = "https://download.pytorch.org/whl/cpu"

# Without an engine Compose still reads and checks the file; where there is none of it PyYAML does.
compose = pytest.mark.parametrize("compose", composes(), ids=" ".join)


def variables(text: str) -> dict[str, str]:
    """The default of each variable that Compose fills in."""
    return dict(re.findall(r"\$\{([A-Z_]+):?-([^}]*)\}", text))


def test_each_profile_that_the_readme_starts_is_one_service() -> None:
    named = set(re.findall(r"docker-compose --profile (\w+) up", (ROOT / "README.md").read_text()))
    assert named == {"cpu", "gpu"}
    assert sorted(
        profile for service in SERVICES.values() for profile in service["profiles"]
    ) == sorted(named)


@pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)
def test_both_serve_the_repository_read_only_on_the_loopback(service: dict[str, Any]) -> None:
    """As the README says of both."""
    assert service["volumes"] == ["${MODEL_REPOSITORY:-./model_repository}:/models:ro"]
    ports = [str(port).rsplit(":", 1) for port in service["ports"]]
    assert [inside for _, inside in ports] == ["8000", "8001", "8002"]
    assert all(outside.startswith("127.0.0.1:${") for outside, _ in ports)
    assert service["cap_drop"] == ["ALL"] and "no-new-privileges:true" in service["security_opt"]


def test_the_cpu_service_is_healthy_where_each_model_answers() -> None:
    command, *arguments = CPU["healthcheck"]["test"]
    assert command == "CMD" and arguments[:3] == ["trt-build", "health", "/models"]
    context = health_command.make_context("health", arguments[2:])
    assert context.params["url"] == "127.0.0.1:8000"
    assert context.params["grpc_url"] == "127.0.0.1:8001"


def test_every_variable_has_a_default() -> None:
    assert set(re.findall(r"\$\{([A-Z_]+)", TEXT)) == set(variables(TEXT))


def test_the_gpu_profile_takes_the_image_that_repo_writes(tmp_path: Path) -> None:
    (tmp_path / "repository").mkdir()
    written = environment.write_env(tmp_path / "repository").read_text()
    assert GPU["image"] == f"${{{environment.VARIABLE}:-{variables(TEXT)[environment.VARIABLE]}}}"
    assert f"\n{environment.VARIABLE}=nvcr.io/nvidia/tritonserver:" in written
    (device,) = GPU["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["count"], device["capabilities"]) == ("nvidia", 1, ["gpu"])


def test_the_gpu_profile_starts_triton_with_flags_that_it_has() -> None:
    from builder.serving.installation import find

    program, *flags = GPU["command"]
    assert (
        program == "tritonserver"
        and f"--model-repository={GPU['volumes'][0].split(':')[-2]}" in flags
    )
    installation = find()
    assert [flag for flag in flags if not installation.supports(flag.partition("=")[0])] == []


def test_one_torch_index_is_the_default_everywhere() -> None:
    """What the README names for `make demo` is what the image is built with."""
    assert CPU["build"]["args"] == {"TORCH_INDEX": f"${{TORCH_INDEX-{INDEX}}}"}
    assert (
        f"ARG TORCH_INDEX={INDEX}" in DOCKERFILE
        and "PIP_EXTRA_INDEX_URL=${TORCH_INDEX}" in DOCKERFILE
    )
    assert f"TORCH_INDEX={INDEX}" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize(
    ("given", "option"), [(f"TORCH_INDEX={INDEX}", f"--extra-index-url {INDEX} "), ("", "")]
)
def test_make_hands_torch_index_to_pip(given: str, option: str) -> None:
    command = [
        "make",
        "--dry-run",
        "--always-make",
        "--no-print-directory",
        given or "TORCH_INDEX=",
        "venv",
    ]
    printed = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=True).stdout
    (install,) = re.findall(r"pip install --quiet +(.*)--editable", printed)
    assert install == option


def test_what_the_image_copies_is_sent_to_docker() -> None:
    """.dockerignore leaves out everything that it does not name."""
    sent = {
        line[1:]
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copies = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    sources = {source for line in copies for source in line.split()}
    assert (
        sources
        and {source for source in sources if not any(Path(source).is_relative_to(s) for s in sent)}
        == set()
    )
    assert [source for source in sources if not (ROOT / source).exists()] == []


@compose
def test_compose_itself_takes_the_file(compose: list[str]) -> None:
    for profile, service in (("gpu", "triton-gpu"), ("cpu", "triton-cpu")):
        assert service in run([*compose, "--profile", profile, "config", "--services"]).split()


@compose
@pytest.mark.parametrize("index", ["", "https://example.org/simple"])
def test_compose_hands_torch_index_to_the_build(compose: list[str], index: str) -> None:
    """Also where it is empty: PyPI alone, or a wheel in docker/local."""
    read = yaml.safe_load(run([*compose, "--profile", "cpu", "config"], TORCH_INDEX=index))
    assert read["services"]["triton-cpu"]["build"]["args"] == {"TORCH_INDEX": index}


@compose
def test_compose_serves_the_repository_that_repo_wrote(compose: list[str], tmp_path: Path) -> None:
    """`.env` lies beside docker-compose.yml, as it does after `make demo`."""
    (tmp_path / "docker-compose.yml").write_text(TEXT)
    repository = tmp_path / "other_name"
    repository.mkdir()
    environment.write_env(repository)
    done = subprocess.run(
        [*compose, "config"], cwd=tmp_path, text=True, capture_output=True, check=True
    )
    services = yaml.safe_load(done.stdout)["services"]
    assert f"{tmp_path}/other_name:/models" in str(services["triton-cpu"]["volumes"])
