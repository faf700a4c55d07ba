"""Record goldens: the outputs of the unchanged original module, on the CPU."""

from __future__ import annotations

import contextlib
import io
import math
import re
import time
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from builder.errors import ModelFileError, TrtBuildError, UsageError
from builder.frontends import ExportedModule
from builder.lowering import (
    CachedAttribute,
    constants_to_numbers,
    evaluating,
    reset,
)
from builder.manifest import (
    ModelSpec,
    Profile,
    TensorSpec,
    axis_ranges,
    manifest_location,
    shared_first_axis,
)
from builder.parity import inputs, omitted, sequences, targets
from builder.parity.arrays import narrow, to_numpy, to_torch
from builder.parity.calling import call_module
from builder.parity.coverage import Outcome
from builder.parity.golden_search import GoldenSearch, is_finite
from builder.parity.rows import Rows, Sets
from builder.parity.structure import ListTooLong, check_lengths, leaves, length_of
from builder.parity.user_inputs import user_inputs
from builder.triton import ROLLED, Golden, moved

GOLDEN_MAX_BYTES = 64 << 20
GOLDEN_MAX_SECONDS = 60
MEASURABLE_SECONDS = 2.0
"""Maximum memory of one golden's inputs, and maximum time of the module for it. Larger sizes are
reduced, with a warning, because every later step runs each golden again.
"""
MOST_OF_DATA = 4
"""Maximum number of additional goldens with rows of the data that the others do not have."""
_SMALL_NUMBERS = (2, 1)
SHOWN_BRANCHES = 5
"""Maximum number of conditions that are reported by name. Large scripted models have hundreds that
depend only on static sizes.
"""
FAILURES = (RuntimeError, IndexError, torch.jit.Error)
"""Errors of a module for inputs that it does not support. The last is an `assert` or `raise` in a
script.
"""
Module = Any
"""A torch.jit.ScriptModule, or any callable on tensors."""
Outputs = list[torch.Tensor | None]


def record(
    module: Module, spec: ModelSpec, output_names: Sequence[str] | None = None
) -> tuple[Golden, ...]:
    """Record the module's outputs for random inputs, seeded by the model's name, at the opt, min,
    max and an odd size of each profile, and for the user's npz.

    For a model with state, also record whole sequences (see sequences). If the first axis looks
    like a batch, "p<i>-row" is the first row of the opt golden alone, which shows whether rows
    depend on each other. "p0-without-<name>" leaves out an optional input. Goldens named
    "p0-reach<n>" reach branches, comparisons and bounds that the others do not. Nested outputs are
    flattened in order and named `output_names`, else `spec.outputs`, else output, or output_0,
    output_1, ... Raises ModelFileError if the module fails on all generated inputs, or returns
    values other than tensors.
    """
    return record_goldens(module, spec, output_names).goldens


@dataclass(frozen=True)
class Recording:
    """The goldens of a module, and the branches, comparisons and bounds that they do not reach.

    `reduced` has a line for each golden that is smaller than its profile's size, for each default
    that differs from forward's own, and for a search that ended early.
    """

    goldens: tuple[Golden, ...]
    unreached: tuple[Outcome, ...] = ()
    reduced: tuple[str, ...] = ()
    unseen: tuple[tuple[str, bool], ...] = ()
    """For outputs that may be None: (output, True) if no golden has a tensor for it, (output,
    False) if none has None.
    """

    @property
    def warnings(self) -> tuple[str, ...]:
        """One warning for each condition with a branch that no golden takes, so that it was never
        compared. Conditions after the first SHOWN_BRANCHES share one warning. Reduced goldens have
        one warning each, and so has an output that is None in all goldens or in none.
        """
        missing: dict[str, list[str]] = {}
        for outcome in self.unreached:
            if outcome.is_branch:
                missing.setdefault(outcome.location, []).append(outcome.which)
        unreached = [
            f"no golden reaches {location}: {' or '.join(sorted(set(which)))}; add inputs that do"
            " (manifest: goldens: FILE.npz)"
            for location, which in missing.items()
        ]
        if len(unreached) > SHOWN_BRANCHES:
            more = len(unreached) - SHOWN_BRANCHES
            unreached[SHOWN_BRANCHES:] = [
                f"no golden reaches branches of {more} more conditions"
            ]
        absent = (_unseen_warning(name, is_tensor) for name, is_tensor in self.unseen)
        return (*self.reduced, *absent, *unreached)

    def warnings_of(self, locations: Collection[str]) -> tuple[str, ...]:
        """The warnings of branches at these source locations. Other branches are not in the served
        model: static shapes, types or arguments decide them.
        """
        lines = {location.partition(", near ")[0] for location in locations}
        served = [
            outcome
            for outcome in self.unreached
            if outcome.where.partition(", near ")[0] in lines
        ]
        return replace(self, unreached=tuple(served)).warnings


def _unseen_warning(name: str, is_tensor: bool) -> str:
    """The warning about an output that is a tensor in no golden (`is_tensor` True), or in
    all of them.
    """
    if is_tensor:
        return (
            f"output {name!r} is None in every golden, so its dtype and shape are unknown. The "
            "endpoint does not have it, and a request for which it is a tensor fails. Add inputs "
            "for which it is a tensor (manifest: goldens: FILE.npz)"
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
    cached_attributes: Sequence[CachedAttribute] = (),
    data: Sets = (),
) -> Recording:
    """The goldens of `record`, with the unreached outcomes. `optional` are the outputs that may be
    None; if there are any, `paths` are lowering's names of all outputs, in order. A golden omits
    outputs that are None. `cached_attributes` are reset before each call of the module.

    With `data`, sets of tensors of the spec's inputs, their rows are the inputs instead of random
    values. Goldens named "p0-data<n>" have rows that the others lack.
    """
    names = tuple(output_names or spec.outputs or ())
    recorder = _Recorder(module, spec, names, tuple(paths), optional, data)
    recorder.cached_attributes = tuple(cached_attributes)
    goldens = tuple(recorder.all())
    search = recorder.search
    reduced = (*recorder.reduced, *_left_out(recorder.left_out), *search.warnings)
    return Recording(goldens, search.unreached, reduced, search.unseen)


def _left_out(reasons: Mapping[str, str]) -> Iterator[str]:
    """A line about the goldens that are left out."""
    if reasons:
        yield (
            f"the original module fails on all drawn inputs for the goldens {', '.join(reasons)}"
            f" ({next(iter(reasons.values()))}). They are left out: only your own inputs are"
            " compared (manifest: goldens)"
        )


def example(module: Module, spec: ModelSpec) -> tuple[torch.Tensor, ...]:
    """Inputs of the first golden: at the optimum of the first profile, and accepted by the module.

    Raises ModelFileError if the module fails on all generated inputs.
    """
    recorder = _Recorder(module, spec, ())
    golden = next(recorder.all())
    pairs = zip(spec.inputs, recorder._tensors(golden), strict=True)
    return tuple(
        tensor.to(getattr(torch, tensor_spec.dtype)) for tensor_spec, tensor in pairs
    )


def list_lengths(module: Module, spec: ModelSpec, name: str) -> list[int]:
    """The lengths of the list `name` in the module's outputs for generated inputs. Empty if the
    module fails on them.
    """
    try:
        goldens = record(module, replace(spec, outputs=None, max_lengths={}, state=()))
    except TrtBuildError:
        return []
    lengths = []
    for golden in goldens:
        tensors = [to_torch(array) for array in golden.inputs.values()]
        with evaluating(module), torch.no_grad():
            output = call_module(module, spec.inputs, tensors, spec.constants)
        lengths.append(length_of(dict(leaves(output)), name))
    return lengths


class _Recorder:
    """Caches the style of values that the module accepted, so that one search serves all
    goldens.
    """

    def __init__(
        self,
        module: Module,
        spec: ModelSpec,
        names: tuple[str, ...],
        paths: tuple[str, ...] = (),
        optional: Collection[str] = (),
        data: Sets = (),
    ) -> None:
        self.module = module
        self.spec = spec
        self.rows = Rows(spec.inputs, data, zlib.crc32(spec.name.encode()))
        self.names = names
        self.paths = paths
        operators = str(_graph(module))
        self.styles = list(inputs.styles(spec, offsets="embedding_bag(" in operators))
        self.has_targets = "ctc_loss(" in operators
        self.batch = shared_first_axis(
            spec.stateless_inputs if spec.server_state else spec.inputs
        )
        self.reduced: list[str] = []
        self.seconds_per_element = 0.0
        self.cached_attributes: tuple[CachedAttribute, ...] = ()
        self.left_out: dict[str, str] = {}
        """The goldens that are left out because the module fails on generated inputs, with the
        reasons.
        """
        # a copy, because the first call of a module fixes whether its graph is optimized
        self.unoptimized = _copy(module) if _optimizer_may_err(module) else None
        with evaluating(module):
            self.search = GoldenSearch(module, spec, self.record, optional)

    def all(self) -> Iterator[Golden]:
        """The default goldens and the user's, then those for unreached outcomes."""
        opt: Golden | None = None
        for golden in self._of_profiles_and_user():
            opt = opt or golden
            self.search.note(golden)
            yield golden
        if opt is not None:
            yield from self._with_inputs_left_out(opt)
        if opt is not None and not self.spec.state:
            profile = {
                **axis_ranges(self.spec.inputs),
                **(self.spec.profiles or ({},))[0],
            }
            yield from self.search.more(opt, inputs.sizes_of(profile)["opt"])

    def _with_inputs_left_out(self, opt: Golden) -> Iterator[Golden]:
        """Goldens that leave out optional inputs. A line in `reduced` where the module's own
        default gives other outputs than the manifest's.
        """
        for name, left_out, tensors in omitted.variants(self.spec, self._tensors(opt)):
            golden = replace(self._recorded(name, tensors), omitted=left_out)
            if len(left_out) == 1:
                reset(self.module, self.cached_attributes)
                with evaluating(self.module):
                    warning = omitted.other_default(self.module, self.spec, golden)
                if warning:
                    self.reduced.append(warning)
            self.search.note(golden)
            yield golden

    def _of_profiles_and_user(self) -> Iterator[Golden]:
        for index, profile in enumerate(self.spec.profiles or ({},)):
            merged = {**axis_ranges(self.spec.inputs), **profile}
            batches: list[Golden] = []
            for kind, sizes in inputs.sizes_of(merged).items():
                name = f"p{index}-{kind}"
                started = time.monotonic()
                golden = self._drawn(name, sizes, merged)
                if golden is None:
                    continue
                self._measured(golden, time.monotonic() - started)
                yield golden
                if (
                    kind in ("opt", "max")
                    and self._batch_like(merged)
                    and self._count(golden) > 1
                ):
                    if not batches:
                        yield self._recorded(f"p{index}-row", self._rows(golden))
                    batches.append(golden)
            if batches:
                yield from self._rolled(f"p{index}", batches[-1])
        yield from self._of_data()
        yield from sequences.record(self.spec, self.record, self._request)
        for name, left_out, tensors in user_inputs(self.spec):
            golden = replace(self._recorded(name, tensors), omitted=left_out)
            yield golden
            if self.left_out and self._count(golden) > 1:
                yield self._recorded(f"{name}-row", self._rows(golden))
                yield from self._rolled(name, golden)

    def _of_data(self) -> Iterator[Golden]:
        """Goldens at the first profile's optimum with rows that the others lack."""
        profile = {**axis_ranges(self.spec.inputs), **(self.spec.profiles or ({},))[0]}
        sizes = inputs.sizes_of(profile)["opt"]
        for number in range(MOST_OF_DATA):
            if self.rows.used >= self.rows.count:
                return
            golden = self._drawn(f"p0-data{number}", sizes, profile)
            if golden is not None:
                yield golden

    def _drawn(
        self, name: str, sizes: Mapping[str, int], profile: Profile
    ) -> Golden | None:
        """The golden of these sizes. None, with a line in `reduced`, if the module fails on all
        generated inputs and the user's inputs are sufficient.
        """
        try:
            return self.golden(
                name, self._allowed(self._affordable(name, sizes, profile), profile)
            )
        except ModelFileError as error:
            if isinstance(error, ListTooLong):
                raise
            reason = error.message.rpartition("): ")[2]
            if self._user_shows(profile):
                self.left_out[name] = reason
                return None
            if name.endswith("-odd"):
                return self._divisible(name, sizes, profile, reason)
            raise

    def _divisible(
        self, name: str, sizes: Mapping[str, int], profile: Profile, reason: str
    ) -> Golden | None:
        """The golden at sizes with the divisor that min, opt and max of an axis share, with a line
        in `reduced`: some modules accept only multiples of a size. None if it fails at these too.
        """
        divisible = {
            axis: inputs.odd(span, math.gcd(*span) or 1)
            for axis, span in profile.items()
        }
        golden = None
        if divisible != sizes:
            with contextlib.suppress(ModelFileError):
                golden = self.golden(name, self._allowed(divisible, profile))
        instead = f"golden {name} is left out"
        if golden:
            instead = f"golden {name} has {divisible} instead"
        self.reduced.append(
            f"the original module fails at {dict(sizes)} ({reason}), so requests of such"
            f" sizes fail too, or get a response although the module raises; {instead};"
            " declare sizes that the module accepts"
        )
        return golden

    def _rolled(self, name: str, golden: Golden) -> Iterator[Golden]:
        """The golden with its rows in another order, if the outputs do not move with the rows: then
        the output of a row depends on its position.
        """
        rolled = []
        pairs = zip(self.spec.inputs, self._tensors(golden), strict=True)
        for tensor_spec, tensor in pairs:
            if self.batch in tensor_spec.shape:
                tensor = tensor.roll(1, tensor_spec.shape.index(self.batch))
            rolled.append(tensor)
        try:
            output = self.record(f"{name}{ROLLED}", rolled)
        except (*FAILURES, ListTooLong):  # such as rows that must be sorted by length
            return
        state_outputs = {state.output for state in self.spec.state}
        if moved(golden, output, self._count(golden), state_outputs):
            yield output

    def _user_shows(self, profile: Profile) -> bool:
        """Whether the user has sufficient inputs for the profile: more than one row if requests may
        be batched.
        """
        if self.spec.state:
            return False
        one_row = self._batch_like(profile)
        return any(
            not one_row or self._count(tensors) > 1
            for *_, tensors in user_inputs(self.spec)
        )

    def _count(self, golden: Golden | Sequence[torch.Tensor]) -> int:
        """The number of rows of the inputs."""
        tensors = self._tensors(golden) if isinstance(golden, Golden) else golden
        for spec, tensor in zip(self.spec.inputs, tensors, strict=True):
            if self.batch in spec.shape:
                return tensor.shape[spec.shape.index(self.batch)]
        return 1

    def _allowed(self, sizes: Mapping[str, int], profile: Profile) -> Mapping[str, int]:
        """The sizes, or the nearest valid ones if an exported program relates its axes."""
        if not isinstance(self.module, ExportedModule):
            return sizes
        relations = self.module.axes.relations(self.spec.inputs)
        spans = {axis: (span[0], span[2]) for axis, span in profile.items()}
        return relations.nearest(sizes, spans)

    def _measured(self, golden: Golden, seconds: float) -> None:
        """Record the time of a golden.

        A short time is mostly overhead, which does not grow with the inputs.
        """
        if seconds >= MEASURABLE_SECONDS:
            elements = sum(array.size for array in golden.inputs.values())
            self.seconds_per_element = seconds / max(elements, 1)

    def _affordable(
        self, name: str, sizes: Mapping[str, int], profile: Profile
    ) -> Mapping[str, int]:
        """The sizes, with the largest dynamic axis halved until the inputs have at most
        GOLDEN_MAX_BYTES and the estimated time, from that of the previous golden, is within
        GOLDEN_MAX_SECONDS.
        """
        lows = {axis: max(span[0], 1) for axis, span in profile.items()}
        affordable = dict(sizes)
        while self._costs_too_much(affordable):
            if all(affordable[axis] <= lows[axis] for axis in affordable):
                break
            axis = max(affordable, key=lambda axis: affordable[axis] / lows[axis])
            affordable[axis] = max(affordable[axis] // 2, lows[axis])
        if affordable != sizes:
            self.reduced.append(
                f"golden {name} has the axes {affordable} instead of {dict(sizes)}, which take too"
                f" much memory or time ({GOLDEN_MAX_BYTES >> 20} MiB, {GOLDEN_MAX_SECONDS} s)"
            )
        return affordable

    def _costs_too_much(self, sizes: Mapping[str, int]) -> bool:
        elements = 0
        size = 0
        for tensor_spec in self.spec.inputs:
            count = math.prod(tensor_spec.sized(sizes))
            dtype = getattr(torch, tensor_spec.dtype)
            elements += count
            size += count * torch.empty(0, dtype=dtype).itemsize
        seconds = elements * self.seconds_per_element
        return size > GOLDEN_MAX_BYTES or seconds > GOLDEN_MAX_SECONDS

    def _recorded(self, name: str, tensors: Sequence[torch.Tensor]) -> Golden:
        """The outputs for these inputs. Raises ModelFileError if the module fails on them."""
        try:
            return self.record(name, tensors)
        except FAILURES as error:
            shapes = ", ".join(
                f"{spec.name} {list(tensor.shape)}"
                for spec, tensor in zip(self.spec.inputs, tensors, strict=True)
            )
            raise ModelFileError(
                f"the original module fails on golden {name} ({shapes}): {_reason(error)}",
                where=str(self.spec.path),
                fix=f"give inputs and dims that the module runs{_BAKED}",
            ) from error

    def golden(self, name: str, sizes: Mapping[str, int]) -> Golden:
        """The golden of the next rows of the data, if the module accepts them, else of drawn
        values.
        """
        rows = self.rows.take(sizes)
        return self._of_rows(name, rows) or self._of_styles(name, sizes, rows)

    def _of_styles(
        self, name: str, sizes: Mapping[str, int], rows: Mapping[str, torch.Tensor]
    ) -> Golden:
        """The golden with the first style that has finite outputs, else with the first that
        runs. Floats are those of the rows, if there are any.
        """
        seed = zlib.crc32(f"{self.spec.name}/{name}".encode())
        floats = {key: row for key, row in rows.items() if row.is_floating_point()}
        fallback = None
        failure = None
        for position, (style, numbers) in enumerate(self._drawn_from()):
            drawn = self._drawn_with(floats, self.spec.inputs, sizes, style, seed)
            try:
                golden = self.record(name, self._with_numbers(drawn, numbers))
            except (*FAILURES, ListTooLong) as error:
                if failure is None or "out of range" in str(failure):
                    # ids were too large
                    failure = error
                continue
            if is_finite(golden):
                # The accepted style is tried first next time. Ids that are all zero are for axes
                # of one element, and other goldens may have more.
                if style.ids > 1:
                    self.styles.insert(0, self.styles.pop(position % len(self.styles)))
                return golden
            fallback = fallback or golden
        if fallback is None:
            if isinstance(failure, ListTooLong):
                raise failure
            raise self._failed(name, sizes, failure)
        return fallback

    def _of_rows(self, name: str, rows: Mapping[str, torch.Tensor]) -> Golden | None:
        """The golden of these inputs; None if there are none, or without finite outputs."""
        if rows:
            with contextlib.suppress(*FAILURES, ListTooLong):
                golden = self.record(name, list(rows.values()))
                if is_finite(golden):
                    return golden
        return None

    def _request(
        self, specs: Sequence[TensorSpec], sizes: Mapping[str, int], seed: int
    ) -> list[torch.Tensor]:
        """The next rows of the data, else random values of the accepted style."""
        rows = self.rows.take(sizes)
        return self._drawn_with(rows, specs, sizes, self.styles[0], seed)

    @staticmethod
    def _drawn_with(
        known: Mapping[str, torch.Tensor],
        specs: Sequence[TensorSpec],
        sizes: Mapping[str, int],
        style: inputs.Style,
        seed: int,
    ) -> list[torch.Tensor]:
        """The known tensors by input name, and random values for the other inputs."""
        drawn = inputs.draw(specs, sizes, style, seed)
        return [
            known.get(str(spec.name), tensor)
            for spec, tensor in zip(specs, drawn, strict=True)
        ]

    def _drawn_from(self) -> list[tuple[inputs.Style, Mapping[str, Any]]]:
        """The styles, each with numeric arguments that are not random, because an exported program
        has guards on them.

        The values of the export satisfy the guards, or small values if the axes are short.
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

    def record(self, name: str, tensors: Sequence[torch.Tensor]) -> Golden:
        sent = [
            self._received(tensor, tensor_spec)
            for tensor, tensor_spec in zip(tensors, self.spec.inputs, strict=True)
        ]
        arrays = {
            tensor_spec.name or f"input_{index}": to_numpy(tensor)
            for index, (tensor_spec, tensor) in enumerate(
                zip(self.spec.inputs, sent, strict=True)
            )
        }
        tensors = [
            tensor.to(getattr(torch, tensor_spec.dtype))
            for tensor_spec, tensor in zip(self.spec.inputs, sent, strict=True)
        ]
        with evaluating(self.module), torch.no_grad():
            outputs = self._outputs(name, self.module, tensors)
            if self.unoptimized is not None:
                with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
                    outputs = _corrected(
                        outputs, self._outputs(name, self.unoptimized, tensors)
                    )
        return Golden(name, arrays, self._answers(outputs))

    def _answers(self, outputs: Outputs) -> dict[str, NDArray[Any]]:
        """The outputs that are not None, by name, as the endpoint returns them."""
        names = self.names or _names(len(outputs))
        if len(names) != len(outputs):
            raise UsageError(
                f"the manifest names {len(names)} outputs, the module returns {len(outputs)}",
                where=manifest_location(self.spec, "outputs"),
                fix="write one name for each output, or remove `outputs` for default names",
            )
        results = dict(zip(names, outputs, strict=True))
        present = {
            output: self._at_endpoint(output, tensor)
            for output, tensor in results.items()
            if tensor is not None
        }
        return {output: to_numpy(tensor) for output, tensor in present.items()}

    def _outputs(
        self, golden: str, module: Module, tensors: Sequence[torch.Tensor]
    ) -> Outputs:
        """The module's outputs for copies of the tensors. An output in `paths` may be None.

        Raises ListTooLong if a list is longer than the manifest declares.
        """
        copies = [tensor.clone() for tensor in tensors]
        reset(module, self.cached_attributes)
        with targets.Checked() if self.has_targets else contextlib.nullcontext():
            output = call_module(module, self.spec.inputs, copies, self.spec.constants)
        if not self.paths:
            return [tensor for _, tensor in leaves(output)]
        tensors_by_path = dict(leaves(output))
        check_lengths(tensors_by_path, self.spec.max_lengths, golden)
        if unknown := tensors_by_path.keys() - set(self.paths):
            raise ModelFileError(
                f"the module returns {', '.join(sorted(unknown))}, and its graph has the outputs"
                f" {', '.join(self.paths)}"
            )
        return [tensors_by_path.get(path) for path in self.paths]

    def _received(self, tensor: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
        """An input in the endpoint's dtype."""
        if spec.name in self.spec.narrowed:
            return narrow(tensor)
        return tensor

    def _at_endpoint(self, name: str, output: torch.Tensor) -> torch.Tensor:
        """An output in the endpoint's dtype. Raises ModelFileError for complex numbers."""
        if output.is_complex():
            dtype = str(output.dtype).removeprefix("torch.")
            raise ModelFileError(
                f"output {name!r} is {dtype}, and Triton has no complex numbers",
                where=str(self.spec.path),
                fix="return torch.view_as_real of it",
            )
        is_state = any(state.output == name for state in self.spec.state)
        if self.spec.io != "fp16" or is_state:
            return output
        return narrow(output, name)

    def _tensors(self, golden: Golden) -> list[torch.Tensor]:
        return [to_torch(array) for array in golden.inputs.values()]

    def _rows(self, golden: Golden) -> list[torch.Tensor]:
        """The first row of each tensor. State that the server keeps has its batch on any axis, or
        none.
        """
        rows = []
        pairs = zip(self.spec.inputs, self._tensors(golden), strict=True)
        for tensor_spec, tensor in pairs:
            if self.batch in tensor_spec.shape:
                axis = tensor_spec.shape.index(self.batch)
                tensor = tensor.narrow(axis, 0, 1).contiguous()
            rows.append(tensor)
        return rows

    def _batch_like(self, profile: Profile) -> bool:
        return (
            self.batch is not None
            and profile[self.batch][0] <= 1 < profile[self.batch][2]
        )

    @property
    def _rows_needed(self) -> str:
        """How many rows the user's inputs must have: they show whether rows are independent."""
        profile = {**axis_ranges(self.spec.inputs), **(self.spec.profiles or ({},))[0]}
        return " with two rows or more" if self._batch_like(profile) else ""

    def _failed(
        self, name: str, sizes: Mapping[str, int], failure: Exception | None
    ) -> ModelFileError:
        return ModelFileError(
            f"the original module fails on all random inputs for golden {name} (axes"
            f" {dict(sizes)}): {_reason(failure)}",
            where=str(self.spec.path),
            fix=(
                f"correct the shapes, dims and dtypes in the manifest{_named(self.spec.manifest)},"
                f" or give inputs of your own{self._rows_needed} (manifest: goldens: FILE.npz)"
                f"{_BAKED if 'size' in str(failure) else ''}"
            ),
        )


_BAKED = "; a traced module may hold the sizes that it was traced with"


def _named(manifest: Path | None) -> str:
    """The path of the manifest after a space, or nothing for a model without one."""
    return "" if manifest is None else f" {manifest}"


def _reason(failure: Exception | None) -> str:
    """The last line of torch's message, which has the cause, without a list of operators that were
    expected.
    """
    text = str(failure).partition("\nCandidates:")[0].strip()
    return (text.splitlines() or [type(failure).__name__])[-1]


_WRITE = re.compile(r"= aten::[a-z]\w*[a-z0-9]_\(")
_TRACED_INTEGER = re.compile(r"value=\{-?\d+\}")
_COMPARISON = re.compile(r"= aten::(gt|ge|lt|le|eq|ne|is\w+|logical_\w+|any|all)\(")


def _graph(module: Module) -> Any:
    """The graph with those of submodules; None of a callable that has none."""
    if isinstance(module, ExportedModule):
        return module.graph
    return getattr(module, "inlined_graph", None)


def _optimizer_may_err(module: Module) -> bool:
    """Whether torch's graph optimizer may change the outputs of a scripted or traced module.

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
    elements = graph.findAllNodes("aten::__getitem__")
    return (
        "prim::Loop" in text
        or "prim::If" in text
        or text.count("= aten::cat(") > 1
        or any(node.output().type().kind() == "TensorType" for node in elements)
    )


def _copy(module: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    """The module, saved and loaded, in evaluation mode. Its constants are numbers where torch's
    optimizer reads them as numbers: 200 in uint8 times 2 is 144, not 400.
    """
    file = io.BytesIO(module.save_to_buffer())
    copy = torch.jit.load(file).eval()  # type: ignore[no-untyped-call]
    for inner in copy.modules():
        for method in inner._c._method_names():
            constants_to_numbers(inner._c._get_method(method).graph)
    return copy  # type: ignore[no-any-return]


def _corrected(optimized: Outputs, plain: Outputs) -> Outputs:
    """The outputs without the optimizer (`plain`) if they differ, else `optimized`.

    `plain` is cast to the dtypes of `optimized`, because constants of a trace have another dtype
    without the optimizer. Bool is the exception: there the dtype of `plain` is correct.
    """
    corrected = []
    for fast, exact in zip(optimized, plain, strict=True):
        if fast is not None and exact is not None and fast.dtype != torch.bool:
            exact = exact.to(fast.dtype)
        corrected.append(exact)
    same = all(map(_nearly_equal, optimized, corrected))
    return optimized if same else corrected


def _nearly_equal(left: torch.Tensor | None, right: torch.Tensor | None) -> bool:
    if left is None or right is None:
        return left is right
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    close = left.is_floating_point() and torch.allclose(
        left, right, rtol=1e-3, atol=1e-5, equal_nan=True
    )
    return close or torch.equal(left, right)


def _names(count: int) -> tuple[str, ...]:
    if count == 1:
        return ("output",)
    return tuple(f"output_{index}" for index in range(count))
