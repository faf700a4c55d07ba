"""Each pass by itself: the operators that it must remove are gone, their replacement is present,
and the outputs stay the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from builder.lowering import ir
from builder.lowering.paranoid import execute_graph, tensors_in
from builder.lowering.verifier import Snapshot, verify
from tests.lowering.cases import CASES, PASSES, Case
from tests.lowering.corner_cases import BY_TITLE, CORNER_CASES
from tests.lowering.expected import FOLDER, current, read, title


def _id(case: Case) -> str:
    return f"{case.step}-{title(case)}".replace(" ", "-")


def _outputs(graph: Any, inputs: tuple[Any, ...]) -> list[torch.Tensor]:
    values = [v.clone() if isinstance(v, torch.Tensor) else v for v in inputs]
    with torch.no_grad():
        return tensors_in(execute_graph(graph, values))


def _kinds(graph: Any) -> Counter[str]:
    return Counter(
        node.kind() for node in ir.walk(graph) if node.kind() != "prim::Constant"
    )


@pytest.mark.parametrize("case", CASES, ids=_id)
def test_operators_are_replaced_and_the_rest_stays(case: Case) -> None:
    text = case.text(lowered=True)
    for removed in case.removed:
        assert removed in case.text(lowered=False) and removed not in text.split(
            "\n", 1
        )[1].replace("# ", "#"), text
    for present in case.present:
        assert present in text, text


@pytest.mark.parametrize("case", CASES, ids=_id)
def test_graph_matches_expected_text(case: Case) -> None:
    """Compares canonical text; `python -m tests.lowering.expected` rewrites it."""
    assert current(case) == read(case.step)[title(case)]


def test_expected_texts_match_the_cases() -> None:
    steps = {case.step for case in CASES}
    assert {file.stem for file in FOLDER.iterdir()} == steps
    for step in steps:
        assert list(read(step)) == [title(case) for case in CASES if case.step == step]


@pytest.mark.parametrize("case", CASES, ids=_id)
def test_pass_preserves_outputs(case: Case) -> None:
    original = case.graph()
    if case.step == "flatten-inputs":
        inputs = (
            (case.inputs[0], None)
            if len(case.inputs) == 1
            else (case.inputs[0], tuple(case.inputs[1:]))
        )
        expected = _outputs(original, inputs)
    else:
        expected = _outputs(original, case.inputs)
    _assert_close(_outputs(case.lowered(), case.inputs), expected)


def _assert_close(outputs: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    """In the same dtypes; half precision rounds once more at each step of a decomposition."""
    low = any(value.dtype in (torch.float16, torch.bfloat16) for value in expected)
    rtol, atol = (2e-2, 2e-2) if low else (1e-4, 1e-5)
    torch.testing.assert_close(outputs, expected, rtol=rtol, atol=atol, equal_nan=True)


def _corner_cases() -> Iterator[Any]:
    for case in CASES:
        found = BY_TITLE.get((case.step, title(case)), CORNER_CASES.get(case.step, []))
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


@pytest.mark.parametrize(("case", "inputs"), _corner_cases())
def test_pass_preserves_outputs_of_other_ranks_and_dtypes(
    case: Case, inputs: tuple[Any, ...]
) -> None:
    _assert_close(_outputs(case.lowered(), inputs), _outputs(case.graph(), inputs))


def test_every_corner_case_belongs_to_a_case() -> None:
    titles = {(case.step, title(case)) for case in CASES}
    assert set(BY_TITLE) <= titles and set(CORNER_CASES) <= {step for step, _ in titles}


@pytest.mark.parametrize("case", CASES, ids=_id)
def test_pass_keeps_its_promises(case: Case) -> None:
    graph = case.graph()
    before = Snapshot(graph)
    PASSES[case.step](graph, case.new_context())
    verify(graph, PASSES[case.step], before)


@pytest.mark.parametrize("case", CASES, ids=_id)
def test_second_run_changes_nothing(case: Case) -> None:
    graph = case.lowered()
    kinds = _kinds(graph)
    PASSES[case.step](graph, case.new_context())
    for cleanup in ("propagate-constants", "pool-constants", "eliminate-dead-code"):
        PASSES[cleanup](graph)
    assert _kinds(graph) == kinds


def test_every_pass_has_a_case_and_a_docstring() -> None:
    covered = {case.step for case in CASES}
    refusals = {"refuse-nested-tensors", "refuse-strides"}  # test_pipeline.py
    assert set(PASSES) == covered | refusals
    assert all(step.doc for step in PASSES.values())
