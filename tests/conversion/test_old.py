"""What is written for TensorRT 8.6, played on the flavour at hand: nothing that 8.6 refuses, and torch's answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import builder
from builder.engine import flavour
from builder.errors import UnsupportedOperators, UsageError
from tests.conversion import old
from tests.conversion.harness import check, convert

INTEGERS = torch.tensor([[2**31 - 1, 5, -(2**31), 5], [2**24 + 1, 2**24, 2**24 + 2, -1]], dtype=torch.int32)
"""Neighbours that float32 does not tell apart, and equal ones."""
SMALL = torch.tensor([[-3, 100, 0, 7]], dtype=torch.int8)
BOOLS = torch.tensor([[True, False], [False, True]])
HALVES = torch.tensor([[0.5, -2.0, 3.0], [1.0, 0.0, -0.25]], dtype=torch.float16)

CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "sorted integers": (lambda x: x.sort(dim=1, stable=True), (INTEGERS,)),
    "sorted integers, descending": (lambda x: x.sort(dim=1, descending=True, stable=True), (INTEGERS,)),
    "the best of integers": (lambda x: x.topk(2, 1)[0], (INTEGERS[1:],)),
    "the place of the greatest": (lambda x: x.argmax(1), (INTEGERS,)),
    "the least and its place": (lambda x: x.min(1), (INTEGERS,)),
    "small integers": (lambda x: (x.sort(1), x.max(1), x + 100, -x), (SMALL,)),
    "bytes": (lambda x: (x.to(torch.uint8), x.max(1)[0]), (SMALL.abs().to(torch.uint8),)),
    "bools": (lambda x: (x.max(1), F.pad(x, (1, 2), value=True)), (BOOLS,)),
    "powers": (torch.pow, (torch.tensor([3, -2, -1, 1, 0, -1]), torch.tensor([19, 31, 101, 77, 0, -3]))),
    "halves": (lambda x: (F.gelu(x), x * 2 + 1, x.clamp(max=0.5), x.float().sum(1), x > 0), (HALVES,)),
    "half from others": (lambda x: (x.half(), x.bool().half()), (torch.tensor([1, 0, -7]),)),
    "shifts": (torch.bitwise_right_shift, (torch.tensor([93, -93, -1]), torch.tensor([31, 40, 63]))),
    "averages that round up": (lambda x: F.avg_pool2d(x, 3, 2, 1, True, True), (torch.randn(1, 2, 7, 8),)),
}


@pytest.fixture(autouse=True)
def dialect(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    old.play(monkeypatch)
    yield
    old.forget()


@pytest.mark.parametrize("name", CASES)
def test_what_8_6_refuses_is_composed(name: str) -> None:
    function, inputs = CASES[name]
    check(function, *inputs, rtol=2e-3 if name == "halves" else None, compile=flavour.name() == "tensorrt")


@pytest.mark.parametrize("name", ["sorted integers", "bools", "averages that round up"])
def test_with_dynamic_axes(name: str) -> None:
    function, inputs = CASES[name]
    check(function, *inputs, dynamic={0: {0: "n"}}, compile=False)


def test_integers_that_are_too_many_to_rank_are_refused() -> None:
    with pytest.raises(UnsupportedOperators, match="sorts floats only"):
        convert(lambda x: x.topk(5), [torch.zeros(5000, dtype=torch.int32)])


def test_bfloat16_is_refused_with_the_reason() -> None:
    """It would say nothing and compute in float32: only a strongly typed network has the casts."""
    module = torch.jit.script(torch.nn.Linear(4, 4))
    with pytest.raises(UsageError, match=r"precision 'bf16': TensorRT .* has no bfloat16"):
        builder.convert(module, [builder.TensorSpec("float32", (2, 4))], precision="bf16")


@pytest.mark.skipif(not flavour.strongly_typed(), reason="8.6 itself refuses them")
def test_a_layer_that_8_6_refuses_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of all the others: without the composition, each of these is named."""
    monkeypatch.setattr("builder.engine.dialect.takes", lambda layer, dtype: layer != "UNARY.NEG")
    assert old.refused(convert(lambda x: x.sort(1), [INTEGERS]).network)
    assert old.refused(convert(lambda x: F.pad(x, (1, 2), value=True), [BOOLS]).network)


def test_gelu_may_be_the_logistic_function_in_half_alone() -> None:
    """Of an exact gelu; its polynomial is off by 2.6e-5 at most, a twentieth of what half keeps of a result near 1."""
    spec = builder.TensorSpec("float32", (4001,), name="x")
    x = torch.linspace(-12, 12, 4001)
    exact, approximate = (torch.nn.GELU(kind) for kind in ("none", "tanh"))
    truth = F.gelu(x.double())
    assert 1e-5 < _off(_traced(exact, spec, precision="fp16"), x, truth) < 2.6e-5
    assert _off(_traced(exact, spec), x, truth) < 1e-6
    assert _off(_traced(exact, spec, precision="fp16", keep_fp32=("*gelu*",)), x, truth) < 1e-6
    approximated = _traced(approximate, spec, precision="fp16")
    assert _off(approximated, x, F.gelu(x.double(), approximate="tanh")) < 1e-6


def _off(conversion: builder.Conversion, x: torch.Tensor, truth: torch.Tensor) -> float:
    (got,) = builder.reference.run(conversion, [x])
    return float((got - truth).abs().max())


def test_gelu_of_what_half_cannot_square() -> None:
    x = torch.tensor([300.0, -300.0, 65504.0, -65504.0, 0.0, float("inf"), float("nan")], dtype=torch.float16)
    (got,) = builder.reference.run(_traced(torch.nn.GELU(), builder.TensorSpec("float16", (7,), name="x")), [x])
    assert got[:6].tolist() == [300.0, 0.0, 65504.0, 0.0, 0.0, float("inf")] and got[6].isnan()


def _traced(module: torch.nn.Module, spec: builder.TensorSpec, **how: Any) -> builder.Conversion:
    traced = torch.jit.trace(module, torch.zeros([int(n) for n in spec.shape], dtype=getattr(torch, spec.dtype)))
    return builder.convert(traced, [spec], **how)
