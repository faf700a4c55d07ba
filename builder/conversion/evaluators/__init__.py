"""Static nodes: evaluated while the network is built; with DynamicScalars they become arithmetic on shape tensors."""

from builder.conversion.evaluators import containers, control, creation, metadata, numbers, prim, traced

__all__ = ["containers", "control", "creation", "metadata", "numbers", "prim", "traced"]
