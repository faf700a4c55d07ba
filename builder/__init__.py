"""trt-build: TorchScript files in, a parity-checked Triton model repository out.

The names below are the public interface. They load on first use, so `import builder` brings neither
torch nor TensorRT.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.2.0"

_PUBLIC = {
    "TensorSpec": "builder.manifest.spec",
    "ModelSpec": "builder.manifest.spec",
    "lower": "builder.lowering",
    "LoweredGraph": "builder.lowering",
    "add_pass": "builder.lowering",
    "convert": "builder.conversion",
    "compile": "builder.pipeline.compiled",
    "converter": "builder.conversion",
    "decomposition": "builder.conversion",
    "evaluator": "builder.conversion",
    "quantize": "builder.quantization",
    "Conversion": "builder.conversion",
    "build_engine": "builder.engine",
    "build_repository": "builder.repository",
    "TrtBuildError": "builder.errors",
    "UnsupportedOperators": "builder.errors",
}
_ROOMS = (
    "reference",
    "parity",
    "serving",
    "triton",
    "quantization",
    "engine",
    "conversion",
    "lowering",
    "manifest",
    "errors",
)

__all__ = sorted([*_PUBLIC, "reference"])


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    if name in _ROOMS:
        return importlib.import_module(f"builder.{name}")
    raise AttributeError(f"module 'builder' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
