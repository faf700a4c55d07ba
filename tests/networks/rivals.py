"""Torch's outputs in a reduced precision: the measure for networks that amplify roundings."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch

from tests.networks.comparing import flat

Inputs = Sequence[torch.Tensor]
Answers = list[list[torch.Tensor]]


UNITS = {"fp32": 2.0**-24, "tf32": 2.0**-11, "fp16": 2.0**-11}
"""The largest relative change of a number by one rounding to nearest."""
DRAWS = 6


def variants(
    module: torch.nn.Module, cases: Sequence[Inputs], precision: str
) -> tuple[str, list[Answers]]:
    """Return what computed the outputs, and several sets of outputs of the cases. Floats are
    float32.

    The first set is torch in that precision. For fp32 it is float64 on the CPU, because torch in
    float32 is the expected output. For tf32 and fp16 it is eager mode on the GPU, with TF32 allowed
    or everything in half precision (autocast if the module mixes float32 and half). Without a GPU,
    torch computes on the CPU and rounds its arithmetic like the precision.

    The other sets are torch in float32 with every weight and input changed by up to one rounding of
    the precision. No engine can avoid such changes. They show which decisions, such as a topk of
    nearly equal scores, depend on rounding.
    """
    name, first = _computed(module, cases, precision)
    return name, [
        first,
        *(_off(module, cases, UNITS[precision], draw) for draw in range(DRAWS)),
    ]


def _computed(
    module: torch.nn.Module, cases: Sequence[Inputs], precision: str
) -> tuple[str, Answers]:
    if precision == "fp32":
        return "torch in float64", _eager(module, cases, torch.float64, "cpu")
    if not torch.cuda.is_available():
        from benchmarks.tolerances import Rounded

        return f"torch, rounded as {precision}", _asked(
            module, cases, Rounded(precision)
        )
    if precision == "tf32":
        with tf32():
            return "torch on the GPU", _eager(module, cases, torch.float32, "cuda")
    try:
        return "torch in half on the GPU", _eager(module, cases, torch.float16, "cuda")
    except RuntimeError:
        on_gpu = copy.deepcopy(module).cuda()
        cast: AbstractContextManager[Any] = torch.autocast("cuda", torch.float16)
        return "torch autocast on the GPU", _asked(
            on_gpu, [_moved(c, None, "cuda") for c in cases], cast, "cuda"
        )


def _off(
    module: torch.nn.Module, cases: Sequence[Inputs], unit: float, draw: int
) -> Answers:
    torch.manual_seed(draw)
    changed = copy.deepcopy(module)
    with torch.no_grad():
        for tensor in (*changed.parameters(), *changed.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(_jittered(tensor, unit))
    return _asked(
        changed, [[_jittered(t, unit) for t in case] for case in cases], nullcontext()
    )


def _jittered(tensor: torch.Tensor, unit: float) -> torch.Tensor:
    return (
        tensor * (1 + unit * (2 * torch.rand_like(tensor) - 1))
        if tensor.is_floating_point()
        else tensor
    )


def _eager(
    module: torch.nn.Module, cases: Sequence[Inputs], dtype: torch.dtype, device: str
) -> Answers:
    """Run everything in `dtype`, including tensors that the module creates."""
    moved = copy.deepcopy(module).to(device=device, dtype=dtype)
    return _asked(
        moved, [_moved(case, dtype, device) for case in cases], _default(dtype), device
    )


def _moved(
    inputs: Inputs, dtype: torch.dtype | None, device: str
) -> list[torch.Tensor]:
    return [
        t.to(device=device, dtype=dtype if t.is_floating_point() else t.dtype)
        for t in inputs
    ]


def _asked(
    module: Callable[..., Any],
    cases: Sequence[Inputs],
    within: AbstractContextManager[Any],
    device: str = "cpu",
) -> Answers:
    with torch.no_grad(), within, torch.device(device):
        return [[_single(tensor) for tensor in flat(module(*case))] for case in cases]


def _single(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(
        device="cpu",
        dtype=torch.float32 if tensor.is_floating_point() else tensor.dtype,
    )


@contextmanager
def _default(dtype: torch.dtype) -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def tf32() -> Any:
    """Allow TF32 in torch's products. By default torch uses it only in convolutions."""
    backends = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [backend.allow_tf32 for backend in backends]
    with ExitStack() as stack:
        for backend, was in zip(backends, before, strict=True):
            backend.allow_tf32 = True
            stack.callback(setattr, backend, "allow_tf32", was)
        yield
