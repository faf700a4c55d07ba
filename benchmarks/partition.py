"""Latency of a model in pieces on the CPU server here: fused, as an ensemble, and by torch alone.

`python benchmarks/partition.py [--requests N]`. One client, one request at a time over gRPC, the opt golden; torch
alone is the same model with everything kept in torch, served by the same runtime. Milliseconds.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import yaml
from torch import Tensor, nn

from builder.parity.clients import GrpcClient
from builder.parity.served import read
from builder.repository import build_repository
from builder.serving import serve


class Spectral(nn.Module):
    """A CNN with an FFT after each of `cuts` blocks."""

    def __init__(self, channels: int, cuts: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.blocks = nn.ModuleList(self._block(channels) for _ in range(cuts + 1))

    @staticmethod
    def _block(channels: int) -> nn.Module:
        convolutions = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        return nn.Sequential(*(part for conv in convolutions for part in (conv, nn.ReLU())))

    def forward(self, image: Tensor) -> Tensor:
        y = torch.relu(self.first(image))
        for index, block in enumerate(self.blocks):
            y = block(y) if index == 0 else block(torch.fft.ifft2(torch.fft.fft2(y)).real)
        return y


CASES = {
    "small, 1 cut": (8, 1, 16),
    "small, 3 cuts": (8, 3, 16),
    "large, 1 cut": (32, 1, 64),
    "large, 3 cuts": (32, 3, 64),
}
WAYS = {"torch alone": ("auto", {"ops": ["aten::*"]}), "fused": ("fused", {}), "ensemble": ("ensemble", {})}


def publish(folder: Path, case: str, way: str) -> Path:
    """The repository of one case, served one way."""
    channels, cuts, size = CASES[case]
    layout, fallback = WAYS[way]
    folder.mkdir(parents=True)
    torch.manual_seed(0)
    torch.jit.script(Spectral(channels, cuts).eval()).save(str(folder / "m.pt"))
    inputs = [{"name": "image", "dtype": "float32", "shape": ["batch", 3, size, size]}]
    dims = {"batch": {"min": 1, "opt": 1, "max": 2}}
    (folder / "m.yaml").write_text(yaml.safe_dump({"inputs": inputs, "dims": dims, "fallback": fallback}))
    (result,) = build_repository(folder, folder / "out", layout=layout)
    if result.error:
        raise result.error
    return folder / "out"


def measure(repository: Path, requests: int) -> tuple[float, float]:
    """Median and 95th percentile of one request's milliseconds."""
    golden = next(g for g in read(repository / "m").goldens if g.name == "p0-opt")
    with serve(repository, http_port=0, grpc_port=0, metrics_port=0) as server:
        client = GrpcClient(server.grpc_url, 60)
        times = []
        for _ in range(requests + 10):
            begin = time.perf_counter()
            client.infer("m", golden.inputs)
            times.append((time.perf_counter() - begin) * 1e3)
        client.close()
    median, late = np.percentile(times[10:], (50, 95))
    return float(median), float(late)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--case", choices=CASES, action="append")
    chosen = parser.parse_args()
    print(f"{'case':14} {'way':12} {'median':>8} {'p95':>8}")
    with tempfile.TemporaryDirectory() as scratch:
        for case in chosen.case or CASES:
            for way in WAYS:
                repository = publish(Path(scratch, case.replace(" ", "_"), way.replace(" ", "_")), case, way)
                median, late = measure(repository, chosen.requests)
                print(f"{case:14} {way:12} {median:8.2f} {late:8.2f}", flush=True)


if __name__ == "__main__":
    main()
