"""Models built on many machines with Ray: the farm file, the tasks, and what they publish.

A task builds one model for one target, with the function that builds it on one machine
(`builder.repository.build_repository`). Model files and results travel through the store by their
content. Only names, hashes and words travel through Ray.
"""

from __future__ import annotations

from builder.exports import lazy

__getattr__, __dir__ = lazy(__name__, __file__)
