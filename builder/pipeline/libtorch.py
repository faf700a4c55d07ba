"""A torch segment as a model of Triton's PyTorch backend: tensors by position, INPUT__0 and
OUTPUT__0, and model.pt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from builder import lowering, partition
from builder.dtypes import ENDPOINT_DTYPES
from builder.pipeline import artifacts

if TYPE_CHECKING:
    from builder.lowering import LoweredGraph
    from builder.triton import IO, Golden, ModelArtifact

SERVE_AS = "pytorch_libtorch"
TYPES = frozenset(ENDPOINT_DTYPES) - {"bfloat16"}
"""The dtypes that it supports (ConvertDataTypeToTorchType)."""


ALLOW_TF32 = 12
"""The index of `allow_tf32` in the arguments of `_convolution`. Lowering rewrites convolutions to
it, except in modules that the manifest keeps in torch, and without a batch axis.
"""
BY_CUDNN = frozenset(
    f"aten::{name}"
    for name in (
        "lstm gru rnn_tanh rnn_relu convolution _convolution _convolution_mode".split()
        + "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d".split()
    )
)
"""Operators that cuDNN computes in TF32 on a GPU by default. For other operators torch uses TF32
only if enabled.
"""


def why_not(step: ModelArtifact, lowered: LoweredGraph) -> str | None:
    """The reason why the backend cannot serve the step, or None."""
    if step.spec.libraries:
        return (
            "it calls custom operators, whose libraries that backend does not load (LD_PRELOAD"
            " would)"
        )
    unsupported = sorted({io.dtype for io in (*step.inputs, *step.outputs)} - TYPES)
    if unsupported:
        return f"the backend has no {', '.join(unsupported)}"
    rounding = _rounding(lowered.graph)
    if rounding and step.spec.precision != "tf32":
        return (
            f"{rounding} would round its operands to TF32 there, and the precision is"
            f" {step.spec.precision}"
        )
    nodes = lowering.ir.walk(lowered.graph)
    kinds = (node.kind() for node in nodes)
    quantized = next((kind for kind in kinds if kind.startswith("quantized::")), None)
    if quantized:
        return f"{quantized} runs on the CPU only, and the backend may run it on a GPU"
    creator = _creator(lowered.graph)
    if creator:
        return (
            f"{creator} creates tensors on the CPU, and the backend may run it on a GPU"
        )
    return None


def _has_tf32_argument(node: Any) -> bool:
    """Whether the call itself has an argument for TF32."""
    return bool(node.kind() == "aten::_convolution" and node.inputsSize() > ALLOW_TF32)


def _rounding(graph: Any) -> str | None:
    """The first operator that cuDNN computes in TF32, without an argument that decides it."""
    for node in lowering.ir.nodes_of(graph, *BY_CUDNN):
        if not _has_tf32_argument(node):
            return str(node.kind())
    return None


def _creator(block: Any) -> str | None:
    """The first operator that creates a tensor without a tensor input: its device is fixed in the
    file.
    """
    for node in lowering.ir.walk(block):
        types = {str(value.type()) for value in node.inputs()}
        if "Device" in types or (
            "Device? device" in node.schema() and "Tensor" not in types
        ):
            return str(node.kind())
    return None


def converted(step: ModelArtifact, lowered: LoweredGraph) -> ModelArtifact:
    """The step for the PyTorch backend. `ensemble_names` map its tensors to those of the model."""
    inputs = {
        tensor.name: f"INPUT__{index}" for index, tensor in enumerate(step.inputs)
    }
    outputs = {
        tensor.name: f"OUTPUT__{index}" for index, tensor in enumerate(step.outputs)
    }
    specs = tuple(
        replace(spec, name=inputs[str(spec.name)]) for spec in step.spec.inputs
    )
    return replace(
        step,
        spec=replace(step.spec, inputs=specs, outputs=tuple(outputs.values())),
        inputs=tuple(
            replace(tensor, name=inputs[tensor.name]) for tensor in step.inputs
        ),
        outputs=tuple(
            replace(tensor, name=outputs[tensor.name]) for tensor in step.outputs
        ),
        goldens=tuple(_renamed(golden, inputs, outputs) for golden in step.goldens),
        lowered=saved(
            lowered, step.inputs, step.outputs, tf32=step.spec.precision == "tf32"
        ),
        segments=(),
        serve_as=SERVE_AS,
        ensemble_names={
            new: old for names in (inputs, outputs) for old, new in names.items()
        },
    )


def _renamed(
    golden: Golden, inputs: Mapping[str, str], outputs: Mapping[str, str]
) -> Golden:
    arrays = {inputs[name]: array for name, array in golden.inputs.items()}
    return replace(
        golden,
        inputs=arrays,
        outputs={outputs[name]: array for name, array in golden.outputs.items()},
    )


def saved(
    lowered: LoweredGraph,
    inputs: Sequence[IO],
    outputs: Sequence[IO],
    *,
    tf32: bool = False,
) -> bytes:
    """model.pt: the graph in TorchScript. 0-d inputs and outputs of the model also have the shape
    [1], because Triton has no 0-d tensors. With `tf32` convolutions may use TF32 on a GPU.
    """
    graph = lowered.graph.copy()
    for node in filter(
        _has_tf32_argument, lowering.ir.nodes_of(graph, "aten::_convolution")
    ):
        node.replaceInput(ALLOW_TF32, lowering.ir.insert_constant(graph, tf32, node))
    partition.with_axis(
        graph,
        [not tensor.shape for tensor in inputs],
        [not tensor.shape for tensor in outputs],
    )
    return artifacts.saved(replace(lowered, graph=graph))
