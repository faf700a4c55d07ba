"""Content-addressed plans: the complete key of each, where it is kept, and why it was or was not
found.

Two keys, as docs/store.md argues: a request is known without torch and tells whether a published
model is what a build would give; a plan's key is known after conversion and tells whether TensorRT
has to run (`builder.store.plans`).
"""

from __future__ import annotations

from builder.exports import lazy

__getattr__, __dir__ = lazy(__name__, __file__)
