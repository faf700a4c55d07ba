"""Small networks, plain and trained with fake quantization (eager mode of torch.ao)."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch.ao warns that it moves
    from torch.ao import quantization as ao


class SmallCNN(nn.Module):
    """image [batch, 3, 16, 16] -> [batch, 5]: convolutions with batch normalization, a depthwise
    and a strided one.
    """

    def __init__(self) -> None:
        super().__init__()
        # eager mode quantizes the input here
        self.quant, self.dequant = ao.QuantStub(), ao.DeQuantStub()
        self.first, self.norm, self.relu = (
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
        )
        self.depthwise = nn.Conv2d(8, 8, 3, stride=2, groups=8)
        self.head = nn.Linear(8, 5)

    def forward(self, image: Tensor) -> Tensor:
        x = self.relu(self.norm(self.first(self.quant(image))))
        return self.dequant(self.head(self.depthwise(x).mean([2, 3])))


class MLP(nn.Module):
    """x [batch, 12] -> [batch, 4]"""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = ao.QuantStub(), ao.DeQuantStub()
        self.layers = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.dequant(self.layers(self.quant(x)))


def symmetric() -> ao.QConfig:
    """The scheme of TensorRT: int8 around 0, and a weight scale for each output channel."""
    activation = ao.FakeQuantize.with_args(
        observer=ao.MovingAverageMinMaxObserver,
        quant_min=-128,
        quant_max=127,
        dtype=torch.qint8,
        qscheme=torch.per_tensor_symmetric,
        reduce_range=False,
    )
    return ao.QConfig(
        activation=activation, weight=ao.default_per_channel_weight_fake_quant
    )


CONFIGS = {
    "symmetric": symmetric,
    # unsigned activations with a zero point, fused observers
    "default": lambda: ao.get_default_qat_qconfig("x86"),
}


def trained(
    model: nn.Module, config: str, x: Tensor, *, graph_mode: bool = False
) -> nn.Module:
    """The model with fake quantization after a few forward passes, with observers disabled.

    torch can trace but not script the hooks of eager mode; graph mode inserts calls instead.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.train()
        model = (
            _prepared_in_graph_mode(model, CONFIGS[config](), x)
            if graph_mode
            else _prepared_in_eager_mode(model, CONFIGS[config]())
        )
        for _ in range(3):
            model(x)
        model.apply(ao.disable_observer)
    return model.eval()


def _prepared_in_eager_mode(model: nn.Module, config: ao.QConfig) -> nn.Module:
    model.qconfig = config
    fused = (
        ao.fuse_modules_qat(model, [["first", "norm", "relu"]])
        if isinstance(model, SmallCNN)
        else model
    )
    return ao.prepare_qat(fused)


def _prepared_in_graph_mode(
    model: nn.Module, config: ao.QConfig, x: Tensor
) -> nn.Module:
    from torch.ao.quantization.backend_config import get_tensorrt_backend_config
    from torch.ao.quantization.quantize_fx import prepare_qat_fx

    mapping = ao.QConfigMapping().set_global(config)
    prepared = prepare_qat_fx(
        model, mapping, (x,), backend_config=get_tensorrt_backend_config()
    )
    for node in prepared.graph.nodes:
        # TorchScript rejects annotations that are text, as `from __future__` makes them
        node.type = None
    prepared.recompile()
    return prepared
