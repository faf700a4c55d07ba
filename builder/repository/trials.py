"""One model's search for precision: loaded once, converted for every trial, judged by its
goldens.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from builder import unforeseen
from builder.errors import EngineError, EnvironmentProblem, ParityError, UnsupportedOperators
from builder.manifest.spec import ModelSpec
from builder.repository import hops, orders, reading
from builder.repository.minimal import minimal
from builder.repository.orders import Order
from builder.repository.patterns import layer_names
from builder.repository.result import Progress
from builder.repository.search import Search

if TYPE_CHECKING:
    from builder.conversion import Conversion
    from builder.repository.cut import Pieces
    from builder.triton import Golden


def perform(order: Order, progress: Progress) -> Search:
    """Search for the model of the order, and write what was found: it took long, and others may yet
    be interrupted.

    Errors end in the result or go through as of builder.repository.model.perform.
    """
    from builder.manifest import editing
    from builder.repository.model import prepare

    found = Search(order.spec.name, order.spec.manifest)
    started = time.monotonic()
    try:
        prepare(order)
        _Trials(order, found, progress).run()
        if found.manifest is not None:
            values = {"precision": found.precision, "keep_fp32": list(found.keep_fp32)}
            found.written = editing.edit(found.manifest, values)
    except (EnvironmentProblem, BrokenPipeError):
        raise
    except Exception as error:
        found.error = unforeseen.ours(error)
    found.seconds = round(time.monotonic() - started, 3)
    return found


class _Less(Exception):
    """In this precision TensorRT would run less of the model than in float32."""


@dataclass(frozen=True)
class _Made:
    """What is converted of a model: one network, or those of its `pieces`, None where torch runs
    one.
    """

    spec: ModelSpec
    goldens: tuple[Golden, ...]
    conversions: Sequence[Conversion | None]
    pieces: Pieces | None = None


class _Trials:
    """One model, loaded once and converted for every trial."""

    def __init__(self, order: Order, found: Search, progress: Progress) -> None:
        from builder import parity
        from builder.engine import flavour

        self.order, self.spec, self.found, self.progress = order, order.spec, found, progress
        spec = self.spec
        module = reading.load(spec)
        self.lowered = reading.lower(module, spec)
        self.names = spec.outputs or self.lowered.outputs
        recorded = parity.record(module, spec, self.names)
        self.goldens = sorted(
            recorded, key=lambda golden: sum(a.nbytes for a in golden.inputs.values())
        )
        self.found.judge = (
            "engine" if flavour.name() == "tensorrt" and flavour.gpu_answers() else "reference"
        )
        self.known: dict[tuple[str, ...], str] = {}
        self._refused = False

    def run(self) -> None:
        """Fill in what was found. Raises ParityError where precision is not what keeps the model
        from passing.
        """
        found = self.found
        found.precision, found.problem = self.spec.precision, self.problem(())
        if not found.problem:
            found.keep_fp32 = self.spec.keep_fp32
            return
        if self._refused:
            found.precision, found.keep_fp32 = "fp32", self.spec.keep_fp32
            return
        layers = list(layer_names(c for c, _ in self.converted(self.spec)))
        found.layers = len(layers)
        if still := self.problem(layers):
            raise ParityError(
                f"even with every layer in float32 the answers differ: {still}",
                where=str(self.spec.manifest),
                fix="`trt-build check --paranoid` tells where; precision is not what is wrong",
            )
        kept = minimal(layers, lambda names: not self.problem(names))
        if len(kept) == len(layers) or not self._reduces(kept):
            found.precision, found.keep_fp32 = "fp32", self.spec.keep_fp32
        else:
            found.keep_fp32 = (*self.spec.keep_fp32, *patterns(kept, layers))

    def _reduces(self, kept: Sequence[str]) -> bool:
        """Whether anything computes in less than float32 with these layers kept; what follows kept
        ones does not.
        """
        from builder.conversion.precision import quantises
        from builder.engine import capabilities
        from builder.engine.network import has_half

        if not capabilities.current().strongly_typed:
            return True  # TensorRT chooses
        made = self.converted(self._keeping(kept))
        return any(has_half(c.network) or quantises(c.lowered.graph) for c, _ in made)

    def _keeping(self, kept: Sequence[str]) -> ModelSpec:
        return replace(self.spec, keep_fp32=(*self.spec.keep_fp32, *map(literal, kept)))

    def problem(self, kept: Sequence[str]) -> str:
        """What differs with these layers kept in float32; empty where every golden passes."""
        key = tuple(kept)
        if key not in self.known:
            self.progress(
                self.spec.name, f"trial {len(self.known) + 1}: {len(key)} layers kept in float32"
            )
            self.known[key] = self._tried(self._keeping(key))
            self.found.trials = len(self.known)
            self.found.tried.append((len(key), not self.known[key]))
        return self.known[key]

    def _tried(self, spec: ModelSpec) -> str:
        try:
            for conversion, goldens in self._as_much_as_in_float32(spec):
                self._judge(conversion, goldens, spec)
        except (ParityError, EngineError) as failure:
            return failure.message
        except _Less as failure:
            self._refused = True
            return str(failure)
        return ""

    def _as_much_as_in_float32(self, spec: ModelSpec) -> list[tuple[Conversion, Sequence[Golden]]]:
        """What `converted` gives. Raises _Less where float32 would leave less to torch, or refuse
        nothing.
        """
        try:
            made = self._cut(spec)
        except UnsupportedOperators as refusal:
            # which raises the refusal where the precision is not what brings it
            if self._nodes_in_float32:
                raise _Less(refusal.message) from refusal
            raise
        if made.pieces and _nodes(made) < self._nodes_in_float32:
            raise _Less(f"TensorRT runs less of the model in {spec.precision} than in fp32")
        return _with_goldens(made)

    @cached_property
    def _nodes_in_float32(self) -> int:
        return _nodes(self._cut(replace(self.spec, precision="fp32", keep_fp32=())))

    def converted(self, spec: ModelSpec) -> list[tuple[Conversion, Sequence[Golden]]]:
        """Each network that TensorRT would run of the model, with its own goldens."""
        return _with_goldens(self._cut(spec))

    def _cut(self, spec: ModelSpec) -> _Made:
        """The model, converted as it would be for a build."""
        from builder.repository import cut, reduced, stateful

        lowered, goldens = self.lowered, tuple(self.goldens)
        if reduced.wanted(spec):
            fewer = reduced.reduced(spec, lowered, goldens)
            spec, lowered = fewer.spec, fewer.lowered
        spec, lowered, goldens = stateful.batch_first(spec, lowered, self.names, goldens)
        found = cut.convert_or_cut(lowered, spec, self.names)
        if isinstance(found, cut.Pieces):
            return _Made(spec, goldens, found.conversions, found)
        return _Made(spec, goldens, (found,))

    def _judge(self, conversion: Conversion, goldens: Sequence[Golden], spec: ModelSpec) -> None:
        """Raise ParityError, with the first golden that differs."""
        with self._runs(conversion) as run:
            for golden in goldens:
                problems = _differences(run, conversion, golden, spec)
                if problems:
                    failed = [one for one in self.goldens if one.name == golden.name]
                    self.goldens = [
                        *failed,
                        *(one for one in self.goldens if one.name != golden.name),
                    ]
                    raise ParityError(f"golden {golden.name}: {'; '.join(problems)}")

    @contextmanager
    def _runs(self, conversion: Conversion) -> Iterator[Callable[..., Sequence[Any]]]:
        """What runs the network: CPU tensors in and out, in the order of its inputs and outputs."""
        from builder import engine, reference
        from builder.engine.run import Engine

        if self.found.judge == "reference":
            yield lambda *tensors: reference.run(conversion, tensors)
        else:
            with Engine(engine.build(conversion, orders.options_of(self.order)).data) as built:
                yield built


def _nodes(made: _Made) -> int:
    """How many nodes of the model TensorRT would run."""
    return sum(len(list(one.lowered.graph.nodes())) for one in made.conversions if one is not None)


def _with_goldens(made: _Made) -> list[tuple[Conversion, Sequence[Golden]]]:
    """Each network with its own goldens: those of a piece are recorded, by torch."""
    recorded: Sequence[Sequence[Golden]] = (made.goldens,)
    if made.pieces:
        recorded = hops.record_hops(made.pieces.partition, made.goldens, made.spec)
    return [(c, own) for c, own in zip(made.conversions, recorded, strict=True) if c is not None]


def _differences(
    run: Callable[..., Sequence[Any]], conversion: Conversion, golden: Golden, spec: ModelSpec
) -> Any:
    from builder import parity
    from builder.parity.arrays import to_numpy, to_torch
    from builder.parity.comparison import widened

    tensors = [to_torch(golden.inputs[str(s.name)]) for s in conversion.inputs]
    answer = widened(
        dict(zip(conversion.outputs, map(to_numpy, run(*tensors)), strict=True)), golden
    )
    return parity.compare(answer, golden, spec.tolerance, precision=spec.precision).problems


def literal(name: str) -> str:
    """The pattern that is this name alone."""
    return re.sub(r"([*?\[])", r"[\1]", name)


def patterns(kept: Sequence[str], layers: Sequence[str]) -> list[str]:
    """`kept` as patterns: `scope/*` where all layers of a scope are in it and they are several."""
    scopes: dict[str, list[str]] = {}
    for name in layers:
        scopes.setdefault(name.rpartition("/")[0], []).append(name)
    whole = {
        scope
        for scope, names in scopes.items()
        if scope and len(names) > 1 and set(names) <= set(kept)
    }
    said = (
        f"{literal(s)}/*" if (s := name.rpartition("/")[0]) in whole else literal(name)
        for name in kept
    )
    return list(dict.fromkeys(said))
