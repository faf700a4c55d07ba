"""What Triton's own parser and validator say of a config for a backend that this machine has not.

A live server in explicit mode is asked to load the config with a dummy plan. When it gets as far as
looking for the backend's library, its parser and validator have taken the config; what it would
check against a real plan is not reached.
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
from builder.serving import log
from builder.serving.server import Server, serve
from builder.triton.config import parse

ACCEPTED = "unable to find backend library for backend"


class Judge:
    """Asks one live, explicit-mode server about any number of configs."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def __call__(self, config_text: str) -> str | None:
        """None where Triton takes this config.pbtxt of a model whose backend it has not, else its
        log's reason.
        """
        message = parse(config_text, "config")
        before = len(self.server.log())
        with contextlib.closing(
            triton_http.InferenceServerClient(self.server.http_url, network_timeout=60.0)
        ) as client:
            answer = _load(client, message)
        if ACCEPTED in answer:
            return None
        said = log.failures(self.server.log()[before:])
        return next((failure.reason for failure in said if failure.model == message.name), answer)


@contextlib.contextmanager
def judging() -> Iterator[Judge]:
    """A judge with an empty server of its own, on free loopback ports."""
    with tempfile.TemporaryDirectory(prefix="trt-build-judge-") as folder:
        server = serve(Path(folder), http_port=0, grpc_port=0, metrics_port=0, explicit=True)
        with server as running:
            yield Judge(running)


def judge_config(config_text: str) -> str | None:
    """What a bundled tritonserver says of one tensorrt_plan config: None for accepted, else the
    reason. See `judging` for many.
    """
    with judging() as judge:
        return judge(config_text)


def _load(client: Any, message: Any) -> str:
    files = {f"file:1/{message.default_model_filename or 'model.plan'}": b"not a plan"}
    config = json.dumps(json_format.MessageToDict(message, preserving_proto_field_name=True))
    try:
        client.load_model(message.name, config=config, files=files)
    except InferenceServerException as error:
        return str(error)
    raise ServerError(
        f"a dummy plan was loaded as model {message.name!r}: this server's TensorRT backend is not"
        " TensorRT's"
    )
