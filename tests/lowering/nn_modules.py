"""Every module of torch.nn.modules, with its constructor and inputs.

`python docs/generate.py lowering-modules` writes the table of their results.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import nn

import builder
from builder.errors import LoweringError
from builder.lowering.paranoid import tensors_in
from tests.lowering.cases import floats as _r
from tests.torchscript.saving import saved

ModuleAndInputs = tuple[Callable[[], nn.Module], tuple[Any, ...]]


def _ids(*shape: int, most: int = 4) -> torch.Tensor:
    return torch.randint(0, most, shape, generator=torch.Generator().manual_seed(0))


X1, X2, X3, SEQ = _r(2, 4, 9), _r(2, 4, 8, 8), _r(2, 4, 8, 8, 8), _r(3, 2, 8)
_PLAIN = (
    "ReLU ReLU6 Sigmoid Tanh Softsign Tanhshrink Softplus Softshrink Hardshrink Hardsigmoid"
    " Hardswish Hardtanh ELU CELU SELU GELU SiLU Mish LeakyReLU LogSigmoid PReLU RReLU Softmin"
    " Identity Flatten Dropout AlphaDropout FeatureAlphaDropout "
)
MODULES: dict[str, ModuleAndInputs] = {
    name: (getattr(nn, name), (X2,)) for name in _PLAIN.split()
}
MODULES |= {
    "Dropout1d": (nn.Dropout1d, (X1,)),
    "Dropout2d": (nn.Dropout2d, (X2,)),
    "Dropout3d": (nn.Dropout3d, (X3,)),
    "GLU": (nn.GLU, (X2,)),
    "Threshold": (lambda: nn.Threshold(0.1, 20), (X2,)),
    "Softmax": (lambda: nn.Softmax(1), (X2,)),
    "LogSoftmax": (lambda: nn.LogSoftmax(1), (X2,)),
    "Softmax2d": (nn.Softmax2d, (X2,)),
    "AdaptiveLogSoftmaxWithLoss": (
        lambda: nn.AdaptiveLogSoftmaxWithLoss(8, 10, [4]),
        (_r(5, 8), _ids(5, most=10)),
    ),
    "Linear": (lambda: nn.Linear(8, 3), (X2,)),
    "Bilinear": (lambda: nn.Bilinear(8, 4, 3), (_r(2, 8), _r(2, 4))),
    "Embedding": (lambda: nn.Embedding(4, 5, padding_idx=1), (_ids(2, 3),)),
    "EmbeddingBag": (lambda: nn.EmbeddingBag(4, 5), (_ids(2, 3),)),
    "LayerNorm": (lambda: nn.LayerNorm([8, 8]), (X2,)),
    "RMSNorm": (lambda: nn.RMSNorm(8), (X2,)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), (X2,)),
    "LocalResponseNorm": (lambda: nn.LocalResponseNorm(2), (X2,)),
    "CrossMapLRN2d": (lambda: nn.CrossMapLRN2d(2), (X2,)),
    "CosineSimilarity": (nn.CosineSimilarity, (X2, X2 + 1)),
    "PairwiseDistance": (nn.PairwiseDistance, (_r(2, 8), _r(3, 8)[:2])),
    "PixelShuffle": (lambda: nn.PixelShuffle(2), (X2,)),
    "PixelUnshuffle": (lambda: nn.PixelUnshuffle(2), (X2,)),
    "ChannelShuffle": (lambda: nn.ChannelShuffle(2), (X2,)),
    "Unflatten": (lambda: nn.Unflatten(1, (2, 2)), (X2,)),
    "Fold": (lambda: nn.Fold((4, 5), (2, 2)), (_r(1, 8, 12),)),
    "Unfold": (lambda: nn.Unfold((2, 3)), (X2,)),
    "Upsample": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), (X2,)),
    "UpsamplingNearest2d": (lambda: nn.UpsamplingNearest2d(scale_factor=2), (X2,)),
    "UpsamplingBilinear2d": (lambda: nn.UpsamplingBilinear2d(size=(5, 7)), (X2,)),
    "FractionalMaxPool2d": (lambda: nn.FractionalMaxPool2d(2, output_size=3), (X2,)),
    "MaxUnpool2d": (
        lambda: nn.MaxUnpool2d(2),
        nn.MaxPool2d(2, return_indices=True)(X2),
    ),
    "MaxUnpool2d (its operator)": (
        lambda: _Unpool(),
        nn.MaxPool2d(2, return_indices=True)(X2),
    ),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(8, 2), (SEQ, SEQ, SEQ)),
    "Transformer": (lambda: nn.Transformer(8, 2, 1, 1, 16), (SEQ, SEQ)),
    "TransformerEncoder": (
        lambda: nn.TransformerEncoder(_encoder_layer(), 2, enable_nested_tensor=False),
        (SEQ,),
    ),
    "TransformerEncoderLayer": (lambda: _encoder_layer(), (SEQ,)),
    "TransformerDecoder": (
        lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16), 2),
        (SEQ, SEQ),
    ),
    "TransformerDecoderLayer": (
        lambda: nn.TransformerDecoderLayer(8, 2, 16),
        (SEQ, SEQ),
    ),
    "RNN": (lambda: nn.RNN(8, 5, 2), (SEQ,)),
    "LSTM": (lambda: nn.LSTM(8, 5, bidirectional=True), (SEQ,)),
    "GRU": (lambda: nn.GRU(8, 5, batch_first=True), (SEQ,)),
    "RNNCell": (lambda: nn.RNNCell(8, 5), (SEQ[0],)),
    "LSTMCell": (lambda: nn.LSTMCell(8, 5), (SEQ[0],)),
    "GRUCell": (lambda: nn.GRUCell(8, 5), (SEQ[0],)),
    "Sequential": (
        lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True)),
        (X2,),
    ),
}


class _Unpool(nn.Module):
    """Computes nn.MaxUnpool2d(2), which torch 2.13 can neither script nor trace itself."""

    def forward(self, x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.max_unpool2d(x, indices, [x.size(2) * 2, x.size(3) * 2])


def _encoder_layer() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1)


def _by_axes(
    name: str, make: Callable[..., Callable[[], nn.Module]]
) -> dict[str, ModuleAndInputs]:
    return {f"{name}{n}d": (make(n), (x,)) for n, x in ((1, X1), (2, X2), (3, X3))}


def _of(
    name: str, *args: Any, **kwargs: Any
) -> Callable[[int], Callable[[], nn.Module]]:
    return lambda n: lambda: getattr(nn, f"{name}{n}d")(*args, **kwargs)


for _name, _args in {
    "Conv": (4, 6, 3, 2, 1),
    "ConvTranspose": (4, 6, 3, 2, 1),
    "BatchNorm": (4,),
    "MaxPool": (2,),
    "AvgPool": (2,),
    "AdaptiveAvgPool": (3,),
    "AdaptiveMaxPool": (3,),
    "ConstantPad": (1, 2.0),
    "ReflectionPad": (1,),
    "ReplicationPad": (1,),
    "ZeroPad": (1,),
    "CircularPad": (1,),
    "LPPool": (2, 2),
}.items():
    MODULES |= _by_axes(_name, _of(_name, *_args))
MODULES |= _by_axes(
    "InstanceNorm", _of("InstanceNorm", 4, affine=True, track_running_stats=True)
)
# Losses are modules too.
_LOSSES = (
    "L1Loss MSELoss SmoothL1Loss HuberLoss KLDivLoss PoissonNLLLoss SoftMarginLoss"
    " MultiLabelSoftMarginLoss"
)
MODULES |= {
    name: (getattr(nn, name), (_r(3, 5), _r(3, 5).sigmoid()))
    for name in _LOSSES.split()
}
MODULES |= {
    "BCELoss": (nn.BCELoss, (_r(3, 5).sigmoid(), _r(3, 5).sigmoid())),
    "BCEWithLogitsLoss": (nn.BCEWithLogitsLoss, (_r(3, 5), _r(3, 5).sigmoid())),
    "CrossEntropyLoss": (nn.CrossEntropyLoss, (_r(3, 5), _ids(3))),
    "LinearCrossEntropyLoss": (
        lambda: nn.LinearCrossEntropyLoss(5, 4),
        (_r(3, 5), _ids(3)),
    ),
    "NLLLoss": (nn.NLLLoss, (_r(3, 5), _ids(3))),
    "MultiMarginLoss": (nn.MultiMarginLoss, (_r(3, 5), _ids(3))),
    "MultiLabelMarginLoss": (nn.MultiLabelMarginLoss, (_r(3, 5), _ids(3, 5))),
    "GaussianNLLLoss": (nn.GaussianNLLLoss, (_r(3, 5), _r(3, 5), _r(3, 5).exp())),
    "HingeEmbeddingLoss": (nn.HingeEmbeddingLoss, (_r(3, 5), _r(3, 5).sign())),
    "CosineEmbeddingLoss": (
        nn.CosineEmbeddingLoss,
        (_r(3, 5), _r(3, 5) + 1, torch.tensor([1, -1, 1])),
    ),
    "MarginRankingLoss": (
        nn.MarginRankingLoss,
        (_r(3), _r(4)[:3], torch.tensor([1, -1, 1])),
    ),
    "TripletMarginLoss": (
        nn.TripletMarginLoss,
        (_r(3, 5), _r(3, 6)[:, :5], _r(4, 5)[:3]),
    ),
    "TripletMarginWithDistanceLoss": (
        nn.TripletMarginWithDistanceLoss,
        (_r(3, 5), _r(3, 6)[:, :5], _r(4, 5)[:3]),
    ),
    "CTCLoss": (
        nn.CTCLoss,
        (
            _r(6, 2, 5).log_softmax(2),
            _ids(2, 3) + 1,
            torch.tensor([6, 6]),
            torch.tensor([3, 2]),
        ),
    ),
}
# Containers hold other modules, lazy ones become one of the above, and the two-dimensional form
# covers the rest.
LEFT_OUT = {
    "Module",
    "ModuleDict",
    "ModuleList",
    "ParameterDict",
    "ParameterList",
    "Container",
    "SyncBatchNorm",
    "NLLLoss2d",
    "LinearCrossEntropyOptions",
    "RNNBase",
    "RNNCellBase",
    "MaxUnpool1d",
    "MaxUnpool3d",
    "FractionalMaxPool3d",
    "LPPool3d",
}


def _as_saved(module: Any) -> Any:
    """The module, saved and loaded; the module itself if torch cannot save it."""
    try:
        return saved(module)
    except RuntimeError as error:
        if "Could not export Python function" in str(error):
            return module
        raise


def exported(module: nn.Module, inputs: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    """The module scripted and traced, or torch's error. It is saved and loaded, unless torch cannot
    save it.
    """
    for how in ("scripted", "traced"):
        try:
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                script = (
                    torch.jit.script(module)
                    if how == "scripted"
                    else torch.jit.trace(module, inputs, check_trace=False)
                )
                yield how, _as_saved(script)
        except Exception as error:  # torch raises many kinds
            yield how, error


def outcome(original: nn.Module, module: Any, inputs: tuple[Any, ...]) -> str:
    """`equal`, or the reason why the outputs are not."""
    if isinstance(module, Exception):
        return "torch cannot"
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        expected = tensors_in(original(*inputs))
        try:
            lowered = builder.lower(module)
        except LoweringError as error:
            return f"refused: {error.message}"
        torch.manual_seed(0)
        outputs = lowered.run(*inputs)
    try:
        torch.testing.assert_close(
            list(outputs), expected, rtol=1e-4, atol=1e-5, equal_nan=True
        )
    except AssertionError as error:
        return f"differs: {str(error).splitlines()[0]}"
    return "equal"


@cache
def results(name: str) -> dict[str, str]:
    """The outcome of one module, scripted and traced."""
    torch.manual_seed(0)
    make, inputs = MODULES[name]
    module = make().eval()
    return {
        how: outcome(module, script, inputs) for how, script in exported(module, inputs)
    }


def table() -> str:
    """docs/lowering-modules.md."""
    lines = [
        "# torch.nn modules through lowering",
        "",
        (
            "Generated by `python docs/generate.py lowering-modules`. *equal*: the outputs of the"
            " lowered graph are those of the module"
        ),
        "(rtol 1e-4, atol 1e-5). *torch cannot*: `torch.jit` itself does not script or trace it.",
        "",
        "| module | scripted | traced |",
        "|---|---|---|",
    ]
    for name in sorted(MODULES):
        rows = results(name)
        lines.append(f"| {name} | {rows['scripted']} | {rows['traced']} |")
    return "\n".join(lines)
