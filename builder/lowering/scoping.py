"""Whether every value is made before it is read, in a block that can see it: read from the graph's text in one go.

torch's own lint looks at every use of a constant for each of its uses, which is quadratic where thousands of nodes
share one.
"""

from __future__ import annotations

import re

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_NAME = re.compile(r"%[\w.]+")
_BLOCK = re.compile(r"^ *block\d+\(")


def out_of_scope(text: str) -> str | None:
    """The first value that is read where nobody made it, with its line; None when there is none."""
    seen: set[str] = set()
    scopes: list[tuple[int, list[str]]] = [(0, [])]
    for line in _STRING.sub("", text).splitlines():
        indent = len(line) - len(line.lstrip())
        line = line.split(" # ")[0]
        opens = bool(_BLOCK.match(line))
        while len(scopes) > 1 and scopes[-1][0] > indent:
            seen.difference_update(scopes.pop()[1])
        made, read = _made_and_read(line, opens)
        for name in read:
            if name not in seen:
                return f"{name} in {line.strip()}"
        if opens:
            scopes.append((indent + 2, made))
        else:
            scopes[-1][1].extend(made)
        seen.update(made)
    return None


def _made_and_read(line: str, opens: bool) -> tuple[list[str], list[str]]:
    """The names that a line makes, and those that it reads."""
    if opens or line.startswith("graph(") or (" = " not in line and line.startswith("      %")):
        return _NAME.findall(line), []
    left, found, right = line.partition(" = ")
    return (_NAME.findall(left), _NAME.findall(right)) if found else ([], _NAME.findall(line))
