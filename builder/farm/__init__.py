"""Builds models on many machines with Ray: the farm file, the tasks, and the publication.

A task builds one model for one target, with the same function as on one machine
(`builder.repository.build_repository`). Model files and results are passed through the store by
their content hash. Ray transfers only names, hashes and text.
"""

from __future__ import annotations

from builder.exports import lazy

__getattr__, __dir__ = lazy(__name__, __file__)
