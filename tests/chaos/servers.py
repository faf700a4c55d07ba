"""The tritonserver of a run."""

from __future__ import annotations

from pathlib import Path

from builder.serving import Server, find
from builder.serving.server import start

POLL = ["--model-control-mode=poll", "--repository-poll-secs=1"]


def start_free(repository: Path, mode: str, model: str, log_path: Path) -> Server:
    """Start a server at free ports. In the mode `poll` it polls the repository. In the mode
    `explicit` it loads `model`, and all models for `*`.
    """
    explicit = ["--model-control-mode=explicit", f"--load-model={model}"]
    return start(
        repository,
        port=dict.fromkeys(("--http-port", "--grpc-port", "--metrics-port"), 0),
        address="127.0.0.1",
        options=POLL if mode == "poll" else explicit,
        log_path=log_path,
        installation=find(),
        models=[model] if mode == "explicit" and model != "*" else None,
    )
