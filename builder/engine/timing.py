"""Combine the timing caches of several machines, with TensorRT."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def combined(builder: Any, caches: Sequence[bytes]) -> tuple[bytes, list[bool]]:
    """One timing cache with all measurements, and for each cache whether it was used.

    TensorRT refuses a cache of another GPU, driver or version, and a damaged one. If two caches
    have the same measurement, the earlier one is used. `builder` is a trt.Builder.
    """
    settings = builder.create_builder_config()
    whole: Any = settings.create_timing_cache(b"")
    combined = [_combine(settings, whole, data) for data in caches]
    with whole.serialize() as buffer:
        return bytes(buffer), combined


def _combine(settings: Any, whole: Any, data: bytes) -> bool:
    try:
        cache = settings.create_timing_cache(data)
        return cache is not None and bool(whole.combine(cache, ignore_mismatch=False))
    except (RuntimeError, TypeError):  # not a timing cache
        return False


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Prevent builds of this machine from writing the timing cache at `path` inside the block."""
    from polygraphy import util

    with util.LockFile(str(path)):
        yield
