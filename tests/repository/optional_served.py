"""Common parts of the live tests of missing outputs: the server and the comparison."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from tritonclient import grpc, http

from builder.parity import verify
from builder.repository import build_repository
from builder.serving import Server, serve
from tests.pipeline.test_optional_outputs import requests
from tests.serving.ports import FREE

CLIENTS = {"http": http, "grpc": grpc}
Served = tuple[Path, Path, Server]
"""The folder of the models, the repository, and its server."""


def serve_models(folder: Path) -> Iterator[Served]:
    """Build the models in `folder`/models, and serve them until the generator is closed."""
    results = build_repository(folder / "models", folder / "out")
    assert {one.name: str(one.error) for one in results if not one.ok} == {}
    with serve(folder / "out", **FREE) as server:
        yield folder / "models", folder / "out", server


def assert_verified(served: Served, count: int) -> None:
    """Raise AssertionError unless all `count` models pass `verify`."""
    _, repository, server = served
    results = verify(repository, server.http_url, server.grpc_url, repeat=0)
    assert {one.name: one.problems for one in results if not one.passed} == {}
    assert len(results) == count


@dataclass(frozen=True)
class Request:
    """An input of a served model, and the outputs that are expected."""

    library: Any
    client: Any
    module: type[nn.Module]
    outputs: list[str]
    x: torch.Tensor
    expected: Mapping[str, torch.Tensor]

    def send(self, *, by_name: bool = False) -> Any:
        """The response to a request for all outputs, or with `by_name` for each by its name."""
        sent = self.library.InferInput("x", list(self.x.shape), "FP32")
        sent.set_data_from_numpy(self.x.numpy())
        named = [self.library.InferRequestedOutput(name) for name in self.outputs]
        return self.client.infer(
            model_name(self.module), [sent], outputs=named if by_name else None
        )

    def assert_answered(self, *, by_name: bool = False) -> None:
        """Raise AssertionError unless the response has the expected outputs, and None for
        others.
        """
        response = self.send(by_name=by_name)
        for output in self.outputs:
            got = response.as_numpy(output)
            assert (got is None) == (output not in self.expected), (self.module, output)
            if got is not None:
                np.testing.assert_allclose(
                    got, self.expected[output].numpy(), rtol=1e-5, atol=1e-5
                )


def model_name(module: type[nn.Module]) -> str:
    """The name of the module's served model."""
    return module.__name__.lower()


def requests_of(
    served: Served, protocol: str, modules: Iterable[type[nn.Module]]
) -> Iterator[Request]:
    """A request of the protocol for each module and input."""
    models, _, server = served
    library: Any = CLIENTS[protocol]
    client = library.InferenceServerClient(getattr(server, f"{protocol}_url"))
    for module in modules:
        name = model_name(module)
        original = torch.jit.load(str(models / f"{name}.pt")).eval()
        names = output_names(client, name)
        for x, expected in requests(original):
            yield Request(library, client, module, names, x, expected)
    client.close()


def output_names(client: Any, model: str) -> list[str]:
    """The names of the model's outputs in the server's config."""
    config = client.get_model_config(model)
    if isinstance(config, dict):
        return [output["name"] for output in config["output"]]
    return [output.name for output in config.config.output]
