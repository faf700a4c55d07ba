"""Convert a lowered graph to a TensorRT network: one converter per operator schema, one evaluator
per static node.

Importing the package registers all of them.
"""

from __future__ import annotations

from builder.exports import lazy

__getattr__, __dir__ = lazy(__name__, __file__)

import builder.conversion.convert  # noqa: E402, F401  (registers the converters)
