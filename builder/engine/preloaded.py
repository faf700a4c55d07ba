"""Loads TensorRT for RTX and Polygraphy, which takes about 0.15 s of CPU time.

Processes that are forked afterwards do not load them again. `flavor.is_only_rtx` is the condition
for its use.
"""

from builder.engine import flavor

flavor.load()
import polygraphy.backend.tensorrt_rtx  # noqa: E402
import polygraphy.backend.trt  # noqa: E402, F401
