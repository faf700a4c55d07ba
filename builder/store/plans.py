"""Build a plan, or read it from the store by its key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.engine import BuildOptions, Plan, config, refit, timing
from builder.errors import EngineError, TrtBuildError, summary
from builder.store import key as keys
from builder.store.canonical import digest
from builder.store.differences import because
from builder.store.request import machine
from builder.store.storage import Entry, Store
from builder.store.timings import Combine, Timings, kind

if TYPE_CHECKING:
    from builder.conversion import Conversion


Compile = Callable[[], Plan]


@dataclass(frozen=True)
class PlanRecord:
    """One plan: its `key` and `parts`, whether it was `found` in the store, and otherwise the
    reason for the build.
    """

    key: str
    parts: Mapping[str, Any]
    found: bool
    because: str


class Plans:
    """The plans of one model.

    `last` has the parts of each plan by label, as recorded by the model's last build. If `store` is
    None, nothing is stored or found. `rebuild` builds all plans and stores them. With `share`,
    builds use the timing caches in the store and add to them. A failing store causes a warning and
    never fails the build.
    """

    def __init__(
        self,
        store: Store | None,
        last: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        rebuild: bool = False,
        share: bool = False,
    ) -> None:
        self.store = store
        self.last = last or {}
        self.rebuild = rebuild
        self.share = share
        self.records: dict[str, PlanRecord] = {}
        self.warnings: list[str] = []

    def build(
        self,
        conversion: Conversion,
        options: BuildOptions,
        compile: Compile,
        label: str = "model",
    ) -> Plan:
        """The plan of this conversion: from the store, else a stored plan with new weights, else
        the result of `compile`. A new plan is stored.
        """
        parts = keys.parts(conversion, options)
        key = digest(parts)
        entry: Entry | None = None
        if not self.rebuild:
            entry = self._guarded("read", lambda store: store.get(key))
        if entry is not None:
            self.records[label] = PlanRecord(key, parts, found=True, because="")
            return entry.plan
        plan = self._refitted(conversion, options, parts)
        reason = "weights replaced by refit"
        if plan is None:
            plan = self._compiled(conversion, options, compile)
            reason = self._reason(label, parts)
        self._store(key, parts, plan, conversion, options)
        self.records[label] = PlanRecord(key, parts, found=False, because=reason)
        return plan

    def _compiled(
        self, conversion: Any, options: BuildOptions, compile: Compile
    ) -> Plan:
        """The result of `compile`, which uses the measurements of other machines."""
        path = self._timing_cache(options)
        if path is None:
            return compile()
        combine = partial(timing.combined, conversion.builder)
        fetched: dict[str, bytes] = (
            self._timed("read", combine, lambda timings: timings.fetch(path)) or {}
        )
        plan = compile()
        self._timed("written", combine, lambda timings: timings.keep(path, fetched))
        return plan

    def _timing_cache(self, options: BuildOptions) -> Path | None:
        """The machine's own timing cache, if it is shared.

        It is not shared if the caller names it, or if a key includes its content.
        """
        is_own = options.timing_cache is None and not options.error_on_timing_cache_miss
        if self.share and self.store and is_own:
            return config.timing_cache(options)
        return None

    def _timed(self, verb: str, combine: Combine, act: Callable[[Timings], Any]) -> Any:
        def acted(store: Store) -> Any:
            timings = Timings(store, kind(machine()), combine)
            result = act(timings)
            self.warnings += timings.warnings
            return result

        return self._guarded(verb, acted)

    def _refitted(
        self, conversion: Conversion, options: BuildOptions, parts: Mapping[str, Any]
    ) -> Plan | None:
        """A stored plan of the same structure, refitted with this network's weights.

        None if there is none. Also None, with a warning, if TensorRT refuses.
        """
        if self.store is None or self.rebuild or not refit.possible(options):
            return None
        structure = keys.structure(parts, conversion.network)
        base = self._guarded("read", lambda store: store.base(structure))
        if not base:
            return None
        entry: Entry | None = self._guarded(
            "read", lambda store: store.get(base["key"])
        )
        if entry is None:
            return None
        try:
            return refit.refit(entry.plan, conversion, base["weights"], options)
        except EngineError as refusal:
            self.warnings.append(f"the plan is built, not refitted: {refusal.message}")
            return None

    def _store(
        self,
        key: str,
        parts: Mapping[str, Any],
        plan: Plan,
        conversion: Conversion,
        options: BuildOptions,
    ) -> None:
        self._guarded("written", lambda store: store.put(key, parts, plan))
        if refit.possible(options) and self.store is not None:
            structure = keys.structure(parts, conversion.network)
            base = {"key": key, "weights": refit.digests(conversion.network)}
            self._guarded("written", lambda store: store.remember_base(structure, base))

    def record(self) -> dict[str, Any]:
        """JSON data for the model's trt-build.json and the store: by label the key, its parts, and
        the reason.
        """
        return {
            label: {**vars(record), "parts": dict(record.parts)}
            for label, record in self.records.items()
        }

    def remember(
        self, name: str, request: Mapping[str, Any], result: Mapping[str, Any]
    ) -> None:
        """Record the build under this name in the store, so that the next build on any machine can
        report its reason.
        """
        record = {"request": request, "plans": self.record(), "result": result}
        self._guarded("written", lambda store: store.remember(name, record))

    def _reason(self, label: str, parts: Mapping[str, Any]) -> str:
        if self.rebuild:
            return "--rebuild"
        return (
            because(self.last.get(label), parts, keys.DERIVED)
            or "its plan was not in the store"
        )

    def _guarded(self, verb: str, act: Callable[[Store], Any]) -> Any:
        if self.store is None:
            return None
        try:
            result = act(self.store)
            self.warnings += self.store.warnings
            self.store.warnings.clear()
            return result
        except TrtBuildError:
            raise
        except Exception as failure:  # backends of fsspec raise different errors
            self.warnings.append(
                f"the store {self.store.url} could not be {verb}: {summary(failure)}"
            )
            return None
