"""Runs tritonserver processes: the one bundled with nvidia-pytriton, or one on the PATH."""

from __future__ import annotations

from builder.serving.installation import Installation, find
from builder.serving.judge import Judge, judge_config, judging
from builder.serving.server import Server, serve

__all__ = ["Installation", "Judge", "Server", "find", "judge_config", "judging", "serve"]
