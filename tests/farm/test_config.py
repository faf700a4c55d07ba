"""The farm file and the matrix of models and targets, without a cluster."""

from __future__ import annotations

import json
import socket
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from builder.cli import main
from builder.errors import ManifestError, UsageError
from builder.farm import build_on_farm, cluster, matrix, read
from builder.farm.config import LOCAL, Farm, Retries, Target
from builder.manifest import load
from builder.repository import Settings
from tests.cli.conftest import MANIFEST, Small, save

COMPLETE = """\
address: 10.0.0.5:6379
store: s3://bucket/plans
targets:
  h100: {gpus: 1, cpus: 4, resources: {H100: 1}, flavor: tensorrt, memory_mib: 2048}
  ada:
    precision: fp16
    build: {compute_capabilities: ["8.9"]}
exclude:
  - {model: llm_*, target: ada, because: it does not fit}
retries: {max: 2, backoff_seconds: 1}
environment: [AWS_ACCESS_KEY_ID]
"""


def farm_file(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "farm.yaml"
    file.write_text(text)
    return file


def test_farm_file_is_read(tmp_path: Path) -> None:
    farm = read(farm_file(tmp_path, COMPLETE))
    h100, ada = farm.targets
    assert (farm.address, farm.store, farm.is_local) == (
        "10.0.0.5:6379",
        "s3://bucket/plans",
        False,
    )
    assert cluster.demand(h100) == {"CPU": 4, "GPU": 1, "H100": 1, "memory": 2048 << 20}
    assert (ada.precision, ada.build["compute_capabilities"]) == ("fp16", ["8.9"])
    assert farm.environment == ("AWS_ACCESS_KEY_ID",)
    assert [farm.retries.wait(attempt) for attempt in (1, 2, 3)] == [1, 2, 4]
    assert read(LOCAL).targets == (Target(LOCAL),)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("address: local\n", 1, "the farm file has no 'targets'"),
        ("address: local\ntargets: {}\n", 2, "targets"),
        ("address: local\ntargts: {a: {}}\ntargets: {a: {}}\n", 2, "unknown key 'targts'"),
        ("address: local\ntargets:\n  a: {gpu: 1}\n", 3, "did you mean 'gpus'"),
        ("address: local\ntargets:\n  a: {precision: fp61}\n", 3, "'fp61' is not a precision"),
        ("address: local\ntargets:\n  a: {precisions: [fp16, fp61]}\n", 3, "'fp61' is no"),
        ("address: local\ntargets:\n  a: {precisions: [fp16]}\n  a-fp16: {}\n", 3, "two targets"),
        ("address: local\ntargets:\n  a: {precision: fp16, precisions: [fp16]}\n", 3, "has both"),
        ("address: local\ntargets:\n  a/b: {}\n", 3, "'a/b' cannot be the name of a target"),
        ("address: local\ntargets:\n  a: {resources: {A: 1}}\n", 3, "has no custom resources"),
        ("address: local\nstore: memory://x\ntargets: {a: {}}\n", 2, "seen by one process only"),
        ("address: local\ntargets:\n  a: {image: 'A; rm'}\n", 3, "not a container image"),
        ("address: local\ntargets:\n  a: {image: 'x/y:1$(id)'}\n", 3, "not a container image"),
        ("address: local\ntargets:\n  a: {verify: sever}\n", 3, "targets.a.verify"),
        ("address: a:1\nstore: /shared\ntargets: {a: {image: x:1}}\n", 2, "does not see the"),
        (
            'address: local\ntargets:\n  a:\n    build:\n      refitt: true\n',
            5,
            "unknown key 'refitt'",
        ),
        (
            "address: local\ntargets: {a: {}}\nexclude:\n"
            "  - {model: x, target: b, because: slow}\n",
            4,
            "no target is named 'b'",
        ),
        ("", 1, "the farm file is empty"),
    ],
)  # fmt: skip
def test_mistakes_are_reported_with_their_lines(
    tmp_path: Path, text: str, line: int, words: str
) -> None:
    file = farm_file(tmp_path, text)
    with pytest.raises(ManifestError) as raised:
        read(file)
    assert words in str(raised.value)
    assert [mistake.line for mistake in raised.value.mistakes] == [line]


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    save(Small(), folder / "llm_a.pt")
    save(Small(), folder / "net.pt", MANIFEST + "targets: [h100]\n")
    return folder


IMAGES = (
    "trt-build",
    "tritonserver:25.06",
    "nvcr.io/nvidia/tritonserver:25.06-py3",
    "localhost:5000/a__b/c-d:1.0_x@sha256:" + "0" * 64,
)


def test_image_of_a_target_is_in_the_task_options(tmp_path: Path) -> None:
    targets = "".join(
        f"  t{i}: {{image: '{image}'}}\n" for i, image in enumerate(IMAGES)
    )
    text = f"address: a:1\nstore: s3://bucket/plans\ntargets:\n{targets}  plain: {{}}\n"
    *with_image, plain = read(farm_file(tmp_path, text)).targets
    for image, target in zip(IMAGES, with_image, strict=True):
        options = cluster.ray_options(target, None)
        assert options["runtime_env"] == {"image_uri": image}
    assert "runtime_env" not in cluster.ray_options(plain, None)


def test_container_needs_a_store_at_a_url(tmp_path: Path, models: Path) -> None:
    farm = Farm("a:1", (Target("h100", image="trt-build:1"),))
    with pytest.raises(UsageError, match="which the containers of `image` do not see"):
        build_on_farm(
            models, tmp_path / "out", farm, Settings(store=tmp_path / "store")
        )


def test_excluded_combinations_have_reasons(tmp_path: Path, models: Path) -> None:
    combinations = matrix.combinations(
        load(models), read(farm_file(tmp_path, COMPLETE))
    )
    assert [
        (item.spec.name, item.target.name, item.because) for item in combinations
    ] == [
        ("llm_a", "h100", ""),
        ("llm_a", "ada", "it does not fit"),
        ("net", "h100", ""),
        ("net", "ada", "the manifest's targets do not name it"),
    ]
    with pytest.raises(UsageError, match="no target 'h100'") as raised:
        matrix.combinations(load(models), Farm(LOCAL, (Target("h200"),)))
    assert raised.value.where == f"{models / 'net.yaml'}:6"
    assert raised.value.fix == "did you mean 'h200'?"


def test_each_precision_becomes_a_target(tmp_path: Path, models: Path) -> None:
    text = "address: local\ntargets:\n  h100: {gpus: 1, precisions: [fp32, fp16]}\n  l4: {}\n"
    text += "exclude:\n  - {model: llm_a, target: h100-fp16, because: it overflows}\n"
    text += "  - {model: llm_a, target: l4, because: it is slow}\n"
    farm = read(farm_file(tmp_path, text))
    assert [(item.name, item.precision, item.gpus) for item in farm.targets] == [
        ("h100-fp32", "fp32", 1),
        ("h100-fp16", "fp16", 1),
        ("l4", None, 0),
    ]
    combinations = matrix.combinations(load(models), farm)  # net has targets: [h100]
    built = [
        (item.spec.name, item.target.name) for item in combinations if not item.because
    ]
    assert built == [("llm_a", "h100-fp32"), ("net", "h100-fp32"), ("net", "h100-fp16")]


def test_dashboard_address_becomes_a_url() -> None:
    for address, expected in (
        ("127.0.0.1:8265", "http://127.0.0.1:8265"),
        ("", ""),
        (None, ""),
    ):
        context = SimpleNamespace(dashboard_url=address)
        library = SimpleNamespace(init=lambda context=context, **options: context)
        assert cluster.dashboard(library) == expected


def test_unknown_and_long_builds_start_first(tmp_path: Path, models: Path) -> None:
    combinations = matrix.combinations(
        load(models), read(farm_file(tmp_path, COMPLETE))
    )
    ordered = matrix.longest_first(combinations, [1.0, None, 5.0, None])
    assert [seconds for _, seconds in ordered] == [None, None, 5.0, 1.0]
    assert Retries().max == 3


def test_command_refuses_unsupported_farm_options(tmp_path: Path, models: Path) -> None:
    def run(*words: object) -> tuple[int, str]:
        completed = CliRunner().invoke(main, ["repo", str(models), *map(str, words)])
        return completed.exit_code, completed.stderr

    out = tmp_path / "out"
    file = farm_file(tmp_path, "address: local\ntargets: {h100: {gpu: 1}}\n")
    code, words = run("--out", out, "--farm", file, "--jobs", 2, "--target", "sm_89")
    assert code == 2 and "there is no --target, --jobs" in words
    code, words = run("--out", out, "--farm", file)
    assert code == 2 and f"{file}:2" in words
    code, words = run("--out", out, "--require-all")
    assert code == 2 and "--farm" in words
    assert not out.exists()


def test_missing_ray_is_reported_with_the_package(
    tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    file = farm_file(
        tmp_path, "address: auto\ntargets: {h100: {gpus: 1}}\nstore: /tmp/x\n"
    )
    arguments = [
        "repo",
        str(models),
        "--out",
        str(tmp_path / "out"),
        "--farm",
        str(file),
        "--json",
    ]
    completed = CliRunner().invoke(main, arguments)
    assert completed.exit_code == 4
    assert (
        json.loads(completed.stdout)["error"]["fix"] == "pip install 'trt-build[farm]'"
    )


def test_unreachable_address_is_reported_without_waiting(tmp_path: Path) -> None:
    """Ray itself would try for minutes, and print warnings."""
    pytest.importorskip("ray")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    file = tmp_path / "farm.yaml"
    file.write_text(f"address: 127.0.0.1:{port}\ntargets: {{a: {{}}}}\n")
    began = time.monotonic()
    for command in ("status", "cancel"):
        completed = CliRunner().invoke(main, ["farm", command, str(file)])
        assert (
            completed.exit_code == 4
            and f"cluster 127.0.0.1:{port} cannot be used" in completed.output
        )
    file.write_text("address: local\ntargets: {a: {}}\n")
    ended = CliRunner().invoke(main, ["farm", "status", str(file)])
    assert ended.exit_code == 4 and "only while `trt-build repo" in ended.output
    assert "`address: local`" in ended.output and "cluster auto" not in ended.output
    assert time.monotonic() - began < 15 and "Connection refused" in completed.output
