"""The models of the corpus, with the manifest of each.

Weights are random and seeded; architectures are those of pytorchcv 0.0.67, transformers 4.56 and
tests/networks. Neither library is needed by a test. Nothing is downloaded.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from tests.networks.comparing import Axes, Network, module_of
from tests.networks.zoo import networks

ModuleAndInputs = tuple[torch.jit.ScriptModule, tuple[torch.Tensor, ...]]

NETWORKS_PER_FAMILY = 2
"""The number of networks of one family of pytorchcv in the corpus."""
OTHER_DATA = (
    "svhn",
    "cub",
    "voc",
    "ade20k",
    "coco",
    "cityscapes",
    "celebamaskhq",
    "lip",
    "cifar",
)
LARGE = (
    "1001",
    "1202",
    "542",
    "272",
    "senet154",
    "vgg",
    "regnety",
    "regnetx",
    "b6",
    "b7",
    "b8",
)
"""Parts of names of networks that are too large for a run of the whole corpus."""

TINY: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 32,
    "embedding_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 80,
    "dim": 32,
    "hidden_dim": 64,
    "n_layers": 2,
    "n_heads": 4,
    "emb_dim": 32,
    "type_vocab_size": 2,
    "pad_token_id": 1,
}
TEXT_FAMILIES = (
    "Albert Bert BigBird Camembert ConvBert Data2VecText Deberta DebertaV2 DistilBert Electra"
    " Ernie Esm FNet Flaubert IBert LayoutLM Longformer MPNet MegatronBert MobileBert Mra"
    " Nystromformer RemBert RoFormer Roberta RobertaPreLayerNorm SqueezeBert XLM XLMRoberta Xmod"
    " Yoso"
).split()
TEXT_HEADS = (
    "Model",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForMaskedLM",
    "ForQuestionAnswering",
)


@dataclass(frozen=True)
class Entry:
    """One model: `make` returns the TorchScript module and an example of its inputs."""

    name: str
    source: str
    mode: str
    make: Callable[[], ModuleAndInputs]
    axes: Axes
    ranges: Mapping[str, tuple[int, int, int]]

    def manifest(self, inputs: Sequence[torch.Tensor]) -> dict[str, Any]:
        """The manifest for inputs like these, with the axes of the entry dynamic."""
        tensors = []
        for index, tensor in enumerate(inputs):
            shape: list[Any] = list(tensor.shape)
            for axis, name in self.axes.get(index, {}).items():
                shape[axis] = name
            dtype = str(tensor.dtype).removeprefix("torch.")
            tensors.append({"name": f"input_{index}", "dtype": dtype, "shape": shape})
        dims = {
            axis: dict(zip(("min", "opt", "max"), span, strict=True))
            for axis, span in self.ranges.items()
        }
        return {"inputs": tensors, **({"dims": dims} if dims else {})}


def corpus() -> dict[str, Entry]:
    """All entries by name; entries of a library that is not installed are left out."""
    found = [*_text(), *_project_networks(), *_vision()]
    return {entry.name: entry for entry in found}


def _project_networks() -> Iterable[Entry]:
    """The networks of docs/networks.md, scripted and traced."""
    for name, network in networks().items():
        for mode in ("traced",) if network.unscriptable else ("traced", "scripted"):
            yield Entry(
                f"{name}, {mode}",
                "tests/networks",
                mode,
                partial(_network, network, mode),
                network.axes,
                _spans(network),
            )


def _network(network: Network, mode: str) -> ModuleAndInputs:
    return module_of(network, mode), network.inputs(network.cases[0])


def _spans(network: Network) -> dict[str, tuple[int, int, int]]:
    """The range of each axis over the network's cases; the optimum is that of the first."""
    named = {axis for axes in network.axes.values() for axis in axes.values()}
    sizes = {axis: [case[axis] for case in network.cases] for axis in named}
    return {
        axis: (min(values), values[0], max(values))
        if _allows_sizes_between(values)
        else (values[0],) * 3
        for axis, values in sizes.items()
    }


def _allows_sizes_between(values: Sequence[int]) -> bool:
    """Whether sizes between these are valid, too: some networks need multiples of 32."""
    return any(value % 32 for value in values)


def _vision() -> Iterable[Entry]:
    """The first networks of each family of pytorchcv, traced with a dynamic batch."""
    try:
        import numpy as np

        np.int = int  # type: ignore[attr-defined]  # pytorchcv is older than NumPy 1.24
        from pytorchcv import model_provider
    except ImportError:
        return
    families: dict[str, int] = defaultdict(int)
    for name in model_provider._models:
        small = name.endswith("_cifar10")
        if any(part in name for part in LARGE):
            continue
        if not small and any(part in name for part in OTHER_DATA):
            continue
        family = name.rstrip("0123456789").partition("_")[0].rstrip("0123456789")
        key = f"{family} cifar10" if small else family
        families[key] += 1
        if families[key] <= NETWORKS_PER_FAMILY:
            size = 32 if small else 224
            yield Entry(
                f"pytorchcv {name}",
                "pytorchcv",
                "traced",
                partial(_pytorchcv, name, size),
                {0: {0: "n"}},
                {"n": (1, 2, 3)},
            )


def _pytorchcv(name: str, size: int) -> ModuleAndInputs:
    from pytorchcv.model_provider import get_model

    torch.manual_seed(0)
    module = get_model(name, pretrained=False)
    _calibrate(module, size)
    return _traced(module, (torch.randn(2, 3, size, size),))


def _calibrate(module: torch.nn.Module, size: int) -> None:
    """Give batch normalization the statistics of its inputs. Without them the activations of a deep
    network with random weights grow so much that float32 has no correct digit.
    """
    for layer in module.modules():
        if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm):
            layer.momentum = None  # the mean over all batches
            layer.reset_running_stats()
    with torch.no_grad():
        module.train()
        for _ in range(2):
            module(torch.randn(4, 3, size, size))


def _text() -> Iterable[Entry]:
    """Text encoders of transformers with two small layers, traced; batch and length dynamic."""
    try:
        import transformers
    except ImportError:
        return
    for family in TEXT_FAMILIES:
        for head in TEXT_HEADS:
            if hasattr(transformers, f"{family}{head}"):
                yield Entry(
                    f"transformers {family}{head}",
                    "transformers",
                    "traced",
                    partial(_transformer, family, head),
                    {0: {0: "n", 1: "t"}, 1: {0: "n", 1: "t"}},
                    {"n": (1, 2, 3), "t": (5, 12, 30)},
                )


def _transformer(family: str, head: str) -> ModuleAndInputs:
    import transformers

    config = getattr(transformers, f"{family}Config")(
        **TINY, attn_implementation="eager", torchscript=True
    )
    torch.manual_seed(0)
    module = getattr(transformers, f"{family}{head}")(config)
    ids = torch.randint(2, 100, (2, 12))
    return _traced(_FirstOutputs(module), (ids, torch.ones_like(ids)))


class _FirstOutputs(torch.nn.Module):
    """The tensors of a transformers model's output, in order."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module
        self.masked = "attention_mask" in inspect.signature(module.forward).parameters

    def forward(
        self, ids: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        more = {"attention_mask": mask} if self.masked else {}
        outputs = self.module(input_ids=ids, return_dict=False, **more)
        return tuple(output for output in outputs if isinstance(output, torch.Tensor))


def _traced(
    module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]
) -> ModuleAndInputs:
    with torch.no_grad():
        return torch.jit.trace(module.eval(), inputs, check_trace=False), inputs
