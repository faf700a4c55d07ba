"""`deploy`: manifests are valid for every kind of repository, agree with `serve`, and never
overwrite edits of the user.
"""

from __future__ import annotations

import copy
import errno
import json
import os
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml
from click.testing import CliRunner, Result

from builder.choices import PLATFORMS
from builder.cli import main
from builder.cli.health import health_command
from builder.cli.serve import serve_command
from builder.serving import features, find, flags
from builder.store import published
from builder.templates import server_script
from builder.triton import publish, releases
from tests.deployment.schemas import check
from tests.triton.artifacts import (
    TENSORRT,
    Affine,
    artifact,
    cell,
    pair,
    scorer,
    tensor,
)

CUSTOM_IMAGE = "registry.example/trt-build-cpu:1.0"
MATCHING_RELEASE = releases.for_tensorrt(TENSORRT["tensorrt"])
X = (tensor("x", "float32", "batch", 3),)


def publish_plan(repository: Path, **facts: Any) -> None:
    known = {**TENSORRT, "compute_capabilities": ["9.0"], "options": {}, **facts}
    publish(
        artifact(Affine(), X, ("y",), name="planned", plan=b"a plan", facts=known),
        repository,
    )


def publish_all_kinds(repository: Path) -> None:
    publish_plan(repository)
    publish(scorer(), repository)
    publish(pair(1), repository)


KINDS: dict[str, tuple[Callable[[Path], Any], bool]] = {
    "plans": (publish_plan, True),
    "plans, Python models and an ensemble": (publish_all_kinds, True),
    "a Python model": (lambda repository: publish(scorer(), repository), False),
    "an ensemble of torch steps": (
        lambda repository: publish(pair(1), repository),
        False,
    ),
    "state between requests": (lambda repository: publish(cell(), repository), False),
}


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One repository of each kind."""
    found = {}
    for index, (kind, (make, _)) in enumerate(KINDS.items()):
        found[kind] = tmp_path_factory.mktemp("made") / f"model_repository{index}"
        make(found[kind])
    return found


def run(platform: str, repository: Path, out: Path, *words: object) -> Result:
    command = ["deploy", platform, repository, "--out", out, *words]
    return CliRunner().invoke(
        main, [str(word) for word in command], catch_exceptions=False
    )


def read_objects(folder: Path) -> dict[str, dict[str, Any]]:
    """The objects by kind."""
    documents = [
        yaml.safe_load(file.read_text()) for file in sorted(folder.glob("*.yaml"))
    ]
    return {one["kind"]: one for one in documents}


def pod(objects: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The pod's spec, of either platform."""
    if "ServingRuntime" in objects:
        return dict(objects["ServingRuntime"]["spec"])
    return dict(objects["Deployment"]["spec"]["template"]["spec"])


def server(objects: dict[str, dict[str, Any]]) -> dict[str, Any]:
    (container,) = pod(objects)["containers"]
    return dict(container)


CHOICES = {
    "claim": [],
    "object storage": ["--storage", "as://account/models/v1"],
    "all options": [
        *(
            "--storage",
            "pvc://volume/a/b",
            "--namespace",
            "inference",
            "--name",
            "null",
        ),
        *(
            "--control-secret",
            "control",
            "--allow-client-shm",
            "--gpus",
            2,
            "--cpus",
            3,
        ),
        *("--memory", "12Gi", "--replicas", 3),
        *("--node-label", "nvidia.com/gpu.product=NVIDIA-L4"),
    ],
}


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize(
    ("kind", "choice"),
    [
        *((kind, "claim") for kind in KINDS),
        ("plans", "object storage"),
        ("plans", "all options"),
    ],
)
def test_manifests_are_valid_consistent_and_reproducible(
    repositories: dict[str, Path], tmp_path: Path, platform: str, kind: str, choice: str
) -> None:
    image = [] if KINDS[kind][1] else ["--image", CUSTOM_IMAGE]
    result = run(
        platform, repositories[kind], tmp_path, *image, *CHOICES[choice], "--json"
    )
    assert result.exit_code == 0, result.output
    folder = tmp_path / platform
    assert set(json.loads(result.stdout)["changed"]) == {
        path.name for path in folder.iterdir()
    }
    objects = read_objects(folder)
    listed = objects.pop("Kustomization")
    assert sorted([*listed["resources"], "kustomization.yaml"]) == sorted(
        os.listdir(folder)
    )
    assert listed.get("namespace") == ("inference" if choice == "all options" else None)
    for found in objects.values():
        check(found)
        assert type(found["metadata"]["name"]) is str
    assert {found["metadata"]["name"] for found in objects.values()} == {
        "null" if choice == "all options" else repositories[kind].name.replace("_", "-")
    }
    _check_privileges(objects)
    again = run(
        platform, repositories[kind], tmp_path, *image, *CHOICES[choice], "--json"
    )
    assert json.loads(again.stdout)["changed"] == []


def _check_privileges(objects: dict[str, dict[str, Any]]) -> None:
    """Check that each container has minimal privileges, and each mount a volume."""
    spec = pod(objects)
    predictor = (
        objects.get("InferenceService", {}).get("spec", {}).get("predictor", spec)
    )
    assert predictor["automountServiceAccountToken"] is False
    assert predictor["securityContext"]["runAsNonRoot"] is True
    for one in (*spec["containers"], *spec.get("initContainers", ())):
        assert one["securityContext"]["readOnlyRootFilesystem"] is True
        assert one["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert one["resources"]["limits"] == one["resources"]["requests"]
        assert {"cpu", "memory"} <= one["resources"]["limits"].keys()
        names = {volume["name"] for volume in spec["volumes"]}
        assert {mount["name"] for mount in one["volumeMounts"]} <= names


def test_references_between_objects_are_consistent(
    repositories: dict[str, Path], tmp_path: Path
) -> None:
    chosen = ["--storage", "s3://bucket/repo", "--storage-secret", "key"]
    run("kubernetes", repositories["plans"], tmp_path, *chosen)
    objects = read_objects(tmp_path / "kubernetes")
    labels = objects["Deployment"]["spec"]["template"]["metadata"]["labels"].items()
    selectors = [
        objects["Deployment"]["spec"]["selector"]["matchLabels"],
        objects["Service"]["spec"]["selector"],
        objects["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        objects["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
    ]
    assert all(selector.items() <= labels for selector in selectors)
    ports = {port["name"]: port["containerPort"] for port in server(objects)["ports"]}
    assert {
        port["targetPort"]: port["port"] for port in objects["Service"]["spec"]["ports"]
    } == (ports)
    opened = [rule["ports"] for rule in objects["NetworkPolicy"]["spec"]["ingress"]]
    assert {port["port"] for rule in opened for port in rule} == set(ports.values())
    target = objects["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", "model-repository0")
    assert "replicas" not in objects["Deployment"]["spec"]
    (download,) = pod(objects)["initContainers"]
    # without the slash the copy of `repo` would also bring `repo2`
    assert download["args"] == ["s3://bucket/repo/", "/models"]
    assert download["envFrom"] == [{"secretRef": {"name": "key"}}]
    assert "envFrom" not in server(objects)


def test_manifests_have_the_facts_of_the_repository(
    repositories: dict[str, Path], tmp_path: Path
) -> None:
    """The image fits the plans' TensorRT, and the autoscaler has one full batch per instance."""
    result = run(
        "kubernetes", repositories["plans, Python models and an ensemble"], tmp_path
    )
    objects = read_objects(tmp_path / "kubernetes")
    assert MATCHING_RELEASE is not None
    assert server(objects)["image"] == MATCHING_RELEASE.release.image
    assert server(objects)["resources"]["limits"]["nvidia.com/gpu"] == "1"
    metric = objects["HorizontalPodAutoscaler"]["spec"]["metrics"][0]["pods"]
    assert metric["target"]["averageValue"] == "8"
    assert (
        "NVIDIA's image does not have" in result.stderr
        and "compute capability 9.0" in result.stderr
    )
    run(
        "kubernetes",
        repositories["a Python model"],
        tmp_path / "own",
        "--image",
        CUSTOM_IMAGE,
    )
    own = server(read_objects(tmp_path / "own" / "kubernetes"))
    assert (
        own["image"] == CUSTOM_IMAGE
        and "nvidia.com/gpu" not in own["resources"]["limits"]
    )


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize(
    "control", [[], ["--control-secret", "control", "--allow-client-shm"]]
)
def test_own_image_runs_serve_and_health_with_valid_options(
    repositories: dict[str, Path], tmp_path: Path, platform: str, control: list[str]
) -> None:
    run(
        platform,
        repositories["a Python model"],
        tmp_path,
        "--image",
        CUSTOM_IMAGE,
        *control,
    )
    own = server(read_objects(tmp_path / platform))
    program, command, *words = own["args"]
    assert (program, command) == ("trt-build", "serve")
    serve = serve_command.make_context("serve", words).params
    assert serve["explicit"] == serve["allow_client_shm"] == bool(control)
    program, command, *words = own["startupProbe"]["exec"]["command"]
    assert (program, command) == ("trt-build", "health")
    health = health_command.make_context("health", words).params
    assert health["url"] == f"127.0.0.1:{serve['http_port']}"
    assert health["grpc_url"] == f"127.0.0.1:{serve['grpc_port']}"
    assert health["repository"] == serve["repository"]
    for probe in ("readinessProbe", "livenessProbe"):
        assert own[probe]["httpGet"]["port"] == serve["http_port"]
    if control:
        (volume,) = [
            one for one in own["volumeMounts"] if one["name"] == "control-token"
        ]
        assert serve["control_token_file"] == Path(volume["mountPath"]) / "token"


HELP = "--model-repository --http-restricted-api --grpc-restricted-protocol"


def start_triton(
    objects: dict[str, dict[str, Any]], folder: Path, help_text: str, token: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run the command of NVIDIA's image. Its tritonserver has this help and prints its flags."""
    stub = folder / "tritonserver"
    stub.write_text(
        f'#!/bin/sh\n[ "$1" = --help ] && echo "{help_text}" && exit 1\nprintf "%s\\n" "$@"\n'
    )
    stub.chmod(0o755)
    (folder / "token").write_text(token)
    found = server(objects)
    # Kubernetes replaces $$ by $; no variable reference remains
    words = [word.replace("$$", "$") for word in found["args"]]
    assert not any(re.search(r"(?<!\$)(\$\$)*\$\(", word) for word in found["args"])
    environment = {one["name"]: one["value"] for one in found["env"]}
    if "CONTROL_TOKEN_FILE" in environment:
        environment["CONTROL_TOKEN_FILE"] = str(folder / "token")
    environment["PATH"] = f"{folder}:/usr/bin:/bin"
    return subprocess.run(
        words, env=environment, capture_output=True, text=True, check=False
    )


def test_nvidia_image_enables_features_of_the_configs(
    repositories: dict[str, Path], tmp_path: Path
) -> None:
    repository = shutil.copytree(repositories["plans"], tmp_path / "repository")
    with (repository / "planned/config.pbtxt").open("a") as file:
        file.write(
            "response_cache { enable: true }\ninstance_group { rate_limiter {} }\n"
        )
    found = {}
    for kind, more in {
        "fixed": (),
        "explicit": ("--control-secret", "control"),
    }.items():
        run("kubernetes", repository, tmp_path / kind, *more)
        objects = read_objects(tmp_path / kind / "kubernetes")
        help_text = f"{HELP} --cache-config --rate-limit"
        found[kind] = start_triton(
            objects, tmp_path, help_text, "token"
        ).stdout.splitlines()
    assert {features.cache(), features.RATE_LIMITER} <= set(found["fixed"])
    # after an update the cache would have responses of the replaced model
    assert (
        features.RATE_LIMITER in found["explicit"]
        and features.cache() not in found["explicit"]
    )
    record = published.read(repository / "planned/trt-build.json")
    published.write(
        repository / "planned", {**record, "version_policy": {"keep": 1, "serve": 1}}
    )
    run("kubernetes", repository, tmp_path / "kept", "--control-secret", "control")
    process = start_triton(
        read_objects(tmp_path / "kept" / "kubernetes"), tmp_path, help_text, "token"
    )
    assert features.cache() in process.stdout.splitlines()


def test_nvidia_image_starts_triton_with_the_flags_of_serve(
    repositories: dict[str, Path], tmp_path: Path
) -> None:
    run("kubernetes", repositories["plans"], tmp_path)
    objects = read_objects(tmp_path / "kubernetes")
    given = start_triton(objects, tmp_path, HELP).stdout.splitlines()
    assert given[: len(flags.ALWAYS) + 5] == [
        "--model-repository=/models",
        "--http-port=8000",
        "--grpc-port=8001",
        "--metrics-port=8002",
        *flags.ALWAYS,
        "--model-control-mode=none",
    ]
    closed = given[len(flags.ALWAYS) + 5 :]
    keys = {flag.rpartition("=")[2] for flag in closed}
    assert len(keys) == 1 and re.fullmatch("[0-9a-f]{32}", next(iter(keys)))
    expected = flags.Restriction(
        flags.closed(False), flags.CLOSED_HEADER, keys.pop()
    ).flags()
    assert closed == expected
    newer = start_triton(
        objects, tmp_path, f"{HELP} --http-max-input-size --allow-client-shm"
    ).stdout
    assert flags.LARGE_REQUESTS in newer and "client-shm" not in newer
    older = start_triton(objects, tmp_path, "--model-repository").stdout
    assert "restricted" not in older and flags.LARGE_REQUESTS not in older
    assert start_triton(objects, tmp_path, "cannot start").returncode == 1


def test_nvidia_image_needs_the_control_token(
    repositories: dict[str, Path], tmp_path: Path
) -> None:
    chosen = ["--control-secret", "control", "--allow-client-shm"]
    run("kubernetes", repositories["plans"], tmp_path, *chosen)
    objects = read_objects(tmp_path / "kubernetes")
    text = start_triton(
        objects, tmp_path, f"{HELP} --allow-client-shm", "s3cret\n"
    ).stdout
    expected = flags.Restriction(
        ("model-repository",), flags.CONTROL_HEADER, "s3cret"
    ).flags()
    assert set(expected) <= set(text.splitlines())
    assert {
        "--model-control-mode=explicit",
        "--load-model=*",
        flags.CLIENT_SHARED_MEMORY,
    } <= set(text.splitlines())
    assert "shared-memory" not in text
    for token in ("", "a,b", "a:b", "a=b"):
        refused = start_triton(objects, tmp_path, HELP, token)
        assert (refused.returncode, refused.stdout) == (1, "")


@pytest.mark.live
@pytest.mark.slow
def test_script_starts_a_server_with_restricted_protocols(tmp_path: Path) -> None:
    """The tritonserver of nvidia-pytriton replaces that of the image."""
    from builder.serving import ports

    publish(scorer(), tmp_path / "repository")
    found = find()
    names = ("--http-port", "--grpc-port", "--metrics-port")
    chosen = ports.resolve("127.0.0.1", dict.fromkeys(names, 0))
    words = [
        *found.backend_flags(tmp_path),
        *(f"{name}={port}" for name, port in chosen.items()),
    ]
    (tmp_path / "tritonserver").symlink_to(found.executable)
    environment = {**os.environ, **found.environment}
    environment |= {
        "PATH": f"{tmp_path}:{environment['PATH']}",  # the stub finds its Python there
        "OPTIONAL_FLAGS": " ".join(flags.optional_flags(True)),
        "CLOSED_PROTOCOLS": ",".join(flags.closed(False)),
        "CLOSED_HEADER": flags.CLOSED_HEADER,
    }
    repository = f"--model-repository={tmp_path / 'repository'}"
    command = [
        "sh",
        "-c",
        server_script().read_text(),
        "tritonserver",
        repository,
        *words,
    ]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, *flags.ALWAYS], env=environment, stdout=log, stderr=log
        )
    try:
        address = f"http://127.0.0.1:{chosen['--http-port']}/v2"
        assert _status(f"{address}/health/ready", process, 60) == 200, (
            tmp_path / "log"
        ).read_text()
        for path in ("logging", "trace/setting", "systemsharedmemory/status"):
            assert _status(f"{address}/{path}", process, 1) == 403
    finally:
        process.terminate()
        process.wait(60)


def _status(url: str, process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """The HTTP status of the first response other than 400."""
    import time

    until = time.monotonic() + seconds
    status = None
    while process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=10) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            status = error.code
        except OSError:
            pass
        if time.monotonic() > until or status == 403:
            break
        time.sleep(0.2)
    return status


INVALID_OPTIONS = {
    "a name with a blank": ["--name", "a b"],
    "a name with YAML syntax": ["--name", "a\n- b"],
    "a long name": ["--name", "a" * 64],
    "a namespace": ["--namespace", "../other"],
    "credentials in the address": ["--storage", "s3://key:secret@bucket/repo"],
    "a path outside the volume": ["--storage", "pvc://volume/../../etc"],
    "another scheme": ["--storage", "http://host/repo"],
    "a bucket without a path": ["--storage", "gs://bucket"],
    "a container without a path": ["--storage", "as://account/container"],
    "a variable in the address": ["--storage", "s3://bucket/$(SECRET)"],
    "a template in the address": ["--storage", "s3://bucket/{{.Name}}"],
    "an image with a blank": ["--image", "image:1 --privileged"],
    "a secret": ["--control-secret", "a/b"],
    "a label without a value": ["--node-label", "a"],
    "a label with a line break": ["--node-label", "a=b\nc"],
    "a size": ["--memory", "lots"],
    "less memory than is shared": ["--memory", "100Mi"],
    "too many replicas": ["--replicas", "5", "--max-replicas", "4"],
}


@pytest.mark.parametrize("fault", INVALID_OPTIONS)
def test_values_invalid_for_kubernetes_are_refused(
    repositories: dict[str, Path], tmp_path: Path, fault: str
) -> None:
    result = run(
        "kubernetes", repositories["plans"], tmp_path / "out", *INVALID_OPTIONS[fault]
    )
    assert result.exit_code == 2 and "fix:" in result.stderr, result.output
    assert not (tmp_path / "out").exists()


def test_kserve_refuses_options_for_kubernetes(
    repositories: dict[str, Path], tmp_path: Path
) -> None:
    for words in (["--pending", 3], ["--storage-secret", "a"], ["--max-replicas", 9]):
        result = run("kserve", repositories["plans"], tmp_path, *words)
        assert (
            result.exit_code == 2 and f"{words[0]} is for kubernetes" in result.stderr
        )


def test_unservable_repository_has_no_manifests(
    repositories: dict[str, Path], tmp_path: Path
) -> None:
    def refused(repository: Path, *words: str) -> tuple[int, str]:
        result = run("kubernetes", repository, tmp_path / "out", *words)
        assert not (tmp_path / "out").exists()
        return result.exit_code, result.stderr

    damaged = shutil.copytree(repositories["plans"], tmp_path / "damaged")
    (damaged / "planned" / "1" / "model.plan").write_bytes(b"another plan")
    assert refused(damaged)[0] == 4 and "P02" in refused(damaged)[1]
    assert (
        "P06" in refused(repositories["plans"], "--image", "tritonserver:24.10-py3")[1]
    )
    code, text = refused(repositories["a Python model"])
    assert code == 2 and "docker/cpu.Dockerfile" in text
    nvidia_image = releases.newest_known().image
    assert (
        "has no trt-build"
        in refused(repositories["a Python model"], "--image", nvidia_image)[1]
    )
    publish_plan(tmp_path / "unknown", tensorrt="99.1.2.3")
    code, text = refused(tmp_path / "unknown")
    assert code == 1 and "no known Triton release" in text
    assert refused(tmp_path / "nowhere")[0] == 2


def test_edited_files_are_kept_without_overwrite(
    repositories: dict[str, Path], tmp_path: Path
) -> None:
    def again(*words: object) -> Result:
        return run("kubernetes", repositories["plans"], tmp_path, *words)

    again()
    folder = tmp_path / "kubernetes"
    (folder / "notes.txt").write_text("mine")
    service = folder / "service.yaml"
    before = service.read_text()
    service.write_text(before.replace("ClusterIP", "LoadBalancer"))
    edited = service.read_text()
    refused = again("--replicas", 3, "--max-replicas", 9)
    assert refused.exit_code == 2 and "service.yaml: edited by hand" in refused.stderr
    assert service.read_text() == edited
    service.write_text("kind: Service\n")  # without the first line of trt-build
    assert again().exit_code == 2
    assert again("--overwrite").exit_code == 0
    assert service.read_text() == before
    # an autoscaler that is no longer requested is removed; the user's file stays
    assert (folder / "horizontalpodautoscaler.yaml").exists()
    assert again("--max-replicas", 2).exit_code == 0
    assert not (folder / "horizontalpodautoscaler.yaml").exists()
    assert (folder / "notes.txt").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["kubernetes"]


def test_symbolic_link_is_not_followed_on_write(
    repositories: dict[str, Path], tmp_path: Path
) -> None:
    target = tmp_path / "target"
    target.write_text("mine")
    folder = tmp_path / "out" / "kubernetes"
    folder.mkdir(parents=True)
    (folder / "service.yaml").symlink_to(target)
    assert run("kubernetes", repositories["plans"], tmp_path / "out").exit_code == 2
    assert (
        run(
            "kubernetes", repositories["plans"], tmp_path / "out", "--overwrite"
        ).exit_code
        == 0
    )
    assert target.read_text() == "mine" and not (folder / "service.yaml").is_symlink()


def test_unwritable_folder_is_an_environment_problem(
    repositories: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    result = run("kubernetes", repositories["plans"], tmp_path / "file")
    assert result.exit_code == 4 and "cannot write the manifests" in result.stderr


def test_full_disk_leaves_no_empty_folder(
    repositories: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(Path, "write_text", Mock(side_effect=full))
    result = run("kubernetes", repositories["plans"], tmp_path / "new" / "out")
    assert result.exit_code == 4 and "fix:   free disk space" in result.stderr
    assert list(tmp_path.iterdir()) == []


INSERTED_MISTAKES = {
    "an unknown field": ("Deployment", ("spec",), "replica", 2),
    "a field of a container": (
        "Deployment",
        ("spec", "template", "spec", "containers", 0),
        "imag",
        "x",
    ),
    "a wrong type": ("HorizontalPodAutoscaler", ("spec",), "maxReplicas", "four"),
    "a port": ("NetworkPolicy", ("spec", "ingress", 0, "ports", 0), "number", 1),
    "a runtime's field": ("ServingRuntime", ("spec",), "volume", []),
    "a runtime's container": ("ServingRuntime", ("spec", "containers", 0), "imag", "x"),
    "a predictor's field": ("InferenceService", ("spec", "predictor"), "replicas", 2),
    "a predictor's type": (
        "InferenceService",
        ("spec", "predictor"),
        "minReplicas",
        "two",
    ),
    "a model's field": (
        "InferenceService",
        ("spec", "predictor", "model"),
        "storageURL",
        "x",
    ),
}


@pytest.fixture(scope="module")
def valid(
    repositories: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """The objects of both platforms, by kind."""
    out = tmp_path_factory.mktemp("valid")
    found = {}
    for platform in PLATFORMS:
        run(platform, repositories["plans"], out)
        found |= read_objects(out / platform)
    return found


@pytest.mark.parametrize("fault", INSERTED_MISTAKES)
def test_validator_finds_inserted_mistakes(
    valid: dict[str, dict[str, Any]], fault: str
) -> None:
    """The other tests rely on the validator."""
    kind, path, field, value = INSERTED_MISTAKES[fault]
    mistaken = copy.deepcopy(valid[kind])
    check(mistaken)
    inner: Any = mistaken
    for step in path:
        inner = inner[step]
    inner[field] = value
    with pytest.raises(ValueError, match=field):
        check(mistaken)


def test_password_in_the_url_is_not_printed(
    repositories: dict[str, Path], tmp_path: Path
) -> None:
    url = "s3://key:hunter2@bucket/repo"
    result = run(
        "kubernetes", repositories["plans"], tmp_path / "out", "--storage", url
    )
    assert (
        result.exit_code == 2
        and "a password" in result.output
        and "hunter2" not in result.output
    )
