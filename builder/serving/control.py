"""Loads published models into a running server, over its model-control API (explicit mode)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tritonclient.utils import InferenceServerException

from builder.errors import EnvironmentProblem, ServerError
from builder.serving.access import PLAIN, Access, no_server
from builder.serving.flags import CONTROL_HEADER
from builder.store import published

LOAD_TIMEOUT = 180.0
DRAIN_SECONDS = 10.0
"""Seconds between the switch and the unloading of former steps. A request that the former ensemble
has begun still needs its next step by name.
"""
POLL_SECONDS = 0.2
NOT_EXPLICIT = "explicit model load / unload is not allowed"
NO_MODEL = "trt-build.no-model"
GRPC_PREFIX = "triton-grpc-protocol-"
"""Prefix of the header names of restricted gRPC protocols."""


def update(
    url: str,
    folder: Path,
    *,
    timeout: float = LOAD_TIMEOUT,
    drain: float = DRAIN_SECONDS,
    access: Access = PLAIN,
    grpc_url: str | None = None,
) -> None:
    """Load the published model in `folder` into the server at `url` (host:port of HTTP), which must
    run with `--model-control-mode=explicit`.

    New steps of an ensemble are loaded first, then the ensemble, which the server switches at once.
    After `drain` seconds, steps without a reference are unloaded. `timeout` is in seconds for each
    load; `grpc_url` is as in connected. Raises ServerError if a load fails; the server then keeps
    its former models.
    """
    with connected(url, access, timeout, grpc_url) as control:
        control.load(folder)
        control.unload(control.former_steps(folder), drain=drain)


class Control:
    """The model-control API of one server.

    If there is `grpc`, it loads and unloads. Triton's HTTP threads each serve several connections,
    and a thread that loads a model does not run them meanwhile.
    """

    def __init__(self, url: str, client: Any, grpc: _Grpc | None = None) -> None:
        self.url = url
        self.client = client
        self.loader = grpc or client

    def is_explicit(self) -> bool:
        """Whether the server loads and unloads on demand, rather than polling or never changing.

        Raises EnvironmentProblem if nothing answers or the API is refused to this client.
        """
        try:
            self.client.unload_model(NO_MODEL)  # a model that the server does not have
        except InferenceServerException as error:
            if NOT_EXPLICIT in str(error):
                return False
            raise EnvironmentProblem(
                f"the server does not let this client load models: {error}",
                where=self.url,
                fix="pass its token with --control-token-file, --header or --token-file",
            ) from error
        except OSError as error:
            raise no_server(error, self.url) from error
        return True

    def load(self, folder: Path) -> None:
        """Load the new steps of the model in `folder`, then the model. Raises ServerError."""
        record = published.read(folder / published.SIDECAR)
        try:
            ready = self.ready()
            for step in record.get(published.STEPS) or ():
                if step not in ready:
                    self.loader.load_model(step)
            self.loader.load_model(folder.name)
        except (InferenceServerException, OSError) as error:
            raise ServerError(
                f"model {folder.name!r} was not loaded: {error}", where=self.url
            ) from error

    def unload(self, names: Sequence[str], *, drain: float = 0.0) -> None:
        """Unload the loaded ones of these models after `drain` seconds. Raises ServerError."""
        try:
            ready = self.ready()
            loaded = [name for name in names if name in ready]
            time.sleep(drain if loaded else 0)
            for name in loaded:
                self.loader.unload_model(name)
        except (InferenceServerException, OSError) as error:
            raise ServerError(
                f"models were not unloaded: {error}", where=self.url
            ) from error

    def former_steps(self, folder: Path) -> list[str]:
        """The former steps of the model in `folder` that no model references any more."""
        return list(
            published.read(folder / published.SIDECAR).get(published.RETIRED) or ()
        )

    def ready(self) -> set[str]:
        """The names of the ready models."""
        return {
            str(model["name"])
            for model in self._index()
            if model.get("state") == "READY"
        }

    def why_not_ready(self, name: str) -> str | None:
        """The server's error for a model that it could not load, or None."""
        reasons = [
            str(model.get("reason") or "")
            for model in self._index()
            if model["name"] == name
        ]
        return next((text for text in reasons if text and text != "unloaded"), None)

    def _index(self) -> list[dict[str, Any]]:
        return list(self.client.get_model_repository_index())


class _Grpc:
    """The load and unload calls of tritonclient.http, over gRPC."""

    def __init__(self, client: Any, timeout: float) -> None:
        self.client = client
        self.timeout = timeout

    def load_model(self, name: str) -> None:
        self.client.load_model(name, client_timeout=self.timeout)

    def unload_model(self, name: str) -> None:
        self.client.unload_model(name, client_timeout=self.timeout)

    def is_explicit(self) -> bool:
        """Whether the server loads models for this client."""
        try:
            self.unload_model(NO_MODEL)
        except InferenceServerException:
            return False
        return True


@contextlib.contextmanager
def connected(
    url: str, access: Access, timeout: float, grpc_url: str | None = None
) -> Iterator[Control]:
    """Connect to the model-control API at `url`; `timeout` is in seconds for each call.

    Models are loaded over gRPC if `grpc_url` accepts it. Otherwise they are loaded over HTTP, which
    delays other HTTP clients.
    """
    with contextlib.ExitStack() as stack:
        client = access.http(url, connection_timeout=timeout, network_timeout=timeout)
        stack.callback(client.close)
        grpc = None
        if grpc_url is not None:
            over_grpc = _for_grpc(access).grpc(grpc_url)
            stack.callback(over_grpc.close)
            grpc = _Grpc(over_grpc, timeout)
        yield Control(url, client, grpc if grpc and grpc.is_explicit() else None)


def _for_grpc(access: Access) -> Access:
    """Rename the token's header to Triton's name for it over gRPC."""
    renamed = {
        f"{GRPC_PREFIX}{name}": value
        for name, value in access.headers.items()
        if name.lower() == CONTROL_HEADER
    }
    return replace(access, headers={**access.headers, **renamed})
