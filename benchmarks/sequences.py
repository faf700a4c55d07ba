"""Chunks of a stream on a live server: state kept by the server, and handed on by the client.

    python -m benchmarks.sequences [MODEL.pt] [--streams N] [--chunks N] [--serve-as python]

The model (default: examples/models/silero_vad.pt, see examples/export.py) needs a manifest with
`state`. One stream alone, then N from a thread each, over gRPC, the opt golden's first row as every
chunk. Milliseconds a chunk as the client sees it, and chunks a second of all streams together. What
the client keeps itself Triton cannot batch where the batch is not the state's first axis.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from builder.choices import STATE_MODES
from builder.manifest import load
from builder.manifest.spec import ModelSpec
from builder.parity.clients import GrpcClient, SequencePosition
from builder.parity.served import PublishedModel, read
from builder.repository import build_repository
from builder.serving import FREE_PORTS, serve

MODEL = Path(__file__).parents[1] / "examples" / "models" / "silero_vad.pt"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, nargs="?", default=MODEL)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--chunks", type=int, default=200)
    parser.add_argument(
        "--serve-as", default="python", choices=("auto", "tensorrt_plan", "python")
    )
    args = parser.parse_args()
    print(f"{'state':10}{'streams':>8}{'median ms':>11}{'p95 ms':>9}{'chunks/s':>10}")
    for mode in STATE_MODES:
        for streams, times, seconds in measured(args, mode):
            median, p95 = (np.percentile(times, q) * 1e3 for q in (50, 95))
            print(
                f"{mode:10}{streams:>8}{median:>11.2f}{p95:>9.2f}{len(times) / seconds:>10.0f}"
            )


def measured(
    args: argparse.Namespace, mode: str
) -> list[tuple[int, list[float], float]]:
    """Measure one stream and many: (streams, seconds of each chunk, total seconds)."""
    (spec,) = load(args.model, state=mode)
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder) / "repository"
        (result,) = build_repository(
            args.model, repository, state=mode, serve_as=args.serve_as
        )
        if not result.ok:
            raise SystemExit(str(result.error))
        with serve(repository, **FREE_PORTS) as server:
            return _rows(
                GrpcClient(server.grpc_url, 60),
                read(repository / spec.name),
                spec,
                args,
            )


def _rows(
    client: GrpcClient, model: PublishedModel, spec: ModelSpec, args: argparse.Namespace
) -> list[tuple[int, list[float], float]]:
    golden = next(golden for golden in model.goldens if golden.name == "sequence-0.000")
    rows = []
    for streams in (1, args.streams):
        _play(client, spec, golden.inputs, 1, 10)
        with ThreadPoolExecutor(streams) as pool:
            began = time.perf_counter()
            several = pool.map(
                lambda n: _play(client, spec, golden.inputs, n, args.chunks),
                range(2, streams + 2),
            )
            times = [one for times in several for one in times]
            rows.append((streams, times, time.perf_counter() - began))
    client.close()
    return rows


def _play(
    client: GrpcClient,
    spec: ModelSpec,
    inputs: Mapping[str, Any],
    sequence: int,
    count: int,
) -> list[float]:
    """The seconds of each chunk of a stream. The client sends the state that the server does not
    keep.
    """
    kept = {state.input for state in spec.server_state}
    sent = {name: inputs[name] for name in inputs if name not in kept}
    position: SequencePosition | None = None
    times = []
    for at in range(count):
        if kept:
            position = SequencePosition(sequence, at == 0, at == count - 1)
        began = time.perf_counter()
        outputs = client.infer(spec.name, sent, position=position).outputs
        times.append(time.perf_counter() - began)
        if not kept:
            sent |= {state.input: outputs[state.output] for state in spec.state}
    return times


if __name__ == "__main__":
    main()
