"""Reads and validates manifests. Every mistake is reported with its line."""

from __future__ import annotations

from builder.manifest.inputs import merged_profile, parse_input, specs_from_sample
from builder.manifest.loading import load, place
from builder.manifest.schema import SCHEMA_PATH
from builder.manifest.spec import (
    Batching,
    Calibration,
    Fallback,
    ModelSpec,
    Profile,
    Range,
    Runtime,
    Sequences,
    State,
    TensorSpec,
    Tolerance,
)

__all__ = [
    "SCHEMA_PATH",
    "Batching",
    "Calibration",
    "Fallback",
    "ModelSpec",
    "Profile",
    "Range",
    "Runtime",
    "Sequences",
    "State",
    "TensorSpec",
    "Tolerance",
    "load",
    "merged_profile",
    "parse_input",
    "place",
    "specs_from_sample",
]
