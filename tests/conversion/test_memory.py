"""The conversion of a network needs at most one and a half times its weights beyond the memory of
the module.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from benchmarks.memory import MAPPED_FROM, NETWORKS, apart

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


HOARDING = """
import builder
from benchmarks import memory

kept = []
convert = builder.convert


def hoarding(module, *arguments, **named):
    kept.extend(p.clone() for p in module.parameters() for _ in range(2))
    return convert(module, *arguments, **named)


builder.convert = hoarding
print(memory.measure("linear", 64, "fp32")["extra_per_weight"])
"""


def test_extra_weight_copy_is_detected() -> None:
    """Test the measurement: the conversion of a module is made to keep two copies. In a process of
    its own, because one that has freed memory before reuses it.
    """
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(MAPPED_FROM)}
    command = [sys.executable, "-c", HOARDING]
    output = subprocess.check_output(command, env=environment, text=True)
    assert float(output) > LIMIT
