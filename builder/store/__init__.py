"""The store of plans by content: the key of each plan, its location, and why it was or was not
found.

There are two keys (docs/store.md). A request is known without torch and decides whether a published
model is current. A plan's key is known after conversion and decides whether TensorRT has to run
(`builder.store.plans`).
"""

from __future__ import annotations

from builder.exports import lazy

__getattr__, __dir__ = lazy(__name__, __file__)
