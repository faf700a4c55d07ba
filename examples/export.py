"""Write the example models as TorchScript files into examples/models/, beside their manifests.

Nothing is downloaded. Three networks have random weights from a fixed seed. The fourth is the file
in the silero-vad wheel.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
from pathlib import Path

import numpy as np
import torch

from networks import ResidualCNN, TransformerEncoder, TwoTower, with_trained_statistics
from speech import frames, synthetic_speech

MODELS = Path(__file__).parent / "models"


def residual_cnn(folder: Path) -> None:
    """Scripted: the file has the control flow of torch's functional layers, like most scripted
    files.
    """
    model = with_trained_statistics(ResidualCNN(), torch.rand(8, 3, 64, 64))
    torch.jit.script(model).save(folder / "residual_cnn.pt")


def transformer_encoder(folder: Path) -> None:
    """Traced without the fused encoder layer, which would be one operator that only torch has."""
    tokens, padding = torch.randn(2, 7, 64), torch.zeros(2, 7, dtype=torch.bool)
    model = with_trained_statistics(TransformerEncoder(), tokens, padding)
    torch.backends.mha.set_fastpath_enabled(False)
    with torch.no_grad():
        torch.jit.trace(model, (tokens, padding)).save(
            folder / "transformer_encoder.pt"
        )


def two_tower(folder: Path) -> None:
    """Scripted, with two inputs of different dtypes and two outputs. The ids of the golden inputs
    are rows of the embedding.
    """
    history, profile = torch.randint(0, 1000, (16, 8)), torch.randn(16, 16)
    model = with_trained_statistics(TwoTower(), history, profile)
    torch.jit.script(model).save(folder / "two_tower.pt")
    np.savez(
        folder / "two_tower.npz",
        history=history[:5].numpy(),
        profile=profile[:5].numpy(),
    )


def silero_vad(folder: Path) -> None:
    """The unchanged file of the wheel. The golden inputs are three voices of one second each."""
    package = importlib.util.find_spec("silero_vad")
    if package is None or package.origin is None:
        raise SystemExit(
            "the silero-vad wheel is not installed: pip install --constraint constraints.txt"
            " silero-vad"
        )
    shutil.copyfile(
        Path(package.origin).parent / "data" / "silero_vad.jit",
        folder / "silero_vad.pt",
    )
    voices = {
        f"{seed}/audio": frames(synthetic_speech(1.0, seed)).unsqueeze(1).numpy()
        for seed in range(3)
    }
    np.savez(folder / "silero_vad.npz", **voices)


EXAMPLES = {
    export.__name__: export
    for export in (residual_cnn, transformer_encoder, two_tower, silero_vad)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only",
        action="append",
        choices=EXAMPLES,
        help="may be given more than once; default: all",
    )
    parser.add_argument("--out", type=Path, default=MODELS, help="default: %(default)s")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in arguments.only or EXAMPLES:
        torch.manual_seed(0)
        EXAMPLES[name](arguments.out)
        print(
            f"{arguments.out / name}.pt "
            f" {(arguments.out / f'{name}.pt').stat().st_size / 1e6:.2f} MB"
        )


if __name__ == "__main__":
    main()
