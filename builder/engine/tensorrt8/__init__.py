"""Workarounds for TensorRT 8.6, whose networks are weakly typed; delete the package with it.

- `refused`: the layers and dtypes that its builder refuses or computes wrongly, with our messages.
- `network`: a wrapper of INetworkDefinition that keeps dtypes, and takes the newer methods'
  arguments.
- `config`: the builder flags by which it chooses precisions.
- `weights`: weights from an array, since it takes no address.
- `evaluation`: what its layers report of their dtypes, for the reference.
- `messages`: what its builder says in error logs.

Everything here was observed with 8.6.0 on an H100. No other module names the version: converters
ask `ctx.capabilities`.
"""

from __future__ import annotations

from builder.exports import lazy

__getattr__, __dir__ = lazy(__name__, __file__)
