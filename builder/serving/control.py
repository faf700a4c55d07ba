"""Has a running server take up what was published, over its model-control API (explicit mode)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tritonclient.utils import InferenceServerException

from builder.errors import EnvironmentProblem, ServerError
from builder.serving.access import PLAIN, Access
from builder.store import published

LOAD_TIMEOUT = 180.0
DRAIN_SECONDS = 10.0
"""Between the switch and the unloading of former steps: a request that the former ensemble has
begun still asks for its next step by name."""
POLL_SECONDS = 0.2
NOT_EXPLICIT = "explicit model load / unload is not allowed"
NO_MODEL = "trt-build.no-model"


def update(
    url: str,
    folder: Path,
    *,
    timeout: float = LOAD_TIMEOUT,
    drain: float = DRAIN_SECONDS,
    access: Access = PLAIN,
) -> None:
    """Load the published model in `folder` into the server at `url` (host:port of HTTP), which must
    run with `--model-control-mode=explicit`.

    New steps of an ensemble are loaded first, then the ensemble, which the server switches at once;
    after `drain` seconds the steps that nothing names any more are unloaded. `timeout` seconds for
    each load. Raises ServerError where a load fails: the server goes on with what it had.
    """
    with connected(url, access, timeout) as control:
        control.load(folder)
        control.unload(control.former_steps(folder), drain=drain)


class Control:
    """The model-control API of one server."""

    def __init__(self, url: str, client: Any) -> None:
        self.url, self.client = url, client

    def is_explicit(self) -> bool:
        """Whether the server loads and unloads on demand: else it polls, or never changes. Raises
        EnvironmentProblem where nothing answers or the API is refused to this client.
        """
        try:
            self.client.unload_model(NO_MODEL)  # which the server does not have
        except InferenceServerException as error:
            if NOT_EXPLICIT in str(error):
                return False
            raise EnvironmentProblem(
                f"the server does not let this client load models: {error}",
                where=self.url,
                fix="--control-token-file, --header or --token-file with what it asks for",
            ) from error
        except OSError as error:
            raise EnvironmentProblem(
                f"no Triton answers over http: {error}",
                where=self.url,
                fix="trt-build serve, or the right --url",
            ) from error
        return True

    def load(self, folder: Path) -> None:
        """Load the new steps of the model in `folder`, then the model. Raises ServerError."""
        said = published.read(folder / published.SIDECAR)
        try:
            ready = self.ready()
            for step in said.get(published.STEPS) or ():
                if step not in ready:
                    self.client.load_model(step)
            self.client.load_model(folder.name)
        except (InferenceServerException, OSError) as error:
            raise ServerError(
                f"model {folder.name!r} was not loaded: {error}", where=self.url
            ) from error

    def unload(self, names: Sequence[str], *, drain: float = 0.0) -> None:
        """Unload those of the models that are loaded, after `drain` seconds. Raises ServerError."""
        try:
            ready = self.ready()
            loaded = [name for name in names if name in ready]
            time.sleep(drain if loaded else 0)
            for name in loaded:
                self.client.unload_model(name)
        except (InferenceServerException, OSError) as error:
            raise ServerError(f"models were not unloaded: {error}", where=self.url) from error

    def former_steps(self, folder: Path) -> list[str]:
        """The steps that the model in `folder` had and that nothing names any more."""
        return list(published.read(folder / published.SIDECAR).get(published.RETIRED) or ())

    def ready(self) -> set[str]:
        """The names of the models that are ready."""
        return {str(one["name"]) for one in self._index() if one.get("state") == "READY"}

    def why_not_ready(self, name: str) -> str | None:
        """What the server says of a model that it could not load; None where it says nothing."""
        reasons = [str(one.get("reason") or "") for one in self._index() if one["name"] == name]
        return next((text for text in reasons if text and text != "unloaded"), None)

    def _index(self) -> list[dict[str, Any]]:
        return list(self.client.get_model_repository_index())


@contextlib.contextmanager
def connected(url: str, access: Access, timeout: float) -> Iterator[Control]:
    """The model-control API at `url`; `timeout` in seconds for each call."""
    client = access.http(url, connection_timeout=timeout, network_timeout=timeout)
    try:
        yield Control(url, client)
    finally:
        client.close()
