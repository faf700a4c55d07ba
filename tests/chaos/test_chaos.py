"""Short runs of the tools: no answer is wrong, and no kill tears a repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import kill, load, page, pushing


def test_the_page_has_the_recorded_counts() -> None:
    assert page.PAGE.read_text() == page.page(), "run: python docs/generate.py reliability"


@pytest.mark.slow
@pytest.mark.live
@pytest.mark.parametrize("mode", ["poll", "explicit"])
def test_an_ensemble_that_is_republished_under_load_gives_no_wrong_answer(
    tmp_path: Path, mode: str
) -> None:
    counts = load.run(tmp_path / "repository", mode, publications=3, clients=4)
    assert (counts.failed, counts.mixed, counts.empty) == (0, 0, 0), counts
    assert counts.publications == 3 and counts.right == counts.requests > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("change", ["version", "rollback", "single", "fused"])
def test_no_kill_tears_a_model_or_its_versions(tmp_path: Path, change: str) -> None:
    counts = kill.run(tmp_path, stride=60, change=change)
    assert (counts.torn, counts.not_repaired, counts.absent) == (0, 0, 0), counts
    assert counts.left_by_caught_signals == 0, counts
    assert counts.old and counts.new and counts.old + counts.new == counts.kills, counts


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("exchange", [True, False])
def test_no_kill_tears_a_repository_and_the_next_run_repairs_it(
    tmp_path: Path, exchange: bool
) -> None:
    counts = kill.run(tmp_path, exchange=exchange, stride=60)
    assert (counts.torn, counts.not_repaired) == (0, 0), counts
    assert counts.left_by_caught_signals == 0, counts
    assert counts.old and counts.new and (exchange or counts.absent), counts
    assert exchange is not bool(counts.absent), counts


@pytest.mark.slow
@pytest.mark.live
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", ["poll", "explicit"])
def test_models_that_are_pushed_under_load_give_no_wrong_answer(tmp_path: Path, mode: str) -> None:
    counts = pushing.run(tmp_path, mode, pushes=5, clients=4, pause=0.05)
    assert counts.bad == 0, counts
    assert (counts.pushes, counts.rejected) == (5, 1) and counts.requests > 0
