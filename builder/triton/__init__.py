"""ModelConfig, layout, publication, and which container holds which TensorRT."""

from __future__ import annotations

from builder.triton.artifact import (
    IO,
    SERVE_AS,
    BranchFiles,
    EnsembleArtifact,
    Golden,
    ModelArtifact,
    SegmentFiles,
)
from builder.triton.batching import lost_batches
from builder.triton.config import config, config_text, serve_as
from builder.triton.edits import carry_over
from builder.triton.environment import write_env
from builder.triton.graphs import graph_warnings
from builder.triton.interface import refuse as refuse_incompatible
from builder.triton.merge import merge
from builder.triton.publish import publish, publish_ensemble

__all__ = [
    "IO",
    "SERVE_AS",
    "BranchFiles",
    "EnsembleArtifact",
    "Golden",
    "ModelArtifact",
    "SegmentFiles",
    "carry_over",
    "config",
    "config_text",
    "graph_warnings",
    "lost_batches",
    "merge",
    "publish",
    "publish_ensemble",
    "refuse_incompatible",
    "serve_as",
    "write_env",
]
