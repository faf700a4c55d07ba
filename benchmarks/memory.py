"""How much memory lowering and conversion take above the module's own, as a multiple of its
weights.

    python -m benchmarks.memory [linear convolution text recurrent] [--megabytes 1000] [--precision
    fp32] [--json]

Each network is measured in a process of its own: the peak of the resident set (Linux's VmHWM, reset
before) during builder.convert, less what was resident before it, with the module and TensorRT
loaded.

In that process glibc maps every block of 64 KiB or more (mallopt(3), M_MMAP_THRESHOLD), so a freed
weight leaves the resident set at once. With glibc's moving threshold the same conversion was
measured as 1.35 to 1.57 of its weights, depending on gaps in the heap.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import builder
from benchmarks import records

BATCH = {"batch": (1, 2, 4)}
MAPPED_FROM = 65536
"""Bytes from which glibc maps a block by itself."""


class Linear(nn.Module):
    """Square layers of 16 MiB each."""

    def __init__(self, parameters: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Linear(2048, 2048) for _ in range(max(parameters // 2048**2, 1))
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


class Convolution(nn.Module):
    """Convolutions and batch norms, which lowering folds: every weight is a new one afterwards."""

    def __init__(self, parameters: int) -> None:
        super().__init__()
        count = max(parameters // (512 * 512 * 9), 1)
        self.layers = nn.ModuleList(
            nn.Conv2d(512, 512, 3, padding=1, bias=False) for _ in range(count)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(512) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms):  # noqa: B905  (TorchScript has no strict=)
            x = torch.relu(norm(layer(x)))
        return x


class Text(nn.Module):
    """A model with half of its weights in an embedding, which is also the output matrix, and the
    others in torch.nn's encoder.
    """

    def __init__(self, parameters: int) -> None:
        super().__init__()
        words, layers = (
            max(parameters // 2 // 512, 8),
            max(parameters // 2 // (12 * 512 * 512), 1),
        )
        self.words, self.head = (
            nn.Embedding(words, 512),
            nn.Linear(512, words, bias=False),
        )
        self.head.weight = self.words.weight
        layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.words(x)))


class Recurrent(nn.Module):
    """A stacked bidirectional LSTM."""

    def __init__(self, parameters: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(
            512,
            512,
            max(parameters // (24 * 512 * 512), 1),
            batch_first=True,
            bidirectional=True,
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0]


NETWORKS: dict[str, tuple[Callable[[int], nn.Module], builder.TensorSpec]] = {
    "linear": (Linear, builder.TensorSpec("float32", ("batch", 2048), dims=BATCH)),
    "convolution": (
        Convolution,
        builder.TensorSpec("float32", ("batch", 512, 4, 4), dims=BATCH),
    ),
    "text": (Text, builder.TensorSpec("int64", ("batch", 8), dims=BATCH)),
    "recurrent": (
        Recurrent,
        builder.TensorSpec("float32", ("batch", 4, 512), dims=BATCH),
    ),
}


def resident() -> tuple[int, int]:
    """Return (resident bytes, their peak since the last reset)."""
    lines = dict(
        line.split(":", 1)
        for line in Path("/proc/self/status").read_text().splitlines()
    )
    now, peak = (1024 * int(lines[key].split()[0]) for key in ("VmRSS", "VmHWM"))
    return now, peak


def reset_peak() -> None:
    """Reset the kernel's peak count (Linux, /proc/self/clear_refs 5: proc(5)). Reports if this is
    not permitted.
    """
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        print(
            f"peak counted since start: {resident()[1] / 2**20:.0f} MB", file=sys.stderr
        )


def measure(name: str, megabytes: float, precision: str) -> dict[str, Any]:
    """Measure one network in this process, which has converted nothing large before."""
    make, spec = NETWORKS[name]
    torch.manual_seed(0)
    small = builder.TensorSpec("float32", ("batch", 4), dims=BATCH)
    # libraries, first uses
    builder.convert(
        torch.jit.script(nn.Linear(4, 4).eval()), [small], precision=precision
    )
    module = make(int(megabytes * 1e6 / 4)).eval().requires_grad_(False)
    weights = sum(p.numel() * p.element_size() for p in module.parameters())
    scripted = torch.jit.script(module)
    reset_peak()
    before = resident()[0]
    conversion = builder.convert(scripted, [spec], precision=precision)
    now, peak = resident()
    return {
        "network": name,
        "precision": precision,
        "weights_mb": weights / 1e6,
        "extra_mb": (peak - before) / 1e6,
        "kept_mb": (now - before) / 1e6,
        "extra_per_weight": (peak - before) / weights,
        "layers": conversion.network.num_layers,
    }


def apart(name: str, megabytes: float, precision: str = "fp32") -> dict[str, Any]:
    """Measure one network in a separate process. Raises CalledProcessError with its output."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.memory",
        name,
        "--megabytes",
        str(megabytes),
        "--here",
        "--json",
    ]
    command += ["--precision", precision]
    root = Path(__file__).resolve().parents[1]
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(MAPPED_FROM)}
    process = subprocess.run(
        command,
        cwd=root,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    row: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return row


def main() -> None:
    """Print a line for each network, or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "networks", nargs="*", metavar="network", help=" ".join(NETWORKS)
    )
    parser.add_argument("--megabytes", type=float, default=1000)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--here", action="store_true", help="in this process")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    for name in options.networks or NETWORKS:
        row = (measure if options.here else apart)(
            name, options.megabytes, options.precision
        )
        records.show(row, options.json, 3)


if __name__ == "__main__":
    main()
