"""The Triton room: ModelConfig, layout, publication, and which container holds which TensorRT."""

from __future__ import annotations

from builder.triton.artifact import IO, SERVE_AS, Golden, ModelArtifact
from builder.triton.config import config, config_text, serve_as
from builder.triton.environment import write_env
from builder.triton.publish import publish

__all__ = ["IO", "SERVE_AS", "Golden", "ModelArtifact", "config", "config_text", "publish", "serve_as", "write_env"]
