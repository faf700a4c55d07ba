"""The command `bench` against a real server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from builder.bench import Limit
from builder.cli import bench, main
from builder.cli.terminal import Terminal
from builder.triton import publish
from tests.triton.artifacts import scorer


@pytest.mark.live
def test_client_counts_equal_server_counts(tmp_path: Path) -> None:
    publish(scorer(), tmp_path / "repository")
    words = ["bench", str(tmp_path / "repository"), "--serve", "--json", "--record"]
    words += ["--concurrency", "2", "--seconds", "0.5"]
    result = CliRunner().invoke(main, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    (model,) = json.loads(result.stdout)["models"]
    (level,) = model["levels"]
    assert level["requests"] == level["server"]["success"] > 0 and level["counts_agree"]
    report = json.loads((tmp_path / "repository.results" / "bench.json").read_text())
    (entry,) = report["models"]
    assert {name: entry[name] for name in model} == model


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--serve", "--url", "localhost:1"],
            "or the address of an endpoint, not both",
        ),
        (["--serve", "--concurrency", "1.5"], "whole numbers"),
        (["--serve", "--rate", "fast"], "not a list of positive numbers"),
        (["--serve", "--limit", "p42=1ms"], "not a limit, such as p99=20ms"),
    ],
)
def test_invalid_options_are_refused(
    tmp_path: Path, words: list[str], message: str
) -> None:
    result = CliRunner().invoke(main, ["bench", str(tmp_path), *words])
    assert result.exit_code == 2 and message in result.stderr


@pytest.mark.parametrize(
    ("percentile", "ms", "reason"),
    [
        ("p99", 30.0, ""),
        ("p99", None, "too few requests in 60 s for p99: use a lower percentile"),
        ("p99.9", 30.0, "rates below 217 requests/s need more than 60 s for p99.9"),
    ],
)
def test_no_rate_has_its_reason(
    capsys: pytest.CaptureFixture[str], percentile: str, ms: float | None, reason: str
) -> None:
    limit = Limit(percentile, 20.0, None, ({"rate": 200.0, "ms": ms},))
    bench._show_limit(Terminal(), limit)
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.endswith("no rate (1 trial)")
    assert reason in "".join(rest) and bool(rest) is bool(reason)
