"""A wrong plan is replaced step by step. Simulated plans replace the GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import builder
from builder.engine import BuildOptions, Plan
from builder.errors import EngineError
from builder.lowering import lower
from builder.manifest.spec import ModelSpec
from builder.parity import plan_check
from builder.triton import Golden

SOURCES = ("CUBLAS", "CUDNN", "JIT_CONVOLUTIONS")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(
            self.third(torch.tanh(self.second(torch.tanh(self.first(x)))))
        )


class Exponential(Net):
    """A network whose last layer has the name of the output, because it needs no cast."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.exp(self.first(x))


X = torch.linspace(-1, 1, 8).reshape(2, 4)
SPEC = builder.TensorSpec("float32", (2, 4), name="x")


@dataclass
class FakeGpu:
    """Plans that the reference runs. `wrong` returns the first wrong value of a plan, or None."""

    wrong: Callable[[Any, BuildOptions], str | None]
    builds: list[tuple[Any, BuildOptions]] = field(default_factory=list)

    def build(self, conversion: Any, options: BuildOptions) -> Plan:
        self.builds.append((conversion, options))
        return Plan(b"%d" % (len(self.builds) - 1))

    @contextmanager
    def open(self, plan: Plan) -> Iterator[Any]:
        conversion, options = self.builds[int(plan.data)]
        broken = self.wrong(conversion, options)

        def run(inputs: dict[str, torch.Tensor]) -> Sequence[dict[str, torch.Tensor]]:
            names = [
                f"%{name}" for _, name in plan_check.named_values(conversion.network)
            ]
            values = builder.reference.inspect(conversion, [inputs["x"]], set(names))
            outputs = builder.reference.run(conversion, [inputs["x"]])
            output = {**values, **dict(zip(conversion.outputs, outputs, strict=True))}
            if broken is not None:
                inner = names[names.index(broken) :] if broken in names else []
                affected = inner + list(conversion.outputs)
                output = {n: t + (n in affected) for n, t in output.items()}
            shown = {*conversion.outputs, *getattr(conversion, "marked", ())}
            return [{n: t for n, t in output.items() if n in shown}] * 2

        yield run

    def convert(
        self, conversion: Any, keep: Sequence[str], outputs: Sequence[str]
    ) -> Any:
        result = builder.convert(
            conversion.lowered, conversion.inputs, precision="fp16", keep_fp32=keep
        )
        object.__setattr__(result, "keep", tuple(keep))
        object.__setattr__(result, "marked", [f"%{name}" for name in outputs])
        return result

    @property
    def tools(self) -> plan_check.Tools:
        return plan_check.Tools(self.open, self.build, self.convert, SOURCES)


def check(
    wrong: Callable[[Any, BuildOptions], str | None],
    precision: str = "fp16",
    network: type[Net] = Net,
    report: Callable[[str], None] = lambda step: None,
) -> tuple[plan_check.CorrectPlan, FakeGpu]:
    torch.manual_seed(0)
    module = network().eval()
    conversion = builder.convert(
        lower(torch.jit.script(module)), [SPEC], precision=precision
    )
    (name,) = conversion.outputs
    golden = Golden("p0-opt", {"x": X.numpy()}, {name: module(X).detach().numpy()})
    gpu = FakeGpu(wrong)
    spec = ModelSpec("net", Path("net.pt"), (SPEC,), precision=precision)
    options = BuildOptions()
    plan = gpu.build(conversion, options)
    right = plan_check.check(
        conversion, plan, [golden], spec, options, gpu.tools, report
    )
    return right, gpu


def values(conversion: Any) -> list[str]:
    return [f"%{name}" for _, name in plan_check.named_values(conversion.network)]


def test_correct_plan_is_not_rebuilt() -> None:
    right, gpu = check(lambda conversion, options: None)
    assert (right.steps, right.keep_fp32, len(gpu.builds)) == ((), (), 1)


def test_wrong_plan_is_rebuilt_with_fewer_tactic_sources() -> None:
    def wrong(conversion: Any, options: BuildOptions) -> str | None:
        sources = options.tactic_sources or SOURCES
        return values(conversion)[2] if "CUBLAS" in sources else None

    right, gpu = check(wrong)
    assert [options.tactic_sources for _, options in gpu.builds] == [
        None,
        ("CUBLAS", "CUDNN"),
        ("JIT_CONVOLUTIONS",),
    ]
    caches = [options.timing_cache for _, options in gpu.builds[1:]]
    assert all(cache and not cache.parent.exists() for cache in caches)
    assert right.plan.data == b"2" and right.keep_fp32 == ()
    assert right.steps[0].startswith("the plan is wrong: golden p0-opt: ")
    assert "without JIT_CONVOLUTIONS: golden p0-opt" in right.steps[1]
    assert right.steps[2] == "rebuilt without CUBLAS, CUDNN: right"


def test_first_differing_layer_is_kept_in_float32() -> None:
    def wrong(conversion: Any, options: BuildOptions) -> str | None:
        kept = getattr(conversion, "keep", ())
        return None if "second/aten::linear_0" in kept else values(conversion)[2]

    right, gpu = check(wrong)
    assert right.keep_fp32 == ("second/aten::linear_0",)
    assert right.steps[-2:] == (
        "rebuilt with second/aten::linear_0 in float32: right",
        'keep_fp32: ["second/aten::linear_0"] in the manifest builds this plan without a'
        " search",
    )
    assert right.conversion is gpu.builds[-1][0]


def test_last_modules_are_kept_in_float32_if_a_fusion_is_wrong() -> None:
    def wrong(conversion: Any, options: BuildOptions) -> str | None:
        kept = getattr(conversion, "keep", ())
        is_right = len(kept) >= 2 and any("third" in pattern for pattern in kept)
        return None if is_right else values(conversion)[-1]

    right, gpu = check(wrong)
    assert right.keep_fp32 == ("third[./]*", "aten::tanh_2")
    assert right.conversion is gpu.builds[int(right.plan.data)][0]
    tried = [step for step in right.steps if "modules" in step]
    assert [step.partition(": ")[0] for step in tried] == [
        f"rebuilt with the last {count} of 6 modules in float32" for count in (3, 2, 1)
    ]


@pytest.mark.parametrize(
    ("start", "patterns"),
    [
        (0, ("net[./]*", "aten::exp_0")),
        (1, ("net.body.1[./]*", "net.head[./]*", "aten::exp_0")),
        (2, ("net.body.1.b[./]*", "net.head[./]*", "aten::exp_0")),
        (3, ("net.head[./]*", "aten::exp_0")),
        (5, ("aten::exp_0",)),
    ],
)
def test_parent_stands_for_its_children(start: int, patterns: tuple[str, ...]) -> None:
    names = "net.body.0 net.body.1 net.body.1.b net.head.a net.head.b aten::exp_0"
    assert plan_check.patterns_from(names.split(), start) == patterns


def test_output_layer_is_kept_in_float32_if_no_inner_value_differs() -> None:
    def wrong(conversion: Any, options: BuildOptions) -> str | None:
        return None if getattr(conversion, "keep", ()) else conversion.outputs[0]

    right, _ = check(wrong, network=Exponential)
    assert right.keep_fp32 == ("aten::exp_0",)
    assert right.steps[-2] == "rebuilt with aten::exp_0 in float32: right"


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_all_failed_steps_are_reported(precision: str) -> None:
    with pytest.raises(EngineError) as failed:
        check(lambda conversion, options: values(conversion)[0], precision)
    words = failed.value.message
    assert (
        "the plan is wrong" in words
        and "rebuilt without CUBLAS, CUDNN: golden" in words
    )
    assert ("modules in float32" in words) is (precision == "fp16")
    assert bool(failed.value.where) is (precision == "fp16"), "the first wrong value"


def test_failed_builds_and_runs_are_reported_as_steps() -> None:
    torch.manual_seed(0)
    conversion = builder.convert(lower(torch.jit.script(Net().eval())), [SPEC])
    (name,) = conversion.outputs
    golden = Golden("p0-opt", {"x": X.numpy()}, {name: X.numpy()})

    def refuse(*_: Any) -> Any:
        raise EngineError("out of memory")

    tools = plan_check.Tools(refuse, refuse, refuse, SOURCES)
    spec = ModelSpec("net", Path("net.pt"), (SPEC,))
    with pytest.raises(
        EngineError, match=r"wrong: out of memory; rebuilt without JIT_CONV"
    ):
        plan_check.check(conversion, Plan(b""), [golden], spec, BuildOptions(), tools)


@pytest.mark.parametrize("count, most, calls", [(5, 1, 4), (5, 8, 1), (337, 8, 3)])
def test_search_finds_the_first_true_index_in_few_calls(
    count: int, most: int, calls: int
) -> None:
    def search(first: int) -> tuple[int | None, list[Sequence[int]]]:
        tested: list[Sequence[int]] = []

        def are_true(indices: Sequence[int]) -> list[bool]:
            tested.append(indices)
            return [at >= first for at in indices]

        return plan_check.first_true(count, are_true, most), tested

    for first in range(count + 1):
        index, tested = search(first)
        assert index == (first if first < count else None)
        assert len(tested) <= calls and all(len(one) <= most for one in tested)
    assert plan_check.first_true(0, lambda _: 1 / 0, most) is None


def test_steps_are_reported_when_they_end() -> None:
    reported: list[str] = []

    def wrong(conversion: Any, options: BuildOptions) -> str | None:
        return None if getattr(conversion, "keep", ()) else values(conversion)[2]

    right, _ = check(wrong, report=reported.append)
    searches = [step for step in reported if step.startswith("search of the first")]
    assert searches and right.steps[:-1] == tuple(
        step for step in reported if step not in searches
    )
