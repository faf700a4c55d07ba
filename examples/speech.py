"""Synthetic speech for the speech detector, in frames as a client sends them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

RATE, FRAME, CONTEXT = 16_000, 512, 64


def synthetic_speech(seconds: float, seed: int = 0) -> Tensor:
    """float32 [samples] in -1..1 at 16 kHz: syllables with a gliding pitch and three formants, and
    some noise.
    """
    random = np.random.default_rng(seed)
    t = np.arange(int(seconds * RATE)) / RATE
    pitch = random.uniform(100, 200) * (1 + 0.2 * np.sin(2 * np.pi * 0.7 * t))
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    harmonics = (np.sin(k * phase) * loudness(k * pitch) for k in range(1, 30))
    syllables = np.clip(np.sin(2 * np.pi * 3.0 * t), 0, None) * (
        np.sin(2 * np.pi * 0.5 * t) > -0.3
    )
    audio = sum(harmonics) * syllables + 0.01 * random.standard_normal(t.size)
    return torch.from_numpy((0.8 * audio / np.abs(audio).max()).astype(np.float32))


def loudness(frequency: np.ndarray) -> np.ndarray:
    """The loudness of a harmonic at `frequency` (Hz, of any shape) in an open vowel."""
    formants = ((700, 110, 1.0), (1220, 120, 0.5), (2600, 160, 0.25))
    return sum(
        gain * np.exp(-(((frequency - center) / width) ** 2))
        for center, width, gain in formants
    )


def frames(audio: Tensor) -> Tensor:
    """float32 [frames, 576]: 512 samples each, behind the last 64 of the frame before: silero_vad's
    own framing.
    """
    padded = torch.nn.functional.pad(audio, (CONTEXT, 0))
    return padded.unfold(0, CONTEXT + FRAME, FRAME).contiguous()
