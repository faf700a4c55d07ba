"""Messages of this version's builder in its error log."""

from __future__ import annotations

import re

HARMLESS = ("myelinCache.h::deserializeFromBuffer", "The timing cache will not be used!")
"""Said of every timing cache that 8.5 and 8.6 wrote themselves, also where the build succeeds."""

UNCOMPILED = re.compile(r"any implementation for node \{ForeignNode")
"""Myelin, which compiles the layers between two names as one, has stopped. Seen of GPT-NeoX, whose
attention and feed-forward layers stand side by side; with one length of sequence it builds.
"""
