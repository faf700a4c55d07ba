"""A graph that torch runs."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Any

import torch

from . import blame, operator_safety

try:
    import triton_python_backend_utils as pb_utils
except ImportError:  # outside a server
    pb_utils = None

NO_KERNEL = re.compile(r"_cuda\w*\" not implemented for|from the 'CUDA' backend")
"""Torch's messages for an operator, or a dtype of it, that it computes on the CPU only."""


class TorchExecutor:
    """A TorchScript graph, on the CPU by default."""

    kind = "torch"
    device = "cpu"
    checks = False

    def __init__(
        self, path: Path, why: str, device: str = "cpu", tf32: bool = False
    ) -> None:
        self.why = why
        self.device = device
        self.stream = None
        self.path = path
        # custom libraries are loaded before; torch refuses any other unknown namespace
        operator_safety.check(path, custom=True)
        # the outputs are returned on `device` in either case
        self.runs_on = "cpu" if _is_packed(path) else device
        self.module = torch.jit.load(str(path), map_location=self.runs_on).eval()
        if self.runs_on != "cpu":
            _move(self.module.graph, device)
            _allow_tf32(self.module.graph, tf32)

    def prepare(self) -> None:
        """Do nothing: torch allocates memory while it runs."""

    def limits(self) -> dict[int, int]:
        """By position of an input: the number of rows of the embedding that it indexes."""
        return blame.table_sizes(self.module)

    def run(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Run on the device, or on the CPU if torch has no CUDA kernel for one of the operators."""
        try:
            return self._run(tensors)
        except RuntimeError as error:
            if self.runs_on == "cpu" or not NO_KERNEL.search(str(error)):
                raise
            self._move_to_cpu(error)
        return self._run(tensors)

    def _move_to_cpu(self, error: RuntimeError) -> None:
        reason = str(error).strip().splitlines()[-1]
        if pb_utils is not None:
            pb_utils.Logger.log_warn(
                f"trt-build: {self.path.stem} runs on the CPU from now on: {reason}"
            )
        self.runs_on = "cpu"
        self.module = torch.jit.load(str(self.path), map_location="cpu").eval()

    def _run(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Run without TorchScript's profiling executor, which takes long to recompile for each new
        shape.
        """
        with torch.inference_mode(), torch.jit.optimized_execution(False):
            outputs = self.module(*(tensor.to(self.runs_on) for tensor in tensors))
        if isinstance(outputs, torch.Tensor):
            outputs = [outputs]
        if self.runs_on == self.device:
            return list(outputs)
        return [tensor.to(self.device) for tensor in outputs]


def _is_packed(path: Path) -> bool:
    """Whether the file computes with quantized weights, for which torch has CPU operators only."""
    with zipfile.ZipFile(path) as archive:
        sources = filter(operator_safety.is_code, archive.namelist())
        return any(b"ops.quantized." in archive.read(name) for name in sources)


def _move(graph: Any, device: str) -> None:
    """Let the graph create its tensors on the device. Devices that the graph names (torch.arange,
    .to) are the CPU, where it was loaded and checked. Where it names none (torch.zeros), torch
    would also use the CPU.
    """
    for node in _nodes(graph):
        if node.kind() == "prim::Constant" and str(node.output().type()) == "Device":
            node.s_("value", device)
        elif node.kind().startswith("aten::") and not _reads_tensor(node):
            index = _argument(node, "device")
            if index is not None and str(node.inputsAt(index).type()) == "NoneType":
                graph.setInsertPoint(node)
                node.replaceInput(index, graph.insertConstant(torch.device(device)))


def _reads_tensor(node: Any) -> bool:
    return any(str(value.type()) == "Tensor" for value in node.inputs())


def _allow_tf32(graph: Any, tf32: bool) -> None:
    """Allow or forbid that float32 products round their operands to TF32. cuDNN rounds by default,
    and the setting holds for the whole process. A convolution has an argument for it, with the
    value from where the module was written.
    """
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    for node in _nodes(graph):
        index = _argument(node, "allow_tf32")
        if index is not None:
            graph.setInsertPoint(node)
            node.replaceInput(index, graph.insertConstant(tf32))


def _argument(node: Any, name: str) -> Any:
    """The argument's index among the node's inputs; None if the operator has no such argument."""
    if not node.kind().startswith("aten::") or name not in node.schema():
        return None
    names = [
        argument.name for argument in torch._C.parse_schema(node.schema()).arguments
    ]
    if name in names:
        return names.index(name)
    return None


def _nodes(block: Any) -> Any:
    for node in list(block.nodes()):
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)
