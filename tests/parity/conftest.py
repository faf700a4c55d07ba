"""One server for all tests of this folder, with models of many kinds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from builder.manifest.spec import Batching
from builder.serving import FREE_PORTS, serve
from builder.triton import ModelArtifact, publish
from tests.triton.artifacts import artifact, scorer, tensor


class Masked(torch.nn.Module):
    """The mean over the valid positions of a sequence; NaN if no position is valid."""

    def forward(
        self, x: torch.Tensor, valid: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        weight = valid.unsqueeze(-1).to(x.dtype)
        return (x * weight).sum(1) / weight.sum(1), valid.logical_not()


class Scaled(torch.nn.Module):
    """An input and an output without axes."""

    def forward(
        self, x: torch.Tensor, factor: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * factor + 1
        return y, y.sum()


class Doubled(torch.nn.Module):
    """One input and one output of every element type."""

    def forward(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor,
        d: torch.Tensor,
        e: torch.Tensor,
        f: torch.Tensor,
        g: torch.Tensor,
        h: torch.Tensor,
    ) -> tuple[
        torch.Tensor,
        torch.Tensor,
        torch.Tensor,
        torch.Tensor,
        torch.Tensor,
        torch.Tensor,
        torch.Tensor,
        torch.Tensor,
    ]:
        return a * 2, b * 2, c * 2, d * 2, e * 2, f * 2, g * 2, h.logical_not()


DTYPES = ("float16", "bfloat16", "float32", "float64", "int64", "uint8", "int8", "bool")
LENGTH = {"length": (2, 7, 64)}


def models() -> Iterator[ModelArtifact]:
    """Few, because each one has a process that imports torch."""
    yield scorer()
    yield artifact(
        Scaled(),
        (tensor("x", "float32", "batch", 3), tensor("factor", "float32")),
        ("y", "sum"),
        name="unbatched",
        batching=Batching(enabled=False),
    )
    yield artifact(
        Masked(),
        (
            tensor("x", "float32", "batch", "length", 5, **LENGTH),
            tensor("valid", "bool", "batch", "length", **LENGTH),
        ),
        ("mean", "padding"),
        name="masked",
        profiles=[
            {"batch": (1, 4, 8), "length": (2, 7, 16)},
            {"batch": (1, 1, 2), "length": (17, 32, 64)},
        ],
        dynamic=(0, 1),
    )
    yield artifact(
        Doubled(),
        tuple(tensor(dtype, dtype, "batch", 3) for dtype in DTYPES),
        [f"y_{d}" for d in DTYPES],
        name="dtypes",
    )


@dataclass(frozen=True)
class Endpoint:
    repository: Path
    http_url: str
    grpc_url: str
    artifacts: dict[str, ModelArtifact]


@pytest.fixture(scope="session")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    repository = tmp_path_factory.mktemp("parity") / "repository"
    artifacts = {model.spec.name: model for model in models()}
    for model in artifacts.values():
        publish(model, repository)
    with serve(repository, **FREE_PORTS, client_shared_memory=True) as server:
        yield Endpoint(repository, server.http_url, server.grpc_url, artifacts)
