"""Recording of goldens: the sizes, the values, and modules that refuse some of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
import torch

from builder.errors import ModelFileError, UsageError
from builder.manifest.spec import ModelSpec, TensorSpec
from builder.parity import record, recording
from builder.parity.inputs import odd
from builder.pipeline import stages
from builder.triton import Golden
from tests.triton.artifacts import Affine, Scorer, tensor


def spec(*inputs: TensorSpec, **more: Any) -> ModelSpec:
    dims = {axis: span for one in inputs for axis, span in one.dims.items()}
    return ModelSpec(
        "model", Path("model.pt"), inputs, more.pop("profiles", (dims,)), **more
    )


def by_name(goldens: tuple[Golden, ...]) -> dict[str, Golden]:
    return {golden.name: golden for golden in goldens}


X = tensor("x", "float32", "batch", 3)


def test_each_profile_has_opt_min_max_and_odd_goldens() -> None:
    profiles = ({"batch": (1, 4, 8)}, {"batch": (9, 16, 32)})
    goldens = by_name(record(Affine(), spec(X, profiles=profiles)))
    sizes = {name: golden.inputs["x"].shape[0] for name, golden in goldens.items()}
    assert sizes == {
        "p0-opt": 4,
        "p0-row": 1,
        "p0-min": 1,
        "p0-max": 8,
        "p0-odd": 3,
        "p1-opt": 16,
        "p1-min": 9,
        "p1-max": 32,
        "p1-odd": 19,
    }
    np.testing.assert_array_equal(
        goldens["p0-row"].inputs["x"], goldens["p0-opt"].inputs["x"][:1]
    )


def test_goldens_above_the_memory_limit_are_smaller_with_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recording, "GOLDEN_MAX_BYTES", 20 * 3 * 4)
    recorded = recording.record_goldens(
        Affine(), spec(X, profiles=({"batch": (1, 4, 64)},))
    )
    sizes = {golden.name: golden.inputs["x"].shape[0] for golden in recorded.goldens}
    assert sizes["p0-opt"] == 4 and sizes["p0-max"] == 16
    (warning,) = (text for text in recorded.warnings if "p0-max" in text)
    assert "{'batch': 16} instead of {'batch': 64}" in warning


def test_goldens_above_the_time_limit_are_smaller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The opt golden takes 3 s, so the largest would take 48 s."""
    clock = iter(range(0, 1000, 3))
    monkeypatch.setattr(recording.time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(recording, "GOLDEN_MAX_SECONDS", 30)
    recorded = recording.record_goldens(
        Affine(), spec(X, profiles=({"batch": (1, 4, 64)},))
    )
    sizes = {golden.name: golden.inputs["x"].shape[0] for golden in recorded.goldens}
    assert sizes["p0-opt"] == 4 and sizes["p0-max"] < 64 and recorded.reduced


def test_static_model_has_one_golden() -> None:
    assert [
        golden.name for golden in record(Affine(), spec(tensor("x", "float32", 2, 3)))
    ] == ["p0-opt"]


@pytest.mark.parametrize(
    ("span", "size"),
    [
        ((1, 4, 8), 3),
        ((64, 224, 512), 287),
        ((1, 2, 3), 1),
        ((7, 7, 7), 7),
        ((0, 1, 2), 1),
    ],
)
def test_odd_size_is_not_an_optimum(span: tuple[int, int, int], size: int) -> None:
    assert odd(span) == size


class EvenLengths(torch.nn.Module):
    """A module that accepts only even lengths, as a U-Net accepts only multiples of 16."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, ::2] - x[:, 1::2]


@pytest.mark.parametrize(
    ("lengths", "instead"),
    [
        ((4, 8, 12), "golden p0-odd has {'batch': 3, 'length': 8} instead"),
        ((2, 8, 12), "golden p0-odd has {'batch': 3, 'length': 6} instead"),
    ],
)
def test_multiples_are_tried_if_the_module_refuses_the_odd_size(
    lengths: tuple[int, int, int], instead: str
) -> None:
    x = TensorSpec(
        "float32", ("batch", "length"), {"batch": (1, 2, 4), "length": lengths}, "x"
    )
    recorded = recording.record_goldens(torch.jit.script(EvenLengths()), spec(x))
    assert "p0-odd" in [golden.name for golden in recorded.goldens]
    (warning,) = [text for text in recorded.warnings if instead in text]
    assert "so requests of such sizes fail too" in warning and "must match" in warning


class RefusesThreeRows(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.size(0) != 3, "three rows"
        return x * 2


def test_refused_odd_size_is_left_out_with_a_warning() -> None:
    recorded = recording.record_goldens(
        torch.jit.script(RefusesThreeRows()), spec(X, profiles=({"batch": (1, 2, 4)},))
    )
    assert "p0-odd" not in [golden.name for golden in recorded.goldens]
    assert any(
        "p0-odd is left out" in text and "three rows" in text
        for text in recorded.warnings
    )


def test_goldens_are_deterministic_and_depend_on_the_model_name() -> None:
    one, two = record(Affine(), spec(X)), record(Affine(), spec(X))
    np.testing.assert_array_equal(one[0].inputs["x"], two[0].inputs["x"])
    other = record(
        Affine(), ModelSpec("other", Path("o.pt"), (X,), ({"batch": (1, 4, 8)},))
    )
    assert not np.array_equal(one[0].inputs["x"], other[0].inputs["x"])


def test_ids_are_reduced_to_the_size_of_the_embedding() -> None:
    goldens = record(
        torch.jit.script(Scorer()),
        spec(X, tensor("ids", "int64", "batch"), outputs=("a", "b")),
    )
    assert len(goldens) == 5
    assert all(
        golden.inputs["ids"].min() >= 0 and golden.inputs["ids"].max() < 20
        for golden in goldens
    )


class PackedRows(torch.nn.Module):
    """A module that packs rows sorted by length and looks up ids below 4."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.embedding = (
            torch.nn.GRU(3, 2, batch_first=True),
            torch.nn.Embedding(4, 2),
        )

    def forward(
        self, x: torch.Tensor, lengths: torch.Tensor, ids: torch.Tensor
    ) -> torch.Tensor:
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return self.rnn(packed)[1][0] + self.embedding(ids)[:, 0]


@pytest.mark.parametrize("time", ["time", 7])
def test_integers_are_lengths_if_ids_do_not_work(time: Any) -> None:
    span = {"time": (2, 7, 9)} if time == "time" else {}
    inputs = (
        tensor("x", "float32", "batch", time, 3, **span),
        tensor("lengths", "int64", "batch"),
        tensor("ids", "int64", "batch", 2),
    )
    for golden in record(PackedRows(), spec(*inputs)):
        lengths, steps = golden.inputs["lengths"], golden.inputs["x"].shape[1]
        assert 1 <= lengths.min() <= lengths.max() <= steps
        assert (np.diff(lengths) <= 0).all()
        assert golden.inputs["ids"].max() < 4
    assert len(set(lengths.tolist())) > 1


class Counted(torch.nn.Module):
    """Counts from 1 to 3."""

    def forward(self, x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        if not 1 <= int(counts.min()) <= int(counts.max()) <= 3:
            raise IndexError("counts")
        return x * counts.sum()


def test_integers_are_positive_if_zero_does_not_work() -> None:
    for golden in record(Counted(), spec(X, tensor("counts", "int64", 2, 4))):
        assert golden.inputs["counts"].min() >= 1


class Bags(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bags = torch.nn.EmbeddingBag(8, 2, mode="sum")

    def forward(self, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return self.bags(ids.flatten(), offsets)


def test_offsets_of_bags_ascend_from_zero() -> None:
    inputs = tensor("ids", "int64", "batch", 8), tensor("offsets", "int64", "batch")
    for golden in record(torch.jit.script(Bags()), spec(*inputs)):
        offsets = golden.inputs["offsets"]
        assert offsets[0] == 0 and (np.diff(offsets) >= 0).all()
        assert golden.inputs["ids"].max() > 0


class Alignments(torch.nn.Module):
    """`padded` makes the last target of each row invalid, and does not read it."""

    def __init__(self, padded: bool) -> None:
        super().__init__()
        self.padded = padded

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        lengths = torch.full([x.size(1)], 6)
        target_lengths = torch.full_like(lengths, 3)
        if self.padded:
            target_lengths = target_lengths - 1
            targets = torch.nn.functional.pad(targets[:, :2], [0, 1], value=-1.0)
        return torch.nn.functional.ctc_loss(
            x.log_softmax(2), targets, lengths, target_lengths
        )


@pytest.mark.parametrize("padded", [False, True])
def test_targets_of_ctc_loss_are_classes(padded: bool) -> None:
    """For others, torch reads memory outside of the tensor."""
    inputs = TensorSpec("float32", (6, 2, 5), {}, "x"), tensor("targets", "int64", 2, 3)
    (golden,) = record(torch.jit.script(Alignments(padded)), spec(*inputs))
    assert 0 < golden.inputs["targets"].max() < 5


@pytest.mark.parametrize("keep", [True, False])
def test_masks_of_both_meanings_give_finite_outputs(keep: bool) -> None:
    class Attend(torch.nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            hidden = ~mask if keep else mask
            return x.masked_fill(hidden, float("-inf")).softmax(1)

    shape = ("batch", "length")
    span = (1, 5, 9)
    module = spec(
        tensor("x", "float32", *shape, length=span),
        tensor("mask", "bool", *shape, length=span),
    )
    for golden in record(Attend(), module):
        assert np.isfinite(golden.outputs["output"]).all(), golden.name
        assert golden.inputs["mask"].any() or golden.inputs["mask"].shape[1] == 1


def test_model_without_finite_outputs_is_recorded() -> None:
    class Log(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (-1 - x.abs()).log()

    assert np.isnan(record(Log(), spec(X))[0].outputs["output"]).any()


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


def test_nested_outputs_are_flattened_in_order() -> None:
    class Nested(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return {"b": [x, x + 1], "a": Pair(x + 2, x + 3)}, None, (x + 4,)

    golden = record(Nested(), spec(X))[0]
    assert list(golden.outputs) == [f"output_{i}" for i in range(5)]
    for i, array in enumerate(golden.outputs.values()):
        np.testing.assert_allclose(array, golden.inputs["x"] + i, rtol=1e-6)


def test_output_names_of_the_caller_override_the_manifest() -> None:
    assert list(record(Affine(), spec(X, outputs=("y",)))[0].outputs) == ["y"]
    assert list(record(Affine(), spec(X, outputs=("y",)), ["z"])[0].outputs) == ["z"]
    with pytest.raises(UsageError, match="names 2 outputs, the module returns 1"):
        record(Affine(), spec(X, outputs=("y", "z")))


def test_output_that_is_not_a_tensor_is_refused() -> None:
    class ReturnsString(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> str:
            return "cat"

    with pytest.raises(ModelFileError, match="returns a str"):
        record(ReturnsString(), spec(X))


def test_numbers_are_recorded_as_scalar_tensors() -> None:
    class Numbers(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[int, float, bool]:
            return x.shape[1], 0.5, True

    outputs = list(record(Numbers(), spec(X))[0].outputs.values())
    assert [(array.dtype.name, array.shape, array.item()) for array in outputs] == [
        ("int64", (), 3),
        ("float64", (), 0.5),
        ("bool", (), True),
    ]


def test_failure_of_the_module_is_quoted() -> None:
    class Broken(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ x

    with pytest.raises(ModelFileError, match="cannot be multiplied"):
        record(Broken(), spec(X))


def test_missing_operator_is_quoted_without_the_candidates() -> None:
    traced = torch.jit.trace(lambda x: x * True, torch.ones(2, 2), check_trace=False)
    with pytest.raises(ModelFileError, match="have an op for aten::mul"):
        record(traced, spec(X))


def test_shape_error_is_reported_instead_of_too_large_ids() -> None:
    class FixedShape(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(5, 3)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.table(ids).reshape(7, 7)

    with pytest.raises(ModelFileError, match="is invalid for input of size"):
        record(FixedShape(), spec(tensor("ids", "int64", "batch", 3)))


def test_module_is_recorded_in_eval_mode_and_left_unchanged() -> None:
    module = torch.nn.Sequential(torch.nn.Dropout(0.9), torch.nn.Dropout(0.9))
    for modes in ([True, True, True], [False, True, True], [True, True, False]):
        for part, mode in zip(module.modules(), modes, strict=True):
            part.training = mode
        golden = record(module, spec(X))[0]
        np.testing.assert_array_equal(golden.outputs["output"], golden.inputs["x"])
        assert [part.training for part in module.modules()] == modes


def test_in_place_module_does_not_change_the_recorded_input() -> None:
    class InPlace(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.add_(1)

    golden = record(InPlace(), spec(X))[0]
    np.testing.assert_allclose(golden.outputs["output"], golden.inputs["x"] + 1)


class BytesAndComparison(torch.nn.Module):
    """The trace of `layer` has no forward, because its weight is read alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first = x.argmax().to(torch.uint8)
        return (first + 200) * 2 + x, (x > self.layer.weight[0]) * 3


def test_number_times_byte_overflows_in_the_golden_of_a_trace() -> None:
    """The trace has a comparison, so it is also run without torch's optimizer."""
    module = BytesAndComparison().eval()
    trace = torch.jit.trace(module, torch.rand(1, 3), check_trace=False)
    golden = record(trace, spec(X))[0]
    expected, _ = module(torch.from_numpy(golden.inputs["x"]))
    np.testing.assert_allclose(golden.outputs["output_0"], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("fast", "exact", "expected"),
    [
        # rounding, or another dtype without the optimizer: the optimizer's outputs
        (torch.tensor([1.0]), torch.tensor([1.00001]), torch.tensor([1.0])),
        (torch.tensor([2], dtype=torch.uint8), torch.tensor([2]), None),
        (torch.tensor([torch.nan]), torch.tensor([torch.nan]), None),
        # a mistake of the optimizer: the others, in the dtype of the optimizer's
        (torch.tensor([1.0]), torch.tensor([2.0]), torch.tensor([2.0])),
        (
            torch.tensor([200], dtype=torch.uint8),
            torch.tensor([144]),
            torch.tensor([144], dtype=torch.uint8),
        ),
        (torch.tensor([3]), torch.tensor([4]), torch.tensor([4])),
        (torch.tensor([True]), torch.tensor([3]), torch.tensor([3])),
    ],
)
def test_outputs_that_the_optimizer_changes_are_corrected(
    fast: torch.Tensor, exact: torch.Tensor, expected: torch.Tensor | None
) -> None:
    first, second = recording._corrected((fast, None), (exact, None))
    expected = fast if expected is None else expected
    torch.testing.assert_close(first, expected, rtol=0, atol=0, equal_nan=True)
    assert second is None


def test_bfloat16_tensors_are_recorded_as_bfloat16() -> None:
    golden = record(Affine(), spec(tensor("x", "bfloat16", "batch", 3)))[0]
    assert (
        golden.inputs["x"].dtype == golden.outputs["output"].dtype == ml_dtypes.bfloat16
    )


def npz(folder: Path, **arrays: np.ndarray) -> Path:
    np.savez(folder / "own.npz", **arrays)
    return folder / "own.npz"


def test_user_inputs_are_recorded_besides_generated_inputs(tmp_path: Path) -> None:
    arrays = {"0/x": np.ones((2, 3), np.float32), "1/x": np.zeros((7, 3), np.float32)}
    goldens = by_name(record(Affine(), spec(X, goldens=npz(tmp_path, **arrays))))
    assert (goldens["user-0"].outputs["output"] == 3).all() and goldens[
        "user-1"
    ].inputs["x"].shape == (7, 3)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"y": np.ones((2, 3), np.float32)}, "the inputs"),
        ({"x": np.ones((2, 3))}, "float64"),
        ({"x": np.ones((2, 4), np.float32)}, "no profile"),
        ({"x": np.ones((9, 3), np.float32)}, "no profile"),
        ({"x": np.ones(3, np.float32)}, "no profile"),
    ],
)
def test_invalid_user_inputs_are_usage_errors(
    tmp_path: Path, arrays: dict[str, np.ndarray], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        record(Affine(), spec(X, goldens=npz(tmp_path, **arrays)))


def test_file_that_is_not_npz_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "own.npz").write_text("not an archive")
    with pytest.raises(UsageError, match=r"cannot be read as an \.npz"):
        record(Affine(), spec(X, goldens=tmp_path / "own.npz"))


class TakesTwoRows(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.as_strided((2, 3), (3, 1)) + x


def test_failure_on_a_single_row_is_reported_with_the_shapes() -> None:
    with pytest.raises(
        ModelFileError, match=r"fails on golden p0-row \(x \[1, 3\]\): .*storage"
    ):
        record(TakesTwoRows(), spec(X, profiles=({"batch": (1, 2, 2)},)))


def test_failure_on_user_inputs_is_reported_with_the_golden(
    tmp_path: Path,
) -> None:
    class Refuses42(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if (x == 42).all():
                raise RuntimeError("no answer for 42")
            return x

    np.savez(tmp_path / "own.npz", x=np.full((2, 3), 42, np.float32))
    with pytest.raises(
        ModelFileError, match=r"golden .*\(x \[2, 3\]\): no answer for 42"
    ):
        record(Refuses42(), spec(X, goldens=tmp_path / "own.npz"))


class FirstRowIsZero(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y[0] = 0
        return y


class EveryOtherRow(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[::2] *= 3
        return y


class LastRowsOnly(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[3:] += 1
        return y


@pytest.mark.parametrize("module", [FirstRowIsZero, EveryOtherRow, LastRowsOnly])
@pytest.mark.parametrize("optimum", [1, 2, 4])
def test_rolled_golden_shows_rows_that_depend_on_their_position(
    module: type[torch.nn.Module], optimum: int
) -> None:
    x = tensor("x", "float32", "batch", 3, batch=(1, optimum, 4))
    goldens = {golden.name: golden for golden in record(module(), spec(x))}
    rolled, unrolled = (
        goldens["p0-rolled"],
        goldens["p0-opt" if optimum == 4 else "p0-max"],
    )
    np.testing.assert_array_equal(
        rolled.inputs["x"], np.roll(unrolled.inputs["x"], 1, 0)
    )
    assert (rolled.outputs["output"] != np.roll(unrolled.outputs["output"], 1, 0)).any()


@pytest.mark.parametrize("optimum", [1, 2, 4])
def test_independent_rows_have_no_rolled_golden(optimum: int) -> None:
    x = tensor("x", "float32", "batch", 3, batch=(1, optimum, 4))
    goldens = {golden.name: golden for golden in record(torch.nn.Linear(3, 3), spec(x))}
    assert "p0-rolled" not in goldens
    unrolled = goldens["p0-max" if optimum == 1 else "p0-opt"]
    np.testing.assert_array_equal(
        goldens["p0-row"].inputs["x"], unrolled.inputs["x"][:1]
    )


class Cached(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.jit.Attribute(None, int | None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.scale is None:
            self.scale = x.size(0)
        scale = self.scale
        assert scale is not None
        return x * scale


class Caching(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Cached()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + 1


def test_goldens_are_those_of_a_module_that_was_just_loaded() -> None:
    """Every golden had the value of the first golden's size. The endpoint has that of its own."""
    scripted = torch.jit.script(Caching())
    recorded = stages.record(stages.lower(stages.Loaded(spec(X), scripted)))
    (warning,) = recorded.warnings
    assert warning.startswith("forward keeps 'inner.scale', which it sets from sizes")
    assert "test_recording.py" in warning
    for golden in recorded.goldens:
        x = golden.inputs["x"]
        np.testing.assert_allclose(golden.outputs["output"], x * len(x) + 1)
