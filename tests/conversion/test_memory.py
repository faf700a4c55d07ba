"""The conversion of a network needs at most one and a half times its weights beyond the memory of
the module.
"""

from __future__ import annotations

import sys

import pytest

from benchmarks.memory import NETWORKS, apart

MEGABYTES = 256
LIMIT = 1.5


@pytest.mark.slow
@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the peak is read from /proc"
)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("name", NETWORKS)
def test_weights_are_copied_at_most_once(name: str, precision: str) -> None:
    row = apart(name, MEGABYTES, precision)
    assert row["weights_mb"] > MEGABYTES / 2
    assert row["extra_per_weight"] <= LIMIT, row


def test_extra_weight_copy_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test the measurement: the conversion of a module is made to keep two copies."""
    import builder
    from benchmarks import memory

    kept = []
    convert = builder.convert

    def hoarding(module, *arguments, **named):  # type: ignore[no-untyped-def]
        kept.extend(p.clone() for p in module.parameters() for _ in range(2))
        return convert(module, *arguments, **named)

    monkeypatch.setattr(builder, "convert", hoarding)
    assert memory.measure("linear", 64, "fp32")["extra_per_weight"] > LIMIT
