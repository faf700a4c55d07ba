"""docker-compose.yml without a Docker engine: the flags of the GPU profile and the use of
TORCH_INDEX.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder.cli.health import health_command
from builder.serving import FREE_PORTS, features
from builder.triton import environment

from .conftest import composes, run

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text()
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(TEXT)["services"]
DOCKERFILE = (ROOT / "docker" / "cpu.Dockerfile").read_text()
GPU, CPU = SERVICES["triton-gpu"], SERVICES["triton-cpu"]
MONITORING = ROOT / "docker" / "monitoring"
METRICS = {
    *(
        f"nv_inference_{name}"
        for name in ("request_success", "request_failure", "count")
    ),
    *(
        f"nv_inference_{name}_duration_us"
        for name in ("request", "queue", "compute_infer")
    ),
    *("nv_inference_exec_count", "nv_inference_pending_request_count"),
    *(
        f"nv_gpu_{name}"
        for name in ("memory_used_bytes", "memory_total_bytes", "utilization")
    ),
}
"""Metrics that the alerts and the dashboard read; those of GPUs need a GPU."""
INDEX = "https://download.pytorch.org/whl/cpu"

# Compose reads and checks the file without an engine. Without Compose, PyYAML reads it.
compose = pytest.mark.parametrize("compose", composes(), ids=" ".join)


def variables(text: str) -> dict[str, str]:
    """The default of each variable that Compose substitutes."""
    return dict(re.findall(r"\$\{([A-Z_]+):?-([^}]*)\}", text))


def test_profiles_of_the_readme_exist() -> None:
    named = set(
        re.findall(
            r"docker-compose --profile (\w+) up", (ROOT / "README.md").read_text()
        )
    )
    assert named == {"cpu", "gpu"}
    profiles = [
        profile for service in SERVICES.values() for profile in service["profiles"]
    ]
    assert sorted(profiles) == sorted([*named, "monitoring", "monitoring"])


@pytest.mark.parametrize("service", [GPU, CPU], ids=["gpu", "cpu"])
def test_services_mount_read_only_and_bind_to_loopback(service: dict[str, Any]) -> None:
    """The README documents this for both services."""
    assert service["volumes"] == ["${MODEL_REPOSITORY:-./model_repository}:/models:ro"]
    ports = [str(port).rsplit(":", 1) for port in service["ports"]]
    assert [inside for _, inside in ports] == ["8000", "8001", "8002"]
    assert all(outside.startswith("127.0.0.1:${") for outside, _ in ports)
    assert (
        service["cap_drop"] == ["ALL"]
        and "no-new-privileges:true" in service["security_opt"]
    )


MOUNTED = {
    "prometheus": {
        "docker/monitoring/prometheus.yml": "/etc/prometheus/prometheus.yml",
        "docker/monitoring/alerts.yml": "/etc/prometheus/alerts.yml",
    },
    "grafana": {
        "docker/monitoring/grafana/provisioning": "/etc/grafana/provisioning",
        "docker/monitoring/grafana/dashboards": "/etc/grafana/dashboards",
    },
}


@pytest.mark.parametrize("name", MOUNTED)
def test_monitoring_binds_to_loopback_and_mounts_files(name: str) -> None:
    service = SERVICES[name]
    assert all(port.startswith("127.0.0.1:${") for port in service["ports"])
    assert service["read_only"] and service["cap_drop"] == ["ALL"]
    mounted = {
        source.removeprefix("./"): target
        for source, target, *mode in (
            volume.split(":") for volume in service["volumes"]
        )
        if mode == ["ro"]
    }
    assert mounted == MOUNTED[name]
    assert all((ROOT / source).exists() for source in mounted)


def test_prometheus_config_has_services_and_alerts() -> None:
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    assert config["rule_files"] == [
        MOUNTED["prometheus"]["docker/monitoring/alerts.yml"]
    ]
    (job,) = config["scrape_configs"]
    (service,) = job["dns_sd_configs"]
    assert set(service["names"]) == {"triton-cpu", "triton-gpu"} <= set(SERVICES)
    assert service["port"] == 8002


def expressions() -> dict[str, str]:
    """Each PromQL expression of the alerts and the dashboard, by alert or panel."""
    (group,) = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"]
    by_name = {rule["alert"]: rule["expr"] for rule in group["rules"]}
    for rule in group["rules"]:
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"].keys() == {"summary", "remedy"}
    dashboard = json.loads((MONITORING / "grafana/dashboards/triton.json").read_text())
    for panel in dashboard["panels"]:
        assert panel["datasource"]["uid"] == datasource()["uid"]
        by_name |= {
            f"{panel['title']} {t['refId']}": t["expr"] for t in panel["targets"]
        }
    return by_name


def datasource() -> dict[str, Any]:
    folder = MONITORING / "grafana/provisioning"
    (source,) = yaml.safe_load((folder / "datasources/prometheus.yml").read_text())[
        "datasources"
    ]
    (provider,) = yaml.safe_load((folder / "dashboards/triton.yml").read_text())[
        "providers"
    ]
    assert provider["options"]["path"] == "/etc/grafana/dashboards"
    assert source["url"] == "http://prometheus:9090"
    return dict(source)


@pytest.mark.parametrize("where", expressions())
def test_expressions_are_balanced_and_name_triton_metrics(where: str) -> None:
    text = expressions()[where]
    for opening, closing in ("()", "[]", "{}"):
        assert text.count(opening) == text.count(closing)
    names = set(re.findall(r"\bnv_\w+|\bup\b", text))
    assert names and names <= METRICS | {"up"}, names - METRICS


@pytest.mark.live
@pytest.mark.slow
def test_server_has_the_monitored_metrics(tmp_path: Path) -> None:
    import urllib.request

    from builder.serving import serve
    from builder.triton import publish
    from tests.triton.artifacts import scorer

    publish(scorer(), tmp_path / "repository")
    with (
        serve(tmp_path / "repository", **FREE_PORTS) as server,
        urllib.request.urlopen(
            f"http://{server.metrics_url}/metrics", timeout=10
        ) as response,
    ):
        text = response.read().decode()
    served = set(re.findall(r"^(nv_\w+)\{", text, re.MULTILINE))
    assert {name for name in METRICS if not name.startswith("nv_gpu_")} <= served


def test_cpu_health_check_runs_trt_build_health() -> None:
    command, *arguments = CPU["healthcheck"]["test"]
    assert command == "CMD" and arguments[:3] == ["trt-build", "health", "/models"]
    context = health_command.make_context("health", arguments[2:])
    assert context.params["url"] == "127.0.0.1:8000"
    assert context.params["grpc_url"] == "127.0.0.1:8001"


def test_every_variable_has_a_default() -> None:
    assert set(re.findall(r"\$\{([A-Z_]+)", TEXT)) == set(variables(TEXT))


def test_gpu_profile_uses_the_image_written_by_repo(tmp_path: Path) -> None:
    (tmp_path / "repository").mkdir()
    written = environment.write_env(tmp_path / "repository").read_text()
    assert (
        GPU["image"]
        == f"${{{environment.VARIABLE}:-{variables(TEXT)[environment.VARIABLE]}}}"
    )
    assert f"\n{environment.VARIABLE}=nvcr.io/nvidia/tritonserver:" in written
    (device,) = GPU["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["count"], device["capabilities"]) == (
        "nvidia",
        1,
        ["gpu"],
    )


def triton_flags(
    folder: Path, help_text: str, repository: Path = Path("/models")
) -> list[str]:
    """The flags that the GPU service passes to a tritonserver with this help."""
    (folder / "help").write_text(help_text)
    server = folder / "tritonserver"
    server.write_text(
        f'#!/bin/sh\n[ "$1" = --help ] && exec cat {folder}/help\nprintf "%s\\n" "$@"\n'
    )
    server.chmod(0o755)
    program = [
        word.replace("$$", "$").replace("/models/", f"{repository}/")
        for word in GPU["command"]
    ]
    environment = {"PATH": f"{folder}:/usr/bin:/bin"}
    process = subprocess.run(
        program, env=environment, capture_output=True, text=True, check=True
    )
    return process.stdout.splitlines()


def test_gpu_profile_uses_only_supported_flags(tmp_path: Path) -> None:
    from builder.serving.installation import find

    installation = find()
    command = [str(installation.executable), "--help"]
    environment = {**os.environ, **installation.environment}
    process = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False
    )
    flags = triton_flags(tmp_path, process.stdout + process.stderr)
    assert f"--model-repository={GPU['volumes'][0].split(':')[-2]}" in flags
    assert [
        flag for flag in flags if not installation.supports(flag.partition("=")[0])
    ] == []


def test_gpu_profile_restricts_server_control_protocols(tmp_path: Path) -> None:
    closed = "=shared-memory,trace,logging:trt-build="
    names = ("--http-restricted-api", "--grpc-restricted-protocol")
    flags = triton_flags(tmp_path, "\n".join(names))[-2:]
    assert [flag[: flag.index(closed)] for flag in flags] == list(names)
    keys = {flag.rpartition("=")[2] for flag in flags}
    assert len(keys) == 1 and re.fullmatch("[0-9a-f]{32}", keys.pop())
    assert not any(
        "restricted" in flag for flag in triton_flags(tmp_path, "an older release")
    )


def test_gpu_profile_enables_features_of_the_configs(tmp_path: Path) -> None:
    fields = {
        "cached": "response_cache { enable: true }",
        "limited": "rate_limiter { priority: 1 }",
    }
    assert not {features.cache(), features.RATE_LIMITER} & set(
        triton_flags(tmp_path, "")
    )
    for name, text in fields.items():
        (tmp_path / "models" / name).mkdir(parents=True)
        (tmp_path / "models" / name / "config.pbtxt").write_text(text)
    flags = triton_flags(tmp_path, "", tmp_path / "models")
    assert {features.cache(), features.RATE_LIMITER} <= set(flags)


def test_dockerfile_compose_and_readme_have_the_same_torch_index() -> None:
    """The README names the index of the image for `make demo`."""
    assert CPU["build"]["args"] == {"TORCH_INDEX": f"${{TORCH_INDEX-{INDEX}}}"}
    assert (
        f"ARG TORCH_INDEX={INDEX}" in DOCKERFILE
        and "PIP_EXTRA_INDEX_URL=${TORCH_INDEX}" in DOCKERFILE
    )
    assert f"TORCH_INDEX={INDEX}" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize(
    ("given", "option"),
    [(f"TORCH_INDEX={INDEX}", f"--extra-index-url {INDEX} "), ("", "")],
)
def test_make_passes_torch_index_to_pip(given: str, option: str) -> None:
    command = [
        "make",
        "--dry-run",
        "--always-make",
        "--no-print-directory",
        given or "TORCH_INDEX=",
        "venv",
    ]
    printed = subprocess.run(
        command, cwd=ROOT, text=True, capture_output=True, check=True
    ).stdout
    (install,) = re.findall(r"pip install --quiet +(.*)--editable", printed)
    assert install == option


def test_copied_files_are_in_the_docker_context() -> None:
    """.dockerignore excludes all files that it does not list."""
    sent = {
        line[1:]
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copies = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    sources = {source for line in copies for source in line.split()}
    assert (
        sources
        and {
            source
            for source in sources
            if not any(Path(source).is_relative_to(s) for s in sent)
        }
        == set()
    )
    assert [source for source in sources if not (ROOT / source).exists()] == []


@compose
def test_compose_accepts_the_file(compose: list[str]) -> None:
    for profile, service in (("gpu", "triton-gpu"), ("cpu", "triton-cpu")):
        assert (
            service
            in run([*compose, "--profile", profile, "config", "--services"]).split()
        )
    both = [*compose, "--profile", "monitoring", "config", "--services"]
    assert {"prometheus", "grafana"} <= set(run(both).split())


@compose
@pytest.mark.parametrize("index", ["", "https://example.org/simple"])
def test_compose_passes_torch_index_to_the_build(
    compose: list[str], index: str
) -> None:
    """An empty index selects PyPI, or a wheel in docker/local."""
    read = yaml.safe_load(
        run([*compose, "--profile", "cpu", "config"], TORCH_INDEX=index)
    )
    assert read["services"]["triton-cpu"]["build"]["args"] == {"TORCH_INDEX": index}


@compose
def test_compose_serves_the_repository_written_by_repo(
    compose: list[str], tmp_path: Path
) -> None:
    """`.env` is beside docker-compose.yml, as after `make demo`."""
    (tmp_path / "docker-compose.yml").write_text(TEXT)
    repository = tmp_path / "other_name"
    repository.mkdir()
    environment.write_env(repository)
    process = subprocess.run(
        [*compose, "config"], cwd=tmp_path, text=True, capture_output=True, check=True
    )
    services = yaml.safe_load(process.stdout)["services"]
    assert f"{tmp_path}/other_name:/models" in str(services["triton-cpu"]["volumes"])
