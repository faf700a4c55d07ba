"""New weights go into a stored plan only if the network is the same."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
import torch

from builder.conversion import convert
from builder.engine import BuildOptions, Plan, refit
from builder.errors import EngineError
from builder.manifest.spec import TensorSpec
from builder.store import Store, key
from builder.store.plans import Plans
from tests.store.conftest import small

REFIT = BuildOptions(refit=True)
BUILT, REFITTED = Plan(b"built"), Plan(b"refitted")


class Layers(torch.nn.Module):
    """A convolution, an activation with an attribute, a permutation and an index."""

    def __init__(self, seed: int, slope: float = 0.1, column: int = 1) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.convolution, self.norm = torch.nn.Conv2d(3, 8, 3), torch.nn.LayerNorm(6)
        self.norm.bias.data.normal_()  # few enough values that the text of the graph contains them
        self.slope = slope
        self.register_buffer("column", torch.tensor([column]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.leaky_relu(self.convolution(x), self.slope)
        return self.norm(y.permute(0, 2, 1, 3)).index_select(1, self.column)


def network(precision: str = "fp32", **settings: Any) -> Any:
    spec = TensorSpec("float32", ("b", 3, 8, 8), dims={"b": (1, 2, 4)}, name="x")
    module = torch.jit.script(Layers(**settings).eval())
    return convert(module, [spec], precision=precision)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_networks_with_different_weights_have_equal_structure(
    precision: str,
) -> None:
    first, second = (network(precision, seed=seed) for seed in (0, 1))
    assert refit.structure(first.network) == refit.structure(second.network)
    before, after = refit.digests(first.network), refit.digests(second.network)
    assert before.keys() == after.keys()
    changed = {
        label.rpartition("/")[2] for label in before if before[label] != after[label]
    }
    assert changed == {"KERNEL", "BIAS", "CONSTANT"}
    structures = {
        key.structure(key.parts(c, REFIT), c.network) for c in (first, second)
    }
    assert len(structures) == 1


def test_unreadable_weights_always_differ() -> None:
    first = network("bf16", seed=0).network
    before, after = refit.digests(first), refit.digests(first)
    kernels = [label for label in before if label.endswith("KERNEL")]
    assert kernels and all(before[label] != after[label] for label in kernels)


@pytest.mark.parametrize("change", [{"slope": 0.2}, {"precision": "fp16"}])
def test_structure_depends_on_attributes(change: dict[str, Any]) -> None:
    first, second = network(seed=0), network(**{"seed": 0, **change})
    assert refit.structure(first.network) != refit.structure(second.network)


def test_digests_include_index_constants() -> None:
    """TensorRT replaces no integers, so `refit` must see the difference."""
    first, second = network(seed=0), network(seed=0, column=2)
    assert refit.digests(first.network) != refit.digests(second.network)


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plans that get new weights, as if the machine had a GPU."""
    plans: list[Plan] = []

    def replace(
        plan: Plan, conversion: Any, before: Any, options: BuildOptions
    ) -> Plan:
        assert before.keys() == refit.digests(conversion.network).keys()
        plans.append(plan)
        return REFITTED

    monkeypatch.setattr(refit, "possible", lambda options: options.refit)
    monkeypatch.setattr(refit, "refit", replace)
    return plans


def test_new_weights_refit_the_stored_plan(attempts: list[Plan]) -> None:
    store = Store(f"memory://{uuid.uuid4().hex}")
    plans = [Plans(store) for _ in range(3)]
    assert plans[0].build(small(), REFIT, lambda: BUILT) == BUILT
    assert plans[1].build(small(2.0), REFIT, lambda: BUILT) == REFITTED
    assert plans[1].records["model"].because == "weights replaced by refit"
    assert attempts == [BUILT]
    assert plans[2].build(small(2.0), REFIT, lambda: BUILT) == REFITTED
    assert plans[2].records["model"].found and len(attempts) == 1


@pytest.mark.parametrize("change", ["profile", "option", "no refit", "rebuild"])
def test_other_changes_build_a_plan(attempts: list[Plan], change: str) -> None:
    store = Store(f"memory://{uuid.uuid4().hex}")
    Plans(store).build(small(), REFIT, lambda: BUILT)
    conversion = small(2.0, **({"batch": (1, 4, 8)} if change == "profile" else {}))
    options = {
        "option": BuildOptions(refit=True, optimization_level=1),
        "no refit": BuildOptions(),
    }.get(change, REFIT)
    plans = Plans(store, rebuild=change == "rebuild")
    assert plans.build(conversion, options, lambda: BUILT) == BUILT
    assert not attempts


def test_refused_refit_warns_and_builds_a_plan(
    attempts: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Plan:
        raise EngineError("TensorRT cannot replace the weights of a/CONSTANT")

    monkeypatch.setattr(refit, "refit", refuse)
    store = Store(f"memory://{uuid.uuid4().hex}")
    Plans(store).build(small(), REFIT, lambda: BUILT)
    plans = Plans(store)
    assert plans.build(small(2.0), REFIT, lambda: BUILT) == BUILT
    assert plans.warnings == [
        "the plan is built, not refitted: TensorRT cannot replace the weights of a/CONSTANT"
    ]
