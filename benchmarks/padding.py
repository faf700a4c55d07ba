"""What `pad` gains: the throughput of one model with and without it, for requests of many lengths.

    python -m benchmarks.padding [--seconds 4] [--rounds 3] [--concurrency 16]

Both variants are published and served by one server. Rounds of load on the one and on the other
take turns. Prints the requests per second of each round, and the ratio of the medians.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from builder import bench
from builder.repository import build_repository
from builder.serving import FREE_PORTS, serve

MANIFEST = """\
inputs:
  - {name: ids, dtype: int64, shape: [batch, length]}
  - {name: mask, dtype: bool, shape: [batch, length]}
dims:
  batch: {min: 1, opt: 8, max: 16}
  length: {min: 1, opt: 32, max: 64}
batching: {max_queue_delay_us: 2000}
goldens: requests.npz
"""
NAMES = ("padded", "plain")
LENGTHS = (16, 64)
REQUESTS = 24


class Encoder(nn.Module):
    """Two layers of torch's transformer encoder, with a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(1000, 256)
        layer = nn.TransformerEncoderLayer(256, 4, 512, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Tokens (batch, length) to (batch, 256)."""
        hidden = self.layers(self.table(ids), src_key_padding_mask=~mask)
        weights = mask[:, :, None].to(hidden.dtype)
        return torch.sum(hidden * weights, 1) / weights.sum(1).clamp(min=1.0)


def write(folder: Path) -> None:
    """Write the model under both names. Returns the requests: one row each, of lengths from 16 to
    64.
    """
    torch.manual_seed(0)
    module = Encoder().eval()
    sample = (
        torch.ones(2, 8).long(),
        torch.tensor([[True] * 8, [True] * 5 + [False] * 3]),
    )
    traced = torch.jit.trace(module, sample, check_trace=False)
    generator = np.random.default_rng(0)
    arrays = {}
    for number in range(REQUESTS):
        length = int(generator.integers(LENGTHS[0], LENGTHS[1] + 1))
        arrays[f"{number}/ids"] = generator.integers(1, 1000, (1, length))
        arrays[f"{number}/mask"] = np.ones((1, length), dtype=bool)
    np.savez(folder / "requests.npz", **arrays)
    for name in NAMES:
        traced.save(str(folder / f"{name}.pt"))
        pad = "pad: {ids: 0, mask: false}\n" if name == "padded" else ""
        (folder / f"{name}.yaml").write_text(MANIFEST + pad)


def main() -> None:
    """Build, serve and measure both alternately."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--concurrency", type=int, default=16)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder)
        results = build_repository(folder, folder / "repository")
        for result in results:
            if not result.ok or any("`pad`" in text for text in result.warnings):
                raise SystemExit(f"{result.name}: {result.error or result.warnings}")
        rates: dict[str, list[float]] = {name: [] for name in NAMES}
        options = bench.Options(
            loads=[bench.Load(args.concurrency)],
            seconds=args.seconds,
            goldens=[f"user-{number}" for number in range(REQUESTS)],
        )
        with serve(folder / "repository", **FREE_PORTS) as server:
            endpoint = bench.Endpoint(
                server.http_url, server.grpc_url, server.metrics_url
            )
            for _ in range(args.rounds):
                for name in NAMES:
                    (result,) = bench.bench(
                        folder / "repository", endpoint, [name], options
                    )
                    rates[name].append(result.levels[0].throughput.value)
                    print(f"{name}: {rates[name][-1]:.0f} requests/s", flush=True)
    medians = [statistics.median(rates[name]) for name in NAMES]
    print(f"padded / plain: {medians[0] / medians[1]:.2f}")


if __name__ == "__main__":
    main()
