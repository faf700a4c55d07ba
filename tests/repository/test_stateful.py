"""Models with state without a server: sequence goldens, and errors with their lines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from builder import manifest, parity
from builder.errors import ModelFileError, UsageError
from builder.parity.sequences import LENGTHS
from builder.pipeline import state as stateful
from builder.repository import build_repository
from builder.torchscript import load
from builder.triton import Golden
from tests.repository import stateful as models


def spec_of(
    folder: Path, name: str = "recognizer", *changes: tuple[str, str]
) -> manifest.ModelSpec:
    """The spec of a model after each replacement `(old, new)` in its manifest."""
    models.write(folder, name)
    text = (folder / f"{name}.yaml").read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / f"{name}.yaml").write_text(text)
    return manifest.load(folder, only=[name])[0]


def recorded(spec: manifest.ModelSpec) -> dict[str, Golden]:
    return {golden.name: golden for golden in parity.record(load(spec.path), spec)}


def test_sequence_goldens_match_the_module_in_a_loop(tmp_path: Path) -> None:
    goldens = recorded(spec_of(tmp_path))
    module = models.module("recognizer")
    for number, length in enumerate(LENGTHS):
        h, c = torch.from_numpy(np.load(tmp_path / "h0.npy")), torch.zeros(2, 1, 5)
        for at in range(length):
            golden = goldens.pop(f"sequence-{number}.{at:03}")
            with torch.no_grad():
                y, h, c = module(torch.from_numpy(golden.inputs["x"]), h, c)
            for name, tensor in (("y", y), ("hn", h), ("cn", c)):
                np.testing.assert_allclose(
                    golden.outputs[name], tensor.numpy(), rtol=1e-5, atol=1e-6
                )
    assert not any(name.startswith("sequence") for name in goldens)


def test_sequences_have_one_row_and_varying_lengths(tmp_path: Path) -> None:
    goldens = recorded(spec_of(tmp_path))
    shapes = {
        name: golden.inputs["x"].shape
        for name, golden in goldens.items()
        if name.startswith("sequence")
    }
    assert {shape[0] for shape in shapes.values()} == {1}
    assert len({shape[1] for shape in shapes.values()}) > 2
    assert {
        shape[1] for name, shape in shapes.items() if name.startswith("sequence-0")
    } == {3}


def test_sequence_outputs_depend_on_the_state(tmp_path: Path) -> None:
    """Only then the goldens detect a server that loses the state."""
    for name in models.MODULES:
        spec = spec_of(tmp_path, name)
        module = load(spec.path)
        first = {
            state.input: recorded(spec)["sequence-0.000"].inputs[state.input]
            for state in spec.state
        }
        golden = recorded(spec)["sequence-0.003"]
        with torch.no_grad():
            without_state = module(
                *(
                    torch.from_numpy({**golden.inputs, **first}[str(t.name)])
                    for t in spec.inputs
                )
            )
        assert not parity.compare(
            {"y": without_state[0].numpy()}, {"y": golden.outputs["y"]}
        ).passed, name


def test_batch_axis_moves_first_after_recording(tmp_path: Path) -> None:
    from builder import lowering

    spec = spec_of(tmp_path)
    lowered = lowering.lower(load(spec.path), specs=spec.inputs)
    goldens = parity.record(load(spec.path), spec)
    moved, moved_lowered, served = stateful.batch_first(
        spec, lowered, ["y", "hn", "cn"], goldens
    )
    assert [tensor.shape for tensor in moved.inputs] == [
        ("streams", "time", 6),
        ("streams", 2, 5),
        ("streams", 2, 5),
    ]
    for before, after in zip(goldens, served, strict=True):
        assert (after.inputs["c0"] == np.moveaxis(before.inputs["c0"], 1, 0)).all()
        outputs = moved_lowered.run(
            *(torch.from_numpy(array) for array in after.inputs.values())
        )
        output = dict(
            zip(
                ("y", "hn", "cn"),
                (tensor.contiguous().numpy() for tensor in outputs),
                strict=True,
            )
        )
        assert parity.compare(output, after).passed


def test_row_goldens_have_one_row_of_every_state(tmp_path: Path) -> None:
    goldens = recorded(spec_of(tmp_path))
    assert goldens["p0-row"].inputs["h0"].shape == (2, 1, 5)
    assert (
        goldens["p0-row"].inputs["h0"] == goldens["p0-opt"].inputs["h0"][:, :1]
    ).all()


C0 = "{name: c0, dtype: float32, shape: [2, streams, 5]}"
MISTAKES: dict[str, tuple[str, list[tuple[str, str]], int, str]] = {
    "an output of another shape": (
        "recognizer",
        [("output: hn,", "output: y,")],
        10,
        "output 'y' is float32[1, 3, 3]",
    ),
    "an output of another type": (
        "counter",
        [
            ("  - {input: count, output: new_count}\n", ""),
            ("output: new_total", "output: new_count"),
        ],
        8,
        "output 'new_count' is int32[1], and input 'total', which it is to become, int64[1]",
    ),
    "an unknown output": (
        "recognizer",
        [("outputs: [y, hn, cn]\n", "")],
        9,
        "state[0].output: the model has no output 'hn'",
    ),
    "a state that changes its size": (
        "recognizer",
        [
            (C0, C0.replace("[2,", "[past,")),
            ("time: {", "past: {min: 1, opt: 2, max: 2}\n  time: {"),
        ],
        12,
        "axis 'past' is dynamic",
    ),
    "a state without the batch axis": (
        "recognizer",
        [
            (
                "{name: h0, dtype: float32, shape: [2, streams, 5]}",
                "{name: h0, dtype: float32, shape: [2, 4, 5]}",
            )
        ],
        11,
        "axis 'streams' is dynamic",
    ),
    "an initial value of another type": (
        "recognizer",
        [("h0.npy", "total.npy")],
        10,
        "state[0].initial is int64[1]",
    ),
    "no input besides state": (
        "recognizer",
        [("hn, initial: h0.npy}", "hn}\n  - {input: x, output: y}")],
        10,
        "a client would have nothing to send",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_invalid_state_is_reported_with_its_line(tmp_path: Path, name: str) -> None:
    model, changes, line, words = MISTAKES[name]
    spec_of(tmp_path, model, *changes)
    (result,) = build_repository(
        tmp_path, tmp_path / "out", only=[model], isolate=False
    )
    assert isinstance(result.error, UsageError) and words in result.error.message, (
        result.error
    )
    assert result.error.where == f"{tmp_path / f'{model}.yaml'}:{line}"


def test_archive_named_npy_is_no_initial_state(tmp_path: Path) -> None:
    spec_of(tmp_path, "recognizer")
    with (tmp_path / "h0.npy").open("wb") as file:
        np.savez(file, h0=np.zeros((2, 1, 5), np.float32))
    (result,) = build_repository(
        tmp_path, tmp_path / "out", only=["recognizer"], isolate=False
    )
    assert isinstance(result.error, UsageError)
    assert "is not an .npy file of a plain array: it is an .npz" in str(result.error)


def test_module_that_fails_on_its_state_is_reported_by_request(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "recognizer")

    def fails(
        x: torch.Tensor, h0: torch.Tensor, c0: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        if x.shape[0] == 1 and h0.abs().max() > 0 and c0.abs().max() == 0:
            raise RuntimeError("only warm")
        return (x, h0, c0)

    with pytest.raises(ModelFileError, match=r"request sequence-0.000 .*only warm"):
        list(parity.record(fails, spec))


def test_state_of_varying_size_may_be_explicit(tmp_path: Path) -> None:
    """The client keeps a growing cache. The goldens are single requests."""
    inputs = (
        "inputs: [{name: x, dtype: float32, shape: [1, 4]}, {name: past, dtype: float32, shape:"
        " [length, 4]}]\n"
    )
    rest = (
        "dims: {length: {min: 0, opt: 2, max: 8}}\noutputs: [y, all]\nstate: [{input: past, output:"
        " all}]\n"
    )
    torch.jit.script(Growing()).save(tmp_path / "growing.pt")
    (tmp_path / "growing.yaml").write_text(inputs + rest)
    (implicit,) = manifest.load(tmp_path)
    with pytest.raises(UsageError, match="'past' changes its size"):
        stateful.check(implicit, ["y", "all"])
    (explicit,) = manifest.load(tmp_path, state="explicit")
    stateful.check(explicit, ["y", "all"])
    assert not any(name.startswith("sequence") for name in recorded(explicit))


class Growing(torch.nn.Module):
    def forward(
        self, x: torch.Tensor, past: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        whole = torch.cat([past, x])
        return whole.sum(0, keepdim=True), whole


def test_ensemble_with_implicit_state_is_rejected(tmp_path: Path) -> None:
    spec_of(tmp_path, "spectral")
    (refused,) = build_repository(
        tmp_path, tmp_path / "out", layout="ensemble", isolate=False
    )
    assert (
        isinstance(refused.error, UsageError)
        and "keeps its state (spectrum)" in refused.error.message
    )
    (explicit,) = build_repository(
        tmp_path, tmp_path / "out", layout="ensemble", state="explicit", isolate=False
    )
    assert explicit.ok and explicit.layout == "ensemble"
    (fused,) = build_repository(tmp_path, tmp_path / "fused", isolate=False)
    assert (
        fused.ok
        and fused.layout == "fused"
        and "keeps its state" in fused.layout_reason
    )


def test_user_goldens_without_state_form_a_sequence(tmp_path: Path) -> None:
    (tmp_path / "own.npz").touch()
    spec = spec_of(tmp_path, "recognizer", ("instances: 2", "goldens: own.npz"))
    x = np.random.default_rng(1).standard_normal((7, 1, 2, 6)).astype(np.float32)
    state = np.zeros((2, 3, 5), np.float32)
    np.savez(
        tmp_path / "own.npz",
        **{"0/x": x, "1/x": x[0].repeat(3, 0), "1/h0": state, "1/c0": state},
    )
    goldens = recorded(spec)
    assert [name for name in goldens if name.startswith("user")] == [
        *(f"user-0.{at:03}" for at in range(7)),
        "user-1",
    ]
    assert (goldens["user-0.004"].inputs["x"] == x[4]).all()
    assert (
        goldens["user-0.004"].inputs["h0"] == goldens["user-0.003"].outputs["hn"]
    ).all()


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((3, 2, 2, 6), "axis 'streams' of the golden inputs has 2"),
        ((0, 1, 2, 6), "must have the same number of requests"),
    ],
)
def test_invalid_user_sequence_is_rejected(
    tmp_path: Path, shape: tuple[int, ...], words: str
) -> None:
    (tmp_path / "own.npz").touch()
    spec = spec_of(tmp_path, "recognizer", ("instances: 2", "goldens: own.npz"))
    np.savez(tmp_path / "own.npz", x=np.zeros(shape, np.float32))
    with pytest.raises(UsageError, match=words):
        recorded(spec)


def test_changed_initial_state_causes_a_rebuild(tmp_path: Path) -> None:
    spec_of(tmp_path)
    (built,) = build_repository(tmp_path, tmp_path / "out", isolate=False)
    (again,) = build_repository(tmp_path, tmp_path / "out", isolate=False)
    assert (built.state, again.state) == ("built", "unchanged")
    np.save(tmp_path / "h0.npy", np.ones((2, 1, 5), np.float32))
    (changed,) = build_repository(tmp_path, tmp_path / "out", isolate=False)
    assert changed.ok and "state" in changed.because


class BatchDecision(torch.nn.Module):
    """A model with one decision for all rows of a batch, which sequences of one row do not show."""

    def forward(
        self, x: torch.Tensor, past: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        y = x + past * 2 if bool(x.sum() > 0) else x - past
        return y, torch.tanh(y)


@pytest.mark.parametrize(("axis", "built"), [("streams", False), ("1", True)])
def test_sequences_with_a_data_branch_are_not_batched(
    tmp_path: Path, axis: str, built: bool
) -> None:
    tensors = ", ".join(
        f"{{name: {name}, dtype: float32, shape: [{axis}, 4]}}"
        for name in ("x", "past")
    )
    rest = "outputs: [y, next]\nstate: [{input: past, output: next}]\n"
    dims = "dims: {streams: {min: 1, opt: 2, max: 4}}\n" if axis == "streams" else ""
    torch.jit.script(BatchDecision()).save(tmp_path / "decided.pt")
    (tmp_path / "decided.yaml").write_text(f"inputs: [{tensors}]\n{dims}{rest}")
    (result,) = build_repository(tmp_path, tmp_path / "out", isolate=False)
    assert result.ok == built, result.error
    assert built or "a branch on data decides once" in str(result.error)
