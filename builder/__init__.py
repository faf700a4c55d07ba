"""trt-build: model files in, a parity-checked Triton model repository out.

The names in `__init__.pyi` are the public interface. They load on first use, so `import builder`
brings neither torch nor TensorRT.
"""

from __future__ import annotations

from builder.exports import lazy

__version__ = "0.2.0"

__getattr__, __dir__ = lazy(__name__, __file__)
