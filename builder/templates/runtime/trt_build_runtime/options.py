"""What the manifest asks of the runtime, as plan.json has it; a file that does not say it has the
defaults.
"""

from __future__ import annotations

from typing import Any


def graphs(facts: dict[str, Any]) -> bool:
    """Whether calls whose shapes stay the same become CUDA graphs."""
    return bool(facts.get("runtime", {}).get("cuda_graphs", True))


def keep_mapped(facts: dict[str, Any]) -> int:
    """Of how many inputs that came in CUDA shared memory the mapping is kept for the requests
    after.
    """
    return int(facts.get("runtime", {}).get("keep_mapped", 0))


def tf32(facts: dict[str, Any]) -> bool:
    """Whether torch may round the operands of float32 products on a GPU, as the engines beside it
    do.
    """
    return bool(facts.get("precision") == "tf32")
