"""The example models are exported without a download, reproducibly, with the dynamic axes of their
manifests.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from builder import manifest

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ("residual_cnn", "silero_vad", "transformer_encoder", "two_tower")


def export(folder: Path) -> Path:
    subprocess.run(
        [sys.executable, EXAMPLES / "export.py", "--out", folder],
        check=True,
        capture_output=True,
    )
    for file in (EXAMPLES / "models").glob("*.yaml"):
        shutil.copy(file, folder)
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(tmp_path_factory.mktemp("examples") / "models")


def module(models: Path, name: str) -> torch.jit.ScriptModule:
    loaded = torch.jit.load(models / f"{name}.pt")
    return loaded._model if name == "silero_vad" else loaded


def test_every_manifest_has_a_model_and_goldens(models: Path) -> None:
    specs = {spec.name: spec for spec in manifest.load(models)}
    assert sorted(specs) == sorted(NAMES)
    assert {name for name, spec in specs.items() if spec.goldens} == {
        "silero_vad",
        "two_tower",
    }


@pytest.mark.slow
def test_export_is_reproducible(models: Path, tmp_path: Path) -> None:
    again = export(tmp_path / "models")
    for name in NAMES:
        first, second = (
            module(models, name).state_dict(),
            module(again, name).state_dict(),
        )
        assert first.keys() == second.keys()
        assert all(torch.equal(first[key], second[key]) for key in first), name


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("which", [0, 1, 2])
def test_models_accept_all_profile_shapes(models: Path, name: str, which: int) -> None:
    (spec,) = manifest.load(models, only=[name])
    torch.manual_seed(which)
    shapes = [
        (tensor.at(spec.profiles[0], which), getattr(torch, tensor.dtype))
        for tensor in spec.inputs
    ]
    inputs = [torch.randint(0, 2, shape).to(dtype) for shape, dtype in shapes]
    with torch.no_grad():
        outputs = module(models, name)(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    assert len(outputs) == len(spec.outputs or ())
    assert all(output.isfinite().all() for output in outputs)


def test_batch_norm_statistics_differ_from_initial_values(models: Path) -> None:
    state = module(models, "residual_cnn").state_dict()
    means = [value for key, value in state.items() if key.endswith("running_mean")]
    assert len(means) == 9
    assert all(mean.abs().max() > 1e-2 for mean in means)


def test_padded_sequence_has_the_same_outputs(models: Path) -> None:
    """The traced file has neither the batch nor the length of its example in it."""
    encoder = module(models, "transformer_encoder")
    tokens = torch.randn(5, 40, 64, generator=torch.Generator().manual_seed(0))
    padding = torch.zeros(5, 40, dtype=torch.bool)
    padding[:, 23:] = True
    with torch.no_grad():
        hidden, pooled = encoder(tokens, padding)
        alone, alone_pooled = encoder(tokens[:1, :23], padding[:1, :23])
    torch.testing.assert_close(hidden[:1, :23], alone, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(pooled[:1], alone_pooled, rtol=1e-4, atol=1e-5)


def test_detector_finds_speech_in_its_goldens(models: Path) -> None:
    """The output for a frame depends on earlier frames; otherwise the state would not be tested."""
    goldens = np.load(models / "silero_vad.npz")
    detector = module(models, "silero_vad")
    for voice in range(3):
        state, speech_scores, without_state = torch.zeros(2, 1, 128), [], []
        for frame in torch.from_numpy(goldens[f"{voice}/audio"]):
            with torch.no_grad():
                without_state.append(detector(frame, torch.zeros(2, 1, 128))[0].item())
                speech, state = detector(frame, state)
            speech_scores.append(speech.item())
        assert len(speech_scores) == 31 and max(speech_scores) > 0.5
        assert (
            max(
                abs(one - other)
                for one, other in zip(speech_scores, without_state, strict=True)
            )
            > 0.1
        )
