"""Each pass by itself: what it promised to remove is gone, what replaces it is there, and the graph
answers as before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from builder.lowering import ir
from builder.lowering.paranoid import _tensors, execute_graph
from builder.lowering.verifier import Snapshot, verify
from tests.lowering.cases import CASES, PASSES, Case
from tests.lowering.corners import BY_TITLE, CORNERS
from tests.lowering.expected import FOLDER, made, read, title


def _id(case: Case) -> str:
    return f"{case.step}-{title(case)}".replace(" ", "-")


def _answers(graph: Any, inputs: tuple[Any, ...]) -> list[torch.Tensor]:
    values = [v.clone() if isinstance(v, torch.Tensor) else v for v in inputs]
    with torch.no_grad():
        return list(_tensors(execute_graph(graph, values)))


def _kinds(graph: Any) -> Counter[str]:
    return Counter(
        node.kind() for node in ir.walk(graph) if node.kind() != "prim::Constant"
    )


@pytest.mark.parametrize("case", CASES, ids=_id)
def test_operators_are_replaced_and_the_rest_stays(case: Case) -> None:
    text = case.text(lowered=True)
    for gone in case.gone:
        assert gone in case.text(lowered=False) and gone not in text.split("\n", 1)[
            1
        ].replace("# ", "#"), text
    for there in case.there:
        assert there in text, text


@pytest.mark.parametrize("case", CASES, ids=_id)
def test_the_graph_is_the_expected_one(case: Case) -> None:
    """Line by line, before and after, in canonical text; `python -m tests.lowering.expected` writes
    it anew.
    """
    assert made(case) == read(case.step)[title(case)]


def test_nothing_is_expected_of_cases_that_are_gone() -> None:
    steps = {case.step for case in CASES}
    assert {file.stem for file in FOLDER.iterdir()} == steps
    for step in steps:
        assert list(read(step)) == [title(case) for case in CASES if case.step == step]


@pytest.mark.parametrize("case", CASES, ids=_id)
def test_answers_stay_the_same(case: Case) -> None:
    original = case.graph()
    if case.step == "flatten-inputs":
        inputs = (
            (case.inputs[0], None)
            if len(case.inputs) == 1
            else (case.inputs[0], tuple(case.inputs[1:]))
        )
        expected = _answers(original, inputs)
    else:
        expected = _answers(original, case.inputs)
    _assert_close(_answers(case.lowered(), case.inputs), expected)


def _assert_close(got: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    """In the same dtypes; half precision rounds once more at each step of a formula."""
    low = any(value.dtype in (torch.float16, torch.bfloat16) for value in expected)
    rtol, atol = (2e-2, 2e-2) if low else (1e-4, 1e-5)
    torch.testing.assert_close(got, expected, rtol=rtol, atol=atol, equal_nan=True)


def _corners() -> Iterator[Any]:
    for case in CASES:
        found = BY_TITLE.get((case.step, title(case)), CORNERS.get(case.step, []))
        for number, inputs in enumerate(found):
            shapes = [
                f"{str(v.dtype).removeprefix('torch.')}{list(v.shape)}"
                for v in inputs
                if hasattr(v, "shape")
            ]
            yield pytest.param(
                case,
                inputs,
                id=f"{_id(case)}-{number}-{'-'.join(shapes)}".replace(" ", ""),
            )


@pytest.mark.parametrize(("case", "inputs"), _corners())
def test_other_ranks_and_dtypes_answer_the_same(
    case: Case, inputs: tuple[Any, ...]
) -> None:
    _assert_close(_answers(case.lowered(), inputs), _answers(case.graph(), inputs))


def test_every_corner_belongs_to_a_case() -> None:
    titles = {(case.step, title(case)) for case in CASES}
    assert set(BY_TITLE) <= titles and set(CORNERS) <= {step for step, _ in titles}


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


def test_every_pass_has_a_case_and_a_docstring() -> None:
    covered = {case.step for case in CASES}
    assert set(PASSES) == covered | {
        "refuse-nested-tensors"
    }  # leaves no graph: test_phase.py
    assert all(step.doc for step in PASSES.values())
