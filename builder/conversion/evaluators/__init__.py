"""Static nodes: evaluated while the network is built; with DynamicScalars they become arithmetic on shape tensors."""

from builder.conversion.evaluators import aten, control, creation, prim, traced

__all__ = ["aten", "control", "creation", "prim", "traced"]
