"""How long the reference takes for ResNet-50 at batch 1, as a multiple of torch's own time for it on the CPU.

    python benchmarks/reference.py [--runs 15] [--json]

The network is made here, layer by layer through TensorRT's API (a batch normalisation is a scale layer), with random
weights. Both run alternately on the same input and threads, after a warm-up; the ratio is that of the medians, and
reading the network back is part of every run of the reference. The aim is a ratio below 3; exit status 1 above it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from builder import reference
from builder.engine.flavour import trt

AIM = 3.0


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions beside a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.parts = nn.ModuleList([normalised(channels, width, 1), normalised(width, width, 3, stride)])
        self.last = normalised(width, out, 1)
        self.shortcut = normalised(channels, out, 1, stride) if stride != 1 or channels != out else None

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for part in self.parts:
            y = torch.relu(part(y))
        return torch.relu(self.last(y) + (x if self.shortcut is None else self.shortcut(x)))


class ResNet50(nn.Module):
    """He et al. 2015, table 1, with the stride in the 3x3 convolution as everybody has it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = normalised(3, 64, 7, 2)
        self.pool = nn.MaxPool2d(3, 2, 1)
        blocks, channels = [], 64
        for width, count in zip((64, 128, 256, 512), (3, 4, 6, 3), strict=True):
            for i in range(count):
                blocks.append(Bottleneck(channels, width, 2 if i == 0 and width != 64 else 1))
                channels = 4 * width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, 1000)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.blocks(self.pool(torch.relu(self.stem(x))))
        answer: Tensor = self.head(features.mean((2, 3)))
        return answer


def normalised(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs))


class NetworkOfResNet50:
    """The same model as a TensorRT network; keeps what the network points to."""

    def __init__(self, model: ResNet50) -> None:
        self.builder = trt.Builder(trt.Logger(trt.Logger.ERROR))
        self.network = self.builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
        self.kept: list[Any] = []
        x = self.network.add_input("image", trt.float32, (1, 3, 224, 224))
        x = self.relu(self.normalised(x, model.stem))
        pool = self.network.add_pooling_nd(x, trt.PoolingType.MAX, (3, 3))
        pool.stride_nd, pool.padding_nd = (2, 2), (1, 1)
        x = pool.get_output(0)
        for block in model.blocks:
            x = self.block(x, block)
        self.network.mark_output(self.head(x, model.head))

    def block(self, x: Any, block: Any) -> Any:
        y = x
        for part in block.parts:
            y = self.relu(self.normalised(y, part))
        side = x if block.shortcut is None else self.normalised(x, block.shortcut)
        total = self.network.add_elementwise(self.normalised(y, block.last), side, trt.ElementWiseOperation.SUM)
        return self.relu(total.get_output(0))

    def normalised(self, x: Any, pair: Any) -> Any:
        convolution, norm = pair
        kernel = self.weights(convolution.weight)
        layer = self.network.add_convolution_nd(x, convolution.out_channels, convolution.kernel_size, kernel)
        layer.stride_nd, layer.padding_nd = convolution.stride, convolution.padding
        factor = norm.weight / torch.sqrt(norm.running_var + norm.eps)
        shift = self.weights(norm.bias - norm.running_mean * factor)
        mode, power = trt.ScaleMode.CHANNEL, trt.Weights()
        scaled = self.network.add_scale(layer.get_output(0), mode, shift, self.weights(factor), power)
        return scaled.get_output(0)

    def head(self, x: Any, linear: nn.Linear) -> Any:
        pooled = self.network.add_reduce(x, trt.ReduceOperation.AVG, 1 << 2 | 1 << 3, False).get_output(0)
        kernel = self.network.add_constant(tuple(linear.weight.shape), self.weights(linear.weight)).get_output(0)
        plain, turned = trt.MatrixOperation.NONE, trt.MatrixOperation.TRANSPOSE
        product = self.network.add_matrix_multiply(pooled, plain, kernel, turned).get_output(0)
        bias = self.network.add_constant((1, linear.out_features), self.weights(linear.bias)).get_output(0)
        return self.network.add_elementwise(product, bias, trt.ElementWiseOperation.SUM).get_output(0)

    def relu(self, x: Any) -> Any:
        return self.network.add_activation(x, trt.ActivationType.RELU).get_output(0)

    def weights(self, tensor: Tensor) -> Any:
        self.kept.append(tensor.detach().contiguous().numpy())
        return self.kept[-1]


def seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(runs: int) -> dict[str, float]:
    """Medians over alternating runs in seconds, their ratio, and the worst relative difference of the answers."""
    torch.manual_seed(0)
    model, x = ResNet50().eval(), torch.randn(1, 3, 224, 224)
    made = NetworkOfResNet50(model)
    with torch.no_grad():
        expected = model(x)
        (answer,) = reference.run(made, [x])
        pairs = [(seconds(lambda: model(x)), seconds(lambda: reference.run(made, [x]))) for _ in range(runs)]
    by_torch, by_reference = (statistics.median(times) for times in zip(*pairs, strict=True))
    worst = float((answer - expected).abs().max() / expected.abs().max())
    return {
        "torch": by_torch,
        "reference": by_reference,
        "ratio": by_reference / by_torch,
        "difference": worst,
        "layers": made.network.num_layers,
        "threads": torch.get_num_threads(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = measure(options.runs)
    if options.json:
        print(json.dumps(result))
    else:
        print(f"ResNet-50, batch 1, {result['layers']} layers, {result['threads']} threads, {options.runs} runs each")
        print(f"  torch      {result['torch'] * 1e3:8.1f} ms")
        print(
            f"  reference  {result['reference'] * 1e3:8.1f} ms, {result['ratio']:.2f} times torch (aim: below {AIM:g})"
        )
        print(f"  worst relative difference {result['difference']:.1e}")
    return 0 if result["ratio"] < AIM else 1


if __name__ == "__main__":
    sys.exit(main())
