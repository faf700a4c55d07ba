"""Workarounds for TensorRT 8.6, whose networks are weakly typed. Delete the package when support
for it ends.

- `refused`: layers and dtypes that its builder refuses or computes incorrectly, with trt-build's
  messages, and messages of its builder in error logs.
- `network`: a wrapper of INetworkDefinition that keeps dtypes, and takes the newer methods'
  arguments; weights from an array, because it takes no address.
- `infinities`: constant infinities, which the engine would replace by 1e38.
- `parallel`: sums of an attention and a parallel product.
- `graph`: the layers of a network, for `infinities` and `parallel`.
- `config`: the builder flags by which it chooses precisions.
- `evaluation`: the dtypes that its layers report, for the reference.

Everything here was observed with 8.6.0 on an H100 or H200. No other module names the version:
converters check `ctx.capabilities`.
"""

from __future__ import annotations

from builder.exports import lazy

__getattr__, __dir__ = lazy(__name__, __file__)
