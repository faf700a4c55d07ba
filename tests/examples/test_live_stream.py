"""silero-vad with concurrent audio streams, one per correlation id, compared with the original
model.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from builder import build_repository
from builder.parity import verify
from builder.parity.clients import Client, GrpcClient, HttpClient, SequencePosition
from builder.serving import FREE_PORTS, Server, serve
from tests.examples.test_export import EXAMPLES, export
from tests.parity.asserting import assert_passed

pytestmark = [pytest.mark.live, pytest.mark.slow]

VOICES = range(10, 18)
"""Seeds that no golden has."""
IDS = itertools.count(1)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(tmp_path_factory.mktemp("stream") / "models")


@pytest.fixture(scope="module")
def repository(models: Path) -> Path:
    results = build_repository(
        models, models.parent / "repository", only=["silero_vad"]
    )
    assert all(result.ok and not result.segments for result in results), [
        str(r.error) for r in results
    ]
    return models.parent / "repository"


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    with serve(repository, **FREE_PORTS) as running:
        yield running


@pytest.fixture(scope="module")
def audio() -> dict[int, torch.Tensor]:
    """Each voice, of another length."""
    sys.path.insert(0, str(EXAMPLES))
    import speech

    sys.path.remove(str(EXAMPLES))
    return {
        seed: speech.synthetic_speech(1.0 + 0.1 * (seed % 5), seed) for seed in VOICES
    }


@pytest.fixture(scope="module")
def original_outputs(
    models: Path, audio: dict[int, torch.Tensor]
) -> dict[int, list[float]]:
    """The outputs of the original file, chunk by chunk, with its own context and state."""
    detector = torch.jit.load(models / "silero_vad.pt")

    def listen(samples: torch.Tensor) -> list[float]:
        detector.reset_states()
        with torch.no_grad():
            return [
                detector(chunk.unsqueeze(0), 16_000).item() for chunk in chunks(samples)
            ]

    return {seed: listen(samples) for seed, samples in audio.items()}


def chunks(samples: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return samples[: len(samples) // 512 * 512].split(512)


def stream(client: Client, samples: torch.Tensor) -> Iterator[float]:
    """As a client sends it: each chunk after the last 64 samples of the previous one."""
    sequence, context, whole = next(IDS), torch.zeros(64), chunks(samples)
    for number, chunk in enumerate(whole):
        frame = torch.cat([context, chunk]).unsqueeze(0)
        context = chunk[-64:]
        position = SequencePosition(sequence, number == 0, number == len(whole) - 1)
        yield float(
            client.infer(
                "silero_vad", {"audio": frame.numpy()}, position=position
            ).outputs["speech"][0, 0]
        )


def test_all_goldens_pass(repository: Path, server: Server) -> None:
    (parity,) = verify(repository, server.http_url, server.grpc_url)
    assert_passed(parity)
    assert {f"user-{voice}" for voice in range(3)} <= {
        result.golden for result in parity.results
    }


@pytest.mark.parametrize("client_of", [HttpClient, GrpcClient])
def test_interleaved_streams_match_the_original_model(
    server: Server,
    audio: dict[int, torch.Tensor],
    original_outputs: dict[int, list[float]],
    client_of: type,
) -> None:
    client = client_of(
        server.http_url if client_of is HttpClient else server.grpc_url, 30
    )
    streams = {seed: stream(client, samples) for seed, samples in audio.items()}
    outputs: dict[int, list[float]] = {seed: [] for seed in audio}
    while streams:
        for seed in list(streams):
            output = next(streams[seed], None)
            if output is None:
                del streams[seed]
            else:
                outputs[seed].append(output)
    client.close()
    for seed, expected in original_outputs.items():
        np.testing.assert_allclose(outputs[seed], expected, rtol=1e-3, atol=1e-4)


def test_concurrent_streams_match_the_original_model(
    server: Server,
    audio: dict[int, torch.Tensor],
    original_outputs: dict[int, list[float]],
) -> None:
    client = GrpcClient(server.grpc_url, 60)
    with ThreadPoolExecutor(len(audio)) as pool:
        outputs = list(
            pool.map(lambda samples: list(stream(client, samples)), audio.values())
        )
    client.close()
    for output, expected in zip(outputs, original_outputs.values(), strict=True):
        np.testing.assert_allclose(output, expected, rtol=1e-3, atol=1e-4)


def test_outputs_differ_without_state(
    models: Path,
    audio: dict[int, torch.Tensor],
    original_outputs: dict[int, list[float]],
) -> None:
    detector, samples = torch.jit.load(models / "silero_vad.pt"), audio[VOICES[0]]
    with torch.no_grad():
        without_state = []
        for chunk in chunks(samples):
            detector.reset_states()
            without_state.append(detector(chunk.unsqueeze(0), 16_000).item())
    assert np.abs(np.array(without_state) - original_outputs[VOICES[0]]).max() > 0.1
