"""Runs tasks in child processes: one fork server, a pool of workers, limits, and a sandbox.

A worker that crashes fails its own task only, and Ctrl-C ends them all.
"""

from __future__ import annotations

from builder.exports import lazy

__getattr__, __dir__ = lazy(__name__, __file__)
