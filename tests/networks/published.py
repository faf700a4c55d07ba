"""Published networks with random weights, from pytorchcv 0.0.67 and transformers. No test needs
these packages.

pytorchcv's networks are also scripted, after the changes of scriptable.py. transformers' are only
traced: torch.jit.script refuses every model there because of its configuration class
(NotSupportedError: `**kwargs` in a compiled function). small.py has the same architectures in plain
torch.nn, scripted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tests.networks.comparing import Network, Sizes
from tests.networks.scriptable import prepare

CONFIGURED = (
    "NotSupportedError: `**kwargs` of the configuration class that the module holds"
)


def _vision(name: str, *hw: tuple[int, int], **options: Any) -> Network:
    """A pytorchcv model. With one image size the size is static; with three, height and width are
    dynamic.
    """

    def make() -> nn.Module:
        import numpy as np
        from pytorchcv.model_provider import get_model

        np.int = int  # type: ignore[attr-defined]  # pytorchcv is older than NumPy 1.24
        net = get_model(name, pretrained=False, **options)
        if len(hw) > 1 and hasattr(getattr(net, "features", None), "final_pool"):
            # the usual last layers; those of pytorchcv require 224 pixels
            net.features.final_pool = nn.AdaptiveAvgPool2d(1)
        return net  # type: ignore[no-any-return]

    if len(hw) == 1:
        (h, w), cases = hw[0], ({"n": 2}, {"n": 1}, {"n": 3})
        return Network(
            make,
            lambda s: (torch.randn(s["n"], 3, h, w),),
            {0: {0: "n"}},
            cases,
            prepare=prepare,
        )
    cases = tuple(
        {"n": n, "h": h, "w": w} for n, (h, w) in zip((2, 1, 1), hw, strict=True)
    )
    axes = {0: {0: "n", 2: "h", 3: "w"}}
    return Network(
        make,
        lambda s: (torch.randn(s["n"], 3, s["h"], s["w"]),),
        axes,
        cases,
        prepare=prepare,
    )


FREE = ((224, 224), (160, 192), (225, 257))
EVEN = ((224, 224), (160, 192), (256, 288))
"""Multiples of 32, because a skip connection joins tensors that were halved and doubled."""


class First(nn.Module):
    """A transformers model with the tensors of its output in a tuple, and chosen arguments
    fixed.
    """

    def __init__(self, inner: nn.Module, **fixed: Any) -> None:
        super().__init__()
        self.inner, self.fixed = inner, fixed

    def forward(self, *inputs: Tensor) -> Any:
        answer = self.inner(*inputs, return_dict=False, **self.fixed)
        return tuple(t for t in answer if isinstance(t, Tensor))


Options = dict[str, Any]


def _transformer(
    model: str,
    config: str,
    options: Options | Callable[[], Options],
    fixed: Options | None = None,
) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import transformers

        settings = getattr(transformers, config)(
            **(options() if callable(options) else options)
        )
        return First(getattr(transformers, model)(settings), **(fixed or {}))

    return make


def _text(
    model: str,
    config: str,
    options: dict[str, Any],
    fixed: dict[str, Any] | None = None,
    mask: bool = True,
) -> Network:
    def inputs(sizes: Sizes) -> tuple[Tensor, ...]:
        tokens = torch.randint(0, 1000, (sizes["n"], sizes["t"]))
        lengths = (
            torch.arange(sizes["t"]) < sizes["t"] - torch.arange(sizes["n"])[:, None]
        )
        return (tokens, lengths.long()) if mask else (tokens,)

    axes = {i: {0: "n", 1: "t"} for i in range(2 if mask else 1)}
    cases = ({"n": 2, "t": 32}, {"n": 1, "t": 7}, {"n": 3, "t": 64})
    return Network(
        _transformer(model, config, options, fixed),
        inputs,
        axes,
        cases,
        unscriptable=CONFIGURED,
    )


def _pictures(
    model: str, config: str, options: Options | Callable[[], Options], size: int = 224
) -> Network:
    make = _transformer(model, config, options)
    cases = ({"n": 2}, {"n": 1}, {"n": 3})
    return Network(
        make,
        lambda s: (torch.randn(s["n"], 3, size, size),),
        {0: {0: "n"}},
        cases,
        unscriptable=CONFIGURED,
    )


class Causal(nn.Module):
    """A decoder with an explicit causal mask, because transformers creates its mask with vmap,
    which cannot be traced.
    """

    def __init__(self, model: str, config: str, **options: Any) -> None:
        super().__init__()
        import transformers

        settings = getattr(transformers, config)(attn_implementation="eager", **options)
        self.inner = getattr(transformers, model)(settings)
        for norm in (
            module for module in self.modules() if isinstance(module, nn.LayerNorm)
        ):
            # GPT-NeoX normalizes one value twice; with fresh weights both layers are equal
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.normal_(norm.bias, 0.0, 0.2)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        mask = torch.full((length, length), -1e4).triu(1)[None, None]
        return self.inner(
            tokens, attention_mask=mask, use_cache=False, return_dict=False
        )[0][:, -1]  # type: ignore[no-any-return]


def _detr() -> dict[str, Any]:
    """The configuration contains another one. It is created with the network, because transformers
    may not be installed.
    """
    import transformers

    backbone = transformers.ResNetConfig(out_features=["stage4"])
    options = {
        "use_timm_backbone": False,
        "use_pretrained_backbone": False,
        "backbone_config": backbone,
    }
    return {**options, "encoder_layers": 2, "decoder_layers": 2}


TOKENS: tuple[Any, ...] = (
    lambda s: (torch.randint(0, 1000, (s["n"], s["t"])),),
    {0: {0: "n", 1: "t"}},
    ({"n": 2, "t": 32}, {"n": 1, "t": 7}, {"n": 3, "t": 64}),
)


TWO_LAYERS = {
    "num_hidden_layers": 2,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_attention_heads": 8,
    "vocab_size": 1000,
}


def _causal(model: str, config: str, **settings: int) -> Network:
    make = partial(Causal, model, config, **settings)
    return Network(make, *TOKENS, unscriptable=CONFIGURED)


class Whisper(nn.Module):
    """The encoder alone."""

    def __init__(self) -> None:
        super().__init__()
        import transformers

        config = transformers.WhisperConfig(
            d_model=384, encoder_layers=4, decoder_layers=1, encoder_attention_heads=6
        )
        self.encoder = transformers.WhisperModel(config).encoder

    def forward(self, x: Tensor) -> Any:
        return self.encoder(x, return_dict=False)[0]


NETWORKS: dict[str, Network] = {
    "ResNet-18": _vision("resnet18", *FREE),
    "ResNet-50": _vision("resnet50", *FREE),
    "MobileNetV2": _vision("mobilenetv2_w1", *FREE),
    "MobileNetV3": _vision("mobilenetv3_large_w1", *FREE),
    "EfficientNet-B0": _vision("efficientnet_b0", *FREE),
    "DenseNet-121": _vision("densenet121", *FREE),
    "Inception-v3": _vision("inceptionv3", (299, 299), (203, 235), (312, 300)),
    "ShuffleNetV2": _vision("shufflenetv2_w1", *FREE),
    "SE-ResNet-50": _vision("seresnet50", *FREE),
    "RegNetX-400MF": _vision("regnetx004", *FREE),
    "VGG-16": _vision("vgg16", (224, 224)),
    "U-Net": _vision("unet_cityscapes", *EVEN),
    "DeepLabV3": _vision("deeplabv3_resnetd50b_voc", *EVEN, fixed_size=False),
    "CenterNet": _vision("centernet_resnet18_coco", *EVEN),
    "HRNet-W18": replace(
        _vision("hrnet_w18_small_v1", *EVEN),
        unscriptable="RuntimeError: a list of modules is indexed by a variable",
    ),
    "DarkNet-53": _vision("darknet53", *FREE),
    "GhostNet": _vision("ghostnet", *FREE),
    "BERT-base": _text("BertModel", "BertConfig", {}),
    "DistilBERT": _text("DistilBertModel", "DistilBertConfig", {}),
    "GPT-2 (one step)": _causal("GPT2LMHeadModel", "GPT2Config"),
    "T5 encoder": _text(
        "T5EncoderModel", "T5Config", {"d_model": 512, "num_layers": 6}
    ),
    "ViT-base": _pictures("ViTModel", "ViTConfig", {}),
    "Swin-tiny": _pictures("SwinModel", "SwinConfig", {}),
    "Whisper-tiny encoder": Network(
        Whisper,
        lambda s: (torch.randn(s["n"], 80, 3000),),
        {0: {0: "n"}},
        ({"n": 1}, {"n": 2}, {"n": 2}),
        unscriptable=CONFIGURED,
    ),
    "Llama (2 layers)": _causal(
        "LlamaModel", "LlamaConfig", num_key_value_heads=2, **TWO_LAYERS
    ),
    "GPT-NeoX (2 layers)": _causal("GPTNeoXModel", "GPTNeoXConfig", **TWO_LAYERS),
    "ALBERT-base": _text(
        "AlbertModel",
        "AlbertConfig",
        {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
    ),
    "DeBERTa-v2 (3 layers)": _text(
        "DebertaV2Model",
        "DebertaV2Config",
        {
            "num_hidden_layers": 3,
            "hidden_size": 256,
            "num_attention_heads": 4,
            "relative_attention": True,
            "pos_att_type": ["c2p", "p2c"],
            "position_buckets": 32,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
        },
    ),
    "CLIP text": _text("CLIPTextModel", "CLIPTextConfig", {}),
    "CLIP vision": _pictures("CLIPVisionModel", "CLIPVisionConfig", {}),
    "ConvNeXt-tiny": _pictures("ConvNextModel", "ConvNextConfig", {}),
    "MobileViT": _pictures("MobileViTModel", "MobileViTConfig", {}, 256),
    "SegFormer-B0": _pictures(
        "SegformerForSemanticSegmentation", "SegformerConfig", {}, 256
    ),
    "DPT": _pictures("DPTForDepthEstimation", "DPTConfig", {"image_size": 224}),
    "DETR (2 + 2 layers)": _pictures("DetrModel", "DetrConfig", _detr, 256),
    "wav2vec2-base": Network(
        _transformer("Wav2Vec2Model", "Wav2Vec2Config", {}),
        lambda s: (torch.randn(s["n"], s["t"]),),
        {0: {0: "n", 1: "t"}},
        ({"n": 2, "t": 16000}, {"n": 1, "t": 8000}, {"n": 1, "t": 12345}),
        unscriptable=CONFIGURED,
    ),
}
