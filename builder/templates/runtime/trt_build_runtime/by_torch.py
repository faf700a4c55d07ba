"""A graph answered by torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from . import blame, operator_safety


class TorchExecutor:
    """A graph in TorchScript, on the CPU unless told otherwise."""

    kind, device = "torch", "cpu"
    checks = False

    def __init__(self, path: Path, why: str, device: str = "cpu", tf32: bool = False) -> None:
        self.why, self.device, self.stream = why, device, None
        # custom libraries are loaded before; torch refuses any other unknown namespace
        operator_safety.check(path, custom=True)
        self.module = torch.jit.load(str(path), map_location=device).eval()
        if device != "cpu":
            _move(self.module.graph, device)
            _allow_tf32(self.module.graph, tf32)

    def limits(self) -> dict[int, int]:
        """By position of an input the number of rows of the embedding that it indexes."""
        return blame.table_sizes(self.module)

    def run(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Without TorchScript's profiling executor, which recompiles, slowly, for each new
        shape.
        """
        with torch.inference_mode(), torch.jit.optimized_execution(False):
            outputs = self.module(*(tensor.to(self.device) for tensor in tensors))
        return [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)


def _move(graph: Any, device: str) -> None:
    """Let the graph make its tensors on the device. Devices that stand in it (torch.arange, .to)
    are the CPU, where it was loaded and checked; where none stands (torch.zeros) it would be the
    CPU too.
    """
    for node in _nodes(graph):
        if node.kind() == "prim::Constant" and str(node.output().type()) == "Device":
            node.s_("value", device)
        elif node.kind().startswith("aten::") and not any(
            str(v.type()) == "Tensor" for v in node.inputs()
        ):
            index = _argument(node, "device")
            if index is not None and str(node.inputsAt(index).type()) == "NoneType":
                graph.setInsertPoint(node)
                node.replaceInput(index, graph.insertConstant(torch.device(device)))


def _allow_tf32(graph: Any, tf32: bool) -> None:
    """Let products of float32 round their operands to TF32, or not. cuDNN does unless it is told,
    so this holds for the whole process; a convolution says it itself, as it was where the module
    was written.
    """
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    for node in _nodes(graph):
        index = _argument(node, "allow_tf32")
        if index is not None:
            graph.setInsertPoint(node)
            node.replaceInput(index, graph.insertConstant(tf32))


def _argument(node: Any, name: str) -> Any:
    """Its place among the node's inputs; None where the operator has none of that name."""
    if not node.kind().startswith("aten::") or name not in node.schema():
        return None
    names = [argument.name for argument in torch._C.parse_schema(node.schema()).arguments]
    return names.index(name) if name in names else None


def _nodes(block: Any) -> Any:
    for node in list(block.nodes()):
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)
