"""The manifest's options for the runtime, from plan.json. Missing ones have the defaults."""

from __future__ import annotations

from typing import Any


def graphs(facts: dict[str, Any]) -> bool:
    """Whether calls with the same shapes become CUDA graphs."""
    return bool(facts.get("runtime", {}).get("cuda_graphs", True))


def keep_mapped(facts: dict[str, Any]) -> int:
    """The number of inputs in CUDA shared memory whose mapping is kept for later requests."""
    return int(facts.get("runtime", {}).get("keep_mapped", 0))


def shared_instances(config: dict[str, Any]) -> int:
    """The number of instances in this process, from the parameter in the model's config."""
    stated = config.get("parameters", {}).get("trt_build.shared_instances", {})
    return int(stated.get("string_value", 1))


def tf32(facts: dict[str, Any]) -> bool:
    """Whether torch may round the operands of float32 products on a GPU, as the engines do."""
    return bool(facts.get("precision") == "tf32")
