"""CUDA graphs of plans on a real GPU without a server: the engine of the runtime against torch."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from builder import conversion, engine
from builder.engine import flavor
from builder.manifest.spec import TensorSpec
from tests.serving import fakes

pytestmark = pytest.mark.gpu

PROFILES = ({"batch": (1, 1, 1)}, {"batch": (2, 4, 8)})


class Residual(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = (torch.nn.Conv2d(8, 8, 3, padding=1) for _ in range(2))
        self.head = torch.nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x + self.two(self.one(x).relu())
        return self.head(y.mean((2, 3))), y.argmax(1)


class NonZero(torch.nn.Module):
    """A module whose number of rows depends on data."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x > 0).nonzero()


def runtime_engine(
    module: torch.nn.Module, spec: TensorSpec, outputs: Any, folder: Path
) -> Any:
    names = tuple(name for name, _ in outputs)
    converted = conversion.convert(
        torch.jit.script(module.eval()),
        (spec,),
        profiles=PROFILES,
        output_names=names,
        precision="fp32",
    )
    (folder / "model.plan").write_bytes(engine.build(converted).data)
    spans = [
        {
            spec.name: {
                w: list(spec.at(p, i)) for i, w in enumerate(("min", "opt", "max"))
            }
        }
        for p in PROFILES
    ]
    sides = {
        "inputs": [{"name": spec.name, "dtype": spec.dtype}],
        "outputs": [{"name": n, "dtype": d} for n, d in outputs],
    }
    _, modules = fakes.runtime()
    stream = torch.cuda.Stream()
    made = modules["engine"].Engine(
        folder / "model.plan",
        flavor.name(),
        {**sides, "profiles": spans},
        "cuda:0",
        stream,
        True,
    )
    made.stream, made.steady = stream, 3
    return made


def run(one: Any, x: torch.Tensor) -> list[torch.Tensor]:
    with torch.cuda.stream(one.stream):
        outputs = [y.clone() for y in one.run([x])]
        one.stream.synchronize()
    return [y.cpu() for y in outputs]


@pytest.mark.parametrize("where", ["cuda", "cpu"])
def test_outputs_are_correct_in_every_order_of_shapes(
    tmp_path: Path, where: str
) -> None:
    module = Residual().eval()
    spec = TensorSpec("float32", ("batch", 8, 96, 96), {"batch": (1, 4, 8)}, "x")
    one = runtime_engine(
        module, spec, (("scores", "float32"), ("best", "int64")), tmp_path
    )
    graphs = 0
    row = [
        size
        for a, b in itertools.permutations((1, 2, 4, 8), 2)
        for size in (a, a, b, b, a, a, a, a, a, b)
    ]
    for seed, batch in enumerate(row):
        x = torch.randn(batch, 8, 96, 96, generator=torch.Generator().manual_seed(seed))
        scores, best = run(one, x.to(where))
        expected = module(x)
        torch.testing.assert_close(scores, expected[0], rtol=1e-3, atol=1e-3)
        assert best.dtype == torch.int64 and (best == expected[1]).float().mean() > 0.99
        graphs += any(call.graph is not None for call in one.bound.values())
    assert graphs > 10 and one.steady, fakes.LOG


def test_data_dependent_shapes_use_no_graph(tmp_path: Path) -> None:
    spec = TensorSpec("float32", ("batch", 3), {"batch": (1, 4, 8)}, "x")
    one = runtime_engine(NonZero(), spec, (("rows", "int64"),), tmp_path)
    for seed in range(8):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed))
        (rows,) = run(one, x.cuda())
        assert torch.equal(rows, (x > 0).nonzero())
    assert not any(call.graph for call in one.bound.values())


def test_failed_capture_leaves_the_stream_usable() -> None:
    _, modules = fakes.runtime()
    graphs, stream = modules["graphs"], torch.cuda.Stream()

    def forbidden() -> bool:
        torch.cuda.current_stream().synchronize()  # CUDA refuses this within a capture
        return True

    with torch.cuda.stream(stream):
        with pytest.raises((graphs.CannotCapture, RuntimeError)):
            graphs.capture(stream.cuda_stream, forbidden)
        x = torch.ones(4, device="cuda") + 1
        stream.synchronize()
        assert x.tolist() == [2.0] * 4
        graph = graphs.capture(stream.cuda_stream, lambda: x.add_(1) is not None)
        graph.launch(stream.cuda_stream)
        stream.synchronize()
        assert x.tolist() == [3.0] * 4
        graph.close()
