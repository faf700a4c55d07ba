"""Build a plan, or read it from the store by its key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.engine import BuildOptions, Plan, config, refit, timing
from builder.errors import EngineError, TrtBuildError
from builder.store import key as keys
from builder.store.differences import because
from builder.store.request import machine
from builder.store.storage import Entry, Store
from builder.store.timings import Combine, Timings, kind

if TYPE_CHECKING:
    from builder.conversion import Conversion


Compile = Callable[[], Plan]


@dataclass(frozen=True)
class Made:
    """One plan: its `key` and `parts`, whether it was `found` in the store, and else why it was
    built.
    """

    key: str
    parts: Mapping[str, Any]
    found: bool
    because: str


class Plans:
    """The plans of one model. `last` holds the parts of each by label, as the model's last build
    recorded them.

    `store` None keeps nothing and finds nothing. `rebuild` builds all, and keeps them. With `share`
    builds use the timing caches in the store, and add to them. A store that fails costs a warning,
    never the build.
    """

    def __init__(
        self,
        store: Store | None,
        last: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        rebuild: bool = False,
        share: bool = False,
    ) -> None:
        self.store, self.last, self.rebuild = store, last or {}, rebuild
        self.share = share
        self.made: dict[str, Made] = {}
        self.warnings: list[str] = []

    def build(
        self, conversion: Conversion, options: BuildOptions, compile: Compile, label: str = "model"
    ) -> Plan:
        """The plan of this conversion: from the store, else a stored one with new weights, else
        what `compile` makes. A new one is kept.
        """
        parts = keys.parts(conversion, options)
        key = keys.key(parts)
        entry: Entry | None = (
            None if self.rebuild else self._guarded("read", lambda store: store.get(key))
        )
        if entry is not None:
            self.made[label] = Made(key, parts, True, "")
            return entry.plan
        plan, reason = self._refitted(conversion, options, parts), "weights replaced by refit"
        if plan is None:
            plan, reason = self._compiled(conversion, options, compile), self._reason(label, parts)
        self._keep(key, parts, plan, conversion, options)
        self.made[label] = Made(key, parts, False, reason)
        return plan

    def _compiled(self, conversion: Any, options: BuildOptions, compile: Compile) -> Plan:
        """The plan that `compile` makes, with the measurements of other machines."""
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
        """The machine's own timing cache where it is shared: not one that the caller names, and not
        where a key covers what is in it.
        """
        is_own = options.timing_cache is None and not options.error_on_timing_cache_miss
        return config.timing_cache(options) if self.share and self.store and is_own else None

    def _timed(self, done: str, combine: Combine, act: Callable[[Timings], Any]) -> Any:
        def acted(store: Store) -> Any:
            timings = Timings(store, kind(machine()), combine)
            found = act(timings)
            self.warnings += timings.warnings
            return found

        return self._guarded(done, acted)

    def _refitted(
        self, conversion: Conversion, options: BuildOptions, parts: Mapping[str, Any]
    ) -> Plan | None:
        """A stored plan of the same structure with this network's weights; None if there is
        none, or TensorRT refuses, which is a warning.
        """
        if self.store is None or self.rebuild or not refit.possible(options):
            return None
        structure = keys.structure(parts, conversion.network)
        base = self._guarded("read", lambda store: store.base(structure))
        entry: Entry | None = base and self._guarded("read", lambda store: store.get(base["key"]))
        if entry is None:
            return None
        try:
            return refit.refit(entry.plan, conversion, base["weights"], options)
        except EngineError as refusal:
            self.warnings.append(f"the plan is built, not refitted: {refusal.message}")
            return None

    def _keep(
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
        """JSON-able, for the model's trt-build.json and the store: by label the key, its parts, and
        the reason.
        """
        return {
            label: {**vars(made), "parts": dict(made.parts)} for label, made in self.made.items()
        }

    def remember(self, name: str, request: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        """Keep in the store what was built under this name, for the reason of the next build
        elsewhere.
        """
        record = {"request": request, "plans": self.record(), "result": result}
        self._guarded("written", lambda store: store.remember(name, record))

    def _reason(self, label: str, parts: Mapping[str, Any]) -> str:
        if self.rebuild:
            return "--rebuild"
        return because(self.last.get(label), parts, keys.DERIVED) or "its plan was not in the store"

    def _guarded(self, done: str, act: Callable[[Store], Any]) -> Any:
        if self.store is None:
            return None
        try:
            found = act(self.store)
            self.warnings += self.store.warnings
            self.store.warnings.clear()
            return found
        except TrtBuildError:
            raise
        except Exception as failure:  # each backend of fsspec raises its own
            self.warnings.append(f"the store {self.store.url} could not be {done}: {failure}")
            return None
