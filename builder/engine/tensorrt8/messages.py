"""Messages of this version's builder in its error log."""

from __future__ import annotations

import re

HARMLESS = (
    "myelinCache.h::deserializeFromBuffer",
    "The timing cache will not be used!",
)
"""Messages about every timing cache that 8.5 and 8.6 wrote themselves, even if the
build succeeds.
"""

UNCOMPILED = re.compile(r"any implementation for node \{ForeignNode")
"""Myelin, which compiles the layers between two names as one, failed. Observed with GPT-NeoX, whose
attention and feed-forward layers are parallel. With a single sequence length it builds.
"""
