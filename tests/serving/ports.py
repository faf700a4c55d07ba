"""The ports of servers that tests start."""

from __future__ import annotations

from builder.serving import FREE_PORTS

FREE = FREE_PORTS
"""Free ports, as arguments of `serve`."""
