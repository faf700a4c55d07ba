"""The capabilities of a TensorRT library are probed once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from builder.conversion.context import ConversionContext
from builder.engine import capabilities, flavor
from tests.conversion import old


def enumeration(*names: str) -> Any:
    members = {name: number for number, name in enumerate(names)}
    return SimpleNamespace(__members__=members, **members)


def library(
    version: str, flags: tuple[str, ...], dtypes: tuple[str, ...], **layers: Any
) -> Any:
    class Library:
        __name__ = "tensorrt"
        __version__ = version
        NetworkDefinitionCreationFlag = enumeration(*flags)
        DataType = enumeration(*dtypes)
        UnaryOperation = enumeration("NEG")
        ActivationType = enumeration("RELU")
        INetworkDefinition = type("INetworkDefinition", (), dict(layers))

    return Library()


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Any:
    def load(module: Any) -> capabilities.Capabilities:
        monkeypatch.setattr(flavor, "_loaded", module)
        return capabilities.current()

    return load


def test_capabilities_of_a_weakly_typed_library(loaded: Any) -> None:
    result = loaded(
        library("8.6.0", ("EXPLICIT_BATCH",), ("FLOAT", "INT32", "FP8"), add_topk=None)
    )
    assert (result.version, result.release) == ((8, 6, 0), "8.6.0")
    assert not (result.strongly_typed or result.has_int64 or result.half_scales)
    assert not result.has_fp8, "the dtype is there, and no network that quantizes to it"
    assert not result.takes("TOPK", "INT32") and result.takes("TOPK", "FLOAT")
    assert result.has_layer("add_topk") and not result.has_layer("add_cumulative")
    assert result.has_operation("UNARY", "NEG") and not result.has_operation(
        "UNARY", "ISNAN"
    )


def test_capabilities_of_a_strongly_typed_library(loaded: Any) -> None:
    result = loaded(library("10.9.0.34", ("STRONGLY_TYPED",), ("INT64", "FP8")))
    assert result.version == (10, 9, 0, 34)
    assert result.strongly_typed and result.has_int64 and result.has_fp8
    assert result.takes("TOPK", "INT32") and result.refused == {}


def test_capabilities_are_probed_once_per_library(loaded: Any) -> None:
    module = library("10.0.1", ("STRONGLY_TYPED",), ("FLOAT",))
    assert loaded(module) is loaded(module)
    with pytest.raises(AttributeError):
        loaded(module).strongly_typed = False


def test_conversion_context_has_the_current_capabilities() -> None:
    assert ConversionContext(None).capabilities is capabilities.current()
    if capabilities.current().strongly_typed:
        with old.playing():
            found = ConversionContext(None).capabilities
            assert not (found.strongly_typed or found.has_int64)
            assert not found.has_layer("add_cumulative")
            assert not found.has_operation("UNARY", "ISNAN")
        assert ConversionContext(None).capabilities is capabilities.current()
