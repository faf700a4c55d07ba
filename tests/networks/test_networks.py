"""Whole networks without fallback: scripted and traced, every axis dynamic that may be, at three
shapes.

Tolerance: errors of sums accumulate over the depth: fifty layers of a few ulp each, 2e-5 of the
output's magnitude.
"""

from __future__ import annotations

import importlib
import sys

import pytest

from tests.networks import zoo
from tests.networks.comparing import measure
from tests.networks.small import NETWORKS

LIMIT = 2e-5


SLOW = set(
    "ResNet,U-Net,Feature pyramid,DeepLab,Super-resolution,Autoencoder of volumes,WaveNet,"
    "DistilBERT,ViT,Translator,Whisper encoder,T5 encoder,Packed LSTM tagger".split(",")
)
"""Networks whose layers and patterns the others and the tests of the operators also have."""


@pytest.mark.parametrize(
    "mode", ["scripted", pytest.param("traced", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name
        for name in NETWORKS
    ],
)
def test_network_has_the_outputs_of_torch(name: str, mode: str) -> None:
    measured = measure(NETWORKS[name], mode, compile=mode == "scripted")
    assert max(measured.errors) <= LIMIT


NOT_EXPORTED = (
    "LSTM tagger",
    "GRU",
    "GRU with packed state",
    "Packed LSTM tagger",
    "Forecaster",
)
"""torch.export unrolls a recurrent layer for one length."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name in NETWORKS if name not in NOT_EXPORTED]
)
def test_exported_network_has_the_outputs_of_torch(name: str) -> None:
    measured = measure(NETWORKS[name], "exported", compile=False)
    assert max(measured.errors) <= LIMIT


@pytest.mark.parametrize("package", ["transformers", "pytorchcv"])
def test_published_networks_are_listed_without_packages(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "tests.networks.published", raising=False)
    assert (
        "DETR (2 + 2 layers)"
        in importlib.import_module("tests.networks.published").NETWORKS
    )


def test_page_of_exported_networks_is_current() -> None:
    """At least 60 networks are whole, and 10 of them are not scriptable."""
    assert zoo.WAYS.read_text() == zoo.ways_page(list(zoo.kept().values()))
    whole = [
        row
        for row in zoo.kept().values()
        if row["mode"] == "exported" and "layers" in row
    ]
    assert len(whole) >= 60 and not any(
        row["result"] == "another answer" for row in whole
    )
    assert sum(bool(zoo.networks()[row["network"]].unscriptable) for row in whole) >= 10
