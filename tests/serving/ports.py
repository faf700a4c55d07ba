"""The ports of servers that tests start."""

from __future__ import annotations

import socket


def free_port() -> int:
    """A port at which nothing listens now."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
