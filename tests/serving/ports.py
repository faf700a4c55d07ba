"""The ports of servers that tests start."""

from __future__ import annotations

from typing import Any

FREE: dict[str, Any] = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
"""Free ports, as arguments of `serve`."""
