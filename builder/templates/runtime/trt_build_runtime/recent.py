"""A mapping that discards the least recently used values."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any


class Recent:
    """At most `limit` values by key. A new one replaces the least recently used."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.values: OrderedDict[Any, Any] = OrderedDict()

    def get(self, key: Any) -> Any:
        """The value, or None."""
        value = self.values.get(key)
        if value is not None:
            self.values.move_to_end(key)
        return value

    def put(self, key: Any, value: Any) -> Any:
        """Store the value and return it."""
        self.values[key] = value
        if len(self.values) > self.limit:
            self.values.popitem(last=False)
        return value
