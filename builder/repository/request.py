"""Which models of an order are unchanged, decided without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from builder import store
from builder.errors import UsageError
from builder.pipeline import Order, options_of
from builder.repository.result import SHOWN, ModelResult
from builder.store import edits, published


def unless_unchanged(order: Order, hashes: store.Hashes) -> Order | ModelResult:
    """The order with its request, and why it must be built; or the result, where what is published
    is unchanged.
    """
    wanted = request_of(order, hashes)
    said = recorded(order, wanted)
    reason = "--rebuild" if order.rebuild else stale_because(order, wanted, said, hashes)
    if reason is None and order.edits == edits.OVERWRITE and edits.edits(order.folder, hashes):
        reason = "--overwrite-edits"
    if reason is None:
        notes = edits.notes(order.folder, hashes)
        return _unchanged(order, said, notes, edited=bool(notes))
    if not order.rebuild and (other := _replaced_by_rollback(order, wanted)):
        number, shown = other
        noted = (
            f"version {published.number_of(said)} is served: version {number}, which the model file"
            f" and manifest give, was rolled back. `trt-build rollback {order.out}"
            f" {order.spec.name} --to {number}` serves it again",
        )
        return _unchanged(order, shown, noted)
    order = _keeping_adopted(order, hashes)
    try:
        edits.refuse(order.folder, hashes, order.edits)
    except UsageError as error:
        return ModelResult(order.spec.name, error=error, because=reason)
    parts = {label: made["parts"] for label, made in (said.get("plans") or {}).items()}
    return replace(order, options=options_of(order), request=wanted, because=reason, last=parts)


def _keeping_adopted(order: Order, hashes: store.Hashes) -> Order:
    """The order with the edits that its manifest says, too, carried over."""
    if order.edits != edits.REPORT or not edits.edits(order.folder, hashes):
        return order
    from builder import triton  # with protobuf, which most runs need not

    adopted = triton.edits_adopted(order.folder, order.spec)
    return replace(order, edits=edits.KEEP) if adopted else order


def _unchanged(
    order: Order, said: Mapping[str, Any], noted: Sequence[str], *, edited: bool = False
) -> ModelResult:
    shown = {
        key: _tuple(said.get("result", {}).get(key, getattr(ModelResult, key))) for key in SHOWN
    }
    shown["warnings"] = (*shown["warnings"], *noted)
    state = "edited" if edited else "unchanged"
    return ModelResult(order.spec.name, ok=True, path=order.folder, state=state, **shown)


def _replaced_by_rollback(
    order: Order, wanted: Mapping[str, Any]
) -> tuple[int, dict[str, Any]] | None:
    """The version that a build would give and that somebody rolled back, with its trt-build.json;
    None where there is none.
    """
    replaced = (published.sidecar(order.folder) or {}).get(published.ROLLED_BACK)
    for version in published.versions(order.folder)[1:]:
        if version.number == replaced and version.said.get("request") == wanted:
            return version.number, version.said
    return None


def request_of(order: Order, hashes: store.Hashes) -> dict[str, Any]:
    """What the order's model is to be built from."""
    return store.request(
        order.spec,
        hashes,
        serve_as=order.serve_as,
        layout=order.layout,
        torch_steps=order.torch_steps,
        options=options_of(order),
        plugins=order.plugins,
    )


def recorded(order: Order, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """What was last built: as the published model records it, else as the store was told of the
    same file under that name (a store is shared, and another project's model may have the name);
    empty where neither knows.
    """
    said = store.sidecar(order.folder) or {}
    if "request" in said or not order.store:
        return said
    last = store.last(order.store, order.spec.name) or {}
    return last if (last.get("request") or {}).get("source") == wanted["source"] else {}


def stale_because(
    order: Order, wanted: Mapping[str, Any], said: Mapping[str, Any], hashes: store.Hashes
) -> str | None:
    """Why the model must be built, in words; None where what is published is what is wanted."""
    reason = store.stale(order.folder, wanted, hashes)
    if reason is None or store.recorded_request(order.folder) is not None:
        return reason
    return store.because(said.get("request"), wanted) or "it is not published"


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
