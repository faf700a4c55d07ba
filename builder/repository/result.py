"""What became of one model of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder.errors import TrtBuildError

PHASES = ("load", "lower", "goldens", "calibrate", "convert", "reference", "build", "publish")
"""What `progress` is told, in order."""

Progress = Callable[[str, str], None]
"""(model, phase) as each phase begins."""


@dataclass
class ModelResult:
    """What became of one model: `error` tells why where `ok` is False; `seconds` by phase."""

    name: str
    ok: bool = False
    error: TrtBuildError | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    layers: int = 0
    plan_bytes: int = 0
    path: Path | None = None
    warnings: tuple[str, ...] = ()
    layout: str = "single"
    """"single": one engine; "fused" or "ensemble": in the pieces of `segments`, for the reason
    `layout_reason`.
    """
    layout_reason: str = ""
    segments: tuple[str, ...] = ()
    state: str = "built"
    """"built"; "reused": published anew with plans from the store; "unchanged": what is published
    is what is wanted.
    """
    quantised: dict[str, Any] | None = None
    """Where the precision has 8 bits: the `summary`, and of each of the `layers` that could be
    quantised its name, whether it is, its SQNR in dB, and the reason where it is not.
    """
    because: str = ""
    """Why it was not unchanged: "precision fp32 -> fp16"."""


SHOWN = ("layers", "plan_bytes", "warnings", "layout", "layout_reason", "segments", "quantised")
"""What is recorded of a result, so that an unchanged model can be told of like a built one."""
