"""The ports of servers that tests start."""

from __future__ import annotations

import socket

from builder.serving import FREE_PORTS

FREE = FREE_PORTS
"""Free ports, as arguments of `serve`."""


def free_port() -> int:
    """A port at which nothing listens now."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
