"""Search goldens for branches, comparisons and bounds that the default goldens do not reach.

Values and sizes are varied from mild to extreme. A variation becomes a golden if it reaches a new
outcome, all outputs are finite, and rounding of the input does not change them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from builder.manifest import ModelSpec
from builder.parity import inputs
from builder.parity.arrays import to_torch
from builder.parity.calling import positional
from builder.parity.coverage import Coverage, Outcome
from builder.parity.structure import ListTooLong
from builder.parity.tolerances import limits
from builder.parity.work import Work
from builder.triton import Golden

MOST_TRIED = 64
"""Variations that are run before the search gives up."""
MOST_WORK = 10**11
"""Work of all variations together before the search ends early (see Work): about 20 s on one core.
It is counted, so the same model has the same goldens on every machine.
"""
MOST_ADDED = 6
"""Goldens that are added; each one costs time at every later comparison."""
LARGEST = {"fp32": 4096.0, "tf32": 4096.0, "fp16": 64.0, "bf16": 64.0}
"""The largest scale or offset of an input by precision: half overflows at 65504, and products of
inputs reach that long before. Precisions of 8 bits are not listed: beyond their calibrated ranges
values saturate, so no golden is added.
"""
_ROUNDING = 2.0**-20
"""The relative change of an input that must not change the outputs: eight float32 ulps. Layers
round as well, so the change is larger than the rounding of an input alone.
"""
_SHARE = 0.25
"""The share of the tolerance that such a change may use. Another order of additions in every layer
has an error of the same size as the change; the rest of the tolerance is left for it.
"""
_NUDGES = 3
"""The number of changes that are tried, each with a random sign for each element. A change of all
elements by one factor is invisible in networks that are linear in scale.
"""

Record = Callable[[str, Sequence[torch.Tensor]], Golden]


@dataclass(eq=False)
class GoldenSearch:
    """Which outcomes of a module the recorded goldens reach, and goldens for the others."""

    module: Any
    spec: ModelSpec
    record: Record
    optional: Collection[str] = ()

    def __post_init__(self) -> None:
        self.coverage = Coverage(self.module, self._ranks())
        self.work = Work(MOST_WORK)
        self.tried = 0
        self.present: set[tuple[str, bool]] = set()
        """(output, whether it is a tensor) of the goldens, where outputs may be None."""

    def _ranks(self) -> dict[int, int]:
        """By position of an argument of forward that is a tensor: its rank in every request."""
        specs = self.spec.inputs
        examples = [
            torch.zeros((1,) * len(tensor.shape), dtype=getattr(torch, tensor.dtype))
            for tensor in specs
        ]
        arguments = positional(self.module, specs, examples, self.spec.constants) or ()
        return {
            index: argument.dim()
            for index, argument in enumerate(arguments)
            if isinstance(argument, torch.Tensor)
        }

    def note(self, golden: Golden) -> None:
        """Record the outcomes that a golden reaches."""
        self.present |= self._presence(golden)
        if self.coverage.unreached:
            tensors = [to_torch(array) for array in golden.inputs.values()]
            self.coverage.reached |= self._reached(tensors)

    def _presence(self, golden: Golden) -> set[tuple[str, bool]]:
        return {(name, name in golden.outputs) for name in self.optional}

    @property
    def unseen(self) -> tuple[tuple[str, bool], ...]:
        """(output, True) if no golden has a tensor for it, (output, False) if none has None."""
        both = (
            (name, is_tensor) for name in self.optional for is_tensor in (True, False)
        )
        return tuple(pair for pair in both if pair not in self.present)

    @property
    def _is_incomplete(self) -> bool:
        """Whether a further golden could show something new."""
        return bool(self.coverage.unreached or self.unseen)

    @property
    def unreached(self) -> tuple[Outcome, ...]:
        """The outcomes that no golden reaches, in program order."""
        return tuple(self.coverage.unreached)

    @property
    def warnings(self) -> tuple[str, ...]:
        """A warning if the search ended early, at its limit of work."""
        if not (self.work.exceeded and self._is_incomplete):
            return ()
        return (
            f"the search for goldens of branches and bounds ended after {self.tried} of up to"
            f" {MOST_TRIED} variations of the inputs, because the model takes too long; add"
            " inputs of your own (manifest: goldens: FILE.npz)",
        )

    def more(self, base: Golden, sizes: Mapping[str, int]) -> Iterator[Golden]:
        """Goldens that reach new outcomes, named `p0-reach<n>`; `base` is the golden of the first
        profile's `sizes`, whose values are varied.
        """
        largest = LARGEST.get(self.spec.precision)
        if largest is None or not self._is_incomplete:
            return
        added = 0
        for tensors in self._variations(base, sizes, largest):
            if self.tried == MOST_TRIED or added == MOST_ADDED:
                return
            if self.work.exceeded or not self._is_incomplete:
                return
            self.tried += 1
            golden = self._useful(f"p0-reach{added}", tensors)
            if golden is not None:
                added += 1
                yield golden

    def _variations(
        self, base: Golden, sizes: Mapping[str, int], largest: float
    ) -> Iterator[list[torch.Tensor]]:
        tensors = [to_torch(array) for array in base.inputs.values()]
        yield from self._other_sizes(tensors, sizes)
        yield from inputs.variations(tensors, self.coverage.constants, largest)

    def _other_sizes(
        self, tensors: Sequence[torch.Tensor], sizes: Mapping[str, int]
    ) -> Iterator[list[torch.Tensor]]:
        """Values of the same kind at sizes close to the integers that the module compares with."""
        profile = self.spec.profiles[0] if self.spec.profiles else {}
        for axis, (low, _, high) in profile.items():
            near = {size + step for size in self.coverage.sizes for step in (-1, 0, 1)}
            for size in sorted(near):
                if low <= size <= high and size != sizes.get(axis):
                    yield self._resized(tensors, {**sizes, axis: size}, sizes)

    def _resized(
        self,
        tensors: Sequence[torch.Tensor],
        target_sizes: Mapping[str, int],
        sizes: Mapping[str, int],
    ) -> list[torch.Tensor]:
        """The tensors repeated or sliced to the requested sizes."""
        resized = []
        for tensor, spec in zip(tensors, self.spec.inputs, strict=True):
            for axis, name in enumerate(spec.shape):
                if isinstance(name, str) and target_sizes[name] != sizes.get(name):
                    index = torch.arange(target_sizes[name]) % max(
                        tensor.shape[axis], 1
                    )
                    tensor = tensor.index_select(axis, index)
            resized.append(tensor)
        return resized

    def _useful(self, name: str, tensors: list[torch.Tensor]) -> Golden | None:
        """The golden of these tensors, if it reaches a new outcome and is stable in float32."""
        try:
            with self.work:
                reached = self._reached(tensors) - self.coverage.reached
            if not (reached or self.unseen):
                return None
            golden = self.record(name, tensors)
            if not (reached or self._presence(golden) - self.present):
                return None
            if not (is_finite(golden) and self._is_stable(golden, tensors)):
                return None
        except (RuntimeError, IndexError, torch.jit.Error, ListTooLong):
            return None
        self.coverage.reached |= reached
        self.present |= self._presence(golden)
        return golden

    def _is_stable(self, golden: Golden, tensors: list[torch.Tensor]) -> bool:
        """Whether inputs that differ only by rounding have the same outputs."""
        generator = torch.Generator().manual_seed(0)
        for _ in range(_NUDGES):
            nudged = [
                _nudged(tensor, generator) if tensor.is_floating_point() else tensor
                for tensor in tensors
            ]
            second = self.record(golden.name, nudged)
            if second.outputs.keys() != golden.outputs.keys():
                return False
            for name, array in golden.outputs.items():
                if not self._nearly(second.outputs[name], array):
                    return False
        return True

    def _nearly(self, second: NDArray[Any], array: NDArray[Any]) -> bool:
        """Whether the outputs after a change of the inputs are within _SHARE of the tolerance."""
        if second.shape != array.shape:
            return False
        if not np.issubdtype(array.dtype, np.floating):
            return bool((second == array).all())
        rtol, atol = limits(array, str(array.dtype), self.spec.tolerance, "fp32")
        return np.allclose(second, array, rtol=rtol * _SHARE, atol=atol * _SHARE)

    def _reached(self, tensors: Sequence[torch.Tensor]) -> set[Outcome]:
        specs = self.spec.inputs
        copies = [
            tensor.to(getattr(torch, tensor_spec.dtype), copy=True)
            for tensor_spec, tensor in zip(specs, tensors, strict=True)
        ]
        arguments = positional(self.module, specs, copies, self.spec.constants)
        if arguments is None:
            return set()
        try:
            return self.coverage.run(arguments)
        except (RuntimeError, IndexError, torch.jit.Error):
            return set()


def _nudged(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The tensor with each element changed by _ROUNDING upwards or downwards."""
    signs = torch.randint(0, 2, tensor.shape, generator=generator) * 2 - 1
    return tensor * (1 + signs * _ROUNDING)


def is_finite(golden: Golden) -> bool:
    """Whether no output of the golden has an infinity or NaN."""
    return all(
        np.isfinite(array.astype(np.float64)).all() for array in golden.outputs.values()
    )
