"""Decide without torch whether the model of an order is unchanged."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from builder import store, triton
from builder.errors import UsageError
from builder.pipeline import Order, options_of
from builder.repository.result import SHOWN, ModelResult
from builder.store import edits, published
from builder.unforeseen import unreadable


def unless_unchanged(order: Order, hashes: store.Hashes) -> Order | ModelResult:
    """The order with its request and the reason for the build; or the result, if the published
    model is unchanged.
    """
    try:
        new_request = request_of(order, hashes)
    except OSError as error:
        file = Path(error.filename or order.spec.path)
        return ModelResult(order.spec.name, error=unreadable(file, error))
    record = recorded(order, new_request)
    reason = _reason(order, new_request, hashes)
    if reason is None:
        notes = edits.notes(order.folder, hashes)
        return _unchanged(order, record, notes, edited=bool(notes))
    if not order.rebuild and (rolled_back := replaced_by_rollback(order, new_request)):
        number, sidecar = rolled_back
        note = _rollback_note(order, published.number_of(record), number)
        notes = _notes_of_rolled_back(order, hashes)
        return _unchanged(order, sidecar, (note, *notes), edited=bool(notes))
    order = _keeping_adopted(order, hashes)
    try:
        _refuse_source(order)
        edits.refuse(order.folder, hashes, order.edits)
    except UsageError as error:
        return ModelResult(order.spec.name, error=error, because=reason)
    plans = record.get("plans") or {}
    parts = {label: plan["parts"] for label, plan in plans.items()}
    return replace(
        order,
        options=options_of(order),
        request=new_request,
        because=reason,
        last=parts,
    )


def _notes_of_rolled_back(order: Order, hashes: store.Hashes) -> list[str]:
    notes = edits.notes(order.folder, hashes)
    if notes and order.edits == edits.OVERWRITE:
        notes.append("edits of a rolled back model are discarded with --rebuild only")
    return notes


def _rollback_note(order: Order, served: int, number: int) -> str:
    return (
        f"version {served} is served: version {number}, which matches the model file and manifest,"
        f" was rolled back. `trt-build rollback {order.out} {order.spec.name} --to {number}` serves"
        " it again"
    )


def _refuse_source(order: Order) -> None:
    """Raise UsageError if the publication would replace a folder that has the model file."""
    # os.path, because Path.resolve raises RuntimeError for a loop of links
    folder = Path(os.path.realpath(order.folder))
    if folder in Path(os.path.realpath(order.spec.path)).parents:
        raise UsageError(
            f"publishing would replace {order.folder}, which has the model file",
            where=str(order.spec.path),
            fix="use a repository outside of the models folder",
        )


def _reason(
    order: Order, new_request: Mapping[str, Any], hashes: store.Hashes
) -> str | None:
    """Why the model is built, or None if it is unchanged."""
    reason = store.reason_to_rebuild(order.folder, new_request, hashes)
    if reason is None and order.rebuild:
        return "--log-level graph" if order.graphs else "--rebuild"
    if reason is None and order.edits == edits.OVERWRITE:
        edited = edits.edits(order.folder, hashes)
        return "--overwrite-edits" if edited else None
    return reason


def _keeping_adopted(order: Order, hashes: store.Hashes) -> Order:
    """The order, which carries over manual edits that its manifest also contains."""
    if order.edits != edits.REPORT or not edits.edits(order.folder, hashes):
        return order
    adopted = triton.edits_adopted(order.folder, order.spec)
    if adopted:
        return replace(order, edits=edits.KEEP)
    return order


def _unchanged(
    order: Order,
    record: Mapping[str, Any],
    noted: Sequence[str],
    *,
    edited: bool = False,
) -> ModelResult:
    fields = {
        key: _tuple(record.get("result", {}).get(key, getattr(ModelResult, key)))
        for key in SHOWN
    }
    fields["warnings"] = (*fields["warnings"], *noted)
    state = "edited" if edited else "unchanged"
    return ModelResult(
        order.spec.name, ok=True, path=order.folder, state=state, **fields
    )


def replaced_by_rollback(
    order: Order, new_request: Mapping[str, Any]
) -> tuple[int, dict[str, Any]] | None:
    """The version that a build would create and that was rolled back, with its trt-build.json, or
    None.
    """
    replaced = (published.sidecar(order.folder) or {}).get(published.ROLLED_BACK)
    for version in published.versions(order.folder)[1:]:
        if version.number == replaced and version.sidecar.get("request") == new_request:
            return version.number, version.sidecar
    return None


def request_of(order: Order, hashes: store.Hashes) -> dict[str, Any]:
    """The request of the order's model."""
    return store.request(
        order.spec,
        hashes,
        serve_as=order.serve_as,
        layout=order.layout,
        torch_steps=order.torch_steps,
        options=options_of(order),
        plugins=order.plugins,
    )


def recorded(order: Order, new_request: Mapping[str, Any]) -> dict[str, Any]:
    """The record of the last build: from the published model, else from the store.

    The store's record is used if it has the same file and name, because a store may be shared, and
    another project's model may have the name. Empty without either.
    """
    record = store.sidecar(order.folder) or {}
    if "request" in record or not order.store:
        return record
    last = store.last(order.store, order.spec.name) or {}
    if (last.get("request") or {}).get("source") == new_request["source"]:
        return last
    return {}


def _tuple(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    return value
