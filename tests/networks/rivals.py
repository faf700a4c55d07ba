"""What torch itself makes of a network in a reduced precision: the measure where a network amplifies every rounding."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch

from tests.networks.comparing import flat

Inputs = Sequence[torch.Tensor]
Answers = list[list[torch.Tensor]]


def answers(module: torch.nn.Module, cases: Sequence[Inputs], precision: str) -> tuple[str, Answers]:
    """(what it is, its outputs at each of the cases, in float32 where they are floats).

    fp32: torch in float64 on the CPU, since float32 there is the truth that others are held against. tf32 and fp16:
    torch eager on the GPU, with TF32 allowed, or all in half; autocast where the module mixes float32 with half
    itself. Without a GPU, torch on the CPU with its arithmetic rounded as the precision rounds it.
    """
    if precision == "fp32":
        return "torch in float64", _eager(module, cases, torch.float64, "cpu")
    if not torch.cuda.is_available():
        from benchmarks.tolerances import Rounded

        return f"torch, rounded as {precision}", _asked(module, cases, Rounded(precision))
    if precision == "tf32":
        with tf32():
            return "torch on the GPU", _eager(module, cases, torch.float32, "cuda")
    try:
        return "torch in half on the GPU", _eager(module, cases, torch.float16, "cuda")
    except RuntimeError:
        on_gpu = copy.deepcopy(module).cuda()
        cast: AbstractContextManager[Any] = torch.autocast("cuda", torch.float16)
        return "torch autocast on the GPU", _asked(on_gpu, [_moved(c, None, "cuda") for c in cases], cast, "cuda")


def _eager(module: torch.nn.Module, cases: Sequence[Inputs], dtype: torch.dtype, device: str) -> Answers:
    """All in `dtype`, the tensors too that the module makes itself."""
    moved = copy.deepcopy(module).to(device=device, dtype=dtype)
    return _asked(moved, [_moved(case, dtype, device) for case in cases], _default(dtype), device)


def _moved(inputs: Inputs, dtype: torch.dtype | None, device: str) -> list[torch.Tensor]:
    return [t.to(device=device, dtype=dtype if t.is_floating_point() else t.dtype) for t in inputs]


def _asked(
    module: Callable[..., Any], cases: Sequence[Inputs], within: AbstractContextManager[Any], device: str = "cpu"
) -> Answers:
    with torch.no_grad(), within, torch.device(device):
        return [[_single(tensor) for tensor in flat(module(*case))] for case in cases]


def _single(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(device="cpu", dtype=torch.float32 if tensor.is_floating_point() else tensor.dtype)


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
    """torch's own products in TF32, which it rounds to by default in convolutions only."""
    backends = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [backend.allow_tf32 for backend in backends]
    with ExitStack() as stack:
        for backend, was in zip(backends, before, strict=True):
            backend.allow_tf32 = True
            stack.callback(setattr, backend, "allow_tf32", was)
        yield
