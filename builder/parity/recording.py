"""Goldens: the original module's own answers, recorded on the CPU before anything is done to it."""

from __future__ import annotations

import io
import math
import re
import time
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from builder.errors import ModelFileError, UsageError
from builder.frontends import ExportedModule
from builder.manifest import ModelSpec, Profile, TensorSpec, place, shared_first_axis
from builder.parity import inputs, sequences
from builder.parity.arrays import narrow, to_numpy, to_torch
from builder.parity.calling import call_module
from builder.parity.coverage import Outcome
from builder.parity.golden_search import GoldenSearch, is_finite
from builder.parity.structure import leaves
from builder.parity.user_inputs import user_inputs
from builder.triton import Golden

GOLDEN_MAX_BYTES, GOLDEN_MAX_SECONDS = 64 << 20, 60
MEASURABLE_SECONDS = 2.0
"""The most memory of one golden's inputs, and the longest that the module may take for it. Larger
sizes are reduced, with a warning: every later step runs each golden again.
"""
_SMALL_NUMBERS = (2, 1)
SHOWN_BRANCHES = 5
"""How many conditions are reported by name. Large scripted models have hundreds that depend on
fixed sizes only.
"""
Module = Any
"""A torch.jit.ScriptModule, or anything that is called with tensors."""
Outputs = list[torch.Tensor | None]


def record(
    module: Module, spec: ModelSpec, output_names: Sequence[str] | None = None
) -> tuple[Golden, ...]:
    """The module's answers at the opt, min, max and an odd size of each profile, seeded by the
    model's name, and to the user's npz; of a model with state also its answers to whole sequences
    (see sequences).

    Where the first axis looks like a batch there is also "p<i>-row": the first row of the opt
    golden alone, which shows whether rows depend on each other. Goldens named "p0-reach<n>" reach
    branches, comparisons and bounds that the others do not. Outputs, however nested, are
    flattened in order and named `output_names`, else `spec.outputs`, else output, or output_0,
    output_1, ... Raises ModelFileError where the module fails on all inputs that we can think of,
    or returns other things than tensors.
    """
    return record_goldens(module, spec, output_names).goldens


@dataclass(frozen=True)
class Recording:
    """The goldens of a module, the outcomes of its branches, comparisons and bounds that none of
    them reaches, and a line for each golden that is smaller than its profile's size (`reduced`).
    """

    goldens: tuple[Golden, ...]
    unreached: tuple[Outcome, ...] = ()
    reduced: tuple[str, ...] = ()
    unseen: tuple[tuple[str, bool], ...] = ()
    """(output, True) where no golden has a tensor of an output that may be None, (output, False)
    where none has None.
    """

    @property
    def warnings(self) -> tuple[str, ...]:
        """One warning for each condition with a branch that no golden takes: its numbers were
        compared nowhere. Conditions after the first SHOWN_BRANCHES share one warning. Reduced
        goldens have one warning each, and so has an output that is None in all goldens or in none.
        """
        missing: dict[str, list[str]] = {}
        for outcome in self.unreached:
            if outcome.is_branch:
                missing.setdefault(outcome.place, []).append(outcome.which)
        found = [
            f"no golden reaches {place}: {' or '.join(sorted(set(which)))}; add inputs that do"
            " (manifest: goldens: FILE.npz)"
            for place, which in missing.items()
        ]
        if len(found) > SHOWN_BRANCHES:
            more = len(found) - SHOWN_BRANCHES
            found[SHOWN_BRANCHES:] = [f"no golden reaches branches of {more} more conditions"]
        absent = (_never(name, given) for name, given in self.unseen)
        return (*self.reduced, *absent, *found)

    def warnings_of(self, locations: Collection[str]) -> tuple[str, ...]:
        """The warnings of branches at these source locations. Others are no branches of the served
        model: shapes, types or arguments that are fixed decide them.
        """
        lines = {location.partition(", near ")[0] for location in locations}
        kept = [one for one in self.unreached if one.where.partition(", near ")[0] in lines]
        return replace(self, unreached=tuple(kept)).warnings


def _never(name: str, given: bool) -> str:
    """The warning of an output that is a tensor in no golden (`given`), or in all."""
    if given:
        return (
            f"output {name!r} is None in every golden, so its type and shape are not known: the"
            " endpoint does not have it, and a request for which it is a tensor fails; add inputs"
            " for which it is one (manifest: goldens: FILE.npz)"
        )
    return (
        f"output {name!r} is a tensor in every golden; add inputs for which it is None (manifest:"
        " goldens: FILE.npz)"
    )


def record_goldens(
    module: Module,
    spec: ModelSpec,
    output_names: Sequence[str] | None = None,
    paths: Sequence[str] = (),
    optional: Collection[str] = (),
) -> Recording:
    """The goldens as of `record`, with what they leave out. `optional` are the outputs that may be
    None; where there are any, `paths` are the names that lowering gives all outputs, in order. A
    golden leaves out what is None.
    """
    names = tuple(output_names or spec.outputs or ())
    recorder = _Recorder(module, spec, names, tuple(paths), optional)
    goldens = tuple(recorder.all())
    search = recorder.search
    return Recording(goldens, search.unreached, tuple(recorder.reduced), search.unseen)


class _Recorder:
    """Remembers which style of values the module took, so that one search serves all goldens."""

    def __init__(
        self,
        module: Module,
        spec: ModelSpec,
        names: tuple[str, ...],
        paths: tuple[str, ...] = (),
        optional: Collection[str] = (),
    ) -> None:
        self.module, self.spec, self.names, self.paths = module, spec, names, paths
        self.styles = list(inputs.styles(spec))
        self.batch = shared_first_axis(spec.stateless_inputs if spec.server_state else spec.inputs)
        self.reduced: list[str] = []
        self.seconds_per_element = 0.0
        # a copy, because the first call of a module fixes whether its graph is optimized
        self.unoptimized = _copy(module) if _optimizer_may_err(module) else None
        with _evaluating(module):
            self.search = GoldenSearch(module, spec, self.answer, optional)

    def all(self) -> Iterator[Golden]:
        """The usual goldens and the user's, then those that reach what these leave out."""
        opt: Golden | None = None
        for golden in self._usual():
            opt = opt or golden
            self.search.note(golden)
            yield golden
        if opt is not None and not self.spec.state:
            profile = {**_dims(self.spec), **(self.spec.profiles or ({},))[0]}
            yield from self.search.more(opt, inputs.sizes_of(profile)["opt"])

    def _usual(self) -> Iterator[Golden]:
        for index, profile in enumerate(self.spec.profiles or ({},)):
            merged = {**_dims(self.spec), **profile}
            for kind, sizes in inputs.sizes_of(merged).items():
                name = f"p{index}-{kind}"
                started = time.monotonic()
                golden = self.golden(
                    name, self._allowed(self._affordable(name, sizes, merged), merged)
                )
                self._measured(golden, time.monotonic() - started)
                yield golden
                if kind == "opt" and self._batch_like(merged):
                    yield self._answered(f"p{index}-row", self._rows(golden))
        yield from sequences.record(self.spec, self.answer, self.styles[0])
        for name, tensors in user_inputs(self.spec):
            yield self._answered(name, tensors)

    def _allowed(self, sizes: Mapping[str, int], profile: Profile) -> Mapping[str, int]:
        """The sizes, or those next to them where an exported program relates its axes."""
        if not isinstance(self.module, ExportedModule):
            return sizes
        relations = self.module.axes.relations(self.spec.inputs)
        spans = {axis: (span[0], span[2]) for axis, span in profile.items()}
        return relations.nearest(sizes, spans)

    def _measured(self, golden: Golden, seconds: float) -> None:
        """A short time is mostly overhead, which does not grow with the inputs."""
        if seconds >= MEASURABLE_SECONDS:
            elements = sum(array.size for array in golden.inputs.values())
            self.seconds_per_element = seconds / max(elements, 1)

    def _affordable(
        self, name: str, sizes: Mapping[str, int], profile: Profile
    ) -> Mapping[str, int]:
        """The sizes, with the largest varying axis halved until the inputs have at most
        GOLDEN_MAX_BYTES and the module is likely to answer within GOLDEN_MAX_SECONDS, by the time
        that the golden before took.
        """
        lows, kept = {axis: max(span[0], 1) for axis, span in profile.items()}, dict(sizes)
        while self._costs_too_much(kept) and any(kept[axis] > lows[axis] for axis in kept):
            axis = max(kept, key=lambda axis: kept[axis] / lows[axis])
            kept[axis] = max(kept[axis] // 2, lows[axis])
        if kept != sizes:
            self.reduced.append(
                f"golden {name} has the axes {kept} instead of {dict(sizes)}, which take too much"
                f" memory or time ({GOLDEN_MAX_BYTES >> 20} MiB, {GOLDEN_MAX_SECONDS} s)"
            )
        return kept

    def _costs_too_much(self, sizes: Mapping[str, int]) -> bool:
        counts = [
            math.prod(axis if isinstance(axis, int) else sizes[axis] for axis in spec.shape)
            for spec in self.spec.inputs
        ]
        bits = [torch.empty(0, dtype=getattr(torch, s.dtype)).itemsize for s in self.spec.inputs]
        size = sum(count * width for count, width in zip(counts, bits, strict=True))
        seconds = sum(counts) * self.seconds_per_element
        return size > GOLDEN_MAX_BYTES or seconds > GOLDEN_MAX_SECONDS

    def _answered(self, name: str, tensors: Sequence[torch.Tensor]) -> Golden:
        """The answer to these inputs. Raises ModelFileError where the module fails on them."""
        try:
            return self.answer(name, tensors)
        except (RuntimeError, IndexError) as error:
            shapes = ", ".join(
                f"{spec.name} {list(tensor.shape)}"
                for spec, tensor in zip(self.spec.inputs, tensors, strict=True)
            )
            raise ModelFileError(
                f"the original module fails on golden {name} ({shapes}): {_reason(error)}",
                where=str(self.spec.path),
                fix=(
                    "give inputs and dims that the module runs; a traced module may hold the sizes"
                    " that it was traced with"
                ),
            ) from error

    def golden(self, name: str, sizes: Mapping[str, int]) -> Golden:
        """With the first style that gives finite answers, else the first that gives any."""
        seed = zlib.crc32(f"{self.spec.name}/{name}".encode())
        fallback, failure = None, None
        for position, (style, numbers) in enumerate(self._drawn_from()):
            drawn = inputs.draw(self.spec.inputs, sizes, style, seed)
            try:
                golden = self.answer(name, self._with_numbers(drawn, numbers))
            except (RuntimeError, IndexError) as error:
                if failure is None or "out of range" in str(failure):  # ids that were too large
                    failure = error
                continue
            if is_finite(golden):
                # What worked once is tried first next time.
                self.styles.insert(0, self.styles.pop(position % len(self.styles)))
                return golden
            fallback = fallback or golden
        if fallback is None:
            raise self._failed(name, sizes, failure)
        return fallback

    def _drawn_from(self) -> list[tuple[inputs.Style, Mapping[str, Any]]]:
        """The styles, and numbers that are not drawn: an exported program has guards about the
        numbers among its arguments. Those that it was exported with fulfill them, or small ones
        where the axes are short.
        """
        fixed: list[Mapping[str, Any]] = [{}]
        numbers = self.module.numbers if isinstance(self.module, ExportedModule) else {}
        if numbers:
            small = [dict.fromkeys(numbers, value) for value in _SMALL_NUMBERS]
            fixed += [numbers, *small]
        return [(style, values) for values in fixed for style in self.styles]

    def _with_numbers(
        self, drawn: Sequence[torch.Tensor], numbers: Mapping[str, Any]
    ) -> list[torch.Tensor]:
        values = [numbers.get(spec.name or "") for spec in self.spec.inputs]
        return [
            tensor if value is None else torch.full_like(tensor, value)
            for tensor, value in zip(drawn, values, strict=True)
        ]

    def answer(self, name: str, tensors: Sequence[torch.Tensor]) -> Golden:
        sent = [self._received(t, s) for t, s in zip(tensors, self.spec.inputs, strict=True)]
        given = {
            s.name or f"input_{i}": to_numpy(t)
            for i, (s, t) in enumerate(zip(self.spec.inputs, sent, strict=True))
        }
        tensors = [
            t.to(getattr(torch, s.dtype)) for s, t in zip(self.spec.inputs, sent, strict=True)
        ]
        with _evaluating(self.module), torch.no_grad():
            outputs = self._outputs(self.module, tensors)
            if self.unoptimized is not None:
                with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
                    outputs = _corrected(outputs, self._outputs(self.unoptimized, tensors))
        names = self.names or _names(len(outputs))
        if len(names) != len(outputs):
            raise UsageError(
                f"the manifest names {len(names)} outputs, the module returns {len(outputs)}",
                where=place(self.spec, "outputs"),
            )
        answers = dict(zip(names, outputs, strict=True))
        present = {n: self._sent(n, t) for n, t in answers.items() if t is not None}
        return Golden(name, given, {n: to_numpy(t) for n, t in present.items()})

    def _outputs(self, module: Module, tensors: Sequence[torch.Tensor]) -> Outputs:
        """What the module returns for copies of the tensors; None where one of `paths` is None."""
        copies = [tensor.clone() for tensor in tensors]
        answer = call_module(module, self.spec.inputs, copies, self.spec.constants)
        if not self.paths:
            return [tensor for _, tensor in leaves(answer)]
        found = dict(leaves(answer))
        if unknown := found.keys() - set(self.paths):
            raise ModelFileError(
                f"the module returns {', '.join(sorted(unknown))}, and its graph has the outputs"
                f" {', '.join(self.paths)}"
            )
        return [found.get(path) for path in self.paths]

    def _received(self, tensor: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
        """An input as the endpoint takes it."""
        return narrow(tensor) if spec.name in self.spec.narrowed else tensor

    def _sent(self, name: str, answer: torch.Tensor) -> torch.Tensor:
        """An output as the endpoint gives it."""
        if self.spec.io != "fp16" or name in {state.output for state in self.spec.state}:
            return answer
        return narrow(answer, name)

    def _tensors(self, golden: Golden) -> list[torch.Tensor]:
        return [to_torch(array) for array in golden.inputs.values()]

    def _rows(self, golden: Golden) -> list[torch.Tensor]:
        """The first row of each tensor; state that the server keeps has its batch on any axis, or
        none.
        """
        pairs = zip(self.spec.inputs, self._tensors(golden), strict=True)
        return [
            t.narrow(s.shape.index(self.batch), 0, 1).contiguous() if self.batch in s.shape else t
            for s, t in pairs
        ]

    def _batch_like(self, profile: Profile) -> bool:
        return self.batch is not None and profile[self.batch][0] <= 1 < profile[self.batch][1]

    def _failed(
        self, name: str, sizes: Mapping[str, int], failure: Exception | None
    ) -> ModelFileError:
        return ModelFileError(
            f"the original module fails on every input that we drew for golden {name} (axes"
            f" {dict(sizes)}): {_reason(failure)}",
            where=str(self.spec.path),
            fix=(
                "give inputs of your own (manifest: goldens: FILE.npz), or fix dims and dtypes in"
                " the manifest"
            ),
        )


def _reason(failure: Exception | None) -> str:
    """The last line of torch's message, which has the cause."""
    return (str(failure).strip().splitlines() or [type(failure).__name__])[-1]


_WRITE = re.compile(r"= aten::[a-z]\w*[a-z0-9]_\(")
_TRACED_INTEGER = re.compile(r"value=\{-?\d+\}")
_COMPARISON = re.compile(r"= aten::(gt|ge|lt|le|eq|ne|is\w+|logical_\w+|any|all)\(")


def _optimizer_may_err(module: Module) -> bool:
    """Whether torch's graph optimizer may change the answers of a scripted or traced module.

    It drops some writes to elements of lists. It merges nested `cat` although an input is written
    in place in between. In a trace, a comparison times an integer stays bool. Python and the
    served graph do not. torch.autocast needs the optimizer, so such modules are left out.
    """
    if not isinstance(module, torch.jit.ScriptModule):
        return False
    graph: Any = module.inlined_graph
    text = str(graph)
    if "prim::Enter" in text:
        return False
    if _TRACED_INTEGER.search(text) and _COMPARISON.search(text):
        return True
    if not _WRITE.search(text):
        return False
    elements = graph.findAllNodes("aten::__getitem__", True)
    return (
        "prim::Loop" in text
        or "prim::If" in text
        or text.count("= aten::cat(") > 1
        or any(node.output().type().kind() == "TensorType" for node in elements)
    )


def _copy(module: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    """The module, saved and loaded, in evaluation mode."""
    file = io.BytesIO(module.save_to_buffer())
    return torch.jit.load(file).eval()  # type: ignore[no-untyped-call, no-any-return]


def _corrected(optimized: Outputs, plain: Outputs) -> Outputs:
    """The answers without the optimizer (`plain`) if they differ, else `optimized`.

    `plain` is cast to the dtypes of `optimized`, because constants of a trace have another dtype
    without the optimizer. Bool is the exception: there the dtype of `plain` is right.
    """
    corrected = [
        other if one is None or other is None or one.dtype == torch.bool else other.to(one.dtype)
        for one, other in zip(optimized, plain, strict=True)
    ]
    same = all(map(_nearly_equal, optimized, corrected))
    return optimized if same else corrected


def _nearly_equal(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    close = one.is_floating_point() and torch.allclose(
        one, other, rtol=1e-3, atol=1e-5, equal_nan=True
    )
    return close or torch.equal(one, other)


class _evaluating:
    """The module in evaluation mode, and afterwards as it was."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.trained = bool(getattr(module, "training", False))

    def __enter__(self) -> None:
        if self.trained:
            self.module.eval()

    def __exit__(self, *_: object) -> None:
        if self.trained:
            self.module.train()


def _dims(spec: ModelSpec) -> dict[str, tuple[int, int, int]]:
    return {name: span for tensor in spec.inputs for name, span in tensor.dims.items()}


def _names(count: int) -> tuple[str, ...]:
    return ("output",) if count == 1 else tuple(f"output_{index}" for index in range(count))
