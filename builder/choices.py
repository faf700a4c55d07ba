"""The values of options that several packages share.

The command line reads them without an import of the packages that implement them, because such an
import takes time.
"""

from __future__ import annotations

FLAVORS = ("tensorrt", "tensorrt-rtx")
"""TensorRT's Python packages."""

STATE_MODES = ("implicit", "explicit")
"""Who keeps the state of a sequence: the server, or the client."""

SERVE_AS = ("auto", "tensorrt_plan", "python")
"""What Triton runs for a model."""

LAYOUTS = ("auto", "ensemble", "fused")
"""How a model with several segments is served."""

TORCH_STEPS = ("auto", "python", "pytorch")
"""What serves the torch steps of an ensemble."""

PLATFORMS = ("kubernetes", "kserve")
"""What `trt-build deploy` writes manifests for."""

PROTOCOLS = ("grpc", "http")
"""How a client sends requests to Triton."""

MEMORIES = ("none", "system", "cuda")
"""How a client passes tensors: in the requests, or in shared memory of one kind."""
