"""Run tasks in child processes: a fork server, a pool of workers, limits, and a sandbox.

A worker that crashes only fails its own task. Ctrl-C ends all workers.
"""

from __future__ import annotations

from builder.exports import lazy

__getattr__, __dir__ = lazy(__name__, __file__)
