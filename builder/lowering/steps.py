"""The steps before the passes: convert a module, or a graph and its params, to a graph of
tensors.
"""

from __future__ import annotations

import time

from builder.graph_types import Graph
from builder.lowering.graph import canonical
from builder.lowering.lazy_attributes import CachedAttribute
from builder.lowering.trace import PassRecord
from builder.lowering.unread_writes import UnreadAttribute
from builder.lowering.verifier import Snapshot

FREEZE = "freeze"
LOWER_GRAPH = "lower-graph"
FIRST_STEPS = {
    FREEZE: (
        "Read the module in evaluation mode: every call is inlined, and every attribute that is "
        "read becomes a constant, including weights. `training` is false."
    ),
    LOWER_GRAPH: (
        "Remove the module from the graph's inputs: the graph then reads only forward's arguments "
        "and constants. For a graph that the caller passes, the trailing inputs become the "
        "`params`."
    ),
}
"""The description of each step, by its name in the trace."""


class Steps:
    """Records the steps in the same form as passes."""

    def __init__(self, *, keep_text: bool = False) -> None:
        self.records: list[PassRecord] = []
        self._keep_text = keep_text
        self.snapshot: Snapshot | None = None
        """The snapshot of the graph after the last step."""
        self.cached_attributes: tuple[CachedAttribute, ...] = ()
        """The attributes that keep a value of sizes. The graph has a local value instead."""
        self.unread_attributes: tuple[UnreadAttribute, ...] = ()
        """The attributes whose writes are left out, because no output depends on them."""

    def begin(self, graph: Graph) -> None:
        """The next step starts with this graph."""
        self._nodes, self._text = self._read(graph)
        self._started = time.perf_counter()

    def end(self, name: str, graph: Graph, *, changed: bool = True) -> None:
        """The step is done; the next one starts with its graph."""
        seconds = time.perf_counter() - self._started
        nodes, text = self._read(graph) if changed else (self._nodes, self._text)
        self.records.append(
            PassRecord(name, self._nodes, nodes, seconds, self._text, text)
        )
        self._nodes = nodes
        self._text = text
        self._started = time.perf_counter()

    def _read(self, graph: Graph) -> tuple[int, str]:
        self.snapshot = Snapshot.after(graph, self.snapshot)
        return self.snapshot.nodes, canonical(graph) if self._keep_text else ""
