"""What the manifest's `runtime` section asks for, as plan.json has it; a file without one has the defaults."""

from __future__ import annotations

from typing import Any


def graphs(facts: dict[str, Any]) -> bool:
    """Whether calls whose shapes stay the same become CUDA graphs."""
    return bool(facts.get("runtime", {}).get("cuda_graphs", True))


def keep_mapped(facts: dict[str, Any]) -> int:
    """Of how many inputs that came in CUDA shared memory the mapping is kept for the requests after."""
    return int(facts.get("runtime", {}).get("keep_mapped", 0))
