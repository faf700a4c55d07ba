"""One model of the corpus: scripted or traced, saved, checked and published."""

from __future__ import annotations

import re
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import yaml

from tests.corpus.models import corpus

Row = dict[str, Any]

MODULE_FAILS = "the original module fails"


def run(name: str) -> Row:
    """The row of one model: `verdict` is one of page.VERDICTS."""
    warnings.simplefilter("ignore")
    entry = corpus()[name]
    row: Row = {"name": name, "source": entry.source, "mode": entry.mode}
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder, "models")
        models.mkdir()
        try:
            module, inputs = entry.make()
            module.save(str(models / "model.pt"))
        except Exception as error:
            return {**row, "verdict": "not exported", "reason": first_line(error)}
        manifest = yaml.safe_dump(entry.manifest(inputs))
        (models / "model.yaml").write_text(manifest)
        row |= _judge(models, Path(folder, "repository"))
    return {**row, "seconds": round(time.monotonic() - start, 1)}


def _judge(models: Path, repository: Path) -> Row:
    """The results of `check` and `repo` for the model in the folder."""
    from builder.cli.examine import examine
    from builder.repository import Settings, build_repository

    settings = Settings()
    (order,) = settings.orders(settings.specs(models), repository)
    report = examine(order, lambda model, phase: None, build=True)
    (result,) = build_repository(models, repository, isolate=False)
    segments = tuple(
        part["runs_in"] for part in (report.get("fallback") or {}).get("segments", ())
    )
    same = (report["error"] is None) == result.ok and segments == tuple(result.segments)
    if not result.ok:
        reason = first_line(result.error)
        verdict = "fails in torch" if MODULE_FAILS in reason else "not published"
    elif not result.segments:
        verdict, reason = "one engine", ""
    else:
        verdict = "segments" if "tensorrt" in result.segments else "torch"
        reason = next((w for w in result.warnings if w.startswith("in torch")), "")
        reason = reason or next(iter(result.warnings), "")
    return {
        "verdict": verdict,
        "reason": first_line(reason) if reason else "",
        "check_agrees": same,
        "layers": result.layers,
        "segments": len(result.segments),
    }


def first_line(error: object) -> str:
    """The first line of an error's text, without addresses, at most 240 characters."""
    text = str(error).strip() or type(error).__name__
    return re.sub(r"0x[0-9a-f]+", "0x...", text.splitlines()[0])[:240]
