"""What is reckoned with the lengths of lists, once the writes to them have told those."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

NUMBERS = ("IntType", "BoolType")
COUNTS: dict[str, Callable[..., Any]] = {
    "aten::add": operator.add,
    "aten::sub": operator.sub,
    "aten::mul": operator.mul,
    "aten::neg": operator.neg,
    "aten::lt": operator.lt,
    "aten::le": operator.le,
    "aten::gt": operator.gt,
    "aten::ge": operator.ge,
    "aten::eq": operator.eq,
    "aten::ne": operator.ne,
    "aten::__not__": operator.not_,
    "aten::__range_length": lambda start, end, step: len(range(start, end, step)),
    "aten::__derive_index": lambda index, start, step: start + index * step,
}
