"""The pipeline of one model, from its file to the repository, in typed stages that all commands
share.

`stages` has the stages and the functions between them, `run` their order. `check` stops before the
build, the precision search repeats the conversion, `inspect` stops at the network, and `repo` goes
to the end. Importing this package loads neither torch nor TensorRT.
"""

from __future__ import annotations

from builder.exports import lazy

__getattr__, __dir__ = lazy(__name__, __file__)
