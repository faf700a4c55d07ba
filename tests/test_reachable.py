"""Every item of a graph is reached once, the nearest first."""

from __future__ import annotations

from builder.reachable import reachable


def test_items_of_a_graph_with_a_cycle_are_reached_once_nearest_first() -> None:
    graph = {"a": "bc", "b": "d", "c": "bd", "d": "ea", "e": "", "f": "a"}
    assert list(reachable("a", graph.__getitem__)) == list("abcde")
    assert list(reachable("de", graph.__getitem__)) == list("deabc")
    assert list(reachable("", graph.__getitem__)) == []


def test_only_the_items_that_are_requested_are_followed() -> None:
    assert 5 in reachable([0], lambda number: [number + 1])
