"""The ports of servers that tests start."""

from __future__ import annotations

import socket
from typing import Any

FREE: dict[str, Any] = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
"""Free ports, as arguments of `serve`."""


def free_port() -> int:
    """A port at which nothing listens now."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
