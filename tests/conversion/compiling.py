"""Which networks of tests/conversion and tests/reference are compiled: those that have something
new for TensorRT.

The reference evaluates every network. Compiling shows one more thing: that TensorRT builds each
layer with its settings, dtypes and ranks. A network is not compiled if this run of the tests has
compiled all of its features before, in this process or in another one of pytest-xdist.
`TRT_BUILD_TEST_COMPILE` chooses what counts as a feature:

    kinds     a layer type with its operation and other modes and its dtypes; with its ranks; with
              each numeric setting; with an empty or dynamic axis (the default)
    settings  all settings of a layer together with its tensors, and each pair of connected layers
              (slow tests, and test_compiling.py for the others)
    all       every network is compiled
    0         none is
"""

from __future__ import annotations

import atexit
import hashlib
import os
import tempfile
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from builder.engine import flavor
from builder.reference.node import read_layers

COMPILED: set[bytes] = set()
"""Digests of the features of the networks that this run has compiled."""
DIGEST_SIZE = 16
RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID")
SHARED = Path(tempfile.gettempdir(), f"trt-build-compiled-{RUN}") if RUN else None
"""The digests that the processes of pytest-xdist share."""
if SHARED:
    atexit.register(SHARED.unlink, missing_ok=True)

NO_SETTINGS = {"name", "metadata", "num_inputs", "num_outputs"}
VARIABLE = "TRT_BUILD_TEST_COMPILE"


def should_compile(network: Any) -> bool:
    """Whether `network` is to be compiled; an engine that can be run always is."""
    choice = os.environ.get(VARIABLE, "kinds")
    if choice in ("all", "0") or flavor.name() == "tensorrt":
        return choice != "0"
    features = _digests(_features(network))
    if not features <= COMPILED and SHARED and SHARED.exists():
        data = SHARED.read_bytes()
        COMPILED.update(
            data[start : start + DIGEST_SIZE]
            for start in range(0, len(data), DIGEST_SIZE)
        )
    return not features <= COMPILED


def done(network: Any) -> None:
    """Remember that TensorRT has compiled `network`."""
    added = _digests(_features(network)) - COMPILED
    COMPILED.update(added)
    if SHARED:
        with SHARED.open("ab", buffering=0) as file:
            file.write(b"".join(added))


@lru_cache(maxsize=1)
def _digests(features: frozenset[Any]) -> frozenset[bytes]:
    return frozenset(
        hashlib.blake2b(repr(feature).encode(), digest_size=DIGEST_SIZE).digest()
        for feature in features
    )


def _features(network: Any) -> frozenset[Any]:
    if os.environ.get(VARIABLE, "kinds") == "kinds":
        return _kinds(network)
    return _layers(network) | _edges(network)


@lru_cache(maxsize=1)
def _kinds(network: Any) -> frozenset[Any]:
    """Each layer's type with its modes and dtypes, its ranks, each number and the axes' classes."""
    collected = set()
    for kind, settings, tensors in _layers(network):
        sides = [[tensor or (None, None, None) for tensor in side] for side in tensors]
        modes = tuple(item for item in settings if not _is_number(item[1]))
        dtypes = tuple(tuple((t, shape) for t, _, shape in side) for side in sides)
        ranks = tuple(
            tuple(sizes and len(sizes) for _, sizes, _ in side) for side in sides
        )
        sizes = {size for side in sides for _, sizes, _ in side for size in sizes or ()}
        collected |= {(kind, modes, dtypes), (kind, ranks)}
        collected |= {(kind, name, _class(v)) for name, v in settings if _is_number(v)}
        collected |= {(kind, min(size, 1)) for size in sizes}
    return frozenset(collected)


def _is_number(setting: Any) -> bool:
    return isinstance(setting, int | float | tuple)


def _class(number: Any) -> Any:
    """The sizes of a kernel or stride as they are, since they are 0, 1 or 2 already."""
    return number if isinstance(number, tuple) else number > 1


@lru_cache(maxsize=1)
def _layers(network: Any) -> frozenset[Any]:
    """Each layer's type, settings and tensors."""
    return frozenset(
        (
            layer.kind,
            tuple(_settings(layer.layer)),
            tuple(tuple(map(_tensor, side)) for side in (layer.inputs, layer.outputs)),
        )
        for layer in read_layers(network)
    )


def _edges(network: Any) -> frozenset[Any]:
    """The types of connected layers, and the dtype of the tensor between them."""
    layers = read_layers(network)
    source = {output: layer.kind for layer in layers for output in layer.outputs}
    return frozenset(
        (source.get(tensor, "input"), layer.kind, str(tensor.dtype))
        for layer in layers
        for tensor in layer.inputs
        if tensor is not None
    )


def _tensor(tensor: Any) -> Any:
    if tensor is None:
        return None
    return (str(tensor.dtype), _sizes(tensor.shape), tensor.is_shape_tensor)


def _settings(layer: Any) -> Iterator[Any]:
    for name in _setting_names(type(layer)):
        try:
            yield name, _setting(getattr(layer, name))
        except (AttributeError, RuntimeError, TypeError, ValueError):
            yield name, None  # TensorRT has no value of it for a layer of this mode


@cache
def _setting_names(kind: type) -> tuple[str, ...]:
    names = (
        name
        for name in dir(kind)
        if not name.startswith("_") and name not in NO_SETTINGS
    )
    return tuple(name for name in names if isinstance(getattr(kind, name), property))


def _setting(value: Any) -> Any:
    kind = type(value).__name__
    if kind in ("ndarray", "Weights"):
        return (kind, str(value.dtype), value.size > 1)
    if kind.startswith("Dims"):
        return _sizes(value)
    if kind in ("int", "float"):
        return value
    text = str(value)
    return kind if " object at 0x" in text else text  # another layer, or a loop


def _sizes(sizes: Any) -> Any:
    """Dynamic, 0, 1 or more: TensorRT chooses kernels by these; None for an unknown rank."""
    try:
        return tuple(min(size, 2) for size in sizes)
    except ValueError:
        return None
