"""trt-build: model files in, a parity-checked Triton model repository out.

The names in `__init__.pyi` are the public interface. They load on first use, so `import builder`
brings neither torch nor TensorRT. It imports nothing at all, so that the program can handle Ctrl-C
from its start.
"""

from __future__ import annotations

__version__ = "0.2.0"


def __getattr__(name: str) -> object:
    from builder.exports import lazy

    return lazy(__name__, __file__)[0](name)


def __dir__() -> list[str]:
    from builder.exports import lazy

    return lazy(__name__, __file__)[1]()
