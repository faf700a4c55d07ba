"""Evaluates an INetworkDefinition on the CPU with torch, so that networks are checked for numbers
where no GPU is.

Written from TensorRT's documentation of each layer and from nothing that a converter says: `run`
reads the layers back from the network and agrees with TensorRT on the dtype and shape of every
tensor, or raises NetworkEvaluationError.
"""

from __future__ import annotations

from builder.reference.evaluate import inspect, run

__all__ = ["inspect", "run"]
