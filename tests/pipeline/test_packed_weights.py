"""Modules of torch.ao.quantization with weights packed for the CPU are served by torch."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.ao.quantization as quantization
from torch import Tensor, nn
from torch.nn import functional as F

from builder.pipeline import libtorch
from builder.templates.runtime.trt_build_runtime.by_torch import TorchExecutor
from builder.triton import batching
from tests.pipeline.test_known_cases import checked, outputs_of
from tests.pipeline.test_messages import saved

pytestmark = pytest.mark.filterwarnings("ignore")
ROWS = "[batch, 8]"
IMAGES = "[batch, 3, 16, 16]"


class Head(nn.Module):
    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.first = nn.Linear(8, 16, bias=bias)
        self.last = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.first(self.norm(x) * 2 + 1))).softmax(-1)


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = quantization.QuantStub(), quantization.DeQuantStub()
        self.first = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.second = nn.Conv2d(8, 8, 3, groups=2, dilation=2)
        self.last = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.first(self.enter(x)).relu())
        x = F.adaptive_avg_pool2d(x, 1).flatten(1)
        return self.leave(self.last(x))


def dynamic(config: object, bias: bool = True) -> Callable[[], torch.jit.ScriptModule]:
    def make() -> torch.jit.ScriptModule:
        torch.manual_seed(0)
        found = quantization.quantize_dynamic(Head(bias).eval(), {nn.Linear: config})
        return torch.jit.script(found)

    return make


def static() -> torch.jit.ScriptModule:
    torch.manual_seed(0)
    module = Images().eval()
    module.qconfig = quantization.get_default_qconfig("x86")  # weights by channel
    quantization.prepare(module, inplace=True)
    module(torch.randn(4, 3, 16, 16))
    return torch.jit.script(quantization.convert(module))


def traced() -> torch.jit.ScriptModule:
    return torch.jit.trace(static(), torch.randn(2, 3, 16, 16))


class Recurrent(nn.Module):
    """Layers and a cell. The output depends on both directions, the state and the order."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.layers = kind(8, 4, num_layers=2, bidirectional=True, batch_first=True)
        self.cell = nn.GRUCell(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        steps = torch.stack((x, x.flip(-1), x * 2), 1)
        return self.cell(self.layers(steps)[0][:, -1])


def recurrent(
    kind: type[nn.Module], dtype: torch.dtype
) -> Callable[[], torch.jit.ScriptModule]:
    def make() -> torch.jit.ScriptModule:
        torch.manual_seed(0)
        module = Recurrent(kind).eval()
        quantized = quantization.quantize_dynamic(module, {kind, nn.GRUCell}, dtype)
        return torch.jit.trace(quantized, torch.randn(2, 8))

    return make


CASES = {
    "int8": (dynamic(quantization.default_dynamic_qconfig), ROWS, 0),
    "by channel": (
        dynamic(quantization.per_channel_dynamic_qconfig, bias=False),
        ROWS,
        0,
    ),
    "float16": (dynamic(quantization.float16_dynamic_qconfig), ROWS, 4),
    "LSTM": (recurrent(nn.LSTM, torch.qint8), ROWS, 0),
    "GRU": (recurrent(nn.GRU, torch.qint8), ROWS, 0),
    "LSTM in float16": (recurrent(nn.LSTM, torch.float16), ROWS, 0),
    "static": (static, IMAGES, 4),
    "traced": (traced, IMAGES, 4),
}


def packing_operators(file: bytes) -> list[bytes]:
    """The operators in the code of a TorchScript file that would pack weights in each request."""
    with zipfile.ZipFile(io.BytesIO(file)) as archive:
        code = [archive.read(name) for name in archive.namelist() if ".py" in name]
    return re.findall(rb"quantized\.\w*(?:prepack|make_quantized)\w*", b"".join(code))


@pytest.mark.parametrize("name", CASES)
def test_packed_weights_are_served(tmp_path: Path, name: str) -> None:
    """Dynamic scales are those of the whole batch, so requests are not joined."""
    make, shape, most = CASES[name]
    file = saved(
        tmp_path,
        make(),
        f"inputs: [{{name: x, dtype: float32, shape: {shape}}}]\n"
        "dims: {batch: {min: 1, opt: 2, max: 4}}\n",
    )
    model = checked(file, tmp_path / "out")
    for scale in (1.0, 9.0):
        x = torch.randn(2, *([8] if shape == ROWS else [3, 16, 16])) * scale
        with torch.no_grad():
            expected = torch.jit.load(str(file)).eval()(x)
        (output,) = outputs_of(model.artifact, [x])
        torch.testing.assert_close(output, expected)
    assert batching.choose(model.artifact).max_batch_size == most
    assert any("packed for the CPU" in text for text in model.warnings)
    for segment in model.artifact.segments:
        assert not packing_operators(segment.lowered)


def test_packed_weights_stay_on_the_cpu_of_a_server_with_a_gpu(tmp_path: Path) -> None:
    manifest = f"inputs: [{{name: x, dtype: float32, shape: {IMAGES}}}]\n"
    file = saved(
        tmp_path, static(), f"{manifest}dims: {{batch: {{min: 1, opt: 2, max: 4}}}}\n"
    )
    model = checked(file, tmp_path / "out")
    (segment,) = model.artifact.segments
    (part,) = model.built.converted.partitioned.partition.segments
    reason = libtorch.why_not(model.artifact, part.lowered)
    assert reason is not None and "runs on the CPU only" in reason
    file = tmp_path / "segment.pt"
    file.write_bytes(segment.lowered)
    executor = TorchExecutor(file, "test", device="meta")
    assert executor.runs_on == "cpu"
    (output,) = executor.run([torch.randn(2, 3, 16, 16)])
    assert output.shape == (2, 4)
    assert output.device.type == "meta"
