"""A new, empty network of the flavour in use, and the logger that keeps TensorRT's words for our
errors.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from builder.engine import flavour
from builder.engine.flavour import trt
from builder.errors import EnvironmentProblem

MESSAGES: list[str] = []
"""What TensorRT said at warning level or worse, newest last; errors quote its end."""


@lru_cache(maxsize=1)
def logger() -> Any:
    """The one logger of the process: TensorRT keeps a single one, whichever was given first."""

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            if severity <= trt.ILogger.Severity.ERROR:
                del MESSAGES[:-50]
                MESSAGES.append(message)

    return Logger()


def new_network() -> tuple[Any, Any, list[str]]:
    """(trt.Builder, INetworkDefinition, TensorRT's messages); strongly typed where the flavour can
    be.
    """
    builder = trt.Builder(logger())
    if not builder:
        raise EnvironmentProblem(
            f"TensorRT's builder did not start: {MESSAGES[-1] if MESSAGES else 'no reason given'}",
            fix="the tensorrt flavour needs a GPU and its driver; tensorrt-rtx builds without one",
        )
    flag = trt.NetworkDefinitionCreationFlag
    kind = flag.STRONGLY_TYPED if flavour.strongly_typed() else flag.EXPLICIT_BATCH
    MESSAGES.clear()
    return builder, builder.create_network(1 << int(kind)), MESSAGES
