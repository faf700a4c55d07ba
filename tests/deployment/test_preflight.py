"""Preflight finds inserted faults by their numbers, and none in a valid repository."""

from __future__ import annotations

import errno
import io
import json
import re
import shutil
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from builder.cli import main
from builder.deployment import expected_server, of_image, preflight, rules
from builder.deployment.server_facts import BUNDLED_RELEASE, ServerFacts
from builder.store import published
from builder.triton import publish, releases
from tests.triton.artifacts import (
    TENSORRT,
    Affine,
    artifact,
    pair,
    reseal,
    scorer,
    tensor,
)

FACTS = {**TENSORRT, "compute_capabilities": ["9.0"], "options": {}}
NEWEST = releases.releases()[0]
HOST = ServerFacts(
    "the tested server",
    replace(NEWEST, tensorrt=((10, 13, 3, 9),), confidence="A", cuda="13.0"),
    frozenset({"tensorrt", "python"}),
    ("9.0",),
    (80 << 30,),
    "13.0",
    1 << 30,
)


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan, a Python model, and an ensemble."""
    repository = tmp_path_factory.mktemp("clean") / "repository"
    inputs = (tensor("x", "float32", "batch", 3),)
    planned = {"plan": b"a plan", "facts": FACTS, "name": "planned"}
    publish(artifact(Affine(), inputs, ("y",), **planned), repository)
    publish(scorer(), repository)
    publish(pair(1), repository)
    return repository


def edit(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    assert re.search(before, text), text
    file.write_text(re.sub(before, after, text, count=1))


def change_plan_facts(repository: Path, **changed: Any) -> None:
    """Change plan.json and update its hash."""
    file = repository / "planned" / "1" / "plan.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changed}))
    reseal(repository / "planned")


def config(name: str, before: str, after: str) -> Callable[[Path], None]:
    return lambda repository: edit(repository / name / "config.pbtxt", before, after)


def declare_resource_twice(repository: Path) -> None:
    for name, kind in (("scorer", "true"), ("planned", "false")):
        limiter = (
            f'rate_limiter {{ resources {{ name: "R" global: {kind} count: 1 }} }}'
        )
        edit(repository / name / "config.pbtxt", r"(?<=instance_group {)", limiter)


def remove_step(repository: Path) -> None:
    shutil.rmtree(
        repository / published.read(repository / "pair" / "trt-build.json")["steps"][0]
    )


def break_ensemble_input(repository: Path) -> None:
    edit(
        repository / "pair" / "config.pbtxt",
        r'key: "x"\s+value: "x"',
        'key: "x" value: "z"',
    )


def add_version_folder(repository: Path) -> None:
    shutil.copytree(repository / "planned" / "1", repository / "planned" / "2")


def no_change(repository: Path) -> None:
    pass


BAD_TAG = 'metric_tags { key: "cost-center" value: "a" }\n'

INSERTED: dict[str, tuple[str, Callable[[Path], None], dict[str, Any]]] = {
    "an unreadable config": (
        "P01",
        config("scorer", "max_batch_size", "max_batch"),
        {},
    ),
    "a missing plan": (
        "P02",
        lambda r: (r / "planned" / "1" / "model.plan").unlink(),
        {},
    ),
    "a changed file": (
        "P02",
        lambda r: edit(r / "scorer" / "1" / "model.py", "^", "#"),
        {},
    ),
    "an edited record": (
        "P02",
        lambda r: edit(r / "scorer" / "trt-build.json", "{", '{"edited": 1,'),
        {},
    ),
    "an unknown version folder": ("P03", add_version_folder, {}),
    "no such backend": ("P04", no_change, {"backends": frozenset({"python"})}),
    "another flavor": (
        "P05",
        lambda r: change_plan_facts(r, flavor="tensorrt-rtx"),
        {},
    ),
    "another TensorRT": (
        "P06",
        lambda r: change_plan_facts(r, tensorrt="10.9.0.34"),
        {},
    ),
    "no GPU": ("P07", no_change, {"capabilities": ()}),
    "another GPU": ("P07", no_change, {"capabilities": ("8.9",)}),
    "an old driver": ("P08", no_change, {"cuda": "12.4"}),
    "a large batch": (
        "P09",
        config("planned", "max_batch_size: 8", "max_batch_size: 64"),
        {},
    ),
    "no such profile": (
        "P10",
        config("planned", r"(kind: KIND_GPU)", r'\1 profile: "3"'),
        {},
    ),
    "another output": ("P11", config("planned", 'name: "y"', 'name: "z"'), {}),
    "another dtype": ("P11", config("planned", "TYPE_FP32", "TYPE_FP16"), {}),
    "a missing step": ("P12", remove_step, {}),
    "a wrong ensemble input": ("P12", break_ensemble_input, {}),
    "little GPU memory": ("P14", no_change, {"gpu_memory": (4,)}),
    "little shared memory": ("P15", no_change, {"shm_bytes": 1 << 20}),
    "clients' shared memory": ("P16", no_change, {"client_shared_memory": True}),
    "no torch for Python models": ("P19", no_change, {"torch": False}),
    "cached responses": (
        "P21",
        config("scorer", "^", "response_cache { enable: true }\n"),
        {},
    ),
    "a global and local resource": ("P23", declare_resource_twice, {}),
    "a crashing metric tag": ("P24", config("scorer", "^", BAD_TAG), {}),
    "another name": ("P20", lambda r: (r / "scorer").rename(r / "ranker"), {}),
    "an old release": (
        "P18",
        no_change,
        {"release": replace(HOST.release, tag="25.06")},
    ),  # type: ignore[type-var]
}


def test_invalid_json_is_reported(clean: Path, tmp_path: Path) -> None:
    repository = shutil.copytree(clean, tmp_path / "repository")
    edit(repository / "planned" / "1" / "plan.json", "^", "{")
    (finding,) = preflight(repository, HOST)
    assert (
        finding.number == "P01"
        and "planned/1/plan.json is not JSON: " in finding.message
    )


@pytest.mark.parametrize("name", ["config.pbtxt", "trt-build.json", "1/model.py"])
def test_unreadable_file_is_reported(
    clean: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """It may be as it was published."""
    denied, opened = str(clean / "scorer" / name), io.open

    def refusing(file: Any, *arguments: Any, **settings: Any) -> Any:
        if str(file) == denied:
            raise PermissionError(errno.EACCES, "Permission denied", denied)
        return opened(file, *arguments, **settings)

    monkeypatch.setattr(io, "open", refusing)
    monkeypatch.setattr("builtins.open", refusing)
    (finding,) = preflight(clean, HOST)
    assert (finding.number, finding.subject) == ("P01", "scorer")
    assert finding.message == f"{denied} cannot be read: Permission denied"
    assert "access" in finding.fix


def test_valid_repository_has_no_findings(clean: Path) -> None:
    assert preflight(clean, HOST) == []


@pytest.mark.parametrize("fault", INSERTED)
def test_inserted_fault_is_found(clean: Path, tmp_path: Path, fault: str) -> None:
    number, insert, changed = INSERTED[fault]
    repository = shutil.copytree(clean, tmp_path / "repository")
    insert(repository)
    findings = preflight(repository, replace(HOST, **changed))
    assert {one.number for one in findings} == {number}, findings
    assert all(one.message and one.fix and one.subject for one in findings)


def test_config_field_of_a_newer_release_is_found(clean: Path, tmp_path: Path) -> None:
    repository = shutil.copytree(clean, tmp_path / "repository")
    edit(repository / "scorer" / "config.pbtxt", "^", "model_metrics {}\n")
    assert preflight(repository, HOST) == []
    older = preflight(repository, replace(HOST, release=of_image("24.10").release))
    assert [one.subject for one in older if one.number == "P22"] == ["scorer"]


@pytest.mark.parametrize(("tag", "refused"), [("26.03", False), ("26.04", True)])
def test_clients_shared_memory_is_refused_from_26_04(
    clean: Path, tag: str, refused: bool
) -> None:
    server = replace(of_image(tag), client_shared_memory=True)
    numbers = {finding.number for finding in preflight(clean, server)}
    assert ("P16" in numbers) is refused


def test_disk_space_and_ports_are_checked(
    clean: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1)
    )  # type: ignore[attr-defined]
    with socket.create_server(("127.0.0.1", 0)) as server:
        ports = {"--http-port": server.getsockname()[1]}
        findings = preflight(clean, replace(HOST, ports=ports))
    assert [one.number for one in findings] == ["P13", "P17"]


def test_only_selected_models_are_checked(clean: Path, tmp_path: Path) -> None:
    repository = shutil.copytree(clean, tmp_path / "repository")
    break_ensemble_input(repository)
    change_plan_facts(repository, tensorrt="10.9.0.34")
    assert {one.number for one in preflight(repository, HOST, ["pair"])} == {"P12"}
    assert preflight(repository, HOST, ["scorer"]) == []


def test_expected_server_has_the_tensorrt_of_the_plans(clean: Path) -> None:
    server = expected_server(clean)
    assert server is not None and server.release is not None
    assert (10, 13, 3, 9) in server.release.tensorrt


def run(*words: object) -> Result:
    return CliRunner().invoke(main, ["doctor", *map(str, words)])


def test_doctor_prints_numbered_findings(clean: Path) -> None:
    wrong = run(clean, "--image", "nvcr.io/nvidia/tritonserver:24.10-py3", "--json")
    record = json.loads(wrong.stdout)
    assert wrong.exit_code == 4 and not record["ok"]
    assert {"P06", "P18"} <= {one["number"] for one in record["findings"]}
    assert "P06 error: planned: " in run(clean, "--image", "24.10").stdout
    fine = run(clean, "--image", releases.for_tensorrt("10.13.3.9").release.tag)  # type: ignore[union-attr]
    assert fine.exit_code == 0 and "0 errors" in fine.stdout, fine.output
    assert re.search(
        r"P19 warning: torch: .*'pair.0.torch.\w+', .*'scorer'", fine.stdout
    )
    assert "planned" not in fine.stdout
    assert run(clean, "--image", "latest").exit_code == 2
    assert run("--image", "25.10").exit_code == 2
    assert run(clean, "--url", "localhost:1").exit_code == 4


def test_every_rule_is_documented(clean: Path) -> None:
    root = Path(__file__).parents[2]
    numbers = {rules.UNREADABLE, *(rule.number for rule in rules.MODEL_RULES)}
    numbers |= {rule.number for rule in rules.SERVER_RULES}
    page = (root / "docs/preflight.md").read_text()
    assert set(re.findall(r"^\| (P\d\d) \|", page, re.MULTILINE)) == numbers
    assert len(numbers) == 24 and of_image(BUNDLED_RELEASE).release is not None


def test_every_advisory_has_date_release_and_source() -> None:
    table = rules.advisories()
    page = (Path(__file__).parents[2] / "docs/preflight.md").read_text()
    assert table["as_of"] in page
    for one in table["advisories"]:
        assert re.fullmatch(r"\d\d\.\d\d", one["fixed_in"]) and one[
            "source"
        ].startswith("https://")
        row = f"| {one['id']} | {one['published']} | {one['fixed_in']} | {one['effect']} |"
        assert row in page, row
