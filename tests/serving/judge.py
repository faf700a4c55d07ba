"""Validates a config with Triton's own parser, for a backend that this machine lacks.

A live server in explicit mode loads the config with a dummy plan. If it gets as far as looking for
the backend's library, its parser and validator have accepted the config. Checks against a real plan
do not run.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from tritonclient import http as triton_http
from tritonclient.utils import InferenceServerException

from builder.errors import ServerError
from builder.serving import FREE_PORTS, Server, log, serve
from builder.triton.config import parse_config

ACCEPTED = "unable to find backend library for backend"


class Judge:
    """Validates any number of configs with one live server in explicit mode."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def __call__(self, config_text: str) -> str | None:
        """None if Triton accepts this config.pbtxt, else the reason in its log."""
        message = parse_config(config_text, "config")
        before = len(self.server.log())
        with contextlib.closing(
            triton_http.InferenceServerClient(
                self.server.http_url, network_timeout=60.0
            )
        ) as client:
            reply = _load(client, message)
        if ACCEPTED in reply:
            return None
        failures = log.failures(self.server.log()[before:])
        for failure in failures:
            if failure.model == message.name:
                return failure.reason
        return reply


@contextlib.contextmanager
def judging() -> Iterator[Judge]:
    """A Judge with its own empty server, on free ports of localhost."""
    with (
        tempfile.TemporaryDirectory(prefix="trt-build-judge-") as folder,
        serve(Path(folder), **FREE_PORTS, explicit=True) as server,
    ):
        yield Judge(server)


def _load(client: Any, message: Any) -> str:
    files = {f"file:1/{message.default_model_filename or 'model.plan'}": b"not a plan"}
    config = json.dumps(
        json_format.MessageToDict(message, preserving_proto_field_name=True)
    )
    try:
        client.load_model(message.name, config=config, files=files)
    except InferenceServerException as error:
        return str(error)
    raise ServerError(
        f"the server loaded a dummy plan as model {message.name!r}, so its TensorRT backend is not"
        " TensorRT's"
    )
