"""`trt-build tune` on a live server: trials are recorded; only improvements are written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from builder import build_repository, manifest
from builder.cli import main
from builder.report import records

MANIFEST = """\
inputs: [{name: x, dtype: float32, shape: [batch, 64]}]
dims:
  batch: {min: 1, opt: 2, max: 4}
outputs: [y]
"""


def tune(repository: Path, models: Path, *more: object) -> Result:
    words = ["tune", repository, "--models", models, *more]
    return CliRunner().invoke(
        main, [str(word) for word in words], catch_exceptions=False
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tune")
    models, repository = folder / "models", folder / "repository"
    models.mkdir()
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh())
    torch.jit.script(module.eval()).save(str(models / "net.pt"))
    (models / "net.yaml").write_text(MANIFEST)
    (result,) = build_repository(models, repository, isolate=False)
    assert result.ok, result.error
    return repository, models


@pytest.mark.live
@pytest.mark.slow
def test_trials_are_recorded_and_the_best_is_written(built: tuple[Path, Path]) -> None:
    repository, models = built
    few = ("--trials", 3, "--seconds", 0.5, "--instances", "1,2", "--max-batch", "1,4")
    outcome = tune(repository, models, *few, "--json")
    (entry,) = json.loads(outcome.stdout)["models"]
    assert outcome.exit_code == 0 and len(entry["trials"]) == 3
    assert entry["trials"][0]["proposed_by"] == "default"
    assert len({json.dumps(one["configuration"]) for one in entry["trials"]}) == 3
    for trial in (*entry["trials"], *entry["confirmed"]):
        assert trial["score"] == trial["figures"]["throughput"]["value"] > 0
    ((recorded,),) = records.models(repository, records.TUNE).values()
    assert (
        recorded["trials"] == entry["trials"]
        and recorded["verdict"] == entry["verdict"]
    )
    text = (models / "net.yaml").read_text()
    assert (text != MANIFEST) == entry["written"] == (entry["verdict"] == "better")
    (spec,) = manifest.load(models)
    assert spec.instances == entry["best"]["instances"]
    assert spec.profiles[0]["batch"][2] == entry["best"]["max_batch"]
    assert sorted(path.name for path in repository.iterdir()) == ["net"], (
        "variants are elsewhere"
    )
    (models / "net.yaml").write_text(MANIFEST)


@pytest.mark.live
@pytest.mark.slow
def test_unmet_limit_leaves_the_manifest_unchanged(built: tuple[Path, Path]) -> None:
    repository, models = built
    few = ("--trials", 2, "--seconds", 0.5, "--rate", 40, "--limit", "p50=0.001ms")
    outcome = tune(repository, models, *few)
    assert outcome.exit_code == 3 and "limit not met" in outcome.output
    assert (models / "net.yaml").read_text() == MANIFEST


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--instances", "1.5"), "--instances takes whole numbers"),
        (("--preferred", "some"), "'some' is none of none, half, full"),
        (("--limit", "20ms"), "is not a limit, such as p99=20ms"),
        (("--rate", 5, "--maximize", "throughput"), "exclude each other"),
        (("--only", "nett"), "no model has the name 'nett'"),
        (("--queue-delay", "-1"), "is not a list of positive numbers"),
    ],
)
def test_invalid_options_are_refused_before_the_build(
    words: tuple[object, ...], message: str, tmp_path: Path
) -> None:
    (tmp_path / "net.pt").touch()
    (tmp_path / "net.yaml").write_text(MANIFEST)
    (tmp_path / "repository" / "net").mkdir(parents=True)
    runner = CliRunner()
    command = ["tune", tmp_path / "repository", "--models", tmp_path, *words]
    result = runner.invoke(main, [str(word) for word in command])
    shown = result.output + str(getattr(result.exception, "message", ""))
    assert result.exit_code == 2 and message in shown
    assert (tmp_path / "net.yaml").read_text() == MANIFEST
