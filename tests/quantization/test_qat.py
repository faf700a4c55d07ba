"""Modules trained with fake quantization, traced and scripted: the network computes the same
numbers.
"""

from __future__ import annotations

import warnings

import pytest
import torch

import builder
from builder.conversion.sizes import kind_of
from builder.engine import capabilities
from builder.parity import compare
from tests.conversion.harness import layer_kinds
from tests.quantization.networks import MLP, SmallCNN, trained

MODELS = {"cnn": (SmallCNN, (4, 3, 16, 16)), "mlp": (MLP, (4, 12))}


def exported(
    name: str, config: str, how: str
) -> tuple[torch.jit.ScriptModule, torch.Tensor]:
    torch.manual_seed(0)
    make, shape = MODELS[name]
    x = torch.randn(shape)
    model = trained(make(), config, x, graph_mode=how == "script")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = (
            torch.jit.script(model)
            if how == "script"
            else torch.jit.trace(model, x, check_trace=False)
        )
    return module, x


def spec_of(name: str) -> builder.TensorSpec:
    return builder.TensorSpec(
        "float32", ("batch", *MODELS[name][1][1:]), dims={"batch": (1, 4, 8)}
    )


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize(
    "how", ["trace", pytest.param("script", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", list(MODELS))
def test_symmetric_quantization_becomes_quantize_layers(
    name: str, how: str, precision: str
) -> None:
    """A value between two steps may be rounded to the other one. The next layer averages this
    error.
    """
    module, x = exported(name, "symmetric", how)
    conversion = builder.convert(module, [spec_of(name)], precision=precision)
    products = 3 if name == "cnn" else 2
    node_kinds = layer_kinds(conversion)
    # a value that is read in float32 and in half is dequantized twice
    assert node_kinds["DEQUANTIZE"] - node_kinds["QUANTIZE"] in (
        (0,) if precision == "fp32" else (0, 1)
    )
    assert node_kinds["QUANTIZE"] >= 2 * products
    expected, output = module(x), builder.reference.run(conversion, [x])[0]
    # int8 computes the other layers in half
    allowed = 2e-2 if precision == "int8" else 5e-3
    assert (output - expected).norm() < allowed * expected.norm()
    assert builder.build_engine(conversion)


@pytest.mark.parametrize("name", list(MODELS))
def test_unsigned_quantization_matches_torch(name: str) -> None:
    """torch's default: activations of 0..127 or 0..255 with a zero point, and a fused observer."""
    module, x = exported(name, "default", "trace")
    conversion = builder.convert(module, [spec_of(name)], precision="fp32")
    expected, output = module(x), builder.reference.run(conversion, [x])[0]
    assert (output - expected).norm() < 5e-3 * expected.norm()
    assert conversion.warnings == ()


@pytest.mark.skipif(
    not capabilities.current().strongly_typed, reason="8.6 chooses half itself"
)
def test_mixed_computes_convolutions_in_half() -> None:
    module, x = exported("cnn", "symmetric", "script")
    conversion = builder.convert(module, [spec_of("cnn")], precision="mixed")
    convolutions = [
        layer.get_output(0).dtype.name
        for layer in map(
            conversion.network.get_layer, range(conversion.network.num_layers)
        )
        if kind_of(layer) == "CONVOLUTION"
    ]
    assert convolutions == ["HALF", "HALF"]
    output = builder.reference.run(conversion, [x])[0]
    assert compare(
        {"y": output.numpy()}, {"y": module(x).detach().numpy()}, precision="mixed"
    ).passed


@pytest.mark.gpu
def test_engine_of_qat_model_is_within_int8_tolerance() -> None:
    """On the GPU: the engine's outputs are within the tolerance of int8."""
    from builder.engine.run import Engine

    module, x = exported("cnn", "symmetric", "script")
    conversion = builder.convert(module, [spec_of("cnn")], precision="int8")
    with Engine(builder.build_engine(conversion)) as engine:
        output = engine(x)[0].cpu()
    assert compare(
        {"y": output.numpy()}, {"y": module(x).detach().numpy()}, precision="int8"
    ).passed
