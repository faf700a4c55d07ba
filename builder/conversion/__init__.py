"""From a lowered graph to a TensorRT network: one converter per operator schema, one evaluator per
static node.
"""

from builder.conversion.convert import Conversion, convert
from builder.conversion.decomposing import decomposition
from builder.conversion.registry import converter, evaluator

__all__ = ["Conversion", "convert", "converter", "decomposition", "evaluator"]
