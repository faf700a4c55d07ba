"""Every model of a folder through the pipeline, into a Triton repository."""

from __future__ import annotations

from builder.repository.build import build_repository
from builder.repository.explain import explain
from builder.repository.precision_search import search_precision
from builder.repository.result import PHASES, ModelResult
from builder.repository.settings import Settings

__all__ = [
    "PHASES",
    "ModelResult",
    "Settings",
    "build_repository",
    "explain",
    "search_precision",
]
