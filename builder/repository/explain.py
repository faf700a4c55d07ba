"""Explain why a model would be built again: compare its request with the last build, without
torch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from builder import store as stores
from builder.errors import UsageError
from builder.manifest import find_models
from builder.pipeline import Order
from builder.repository import request
from builder.repository.settings import Settings, resolved


def explain(
    models: Path | str,
    out: Path | str | None = None,
    settings: Settings | None = None,
    **keywords: Any,
) -> list[dict[str, Any]]:
    """The verdict for each model, as JSON data: its `name`, `verdict` and `because` as text, its
    `request`, and the `plans` of its last build.

    Plans are by label, each with `key`, `parts` and whether it is `stored` (None: no store
    responds). Settings and `keywords` are those of build_repository. If `out` is None, compare with
    the store's last record of that name. `models` may be the folder of a published model, for its
    recorded request.
    """
    chosen = resolved(settings, keywords)
    folder = Path(models)
    plan_store = None
    if chosen.store:
        plan_store = stores.Store(str(chosen.store))
    if (folder / stores.SIDECAR).exists():
        with stores.shaped(folder):
            return [_published(folder, plan_store)]
    _refuse_repository(folder)
    no_repository = Path("/nonexistent")
    orders = chosen.orders(
        chosen.specs(folder), no_repository if out is None else Path(out)
    )
    with stores.Hashes() as hashes:
        return [
            _report(order, hashes, plan_store, in_repository=out is not None)
            for order in orders
        ]


def _refuse_repository(folder: Path) -> None:
    """Raise UsageError, with the names of the models, if the folder contains published models and
    none to build.
    """
    try:
        find_models(folder)
    except UsageError as error:
        published = [
            str(child)
            for child in sorted(folder.glob("*"))
            if stores.sidecar(child) is not None
        ]
        if published:
            raise UsageError(
                f"{folder} is a repository: pass the folder of one published model, or the source "
                "folder",
                fix=f"use one of {', '.join(published)}",
            ) from error
        raise


def _report(
    order: Order,
    hashes: stores.Hashes,
    plan_store: stores.Store | None,
    *,
    in_repository: bool,
) -> dict[str, Any]:
    """The verdict on one model, and its last build. Without a repository the model is compared
    with the store's last record of it.
    """
    model_request = request.request_of(order, hashes)
    record = request.recorded(order, model_request)
    if in_repository:
        reason = stores.reason_to_rebuild(order.folder, model_request, hashes)
    else:
        reason = stores.because(record.get("request"), model_request) or None
    verdict = "unchanged" if reason is None else f"would be built because: {reason}"
    if reason is not None and (
        rolled_back := request.replaced_by_rollback(order, model_request)
    ):
        verdict = f"not built: version {rolled_back[0]}, which matches, was rolled back"
    return {
        "name": order.spec.name,
        "verdict": verdict,
        "because": reason,
        "request": model_request,
        **_last_build(record, plan_store),
    }


def _published(folder: Path, plan_store: stores.Store | None) -> dict[str, Any]:
    record = stores.sidecar(folder) or {}
    broken = next(stores.damaged(folder), None)
    verdict = "published"
    if broken:
        verdict = f"{broken} of the published model is damaged"
    return {
        "name": folder.resolve().name,
        "verdict": verdict,
        "because": None,
        "request": record.get("request", {}),
        **_last_build(record, plan_store),
    }


def _last_build(
    record: Mapping[str, Any], plan_store: stores.Store | None
) -> dict[str, Any]:
    plans = {
        label: _plan(plan, plan_store)
        for label, plan in (record.get("plans") or {}).items()
    }
    return {"last_because": (record.get("result") or {}).get("because"), "plans": plans}


def _plan(plan: Mapping[str, Any], plan_store: stores.Store | None) -> dict[str, Any]:
    stored = None
    # backends of fsspec raise different errors; `repo` warns and builds
    with contextlib.suppress(Exception):
        if plan_store:
            stored = plan_store.get(plan["key"]) is not None
    return {
        "key": plan["key"],
        "stored": stored,
        "because": plan["because"],
        "parts": plan["parts"],
    }
