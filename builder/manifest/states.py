"""Checks a manifest's `state` against its inputs and outputs.

Other rules are checked against the model itself.
"""

from __future__ import annotations

from builder.manifest.document import Document
from builder.manifest.schema import label
from builder.manifest.suggest import did_you_mean


def are_tensors(document: Document) -> None:
    """Check that each pair names an input and a known output, and no tensor twice."""
    inputs = [item.get("name") for item in document.mappings("inputs")]
    _name_tensors(document, "input", _texts(inputs))
    _name_tensors(document, "output", _texts(document.data.get("outputs")))


def _name_tensors(document: Document, side: str, known: list[str]) -> None:
    first_index: dict[str, int] = {}
    for index, name in enumerate(item.get(side) for item in document.mappings("state")):
        route = ("state", index, side)
        if not isinstance(name, str):
            continue
        if name in first_index:
            document.add(
                route,
                f"{side} {name!r} is used by two states",
                f"remove one; the first is state[{first_index[name]}]",
            )
        elif known and name not in known:
            document.add(
                route,
                f"{label(route)}: no {side} has the name {name!r}",
                did_you_mean(name, known),
            )
        first_index.setdefault(name, index)


def need_no_sequences(document: Document) -> None:
    """Check that `sequences` is not written without `state`."""
    if "sequences" in document.data and not document.mappings("state"):
        fix = "add state: [{input: h0, output: hn}], or remove 'sequences'"
        document.add(
            ("sequences",),
            "'sequences' describes how state is kept, but there is no 'state'",
            fix,
            key=True,
        )


def _texts(value: object) -> list[str]:
    if isinstance(value, list):
        return [item for item in value if isinstance(item, str)]
    return []
