"""Each pass by itself: what it promised to remove is gone, what replaces it is there, and the graph answers as
before.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from builder.lowering import ir
from builder.lowering.paranoid import _tensors, execute
from builder.lowering.pipeline import PIPELINE
from builder.lowering.verifier import Snapshot, verify
from tests.lowering.cases import CASES, PASSES, Case


def _id(case: Case) -> str:
    return f"{case.step}-{case.name or getattr(case.source, '__name__', 'ir')}".replace(" ", "-")


def _answers(graph: Any, inputs: tuple[Any, ...]) -> list[torch.Tensor]:
    values = [v.clone() if isinstance(v, torch.Tensor) else v for v in inputs]
    with torch.no_grad():
        return list(_tensors(execute(graph, values)))


def _kinds(graph: Any) -> Counter[str]:
    return Counter(node.kind() for node in ir.walk(graph) if node.kind() != "prim::Constant")


@pytest.mark.parametrize("case", CASES, ids=_id)
def test_operators_are_replaced_and_the_rest_stays(case: Case) -> None:
    text = case.text(lowered=True)
    for gone in case.gone:
        assert gone in case.text(lowered=False) and gone not in text.split("\n", 1)[1].replace("# ", "#"), text
    for there in case.there:
        assert there in text, text


@pytest.mark.parametrize("case", CASES, ids=_id)
def test_answers_stay_the_same(case: Case) -> None:
    original = case.graph()
    if case.step == "flatten-inputs":
        inputs = (case.inputs[0], None) if len(case.inputs) == 1 else (case.inputs[0], tuple(case.inputs[1:]))
        expected = _answers(original, inputs)
    else:
        expected = _answers(original, case.inputs)
    torch.testing.assert_close(_answers(case.lowered(), case.inputs), expected, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("case", CASES, ids=_id)
def test_promises_are_kept(case: Case) -> None:
    graph = case.graph()
    before = Snapshot(graph)
    PASSES[case.step](graph, case.fresh())
    verify(graph, PASSES[case.step], before)


@pytest.mark.parametrize("case", CASES, ids=_id)
def test_a_second_run_changes_nothing(case: Case) -> None:
    graph = case.lowered()
    kinds = _kinds(graph)
    PASSES[case.step](graph, case.fresh())
    for tidy in ("propagate-constants", "pool-constants", "eliminate-dead-code"):
        PASSES[tidy](graph)
    assert _kinds(graph) == kinds


def test_every_pass_has_a_case_and_says_what_it_does() -> None:
    covered = {case.step for case in CASES}
    # These do something only in company, and are tested by name elsewhere.
    elsewhere = {
        "mark-fallback", "inline", "remove-guards", "precision", "pool-constants", "refuse-nested-tensors",
        "unpack-transformer-encoder-layer",
    }  # fmt: skip
    assert {step.name for step in PIPELINE} == covered | elsewhere
    assert all(step.doc for step in PIPELINE)
