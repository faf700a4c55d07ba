"""Which models are cut, into what, and what they are told: without a server."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest
import torch
import yaml
from torch import Tensor, nn

from builder.errors import ParityError, UnsupportedOperators, UsageError
from builder.repository import ModelResult, build_repository
from builder.store import retired
from tests.repository import networks


class Fourier(nn.Module):
    """Nothing of it converts."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.fft(x).abs()


class Swish(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(x) + 1


class Mlp(nn.Module):
    """All of it converts."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.act, self.last = nn.Linear(8, 8), Swish(), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.last(torch.relu(self.act(torch.relu(self.first(x)))))) + 1


class Middle(Mlp):
    """An FFT in the middle."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.act(self.first(x)))
        return torch.relu(self.last(torch.fft.fft(y).abs()) * 2) + 1


class Complex(Mlp):
    """A complex tensor crosses from one torch piece to the next: no Triton tensor can be one."""

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.fft(x)
        y = torch.relu(self.act(self.first(spectrum.abs())))
        return (spectrum * torch.fft.fft(y)).abs()


class Unread(Middle):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        z = torch.relu(self.act(self.first(x)))
        return torch.relu(self.last(torch.fft.fft(z).abs()) * 2) + 1


def build(
    folder: Path,
    module: nn.Module,
    inputs: int = 1,
    layout: str = "auto",
    dtype: str = "float32",
    **manifest: object,
) -> ModelResult:
    (folder / "models").mkdir(exist_ok=True)
    torch.jit.script(module.eval()).save(str(folder / "models" / "m.pt"))
    names = ["x", "y"][:inputs]
    message = {
        "inputs": [{"name": n, "dtype": dtype, "shape": ["batch", 8]} for n in names],
        "dims": {"batch": {"min": 1, "opt": 2, "max": 4}},
        **manifest,
    }
    (folder / "models" / "m.yaml").write_text(yaml.safe_dump(message))
    (result,) = build_repository(folder / "models", folder / "out", layout=layout, isolate=False)
    return result


def models(folder: Path) -> set[str]:
    return {path.name for path in (folder / "out").iterdir()}


def test_what_converts_is_one_plain_engine(tmp_path: Path) -> None:
    result = build(tmp_path, Mlp())
    assert (result.ok, result.layout, result.segments) == (True, "single", ())
    assert models(tmp_path) == {"m"} and (tmp_path / "out/m/1/model.plan").exists()


def test_unconvertible_model_is_served_by_torch_with_the_reason(tmp_path: Path) -> None:
    result = build(tmp_path, Fourier())
    assert (result.ok, result.segments, result.plan_bytes) == (True, ("torch",), 0)
    assert "PyTorch only" in result.warnings[0] and any(
        "aten::fft_fft" in text for text in result.warnings
    )
    assert not list((tmp_path / "out").glob("*/1/*.plan"))


def test_what_torch_alone_serves_is_one_model_in_every_layout(tmp_path: Path) -> None:
    """As one engine is: a folder may hold both, beside models in pieces."""
    result = build(tmp_path, Fourier(), layout="ensemble")
    assert result.ok, result.error
    assert (result.layout, result.layout_reason) == ("fused", "it is one segment")
    assert build(tmp_path, Mlp(), layout="ensemble").layout == "single"


def test_require_full_fails_instead(tmp_path: Path) -> None:
    result = build(tmp_path, Middle(), fallback={"require_full": True})
    assert isinstance(result.error, UnsupportedOperators)


def test_the_manifest_keeps_operators_and_modules_in_torch(tmp_path: Path) -> None:
    by_operator = build(tmp_path, Mlp(), fallback={"ops": ["aten::sigmoid"], "min_block_size": 1})
    assert by_operator.segments == ("tensorrt", "torch", "tensorrt")
    by_module = build(tmp_path, Mlp(), fallback={"modules": ["act"], "min_block_size": 1})
    assert by_module.segments == ("tensorrt", "torch", "tensorrt")
    misspelt = build(tmp_path, Mlp(), fallback={"modules": ["akt"], "min_block_size": 1})
    assert misspelt.layout == "single" and "names no module" in misspelt.warnings[0]


def test_module_absent_from_the_model_is_reported_beside_present_ones(tmp_path: Path) -> None:
    found = build(tmp_path, Mlp(), fallback={"modules": ["act", "Swish", "head"]})
    assert found.ok and "names no module of this model: head" in found.warnings[0]
    result = build(tmp_path, Mlp(), fallback={"modules": ["act", "Swish"]}).warnings
    assert not any("names no module" in warning for warning in result)


def test_operator_absent_from_the_model_is_reported(tmp_path: Path) -> None:
    result = build(tmp_path, Mlp(), fallback={"ops": ["aten::sigmiod", "aten::re*"]})
    (warning,) = (text for text in result.warnings if "fallback.ops" in text)
    assert "aten::sigmiod" in warning and "did you mean 'aten::sigmoid'" in warning


def test_changing_the_layout_leaves_no_step_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = {"m.0.tensorrt", "m.1.torch", "m.2.tensorrt"}
    assert build(tmp_path, Middle(), layout="ensemble", fallback={"min_block_size": 1}).ok
    assert {*map(networks.base, models(tmp_path))} == {"m"} | steps
    assert build(tmp_path, Middle(), layout="fused", fallback={"min_block_size": 1}).ok
    later = time.time() + retired.GRACE_SECONDS + 5  # a server had time to unload them
    monkeypatch.setattr(retired.time, "time", lambda: later)
    assert build(tmp_path, Middle(), layout="fused", fallback={"min_block_size": 1}).ok
    assert models(tmp_path) == {"m"}


def test_a_retrained_part_gives_no_other_step_a_new_name(tmp_path: Path) -> None:
    """A server keeps memory for each name that it has loaded, so only changed steps get one."""
    network, options = Middle(), {"min_block_size": 1}
    assert build(tmp_path, network, layout="ensemble", fallback=options).ok
    first = {networks.base(name): name for name in models(tmp_path)}
    with torch.no_grad():
        network.last.weight.add_(1.0)
    assert build(tmp_path, network, layout="ensemble", fallback=options).ok
    second = models(tmp_path) - {*first.values()}
    assert {networks.base(name) for name in second} == {"m.2.tensorrt"}
    assert len({networks.base(name) for name in first}) == 4


def test_an_equal_rebuild_gives_no_step_a_new_name(tmp_path: Path) -> None:
    options = {"min_block_size": 1}
    assert build(tmp_path, Middle(), layout="ensemble", fallback=options).ok
    first = models(tmp_path)
    shutil.rmtree(tmp_path / "out")
    assert build(tmp_path, Middle(), layout="ensemble", fallback=options).ok
    assert models(tmp_path) == first


def test_a_step_never_replaces_a_model_of_the_users(tmp_path: Path) -> None:
    assert build(tmp_path, Middle(), layout="ensemble", fallback={"min_block_size": 1}).ok
    name = networks.step(tmp_path / "out", "m.1.torch").name
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "out" / name / "1").mkdir(parents=True)
    result = build(tmp_path, Middle(), layout="ensemble", fallback={"min_block_size": 1})
    assert not result.ok and "a model of its own" in str(result.error)
    assert models(tmp_path) == {name}


@pytest.mark.parametrize(
    ("module", "inputs", "words"), [(Complex(), 1, "element type"), (Unread(), 2, "input y")]
)
def test_what_cannot_cross_is_fused_and_never_an_ensemble(
    tmp_path: Path, module: nn.Module, inputs: int, words: str
) -> None:
    demanded = build(tmp_path, module, inputs, "ensemble", fallback={"min_block_size": 1})
    assert isinstance(demanded.error, UsageError) and words in str(demanded.error)
    assert build(tmp_path, module, inputs, "auto", fallback={"min_block_size": 1}).layout == "fused"


class Found(Middle):
    """Rows that the data choose, in the middle."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.act(self.first(x)))
        rows = y[torch.nonzero(y.sum(1) > -1e9)[:, 0]]
        return torch.relu(self.last(rows) * 2) + 1


def found(folder: Path, **ranges: tuple[int, int, int]) -> ModelResult:
    spans = {
        key.replace("__", "::"): dict(zip(("min", "opt", "max"), span, strict=True))
        for key, span in ranges.items()
    }
    return build(
        folder, Found(), fallback={"ops": ["aten::nonzero"], "min_block_size": 1, "ranges": spans}
    )


def test_nodes_after_a_data_dependent_size_are_an_engine_if_it_has_a_range(
    tmp_path: Path,
) -> None:
    without = found(tmp_path)
    assert without.ok and without.segments[-1] == "torch"
    advice = next(text for text in without.warnings if "ranges" in text)
    assert "aten::nonzero" in advice
    warning = found(tmp_path, aten__nonzero=(1, 2, 4))
    assert warning.ok and warning.segments == ("tensorrt", "torch", "tensorrt"), warning.error
    assert not any("ranges" in text for text in warning.warnings)


def test_the_tensor_that_the_advice_names_takes_the_range_too(tmp_path: Path) -> None:
    advice = next(text for text in found(tmp_path).warnings if "ranges" in text)
    tensor = advice.partition(" from ")[2].partition(" (of ")[0]
    assert found(tmp_path, **{tensor: (1, 2, 4)}).segments == ("tensorrt", "torch", "tensorrt")


def test_unused_range_is_an_error_with_the_known_values(tmp_path: Path) -> None:
    result = found(tmp_path, aten__nonzeros=(1, 2, 4))
    assert isinstance(result.error, UsageError) and "did you mean 'aten::nonzero'" in str(
        result.error
    )


def test_golden_outside_the_range_is_an_error_with_the_excess(tmp_path: Path) -> None:
    result = found(tmp_path, aten__nonzero=(1, 2, 3))
    assert isinstance(result.error, UsageError) and "has size 4 in golden p0-max" in str(
        result.error
    )


class Sized(Middle):
    """A number that the client sends says how much is read."""

    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        y = torch.relu(self.first(x)) * 2
        k = int(n.clamp(1, 4))
        for _ in range(5):  # more often than a model is cut anew
            y = torch.relu(y)
            y = y + y[:, :k].sum()
        return torch.relu(self.last(y)[:, :k]) + 1


def test_what_a_value_decides_the_size_of_runs_in_torch(tmp_path: Path) -> None:
    """TensorRT would want a range of the values of such an input, and failed the whole model in the
    builder.
    """
    torch.jit.script(Sized().eval()).save(str(tmp_path / "m.pt"))
    inputs = [
        {"name": "x", "dtype": "float32", "shape": ["b", 8]},
        {"name": "n", "dtype": "int64", "shape": []},
    ]
    manifest = {
        "inputs": inputs,
        "dims": {"b": {"min": 1, "opt": 2, "max": 4}},
        "fallback": {"min_block_size": 1},
    }
    (tmp_path / "m.yaml").write_text(yaml.safe_dump(manifest))
    (result,) = build_repository(tmp_path, tmp_path / "out", isolate=False)
    assert result.ok, result.error
    assert result.segments == ("tensorrt", "torch") * 6, "what does not read it is in engines"
    assert not any("the manifest keeps" in text for text in result.warnings), "it keeps nothing"
    assert any(
        "aten::slice" in text and "a size depends on the value of an input" in text
        for text in result.warnings
    )


class Masked(Middle):
    """An argument that may be left out, before one that is given."""

    def forward(self, x: Tensor, mask: Tensor | None = None, y: Tensor | None = None) -> Tensor:
        z = torch.relu(self.act(self.first(x)))
        if mask is not None:
            z = z * mask
        z = torch.relu(self.last(torch.fft.fft(z).abs()) * 2) + 1
        return z if y is None else z - y


def test_an_optional_argument_is_an_input_where_the_manifest_names_it(tmp_path: Path) -> None:
    result = build(tmp_path, Masked(), inputs=2)
    assert result.ok, result.error
    sidecar = json.loads((tmp_path / "out" / "m" / "trt-build.json").read_text())
    assert [tensor["name"] for tensor in sidecar["inputs"]] == ["x", "y"]


class Noisy(Middle):
    """Numbers drawn at random in one piece and read in the next, which the answer does not depend
    on.
    """

    def forward(self, x: Tensor) -> Tensor:
        z = torch.relu(self.act(self.first(x)))
        return torch.relu(self.last(z + (torch.rand_like(z) < 2))) * 2


def test_what_is_drawn_at_random_is_no_steps_answer(tmp_path: Path) -> None:
    """No golden of a step could hold it."""
    result = build(tmp_path, Noisy(), layout="ensemble")
    assert isinstance(result.error, UsageError) and "aten::rand_like" in str(result.error)
    result = build(tmp_path, Noisy())
    assert (result.ok, result.layout, result.segments) == (
        True,
        "fused",
        ("tensorrt", "torch", "tensorrt"),
    )


class Sampled(Noisy):
    """The answer depends on what is drawn."""

    def forward(self, x: Tensor) -> Tensor:
        z = torch.relu(self.act(self.first(x)))
        return torch.relu(self.last(z + torch.randn_like(z)) * 2)


def test_random_outputs_are_reported_as_random_not_wrong(
    tmp_path: Path,
) -> None:
    error = build(tmp_path, Sampled()).error
    assert isinstance(error, ParityError) and error.fix is not None
    assert "aten::randn_like" in error.fix and "defect" not in error.fix


class Double(Mlp):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        z = torch.relu(self.act(self.first(x.float())))
        return torch.relu(self.last(z) * 2) + y.sum(-1, keepdim=True)


def test_an_input_that_tensorrt_has_not_costs_what_reads_it(tmp_path: Path) -> None:
    result = build(tmp_path, Double(), inputs=2, dtype="float64", fallback={"min_block_size": 1})
    assert result.ok, result.error
    assert "tensorrt" in result.segments and "torch" in result.segments
    assert any("input x: TensorRT has no float64" in warning for warning in result.warnings)
    whole = build(tmp_path, Double(), inputs=2, dtype="float64", fallback={"require_full": True})
    assert isinstance(whole.error, UsageError)


class Hollow(Middle):
    """A tensor without elements crosses, and is an answer."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.relu(self.act(self.first(x)))
        nothing = z[:, 8:]
        return torch.relu(self.last(torch.fft.fft(torch.cat([z, nothing], 1)).abs()) * 2), nothing


@pytest.mark.parametrize("layout", ["fused", "ensemble"])
def test_tensors_without_elements_are_served(tmp_path: Path, layout: str) -> None:
    result = build(tmp_path, Hollow(), layout=layout)
    assert (result.ok, result.layout) == (True, layout), result.error
