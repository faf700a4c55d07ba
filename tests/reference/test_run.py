"""Evaluation of a network: inputs, outputs, order, memory and errors."""

from __future__ import annotations

import itertools
import weakref
from types import SimpleNamespace

import pytest
import torch

from builder import reference
from builder.engine.flavor import trt
from builder.errors import NetworkEvaluationError
from builder.reference.registry import EVALUATORS
from networks import constant, evaluate, exactly, network_of


def test_conversion_and_its_network_have_equal_outputs():
    builder, network = network_of(
        lambda net, x: net.add_unary(x, trt.UnaryOperation.NEG), [torch.ones(2)]
    )
    exactly(reference.run(network, [torch.ones(2)])[0], [-1.0, -1.0])
    exactly(
        reference.run(
            SimpleNamespace(network=network, builder=builder), [torch.ones(2)]
        )[0],
        [-1.0, -1.0],
    )


def test_outputs_have_the_order_of_the_network():
    x = torch.tensor([3.0])
    outputs = evaluate(
        lambda net, x: [
            net.add_unary(x, op).get_output(0)
            for op in (trt.UnaryOperation.SQRT, trt.UnaryOperation.NEG)
        ],
        x,
    )
    exactly(outputs[0], x.sqrt())
    exactly(outputs[1], -x)


def test_layer_may_precede_its_input_layer():
    def build(net, x):
        first = net.add_unary(x, trt.UnaryOperation.NEG)
        second = net.add_unary(x, trt.UnaryOperation.SQRT)
        first.set_input(0, second.get_output(0))
        return first

    exactly(evaluate(build, torch.tensor([4.0])), [-2.0])


def test_thousands_of_layers_in_reverse_order_are_evaluated():
    def build(net, x):
        layers = [net.add_unary(x, trt.UnaryOperation.NEG) for _ in range(3000)]
        for reader, read in itertools.pairwise(layers):
            reader.set_input(0, read.get_output(0))
        return layers[0]

    exactly(evaluate(build, torch.tensor([4.0]), compiled=False), [4.0])


def test_int64_inputs_are_narrowed_without_overflow():
    _, network = network_of(
        lambda net, x: net.add_identity(x), [torch.ones(1, dtype=torch.int32)]
    )
    exactly(
        reference.run(network, [torch.tensor([7])])[0],
        torch.tensor([7], dtype=torch.int32),
    )
    with pytest.raises(NetworkEvaluationError, match="beyond"):
        reference.run(network, [torch.tensor([2**40])])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "has 1 inputs, 0"),
        ([torch.ones(3)], r"'x0' is \(3,\)"),
        ([torch.ones(2, dtype=torch.int32)], "torch.int32"),
    ],
)
def test_invalid_inputs_are_rejected(inputs, message):
    _, network = network_of(lambda net, x: net.add_identity(x), [torch.ones(2)])
    with pytest.raises(NetworkEvaluationError, match=message):
        reference.run(network, inputs)


def test_layer_without_an_evaluator_is_reported_by_name(monkeypatch):
    def build(net, x):
        layer = net.add_unary(x, trt.UnaryOperation.NEG)
        layer.name, layer.metadata = "encoder/aten::neg_3", "model.py:12"
        return layer

    _, network = network_of(build, [torch.ones(1)])
    monkeypatch.delitem(EVALUATORS, "UNARY")
    with pytest.raises(
        NetworkEvaluationError, match=r"(?s)UNARY.*encoder/aten::neg_3.*model.py:12"
    ):
        reference.run(network, [torch.ones(1)])


@pytest.mark.parametrize("wrong", [lambda layer, x: x.double(), lambda layer, x: x[:1]])
def test_wrong_dtype_or_shape_of_a_value_is_an_error(monkeypatch, wrong):
    _, network = network_of(
        lambda net, x: net.add_unary(x, trt.UnaryOperation.NEG), [torch.ones(2)]
    )
    monkeypatch.setitem(EVALUATORS, "UNARY", wrong)
    with pytest.raises(NetworkEvaluationError, match="TensorRT reports"):
        reference.run(network, [torch.ones(2)])


def test_values_are_released_after_their_last_use(monkeypatch):
    references, alive = [], []
    negate = EVALUATORS["UNARY"]

    def counting(layer, x):
        alive.append(sum(ref() is not None for ref in references))
        result = negate(layer, x)
        references.append(weakref.ref(result))
        return result

    def build(net, x):
        for _ in range(6):
            x = net.add_unary(x, trt.UnaryOperation.NEG).get_output(0)
        return x

    monkeypatch.setitem(EVALUATORS, "UNARY", counting)
    evaluate(build, torch.ones(3), compiled=False)
    assert alive == [0, 1, 1, 1, 1, 1]


def test_outputs_do_not_alias_inputs_or_weights():
    x = torch.ones(2)
    kept = torch.ones(2)
    y, c = evaluate(
        lambda net, x: [net.add_identity(x).get_output(0), constant(net, kept)], x
    )
    y.add_(1)
    c.add_(1)
    exactly(x, torch.ones(2))
    exactly(kept, torch.ones(2))


LOOPS = {"TRIP_LIMIT", "RECURRENCE", "ITERATOR", "LOOP_OUTPUT"}
CONDITIONALS = {"CONDITION", "CONDITIONAL_OUTPUT"}
WITHOUT = {
    "PLUGIN": "its meaning is the plugin's own",
    "PLUGIN_V2": "its meaning is the plugin's own",
    "PLUGIN_V3": "its meaning is the plugin's own",
    "DYNAMIC_QUANTIZE": (
        "its blocks are 4-bit floats, which torch cannot hold, or have 8-bit exponents as scales"
    ),
    "DIST_COLLECTIVE": "speaks to other devices",
    "FULLY_CONNECTED": "deprecated: a product of matrices takes its place",
    "RNN_V2": "deprecated: a loop takes its place",
} | dict.fromkeys(
    "ASSERTION ATTENTION_INPUT ATTENTION_OUTPUT KV_CACHE_UPDATE LRN MOE ONE_HOT PADDING"
    " RAGGED_SOFTMAX REVERSE_SEQUENCE ROTARY_EMBEDDING".split(),
    "no converter creates one",
)


def test_every_layer_class_has_an_evaluator_or_a_reason():
    kinds = set(trt.LayerType.__members__)
    assert kinds - set(EVALUATORS) - LOOPS - CONDITIONALS == kinds & set(WITHOUT)


def test_inspect_returns_named_intermediate_tensors():
    def build(net, x):
        layers = [net.add_unary(x, trt.UnaryOperation.NEG)]
        layers += [net.add_unary(layers[-1].get_output(0), trt.UnaryOperation.ABS)]
        layers[0].get_output(0).name = "negated"
        return layers[1]

    _, network = network_of(build, [torch.ones(1)])
    values = reference.inspect(network, [torch.ones(1)], ["negated", "absent"])
    assert list(values) == ["negated"]
    exactly(values["negated"], [-1.0])


def test_layer_without_effect_on_outputs_is_not_evaluated():
    def build(net, x):
        net.add_fill((2,), trt.FillOperation.RANDOM_UNIFORM, trt.float32)
        return net.add_identity(x)

    exactly(evaluate(build, torch.ones(1)), [1.0])
