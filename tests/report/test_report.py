"""A report has the facts of the files and records, in every format."""

from __future__ import annotations

import html
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner, Result

from builder import report
from builder.cli import main
from builder.parity import Comparison
from builder.parity.served import read
from builder.report.formatting import KINDS, pointed
from builder.report.render import FORMATS
from tests.report import repositories
from tests.report.repositories import HOSTILE, NAMES

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return repositories.write(tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def found(repository: Path) -> dict[str, Any]:
    return report.gather(repository)


@pytest.fixture
def run() -> Run:
    def invoke(*arguments: object) -> Result:
        return CliRunner().invoke(
            main, ["report", *map(str, arguments)], catch_exceptions=False
        )

    return invoke


def model(document: dict[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in document["models"] if one["name"] == name)


def test_only_verified_published_files_count_as_passed(found: dict[str, Any]) -> None:
    states = {one["name"]: one["status"] for one in found["models"]}
    assert states == {
        "checked": "passed",
        "stale": "not verified",
        "unchecked": "not verified",
        "wrong": "failed",
        HOSTILE: "failed",
    }
    assert found["summary"]["passed"] == 1 and found["summary"]["failed"] == 2
    assert found["summary"]["answered_by"] == {"torch": 2, "unknown": 3}


def test_figures_equal_the_records(repository: Path, found: dict[str, Any]) -> None:
    one = model(found, "checked")
    recorded = json.loads(
        (repository.with_name("repository.results") / "verify.json").read_text()
    )
    assert (
        one["share"] == model(recorded, "checked")["share"]
        and one["share_from"] == "endpoint"
    )
    assert one["latency"] == {"p50_ms": 2.0, "p99_ms": 6.0, "from": "bench grpc c1"}
    files = [path for path in (repository / "checked").rglob("*") if path.is_file()]
    sizes = sum(path.stat().st_size for path in files if path.name != "trt-build.json")
    assert one["bytes"] == sizes
    stale = model(found, "stale")
    assert stale["latency"] is None and not stale["bench"][0]["current"]
    assert "verify: p0-" in model(found, "wrong")["problems"][0]
    assert "cannot load" in model(found, HOSTILE)["problems"][0]
    assert "bisect: 'scores' differs" in model(found, "wrong")["problems"]
    page = Page(report.render(found, "html")).text
    assert re.search(r"node location\s*model.py:7", page)


def test_recorded_elements_equal_the_goldens(repository: Path) -> None:
    goldens = read(repository / "checked").goldens
    parity = repositories.parity(repository, "checked", 1e-6)
    facts = parity.spread()["scores"]
    elements = np.concatenate([golden.outputs["scores"].ravel() for golden in goldens])
    assert sum(facts["counts"]) == elements.size
    assert np.isin(facts["expected"], elements.astype(np.float64)).all()
    error = np.abs(np.subtract(facts["answered"], facts["expected"]))
    largest = max(
        one.comparison.outputs[0].absolute for one in parity.results if one.comparison
    )
    assert error.max() == pytest.approx(largest) and facts["counts"][-1] == 0
    first = parity.results[0].comparison
    assert first is not None
    steps = tuple(
        replace(first.outputs[0], name=f"scores@{number}") for number in range(2)
    )
    sequence = replace(parity.results[0], comparison=Comparison(steps))
    both = replace(parity, results=(sequence,)).spread()
    assert list(both) == ["scores"]
    assert sum(both["scores"]["counts"]) == 2 * goldens[0].outputs["scores"].size


class Page(HTMLParser):
    """The elements of a page: tags, text, and figures as (pointer, value, text)."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.figures: list[tuple[str, str, str]] = []
        self.links: list[str] = []
        self._open: tuple[str, str] | None = None
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        facts = {key: value or "" for key, value in attrs}
        self.tags.append(tag)
        self.links += [facts[key] for key in ("src", "href") if key in facts]
        if tag == "data":
            self._open = facts["data-at"], facts["value"]

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._open:
            self.figures.append((*self._open, data))
            self._open = None


def test_figures_of_the_page_equal_the_json(found: dict[str, Any]) -> None:
    page = Page(report.render(found, "html"))
    assert len(page.figures) > 15
    document = json.loads(report.render(found, "json"))
    for pointer, value, text in page.figures:
        actual = pointed(document, pointer)
        assert value == str(actual), pointer
        assert text in {
            form(actual) for form in KINDS.values() if _takes(form, actual)
        }, pointer


def _takes(form: Callable[[Any], str], value: Any) -> bool:
    try:
        form(value)
    except (TypeError, ValueError):
        return False
    return True


def test_page_is_one_file_and_escapes_names(found: dict[str, Any]) -> None:
    text = report.render(found, "html")
    page = Page(text)
    assert page.tags.count("script") == 1 and "\x1b" not in text
    assert "<script>alert('1')</script>|`*\\x1b[31m" in page.text
    assert all(link.startswith(("#", "data:")) for link in page.links)
    assert not re.search(
        r"url\((?!#)|@import|https?://", re.sub("http://www.w3.org", "", text)
    )
    assert "default-src 'none'" in html.unescape(text)


def test_markdown_has_a_row_per_model_and_escapes_names(found: dict[str, Any]) -> None:
    text = report.render(found, "markdown")
    assert text.splitlines()[2].endswith(f"trt-build {found['trt_build']}.")
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) == 1 + len(found["models"])
    assert {row.count(" |") for row in (re.sub(r"\\\|", "", row) for row in rows)} == {
        9
    }
    assert "<script>" not in text and "\x1b" not in text
    assert "&lt;script&gt;alert('1')&lt;/script&gt;\\|\\`\\*\\\\x1b\\[31m" in text


def test_markdown_has_a_column_of_changes(found: dict[str, Any]) -> None:
    """Header, delimiter row and rows must have equal numbers of cells to form a table."""
    since = {**found, "since": "2026-11-24", "removed": []}
    since["models"] = [
        {**one, "changes": [{"figure": "precision"}]} for one in found["models"]
    ]
    lines = report.render(since, "markdown").splitlines()
    table = [re.sub(r"\\\|", "", line) for line in lines if line.startswith("|")]
    assert len(table) == 2 + len(found["models"])
    assert {line.count("|") for line in table} == {11}
    assert table[0].endswith("| build | changed |") and set(table[1]) == {"|", "-", ":"}
    assert all(line.endswith("| precision |") for line in table[2:])


def test_junit_has_all_failures(found: dict[str, Any]) -> None:
    root = ElementTree.fromstring(report.render(found, "junit"))
    suites = {suite.get("name"): suite for suite in root}
    assert set(suites) == {*NAMES, HOSTILE.replace("\x1b", "\\x1b")}
    assert (
        suites["checked"].get("failures") == "0"
        and suites["wrong"].get("failures") != "0"
    )
    golden = model(found, "checked")["verify"]["goldens"][0]["golden"]
    names = {case.get("name") for case in suites["checked"]}
    assert {"build", "files", "verify", f"golden {golden} grpc", "bench grpc"} <= names
    skipped = [
        case.get("name") for case in suites["stale"] if case.find("skipped") is not None
    ]
    assert skipped == ["verify", "bench grpc"]
    total = sum(len(list(suite.iter("failure"))) for suite in root)
    assert root.get("failures") == str(total)


def test_since_lists_changes(
    repository: Path, found: dict[str, Any], tmp_path: Path, run: Run
) -> None:
    old = json.loads(report.render(found, "json"))
    one = model(old, "checked")
    one.update(precision="fp16", bytes=one["bytes"] // 2)
    one["bench"][0]["levels"][0]["throughput"] = {
        "value": 50.0,
        "low": 49.0,
        "high": 51.0,
    }
    model(old, "wrong")["share"] *= 1.01
    old["models"] = [{**one, "name": "gone"}, *old["models"][1:]]
    (tmp_path / "old.json").write_text(json.dumps(old))
    new = json.loads(
        run(repository, "--since", tmp_path / "old.json", "--format", "json").stdout
    )
    assert new["removed"] == ["gone"] and new["since"] == found["generated_at"]
    assert [c["figure"] for c in model(new, HOSTILE)["changes"]] == ["new"]
    assert model(new, "unchecked")["changes"] == []
    assert model(new, "wrong")["changes"] == []
    changes = {c["figure"]: c for c in model(new, "checked")["changes"]}
    assert (
        changes["precision"]["before"] == "fp16"
        and changes["precision"]["after"] == "fp32"
    )
    assert changes["throughput (grpc c1)"]["verdict"] == "better"
    assert set(changes) == {"precision", "bytes", "throughput (grpc c1)"}
    page = run(repository, "--since", tmp_path / "old.json").stdout
    assert "Gone since then: gone" in page and "throughput (grpc c1)" in page


def test_damaged_models_do_not_affect_others(repository: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(repository, tmp_path / "repository")
    shutil.copytree(
        repository.with_name("repository.results"), tmp_path / "repository.results"
    )
    (copy / "checked" / "1" / "lowered.pt").write_bytes(b"damaged")
    (copy / "unchecked" / "trt-build.json").write_text('{"files": {}, "inputs": 3}')
    (copy / "other").mkdir()
    facts = report.gather(copy)
    assert model(facts, "checked")["problems"] == ["version 1 is damaged: 1/lowered.pt"]
    assert model(facts, "unchecked")["status"] == "failed"
    assert facts["others"] == ["other"]
    for form in FORMATS:
        assert report.render(facts, form)


def test_file_suffix_selects_the_format(
    repository: Path, tmp_path: Path, run: Run
) -> None:
    for name, begin in {
        "r.html": "<!doctype html>",
        "r.json": "{",
        "r.xml": "<?xml",
        "r.md": "# repository",
    }.items():
        result = run(repository, "-o", tmp_path / name)
        assert result.exit_code == 0, result.output
        assert "5 models, 1 passed, 2 failed, 2 not verified" in result.stdout
        assert (tmp_path / name).read_text().startswith(begin)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere does not exist"),
        (["{repository}", "--only", "chekced"], "no model 'chekced'"),
        (
            ["{repository}", "-o", "report.pdf"],
            "has no suffix that names a report format",
        ),
        (
            ["{repository}", "--since", "{repository}/checked/config.pbtxt"],
            "not a report",
        ),
    ],
)
def test_usage_errors_are_reported(
    repository: Path, run: Run, arguments: list[str], message: str
) -> None:
    result = run(*(one.replace("{repository}", str(repository)) for one in arguments))
    assert result.exit_code == 2 and message in result.stderr and result.stdout == ""


@pytest.mark.parametrize(
    "text", ["[]", '{"models": [{}]}', '{"models": [{"name": "checked"}]}']
)
def test_malformed_record_is_refused(
    repository: Path, tmp_path: Path, run: Run, text: str
) -> None:
    copy = shutil.copytree(repository, tmp_path / "repository")
    (tmp_path / "repository.results").mkdir()
    (tmp_path / "repository.results" / "verify.json").write_text(text)
    result = run(copy)
    assert result.exit_code == 2 and "record" in result.stderr


@pytest.mark.parametrize("command", ["verify --serve", "bench --serve"])
def test_unwritable_record_is_refused_before_the_measurement(
    tmp_path: Path, command: str
) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models.results").touch()  # also root cannot create a file in it
    arguments = [*command.split(), str(tmp_path / "models"), "--record"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 4 and "results cannot be written" in result.stderr
    assert "tritonserver: start" not in result.stderr


def test_records_keep_other_models_and_omit_secrets(
    repository: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(repository, tmp_path / "repository")
    records = report.records
    records.keep(copy, records.BENCH, {"models": [{"name": "checked", "a": 1}]})
    file = records.keep(copy, records.BENCH, {"models": [{"name": "stale", "a": 2}]})
    facts = json.loads(file.read_text())["models"]
    assert [(one["name"], one["a"]) for one in facts] == [("checked", 1), ("stale", 2)]
    assert facts[0]["published"] == records.identity(copy / "checked")
    line = records.command(
        [
            "bench",
            "r",
            "--header",
            "Authorization: x",
            "--header=b",
            "--url",
            "http://me:pw@host",
        ]
    )
    assert line == "trt-build bench r --header ... --header=... --url http://...@host"
