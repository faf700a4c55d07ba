"""The default location of the store."""

from __future__ import annotations

import os

from builder.engine import cache_folder

STORE_VARIABLE = "TRT_BUILD_STORE"


def default_url() -> str:
    """The store that the command line uses: TRT_BUILD_STORE, else `plans` in the cache folder."""
    return os.environ.get(STORE_VARIABLE) or str(cache_folder() / "plans")
