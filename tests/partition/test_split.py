"""The partition of a lowered graph: running its segments equals running the whole graph."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

import builder
from builder.conversion import MISSING, GraphWalker
from builder.errors import EngineError, UnsupportedOperators
from builder.manifest.spec import Fallback
from builder.partition import Partition, split
from builder.partition.abstract_values import common
from builder.partition.joint_evaluation import JointEvaluation
from builder.partition.repeats import Repeats
from builder.partition.support import READS_OTHERS

DIMS = {"b": (1, 4, 8), "s": (1, 5, 9)}


class Spectral(nn.Module):
    """A Bessel function, which TensorRT does not have, between two parts that it has."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(
        self, x: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y = torch.relu(self.first(x))
        spectrum = torch.relu(torch.special.bessel_j0(y)) + 1
        return self.second(y) * x.size(0) + spectrum.sum(), x, y


def partition(
    module: nn.Module, shape: tuple[Any, ...] = ("b", "s", 8), **fallback: Any
) -> tuple[Any, Partition]:
    script = torch.jit.script(module.eval())
    names = {axis for axis in shape if isinstance(axis, str)}
    dims = {name: span for name, span in DIMS.items() if name in names}
    spec = builder.TensorSpec("float32", shape, dims=dims)
    options = Fallback(**{"min_block_size": 1, **fallback})
    return script, split(builder.lower(script), [spec], [dims], options)


def run(partitioned: Partition, *inputs: torch.Tensor) -> list[torch.Tensor]:
    """Every segment by torch, in order."""
    values = dict(zip(partitioned.inputs, inputs, strict=True))
    for segment in partitioned.segments:
        values.update(
            zip(
                segment.outputs,
                segment.lowered.run(*(values[n] for n in segment.inputs)),
                strict=True,
            )
        )
    return [values[name] for name in partitioned.outputs]


def test_segments_match_the_whole_module() -> None:
    script, partitioned = partition(Spectral())
    x = torch.randn(3, 5, 8)
    assert [s.kind for s in partitioned.segments][:2] == ["tensorrt", "torch"]
    for got, wanted in zip(run(partitioned, x), script(x), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)


def test_boundary_tensors_keep_axis_names() -> None:
    """Specs of boundary tensors have the dynamic axes of the manifest."""
    _, partitioned = partition(Spectral())
    assert {
        axis
        for s in partitioned.segments
        for spec in s.specs
        if spec
        for axis in spec.shape
        if isinstance(axis, str)
    } == {"b", "s"}


def test_converted_segments_match_torch() -> None:
    _, partitioned = partition(Spectral())
    segment = partitioned.segments[0]
    conversion = builder.convert(
        segment.lowered, segment.specs, profiles=segment.profiles
    )
    x = torch.randn(2, 3, 8)
    for got, wanted in zip(
        builder.reference.run(conversion, [x]), segment.lowered.run(x), strict=True
    ):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)


def test_operators_kept_in_torch_are_reported_with_their_line() -> None:
    _, partitioned = partition(Spectral())
    reported = {
        operator.schema.split("(")[0]: operator.where
        for operator in partitioned.refused
    }
    assert "aten::special_bessel_j0" in reported
    assert "test_split.py" in reported["aten::special_bessel_j0"]


class Filtered(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.fft.rfft(torch.relu(x), dim=1)
        return torch.fft.irfft(y * 2, n=x.size(1), dim=1).relu() + 1


@pytest.mark.parametrize(
    ("longest", "kinds"), [(30, {"tensorrt"}), (3000, {"tensorrt", "torch"})]
)
def test_torch_transforms_an_axis_that_may_be_long(
    longest: int, kinds: set[str]
) -> None:
    """A matrix of cosines grows with the square of the length."""
    script = torch.jit.script(Filtered())
    dims = {"t": (2, 8, longest)}
    spec = builder.TensorSpec("float32", (2, "t", 4), dims=dims)
    partitioned = split(
        builder.lower(script), [spec], [dims], Fallback(min_block_size=1)
    )
    assert {segment.kind for segment in partitioned.segments} == kinds
    for length in (7, longest):
        x = torch.randn(2, length, 4)
        torch.testing.assert_close(run(partitioned, x)[0], script(x))


def test_input_that_tensorrt_refuses_leaves_its_readers_in_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After an internal error, TensorRT refuses every new input of the scratch network."""
    support = sys.modules["builder.partition.support"]
    add_input = support.add_input

    def refuse(ctx: Any, spec: Any) -> Any:
        if spec.name.startswith("placeholder"):
            raise EngineError("refused")
        return add_input(ctx, spec)

    monkeypatch.setattr(support, "add_input", refuse)
    script, partitioned = partition(Spectral())
    assert [s.kind for s in partitioned.segments] == ["tensorrt", "torch"]
    x = torch.randn(3, 5, 8)
    torch.testing.assert_close(run(partitioned, x), list(script(x)), rtol=0, atol=0)


def test_fallback_ops_keep_an_operator_in_torch() -> None:
    _, partitioned = partition(Spectral(), ops=("aten::linear",))
    assert all(s.kind == "torch" or not s.flops for s in partitioned.segments)


def test_require_full_rejects_a_partition() -> None:
    with pytest.raises(UnsupportedOperators, match="special_bessel_j0"):
        partition(Spectral(), require_full=True)


def test_fully_supported_graph_is_one_segment() -> None:
    _, partitioned = partition(nn.Sequential(nn.Linear(8, 4), nn.ReLU()))
    assert [s.kind for s in partitioned.segments] == ["tensorrt"]


def test_small_tensorrt_segments_merge_into_torch() -> None:
    _, partitioned = partition(Spectral(), min_block_size=100)
    assert [s.kind for s in partitioned.segments] == ["torch"]


class Lists(nn.Module):
    """Lists and sizes that several segments read."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = torch.split(torch.relu(x), [3, 5], dim=-1)
        spectrum = torch.special.bessel_j0(second)[:, :, :3]
        return torch.cat(
            [first, spectrum.reshape(x.size(0), x.size(1), 3)], dim=-1
        ) + x.size(1)


def test_lists_and_sizes_are_recomputed_in_reading_segments() -> None:
    script, partitioned = partition(Lists())
    x = torch.randn(2, 4, 8)
    torch.testing.assert_close(run(partitioned, x)[0], script(x), rtol=0, atol=0)


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)


class Numbers(TwoLayers):
    """Numbers from a branch and a loop on data, read on both sides of a TensorRT segment."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.special.bessel_j0(x)
        n = 2 if bool(y.sum() > 40) else 3
        z = torch.relu(self.first(y))
        w = torch.special.bessel_j0(z) * n
        total = 0
        while total < 5 and bool(y[0, 0] * total < 9):
            total += 2
        return torch.relu(self.second(w)) + total, torch.special.bessel_j0(
            w
        ) + n + total


class Listed(TwoLayers):
    """A list that a loop creates beside a tensor; an output of a TensorRT segment is appended."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        before = torch.relu(self.first(x))
        state, found = torch.special.bessel_j0(before), [x]
        while len(found) < 4 and bool(state.sum() < 400):
            state = state * 2
            found.append(state)
        after = torch.relu(self.second(state))
        found.append(after)
        return torch.cat(found, dim=1).sum(1), after


@pytest.mark.parametrize("module", [Numbers(), Listed()])
def test_numbers_and_lists_are_never_boundary_values(module: nn.Module) -> None:
    """Numbers are recomputed; a list stays in one segment."""
    script, partitioned = partition(module, ("b", 8))
    assert len({s.kind for s in partitioned.segments}) == 2
    for x in (torch.randn(3, 8), torch.full((2, 8), 9.0), torch.zeros(1, 8)):
        for got, wanted in zip(run(partitioned, x), script(x), strict=True):
            torch.testing.assert_close(got, wanted, rtol=0, atol=0)
    types = {
        str(v.type())
        for s in partitioned.segments
        for v in (*s.lowered.graph.inputs(), *s.lowered.graph.outputs())
    }
    assert types == {"Tensor"}


class Rounded(TwoLayers):
    """Quantized tensors that only torch reads, and a list of them beside a TensorRT segment."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first = torch.quantize_per_tensor(self.first(x), 0.03, 10, torch.quint8)
        y = torch.relu(self.second(first.dequantize()))
        second = torch.quantize_per_tensor(self.first(y), 0.03, 10, torch.quint8)
        joined = torch.cat([first, second], dim=1)
        return torch.relu(self.second(joined.dequantize()[:, 4:12])), first.int_repr()


def test_quantized_tensors_are_never_boundary_values() -> None:
    """Neither Triton nor a golden has their dtypes."""
    script, partitioned = partition(Rounded(), ("b", 8))
    assert {s.kind for s in partitioned.segments} == {"torch", "tensorrt"}
    of_engines = {
        node.kind()
        for segment in partitioned.segments
        if segment.kind == "tensorrt"
        for node in segment.lowered.graph.nodes()
    }
    assert of_engines.isdisjoint({"aten::quantize_per_tensor", "aten::dequantize"})
    x = torch.randn(3, 8)
    for got, wanted in zip(run(partitioned, x), script(x), strict=True):
        torch.testing.assert_close(got, wanted)


class Counted(TwoLayers):
    """A loop on data that computes a tensor, an int, a float and a bool; a head reads them all."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, count, scale, small = x, 0, 1.0, False
        while count < 9 and bool(y.norm() > 1.0):
            y = torch.special.bessel_j0(self.first(y)) * 0.1
            count, scale, small = count + 1, scale / 3, bool(y.max() < 0.3)
        head = torch.relu(self.second(y)) * 2 + count
        halves = head * scale
        return torch.softmax(head, -1), halves + 1 if small else halves - 1


def test_loop_numbers_become_boundary_tensors() -> None:
    """Their readers can run in an engine; floats keep their full precision."""
    script, partitioned = partition(Counted(), ("b", 8))
    (head,) = (
        s
        for s in partitioned.segments
        if any(n.kind() == "aten::softmax" for n in s.lowered.graph.nodes())
    )
    assert head.kind == "tensorrt"
    assert [spec.dtype for spec in head.specs if spec and spec.shape == (1,)] == [
        "int64"
    ]
    assert all(
        spec is not None
        for s in partitioned.segments
        for spec in (*s.specs, *s.output_specs)
    )
    for x in (torch.randn(3, 8) * 9, torch.zeros(2, 8), torch.full((1, 8), 4.0)):
        for got, wanted in zip(run(partitioned, x), script(x), strict=True):
            torch.testing.assert_close(got, wanted, rtol=0, atol=0)


class Scales(TwoLayers):
    """Scalar boundary tensors of three types, one scalar input and one scalar output."""

    def forward(
        self, x: torch.Tensor, gain: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y = torch.relu(self.first(x) * gain)
        total, count, any_large = y.sum(), y.argmax(), (y > 1).any()
        spectrum = torch.special.bessel_j0(y + total + count).sum()
        z = torch.where(any_large, self.second(y) * spectrum, y) * total + count
        return torch.special.bessel_j0(z * any_large) * count, z, z.sum()


def test_scalar_boundary_tensors_have_one_axis() -> None:
    """Triton's TensorRT backend cannot serve an engine's tensor without axes."""
    script = torch.jit.script(Scales().eval())
    specs = [
        builder.TensorSpec("float32", ("b", 8), dims={"b": DIMS["b"]}),
        builder.TensorSpec("float32", ()),
    ]
    partitioned = split(
        builder.lower(script), specs, [{"b": DIMS["b"]}], Fallback(min_block_size=1)
    )
    known = {
        n: s
        for p in partitioned.segments
        for n, s in zip(p.outputs, p.output_specs, strict=True)
        if s
    }
    crossing = {
        known[n].shape
        for p in partitioned.segments
        for n in p.inputs
        if n not in partitioned.inputs
    }
    types = {
        known[n].dtype
        for p in partitioned.segments
        for n in p.inputs
        if n in known and known[n].shape == (1,)
    }
    assert (
        (1,) in crossing
        and () not in crossing
        and types == {"float32", "int64", "bool"}
    )
    assert known[partitioned.outputs[2]].shape == ()
    assert [
        spec.shape
        for p in partitioned.segments
        for spec in p.specs
        if spec and spec.name == partitioned.inputs[1]
    ] == [()]
    assert all(
        len(p.indices) == len(list(p.lowered.graph.nodes()))
        for p in partitioned.segments
    )
    arguments = torch.randn(3, 8), torch.tensor(1.5)
    for got, wanted in zip(
        run(partitioned, *arguments), script(*arguments), strict=True
    ):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)
    for segment in (p for p in partitioned.segments if p.kind == "tensorrt"):
        conversion = builder.convert(
            segment.lowered, segment.specs, profiles=segment.profiles
        )
        assert [spec.shape for spec in conversion.inputs] == [
            spec.shape for spec in segment.specs if spec
        ]


class Tail(nn.Module):
    """A loop's list moves its operands into torch, so one operator remains for TensorRT."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state, found = torch.special.bessel_j0(x), [x]
        while len(found) < 4 and bool(state.sum() < 400):
            state = state * 2
            found.append(state)
        large = state
        for _ in range(4):
            large = torch.relu(self.first(large)) * 2
        found.append(large)
        return torch.cat(found, dim=1).sum(1), torch.relu(state)


def test_segments_reduced_by_a_list_merge_into_torch() -> None:
    script, partitioned = partition(Tail(), ("b", 8), min_block_size=3)
    assert all(
        segment.nodes >= 3
        for segment in partitioned.segments
        if segment.kind == "tensorrt"
    )
    for got, wanted in zip(
        run(partitioned, torch.ones(2, 8)), script(torch.ones(2, 8)), strict=True
    ):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)


def test_engines_never_read_tensors_without_a_range(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows found by TensorRT's own nonzero stay in one engine; a boundary tensor needs a range."""

    class Rows(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows = torch.relu(x)[torch.nonzero(x[:, 0] > 0).squeeze(1)]
            return torch.relu(rows.sum() + rows) * 2

    monkeypatch.setattr("builder.conversion.nonzero.available", lambda: True)
    _, partitioned = partition(Rows(), ("b", 8), ops=("aten::sum",))
    assert partitioned.segments[0].kind == "tensorrt"
    assert all(
        spec is not None
        for s in partitioned.segments
        if s.kind == "tensorrt"
        for spec in s.specs
    )
    torch.testing.assert_close(
        run(partitioned, torch.randn(5, 8).abs())[0].shape, torch.Size([5, 8])
    )


class Experts(nn.Module):
    """Each expert computes only the rows that chose it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 2)
        self.experts = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = self.gate(x).argmax(1)
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            (rows,) = torch.where(chosen == number)
            y.index_add_(0, rows, expert(x[rows]))
        return y


def test_flops_of_unknown_shapes_are_not_counted() -> None:
    """All flops were in TensorRT, and the experts in torch."""
    _, partitioned = partition(Experts(), ("b", 8), min_block_size=1)
    assert "100.0 % of the flops that do not depend on data" in partitioned.summary()


def test_unknown_shapes_read_only_by_torch_stay_in_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An ensemble cannot declare dims for such a boundary tensor."""

    class Salient(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.relu(x) * 2
            return y + torch.unique(torch.abs(torch.masked_select(y, y > 0.2))).sum()

    monkeypatch.setattr("builder.conversion.nonzero.available", lambda: True)
    _, partitioned = partition(Salient(), ("b", 8), min_block_size=1)
    kinds = [
        {n.kind() for n in segment.lowered.graph.nodes()}
        for segment in partitioned.segments
    ]
    assert {"aten::masked_select", "aten::abs", "aten::_unique2"} <= kinds[
        1
    ] and "aten::relu" in kinds[0]
    assert all(
        None not in (*segment.specs, *segment.output_specs)
        for segment in partitioned.segments
    )


def test_unknown_shapes_do_not_log_warnings(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Found(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found = x[torch.nonzero(x[:, 0] > 0).squeeze(1)]
            return torch.relu(torch.fft.fftn(found).abs().sum() + x) * 2

    _, partitioned = partition(Found(), ("b", 8))
    assert [segment.kind for segment in partitioned.segments] == ["tensorrt", "torch"]
    assert not [
        record for record in caplog.records if record.levelno >= logging.WARNING
    ]


class Stages(nn.Module):
    """Layers in a list, called around a Bessel function."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for stage in self.stages:
            x = torch.special.bessel_j0(torch.relu(stage(x)))
        return x


def test_layer_names_of_segments_include_the_module_list() -> None:
    """Names equal those of one engine, so that `keep_fp32: [stages.1/*]` works the same."""
    _, partitioned = partition(Stages(), ("b", 8))
    engines = [s for s in partitioned.segments if s.kind == "tensorrt"]
    converted = [
        builder.convert(s.lowered, s.specs, profiles=s.profiles).network
        for s in engines
    ]
    names = [
        network.get_layer(index).name
        for network in converted
        for index in range(network.num_layers)
    ]
    assert {name.partition("/")[0] for name in names if "/aten::linear" in name} == {
        "stages.0",
        "stages.1",
    }


class Noise(nn.Module):
    """Random numbers of known shapes, which no engine may draw."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x))
        y = y + (torch.rand_like(y) < 2) + torch.randint(1, 2, [x.size(0), 1])
        return torch.relu(self.second(y))


def test_engines_follow_random_numbers() -> None:
    script, partitioned = partition(Noise(), ("b", 8))
    assert partitioned.segments[-1].kind == "tensorrt"
    assert all(
        spec is not None
        for segment in partitioned.segments
        for spec in segment.output_specs
    )
    x = torch.randn(3, 8)
    torch.testing.assert_close(run(partitioned, x)[0], script(x), rtol=0, atol=0)


def test_missing_converter_is_reported_after_another_one() -> None:
    """The operator has no converter, whether or not its input has a known shape."""

    class Rows(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows = torch.relu(x)[torch.nonzero(x[:, 0] > 0).squeeze(1)]
            return torch.special.bessel_j0(rows)

    _, partitioned = partition(Rows(), ("b", 8))
    (last,) = (
        o for o in partitioned.refused if o.schema.startswith("aten::special_bessel_j0")
    )
    assert last.reason != READS_OTHERS


class Deep(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(8):
            x = torch.relu(x).tanh()
        return x


def test_equal_nodes_are_evaluated_and_converted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: Counter[str] = Counter()

    def counted(name: str, function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            calls[name] += 1
            return function(*arguments)

        return call

    for kind, name in (
        (JointEvaluation, "_execute"),
        (GraphWalker, "visit"),
        (Repeats, "find"),
    ):
        monkeypatch.setattr(kind, name, counted(name, getattr(kind, name)))
    _, partitioned = partition(Deep())
    assert len(partitioned.segments) == 1
    assert calls == {"find": 16, "_execute": 2, "visit": 2}


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (torch.zeros(2, 3), torch.ones(2, 3), True),
        (torch.zeros(2, 3), torch.zeros(3, 2), False),
        (torch.zeros(2), torch.zeros(2, dtype=torch.int64), False),
        (2, 2, True),
        (2, 3, False),
        (True, 1, False),
        (1, 1.0, False),
        (torch.zeros(2), 2, False),
    ],
)
def test_value_of_two_branches_is_known_if_both_are_equal(
    first: Any, second: Any, same: bool
) -> None:
    """Tensors are equal if their shape and dtype are."""
    result = common(first, second)
    if same and isinstance(first, torch.Tensor):
        assert result.is_meta and result.shape == first.shape
    else:
        assert result == first if same else result is MISSING
