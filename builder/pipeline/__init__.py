"""One model's way from its file to the repository, in typed stages that all commands share.

`stages` has the stages and the functions between them, `run` the order they run in. `check` stops
before the build, the precision search repeats the conversion, `inspect` stops at the network, and
`repo` goes to the end. Importing this package loads neither torch nor TensorRT.
"""

from __future__ import annotations

from builder.pipeline.order import Order, Progress
from builder.pipeline.run import Clock, check, publish, select_environment

__all__ = ["Clock", "Order", "Progress", "check", "publish", "select_environment"]
