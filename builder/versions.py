"""Versions of installed packages, each read from the package's metadata once a process."""

from __future__ import annotations

import importlib.metadata
from functools import cache


@cache
def package_version(distribution: str) -> str:
    """The version of an installed distribution, such as "torch". Raises
    importlib.metadata.PackageNotFoundError.
    """
    return importlib.metadata.version(distribution)
