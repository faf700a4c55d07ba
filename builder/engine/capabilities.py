"""The capabilities of the installed TensorRT, probed once from the library.

Conversion reads them as `ctx.capabilities`, other code calls `current()`. A converter tests the
capability that it needs (`takes`, `has_layer`, `has_operation`), never a version.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from builder.engine import flavor
from builder.engine.tensorrt8.refused import REFUSED

OPERATIONS = {"UNARY": "UnaryOperation", "ACTIVATION": "ActivationType"}
"""The enumeration of the operations of each layer."""


@dataclass(frozen=True)
class Capabilities:
    """Facts about one TensorRT library.

    `flavor` is `tensorrt` or `tensorrt-rtx`, `version` is for example (10, 9, 0). If
    `strongly_typed`, networks keep the dtypes that are written into them; otherwise the builder
    chooses among the allowed dtypes. `dtypes` are names of DataType members, `layers` names of
    INetworkDefinition's `add_` methods, and `operations` names such as `UNARY.ISNAN`. `refused` has
    the unsupported dtypes of each layer.
    """

    flavor: str
    version: tuple[int, ...]
    strongly_typed: bool
    dtypes: frozenset[str]
    layers: frozenset[str]
    operations: frozenset[str]
    refused: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def has_int64(self) -> bool:
        """Whether INT64 tensors exist. If not, shapes and indices are INT32."""
        return "INT64" in self.dtypes

    @property
    def has_fp8(self) -> bool:
        """Whether tensors can be quantized to FP8. A weakly typed network cannot use the dtype."""
        return self.strongly_typed and "FP8" in self.dtypes

    @property
    def half_scales(self) -> bool:
        """Whether half tensors are quantized directly, with scales in half. If not, they are
        quantized in float32.
        """
        return self.strongly_typed

    @property
    def data_dependent_sizes(self) -> bool:
        """Whether INonZeroLayer runs. TensorRT-RTX 1.x has "no runners that implement it"."""
        return self.flavor == "tensorrt"

    @property
    def release(self) -> str:
        """The version as text, such as `10.9.0`."""
        return ".".join(map(str, self.version))

    def takes(self, layer: str, dtype: str) -> bool:
        """Whether a layer (`TOPK`, `UNARY.NEG`, `SLICE.FILL.IN_LOOP`) supports a
        DataType, by name.
        """
        return dtype not in self.refused.get(layer, frozenset())

    def has_layer(self, method: str) -> bool:
        """Whether the network has a layer, by the method that adds it (`add_cumulative`)."""
        return method in self.layers

    def has_operation(self, layer: str, name: str) -> bool:
        """Whether a layer of OPERATIONS computes an operation (`UNARY`, `ISNAN`)."""
        return f"{layer}.{name}" in self.operations


def current() -> Capabilities:
    """The capabilities of this process's TensorRT. The first call imports it."""
    return _probe(flavor.load())


@lru_cache(maxsize=4)
def _probe(library: Any) -> Capabilities:
    strongly_typed = hasattr(library.NetworkDefinitionCreationFlag, "STRONGLY_TYPED")
    operations = (
        f"{layer}.{name}"
        for layer, enumeration in OPERATIONS.items()
        for name in getattr(library, enumeration).__members__
    )
    return Capabilities(
        flavor=flavor.name(),
        version=tuple(
            int(part) for part in re.findall(r"\d+", library.__version__)[:4]
        ),
        strongly_typed=strongly_typed,
        dtypes=frozenset(library.DataType.__members__),
        layers=frozenset(
            name for name in dir(library.INetworkDefinition) if name.startswith("add_")
        ),
        operations=frozenset(operations),
        refused={} if strongly_typed else REFUSED,
    )
