"""Has a running server take up what was published, over its model-control API (explicit mode)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tritonclient.utils import InferenceServerException

from builder.errors import ServerError
from builder.serving.access import PLAIN, Access
from builder.store import published, retired

LOAD_TIMEOUT = 180.0
DRAIN_SECONDS = 10.0
"""Between the switch and the unloading of former steps: a request that the former ensemble has
begun still asks for its next step by name."""


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
    client = access.http(url, connection_timeout=timeout, network_timeout=timeout)
    try:
        said = published.read(folder / published.SIDECAR)
        ready = _ready(client)
        for step in said.get(published.STEPS) or ():
            if step not in ready:
                client.load_model(step)
        client.load_model(folder.name)
        former = [step for step in said.get(retired.RETIRED) or () if step in ready]
        time.sleep(drain if former else 0)
        for step in former:
            client.unload_model(step)
    except InferenceServerException as error:
        raise ServerError(f"model {folder.name!r} was not loaded: {error}", where=url) from error
    finally:
        client.close()


def _ready(client: Any) -> set[str]:
    index = client.get_model_repository_index()
    return {str(model["name"]) for model in index if model.get("state") == "READY"}
