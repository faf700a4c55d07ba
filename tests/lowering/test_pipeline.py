"""Lowering as a whole: deterministic output, digests, the trace of the passes, and encoders and
attention of torch.nn.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import builder
from builder.errors import LoweringError, UnsupportedOperators, UsageError
from builder.lowering import ir, write_sequence
from builder.manifest.spec import TensorSpec
from tests.torchscript.saving import saved
from tests.triton import artifacts

SPEC = TensorSpec(
    "float32", ("batch", "time", 8), dims={"batch": (1, 2, 4), "time": (1, 5, 9)}
)


@pytest.mark.slow  # the fast test of keys in other processes includes a lowered graph
def test_lowering_is_deterministic_across_processes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    file = tmp_path / "model.pt"
    file.write_bytes(
        artifacts.lowered(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True))
    )
    code = (
        f"import torch, builder; l = builder.lower(torch.jit.load({str(file)!r})); print(l.digest);"
        " print(l.text)"
    )
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    printed = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        check=True,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": seed},
    ).stdout
    lowered = builder.lower(torch.jit.load(file))
    assert printed == f"{lowered.digest}\n{lowered.text}\n" and len(printed) > 1000


def test_digest_depends_on_weights() -> None:
    one, other = (
        builder.lower(torch.jit.script(nn.Linear(30, 30).eval())) for _ in range(2)
    )
    assert one.text == other.text and one.digest != other.digest


def test_digest_of_one_element_of_a_larger_tensor() -> None:
    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("one", torch.ones(3).as_strided((1, 1), (3, 3)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.one

    traced = torch.jit.trace(Module(), torch.ones(2, 2))
    assert len(builder.lower(traced).digest) == 64


_AS_FLOATS = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
_SAME_BYTES = {
    "another shape": _AS_FLOATS.reshape(4, 1),
    "another dtype": _AS_FLOATS.view(torch.int32),
    "flat": _AS_FLOATS.reshape(4),
    "quantized": torch._make_per_tensor_quantized_tensor(
        _AS_FLOATS.view(torch.int8), 0.5, 0
    ),
}


@pytest.mark.parametrize("other", _SAME_BYTES)
def test_digest_depends_on_dtype_and_shape(other: str) -> None:
    """The texts are equal, because they do not show constants inside a list."""

    def digest(weight: torch.Tensor) -> str:
        graph = torch._C.parse_ir("graph(%x : Tensor):\n  return (%x)")
        ir.insert_constant(graph, [weight], graph.return_node())
        lowered = builder.LoweredGraph(graph, ("x",), ("output",))
        assert "int8" not in lowered.text and "Float(" not in lowered.text
        return lowered.digest

    assert digest(_AS_FLOATS) != digest(_SAME_BYTES[other])
    assert digest(_SAME_BYTES[other]) == digest(_SAME_BYTES[other].clone())


def test_digest_depends_on_scale_of_quantized_weight() -> None:
    digests = set()
    for scale, zero_point in ((0.5, 0), (0.25, 0), (0.5, 1)):
        graph = torch._C.parse_ir("graph(%x : Tensor):\n  return (%x)")
        weight = torch._make_per_tensor_quantized_tensor(
            torch.ones(30, dtype=torch.int8), scale, zero_point
        )
        ir.insert_constant(graph, weight, graph.return_node())
        digests.add(builder.LoweredGraph(graph, ("x",), ("output",)).digest)
    assert len(digests) == 3


def test_traced_graph_keeps_no_shapes_of_its_example() -> None:
    def f(x):
        return x.view(x.size(0), x.size(1) * 2, -1).expand(x.size(0), x.size(1) * 2, -1)

    lowered = builder.lower(
        torch.jit.trace(f, torch.randn(2, 3, 4), check_trace=False).graph
    )
    x = torch.randn(5, 7, 6)
    torch.testing.assert_close(lowered.run(x)[0], f(x), rtol=0, atol=0)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("how", ["script", "trace"])
def test_encoder_layers_with_padding_mask_match_torch(
    norm_first: bool, how: str
) -> None:
    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(
                8, 2, 16, batch_first=True, norm_first=norm_first, activation="gelu"
            )
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

        def forward(self, x, padding):
            return self.encoder(x, src_key_padding_mask=padding)

    torch.manual_seed(1)
    model, x = Padded().eval(), torch.randn(2, 5, 8)
    padding = torch.tensor([[False, False, False, True, True], [False] * 5])
    with torch.no_grad():
        module = saved(
            torch.jit.script(model)
            if how == "script"
            else torch.jit.trace(model, (x, padding), check_trace=False)
        )
        expected = model(x, padding)
    mask = TensorSpec("bool", ("batch", "time"), dims=SPEC.dims)
    lowered = builder.lower(module, specs=[SPEC, mask], paranoid=[x, padding])
    torch.testing.assert_close(
        lowered.run(x, padding)[0], expected, rtol=1e-4, atol=1e-5
    )
    assert not ir.nodes_of(
        lowered.graph, "prim::If", "aten::_transformer_encoder_layer_fwd"
    )


class _NestedTensorEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=True)

    def forward(self, x, padding):
        return self.encoder(x, src_key_padding_mask=padding)


def test_scripted_encoder_with_nested_tensors_computes_dense_form() -> None:
    """Padded positions are not zeros as in torch; models do not use them."""
    torch.manual_seed(1)
    model, x = _NestedTensorEncoder().eval(), torch.randn(2, 5, 8)
    padding = torch.tensor([[False, False, False, True, True], [False] * 5])
    lowered = builder.lower(torch.jit.script(model))
    with torch.no_grad():
        output, expected_output = lowered.run(x, padding)[0], model(x, padding)
    torch.testing.assert_close(
        output[~padding], expected_output[~padding], rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.t().contiguous().as_strided((3,), (1,)),
        lambda x: (x * 2).as_strided((3,), (1,), 1),
    ],
)
def test_memory_layout_of_computed_tensor_is_refused_with_line(function: Any) -> None:
    """An engine returns x.t() in another layout than torch."""
    x = torch.randn(3, 4)
    with pytest.raises(LoweringError, match="memory layout of a comp") as caught:
        builder.lower(torch.jit.trace(function, x))
    assert "test_pipeline.py" in caught.value.where
    views = torch.jit.trace(lambda x: x.view(-1)[None].as_strided((3,), (2,)), x)
    torch.testing.assert_close(builder.lower(views).run(x)[0], views(x))


def test_traced_encoder_with_nested_tensors_is_refused_with_fix() -> None:
    padding = torch.tensor([[False, False, False, True, True], [False] * 5])
    with torch.no_grad():
        traced = torch.jit.trace(
            _NestedTensorEncoder().eval(),
            (torch.randn(2, 5, 8), padding),
            check_trace=False,
        )
    with pytest.raises(
        LoweringError, match="packs its batch as nested tensors"
    ) as caught:
        builder.lower(traced)
    assert (
        "enable_nested_tensor=False" in caught.value.fix
        and "in module encoder" in caught.value.where
    )


def test_attention_dropout_is_refused_with_source_line() -> None:
    def f(q):
        return nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=0.3)

    with pytest.raises(UnsupportedOperators, match="dropout_p > 0 is random") as caught:
        builder.convert(
            torch.jit.script(f).graph, [TensorSpec("float32", (1, 2, 4, 8))]
        )
    assert "test_pipeline.py" in str(
        caught.value
    ) and "dropout_p=self.p if self.training" in str(caught.value)


def test_scripted_attention_with_specs_has_no_branches() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x, y):
            return self.attention(x, y, y)[0]

    module = torch.jit.script(Attention().eval())
    lowered = builder.lower(module, specs=[SPEC, SPEC], paranoid=True)
    assert not ir.nodes_of(lowered.graph, "prim::If", "prim::Loop")
    x, y = torch.randn(3, 4, 8), torch.randn(3, 6, 8)
    torch.testing.assert_close(lowered.run(x, y)[0], module(x, y), rtol=1e-4, atol=1e-5)


def test_trace_ends_at_stop_after_and_shows_changes(tmp_path: Path) -> None:
    module = torch.jit.script(
        nn.Sequential(nn.Linear(4, 4), nn.SiLU(), nn.Dropout()).eval()
    )
    lowered = builder.lower(module, stop_after="unpack-silu", keep_text=True)
    record = lowered.trace[-1]
    assert (
        record.name == "unpack-silu"
        and record.changed
        and record.nodes_after == record.nodes_before + 1
    )
    lines = record.diff().splitlines()
    assert (
        len([line for line in lines if re.match(r"-  %.* = aten::silu\(", line)]) == 1
    )
    assert len([line for line in lines if re.match(r"\+  %.* = aten::", line)]) == 2
    assert "\x1b[31m" in record.diff(color=True)
    files = write_sequence(lowered.trace, tmp_path / "sequence")
    assert files[0].name == "00-start.txt" and any(
        file.name.endswith("-unpack-silu.txt") for file in files
    )
    assert "aten::sigmoid" in files[-1].read_text()


def test_unknown_pass_raises_usage_error_with_names() -> None:
    with pytest.raises(UsageError, match="no pass 'fuse-everything'") as caught:
        builder.lower(torch.jit.script(nn.ReLU()), stop_after="fuse-everything")
    assert "unpack-silu" in caught.value.fix


def test_condition_on_a_long_chain_of_size_arithmetic_is_resolved() -> None:
    """Each number is read twice. The time doubled with each line, and 40 lines never ended."""
    lines = "  n = n * 2 - n\n" * 40
    unit = torch.jit.CompilationUnit(
        f"def f(x):\n  n = x.size(0)\n{lines}  if n > 5:\n    x = x + 1\n  return x\n"
    )
    x = torch.ones(6)
    lowered = builder.lower(unit.f.graph)
    torch.testing.assert_close(lowered.run(x)[0], unit.f(x))


def test_lstm_cell_with_state_inputs_matches_torch() -> None:
    class Stepped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.LSTMCell(6, 4)

        def forward(self, x, h, c):
            return self.cell(x, (h, c))

    module, inputs = (
        torch.jit.script(Stepped().eval()),
        (torch.randn(2, 6), torch.randn(2, 4), torch.randn(2, 4)),
    )
    for output, expected_output in zip(
        builder.lower(module).run(*inputs), module(*inputs), strict=True
    ):
        torch.testing.assert_close(output, expected_output)


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.float64, torch.float16, torch.float32]
)
def test_sum_after_matmul_fuses_only_with_equal_dtype(dtype: torch.dtype) -> None:
    """The bias of a linear must have the dtype of its weight."""
    weight, more = torch.randn(4, 3), torch.arange(3).to(dtype)
    x = torch.randn(2, 4)
    traced = torch.jit.trace(lambda x: x @ weight + more, x, check_trace=False)
    lowered = builder.lower(traced.graph)
    torch.testing.assert_close(lowered.run(x)[0], x @ weight + more)
    fused = dtype == torch.float32
    assert bool(lowered.graph.findNode("aten::add", True)) is not fused


def test_trace_begins_with_steps_before_the_passes() -> None:
    module = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval())
    lowered = builder.lower(module, stop_after="lower-graph", keep_text=True)
    freeze, lower_graph = lowered.trace
    assert (freeze.name, lower_graph.name) == ("freeze", "lower-graph")
    assert (
        "prim::CallMethod" in freeze.before and "prim::CallMethod" not in freeze.after
    )
    assert "%self" in lower_graph.before and "%self" not in lower_graph.after
    assert "aten::linear" in lower_graph.after
    graph = torch._C.parse_ir("graph(%x : Tensor, %w : Tensor):\n  return (%w)")
    (record, *_) = builder.lower(graph, [torch.ones(1)], keep_text=True).trace
    assert record.name == "lower-graph" and "%w : Tensor)" in record.before
    assert "prim::Constant" in record.after
