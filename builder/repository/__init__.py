"""The orchestrator: every model of a folder through all rooms, into a Triton repository."""

from __future__ import annotations

from builder.repository.build import build_repository
from builder.repository.explain import explain
from builder.repository.hops import check_reference
from builder.repository.result import PHASES, ModelResult
from builder.repository.search import search_precision
from builder.repository.settings import Settings
from builder.repository.single import endpoints

__all__ = [
    "PHASES",
    "ModelResult",
    "Settings",
    "build_repository",
    "check_reference",
    "endpoints",
    "explain",
    "search_precision",
]
