"""The verifier reports a pass that breaks the graph, its interface or its promise."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from builder.errors import LoweringError
from builder.lowering import ir
from builder.lowering.graph import canonical
from builder.lowering.paranoid import Paranoid
from builder.lowering.passes import Context, Pass, lowering_pass
from builder.lowering.pipeline import run_passes
from builder.lowering.scoping import Lines, out_of_scope


def _graph() -> Any:
    def f(x):
        if bool(x.sum() > 0):
            x = torch.relu(x)
        return torch.tanh(x) * 2

    return torch.jit.script(f).graph.copy()


def _run(rewrite: Any, **promises: Any) -> None:
    run_passes(_graph(), Context(), [Pass("broken", rewrite, **promises)])


def test_remaining_operator_that_a_pass_removes_is_reported() -> None:
    with pytest.raises(
        LoweringError, match=r"pass broken is defective: aten::tanh is left"
    ) as caught:
        _run(lambda graph, context: None, removes=("aten::tanh",))
    assert "test_verifier.py" in caught.value.where


def test_changed_interface_is_reported() -> None:
    def rewrite(graph: Any, context: Context) -> None:
        graph.registerOutput(next(iter(graph.inputs())))

    with pytest.raises(LoweringError, match="inputs or outputs changed"):
        _run(rewrite)
    _run(rewrite, changes_interface=True)


def test_operator_without_location_is_reported() -> None:
    def rewrite(graph: Any, context: Context) -> None:
        node = graph.findNode("aten::tanh")
        new = graph.create("aten::sinh", list(node.inputs()), 1)
        new.insertBefore(node)
        ir.replace(node, [new.output()])

    with pytest.raises(LoweringError, match="has no source location"):
        _run(rewrite)
    _run(rewrite, builtin=False)


def test_value_out_of_scope_is_reported() -> None:
    def rewrite(graph: Any, context: Context) -> None:
        hidden = graph.findNode("aten::relu", True).output()
        graph.findNode("aten::tanh").replaceInput(0, hidden)

    with pytest.raises(LoweringError, match="read outside its scope"):
        _run(rewrite)


def test_scopes_are_checked_from_text() -> None:
    assert _out_of_scope(str(_graph())) is None
    assert (
        _out_of_scope(
            "graph(%x : Tensor):\n  %z : Tensor = aten::relu(%y)\n  return (%z)\n"
        )
        == "%y"
    )


def test_line_is_parsed_once_into_outputs_and_inputs() -> None:
    lines = Lines()
    line = lines['  %a.1 : str, %b : int = aten::format(%c, "%d # = x") # m.py:3:1']
    assert (line.outputs, line.inputs, line.kind, line.without_location) == (
        ("%a.1", "%b"),
        ("%c",),
        "aten::format",
        False,
    )
    assert lines["  %y : Tensor = aten::relu(%x)"].without_location and len(lines) == 2
    assert (
        lines["    block0(%i : int):"].opens
        and lines["  %1 : int = prim::Constant[value=1]()"].kind == "prim::Constant"
    )


def _out_of_scope(text: str) -> str | None:
    return out_of_scope(map(Lines().__getitem__, text.splitlines()))


def test_paranoid_reports_pass_that_changed_outputs() -> None:
    @lowering_pass("wrong")
    def wrong(graph: Any, context: Context) -> None:
        node = graph.findNode("aten::tanh")
        ir.replace(node, ir.outputs(ir.insert(graph, "aten::sin", node.inputs(), node)))

    @lowering_pass("right")
    def right(graph: Any, context: Context) -> None:
        return None

    with pytest.raises(LoweringError, match="pass wrong changed the model's outputs"):
        run_passes(
            _graph(), Context(), [right, wrong], paranoid=Paranoid([torch.ones(3)])
        )


def test_text_is_canonical() -> None:
    assert canonical(_graph()) == canonical(_graph())
