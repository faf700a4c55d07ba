"""From a lowered graph to a TensorRT network: one converter per operator schema, one evaluator per
static node.
"""

from builder.conversion.convert import Conversion, convert

__all__ = ["Conversion", "convert"]
