"""Content-addressed plans: the complete key of each, where it is kept, and why it was or was not
found.

Two keys, as docs/store.md argues: a request is known without torch and tells whether a published
model is what a build would give; a plan's key is known after conversion and tells whether TensorRT
has to run (`builder.store.plans`).
"""

from __future__ import annotations

from builder.store.differences import because, changes
from builder.store.hashes import Hashes
from builder.store.location import default_url
from builder.store.published import (
    SIDECAR,
    damaged,
    record,
    recorded_request,
    shaped,
    sidecar,
    stale,
)
from builder.store.request import request
from builder.store.retired import tidy
from builder.store.storage import Store, last

__all__ = [
    "SIDECAR",
    "Hashes",
    "Store",
    "because",
    "changes",
    "damaged",
    "default_url",
    "last",
    "record",
    "recorded_request",
    "request",
    "shaped",
    "sidecar",
    "stale",
    "tidy",
]
