"""Partitioned models without a server: their segments, layouts, warnings and errors."""

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


class Unconvertible(nn.Module):
    """A model without an operator that converts."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.special.bessel_j0(x)


class Swish(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(x) + 1


class Mlp(nn.Module):
    """A model that is converted completely."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.act, self.last = nn.Linear(8, 8), Swish(), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return (
            torch.relu(self.last(torch.relu(self.act(torch.relu(self.first(x)))))) + 1
        )


class Middle(Mlp):
    """A model with a Bessel function in the middle."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.act(self.first(x)))
        return torch.relu(self.last(torch.special.bessel_j0(y)) * 2) + 1


class Complex(Mlp):
    """A model with a complex boundary tensor, which Triton does not support."""

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.asinh(torch.fft.fft(x))
        y = torch.relu(self.act(self.first(spectrum.abs())))
        return (spectrum * torch.fft.fft(y)).abs()


class UnreadInput(Middle):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        z = torch.relu(self.act(self.first(x)))
        return torch.relu(self.last(torch.special.bessel_j0(z)) * 2) + 1


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
    (result,) = build_repository(
        folder / "models", folder / "out", layout=layout, isolate=False
    )
    return result


def models(folder: Path) -> set[str]:
    return {path.name for path in (folder / "out").iterdir()}


def test_fully_converted_model_is_one_engine(tmp_path: Path) -> None:
    result = build(tmp_path, Mlp())
    assert (result.ok, result.layout, result.segments) == (True, "single", ())
    assert models(tmp_path) == {"m"} and (tmp_path / "out/m/1/model.plan").exists()


def test_unconvertible_model_is_served_by_torch_with_a_warning(tmp_path: Path) -> None:
    result = build(tmp_path, Unconvertible())
    assert (result.ok, result.segments, result.plan_bytes) == (True, ("torch",), 0)
    assert "PyTorch only" in result.warnings[0] and any(
        "aten::special_bessel_j0" in text for text in result.warnings
    )
    assert not list((tmp_path / "out").glob("*/1/*.plan"))


def test_torch_only_model_is_one_model_in_every_layout(tmp_path: Path) -> None:
    """A model of one segment, in torch or TensorRT, has no ensemble."""
    result = build(tmp_path, Unconvertible(), layout="ensemble")
    assert result.ok, result.error
    assert (result.layout, result.layout_reason) == ("fused", "it is one segment")
    assert build(tmp_path, Mlp(), layout="ensemble").layout == "single"


def test_require_full_rejects_partial_conversion(tmp_path: Path) -> None:
    result = build(tmp_path, Middle(), fallback={"require_full": True})
    assert isinstance(result.error, UnsupportedOperators)


def test_fallback_section_keeps_operators_and_modules_in_torch(tmp_path: Path) -> None:
    by_operator = build(
        tmp_path, Mlp(), fallback={"ops": ["aten::sigmoid"], "min_block_size": 1}
    )
    assert by_operator.segments == ("tensorrt", "torch", "tensorrt")
    by_module = build(
        tmp_path, Mlp(), fallback={"modules": ["act"], "min_block_size": 1}
    )
    assert by_module.segments == ("tensorrt", "torch", "tensorrt")
    misspelt = build(
        tmp_path, Mlp(), fallback={"modules": ["akt"], "min_block_size": 1}
    )
    assert misspelt.layout == "single" and "names no module" in misspelt.warnings[0]


def test_unknown_fallback_module_is_reported(tmp_path: Path) -> None:
    result = build(tmp_path, Mlp(), fallback={"modules": ["act", "Swish", "head"]})
    assert result.ok and "names no module of this model: head" in result.warnings[0]
    known = build(tmp_path, Mlp(), fallback={"modules": ["act", "Swish"]})
    assert not any("names no module" in warning for warning in known.warnings)


def test_unknown_fallback_operator_is_reported(tmp_path: Path) -> None:
    result = build(tmp_path, Mlp(), fallback={"ops": ["aten::sigmiod", "aten::re*"]})
    (warning,) = (text for text in result.warnings if "fallback.ops" in text)
    assert "aten::sigmiod" in warning and "did you mean 'aten::sigmoid'" in warning


def test_changing_the_layout_removes_old_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = {"m.0.tensorrt", "m.1.torch", "m.2.tensorrt"}
    assert build(
        tmp_path, Middle(), layout="ensemble", fallback={"min_block_size": 1}
    ).ok
    assert {*map(networks.base, models(tmp_path))} == {"m"} | steps
    assert build(tmp_path, Middle(), layout="fused", fallback={"min_block_size": 1}).ok
    later = time.time() + retired.GRACE_SECONDS + 5  # after the grace period
    monkeypatch.setattr(retired.time, "time", lambda: later)
    assert build(tmp_path, Middle(), layout="fused", fallback={"min_block_size": 1}).ok
    assert models(tmp_path) == {"m"}


@pytest.mark.slow
def test_retraining_renames_only_the_changed_step(tmp_path: Path) -> None:
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


def test_identical_rebuild_keeps_step_names(tmp_path: Path) -> None:
    options = {"min_block_size": 1}
    assert build(tmp_path, Middle(), layout="ensemble", fallback=options).ok
    first = models(tmp_path)
    shutil.rmtree(tmp_path / "out")
    assert build(tmp_path, Middle(), layout="ensemble", fallback=options).ok
    assert models(tmp_path) == first


def test_step_never_replaces_a_user_model(tmp_path: Path) -> None:
    assert build(
        tmp_path, Middle(), layout="ensemble", fallback={"min_block_size": 1}
    ).ok
    name = networks.step(tmp_path / "out", "m.1.torch").name
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "out" / name / "1").mkdir(parents=True)
    result = build(
        tmp_path, Middle(), layout="ensemble", fallback={"min_block_size": 1}
    )
    assert not result.ok and "a model of its own" in str(result.error)
    assert models(tmp_path) == {name}


@pytest.mark.parametrize(
    ("module", "inputs", "words"),
    [(Complex(), 1, "element type"), (UnreadInput(), 2, "input y")],
)
def test_unsupported_boundary_tensors_require_the_fused_layout(
    tmp_path: Path, module: nn.Module, inputs: int, words: str
) -> None:
    requested = build(
        tmp_path, module, inputs, "ensemble", fallback={"min_block_size": 1}
    )
    assert isinstance(requested.error, UsageError) and words in str(requested.error)
    assert (
        build(tmp_path, module, inputs, "auto", fallback={"min_block_size": 1}).layout
        == "fused"
    )


class DynamicRows(Middle):
    """A model that selects a data-dependent number of rows in the middle."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.act(self.first(x)))
        rows = y[torch.nonzero(y.sum(1) > -1e9)[:, 0]]
        return torch.relu(self.last(rows) * 2) + 1


def build_dynamic_rows(folder: Path, **ranges: tuple[int, int, int]) -> ModelResult:
    spans = {
        key.replace("__", "::"): dict(zip(("min", "opt", "max"), span, strict=True))
        for key, span in ranges.items()
    }
    return build(
        folder,
        DynamicRows(),
        fallback={"ops": ["aten::nonzero"], "min_block_size": 1, "ranges": spans},
    )


def test_data_dependent_size_with_a_range_is_built(
    tmp_path: Path,
) -> None:
    without = build_dynamic_rows(tmp_path)
    assert without.ok and without.segments[-1] == "torch"
    advice = next(text for text in without.warnings if "ranges" in text)
    assert "aten::nonzero" in advice
    warning = build_dynamic_rows(tmp_path, aten__nonzero=(1, 2, 4))
    assert warning.ok and warning.segments == ("tensorrt", "torch", "tensorrt"), (
        warning.error
    )
    assert not any("ranges" in text for text in warning.warnings)


def test_range_may_name_the_tensor_of_the_warning(tmp_path: Path) -> None:
    advice = next(
        text for text in build_dynamic_rows(tmp_path).warnings if "ranges" in text
    )
    tensor = advice.partition(" from ")[2].partition(" (of ")[0]
    assert build_dynamic_rows(tmp_path, **{tensor: (1, 2, 4)}).segments == (
        "tensorrt",
        "torch",
        "tensorrt",
    )


def test_unknown_range_name_has_a_suggestion(tmp_path: Path) -> None:
    result = build_dynamic_rows(tmp_path, aten__nonzeros=(1, 2, 4))
    assert isinstance(
        result.error, UsageError
    ) and "did you mean 'aten::nonzero'" in str(result.error)


def test_golden_outside_the_range_is_an_error_with_its_size(tmp_path: Path) -> None:
    result = build_dynamic_rows(tmp_path, aten__nonzero=(1, 2, 3))
    assert isinstance(
        result.error, UsageError
    ) and "has size 4 in golden p0-max" in str(result.error)


class SizeFromValue(Middle):
    """A model in which an input value determines the size of a slice."""

    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        y = torch.relu(self.first(x)) * 2
        k = int(n.clamp(1, 4))
        for _ in range(5):  # more than the limit of repeated partitions
            y = torch.relu(y)
            y = y + y[:, :k].sum()
        return torch.relu(self.last(y)[:, :k]) + 1


def test_sizes_that_depend_on_input_values_run_in_torch(tmp_path: Path) -> None:
    """TensorRT's builder fails without a range of values for such an input."""
    torch.jit.script(SizeFromValue().eval()).save(str(tmp_path / "m.pt"))
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
    assert result.segments == ("tensorrt", "torch") * 6, (
        "nodes that do not read it run in engines"
    )
    assert not any("the manifest keeps" in text for text in result.warnings), (
        "the manifest keeps no node in torch"
    )
    assert any(
        "aten::slice" in text and "a size depends on the value of an input" in text
        for text in result.warnings
    )


class Masked(Middle):
    """A model whose first optional argument is omitted and whose second one is passed."""

    def forward(
        self, x: Tensor, mask: Tensor | None = None, y: Tensor | None = None
    ) -> Tensor:
        z = torch.relu(self.act(self.first(x)))
        if mask is not None:
            z = z * mask
        z = torch.relu(self.last(torch.special.bessel_j0(z)) * 2) + 1
        return z if y is None else z - y


def test_optional_argument_in_the_manifest_is_an_input(tmp_path: Path) -> None:
    result = build(tmp_path, Masked(), inputs=2)
    assert result.ok, result.error
    sidecar = json.loads((tmp_path / "out" / "m" / "trt-build.json").read_text())
    assert [tensor["name"] for tensor in sidecar["inputs"]] == ["x", "y"]


class Noisy(Middle):
    """A model with a random boundary tensor on which the output does not depend."""

    def forward(self, x: Tensor) -> Tensor:
        z = torch.relu(self.act(self.first(x)))
        return torch.relu(self.last(z + (torch.rand_like(z) < 2))) * 2


def test_random_boundary_tensor_requires_the_fused_layout(tmp_path: Path) -> None:
    """A segment golden cannot contain random numbers."""
    result = build(tmp_path, Noisy(), layout="ensemble")
    assert isinstance(result.error, UsageError) and "aten::rand_like" in str(
        result.error
    )
    result = build(tmp_path, Noisy())
    assert (result.ok, result.layout, result.segments) == (
        True,
        "fused",
        ("tensorrt", "torch", "tensorrt"),
    )


class Sampled(Noisy):
    """A model whose output depends on random numbers."""

    def forward(self, x: Tensor) -> Tensor:
        z = torch.relu(self.act(self.first(x)))
        return torch.relu(self.last(z + torch.randn_like(z)) * 2)


def test_random_output_is_reported_and_is_not_a_defect(
    tmp_path: Path,
) -> None:
    error = build(tmp_path, Sampled()).error
    assert isinstance(error, ParityError) and error.fix is not None
    assert "aten::randn_like" in error.fix and "defect" not in error.fix


class Float64Inputs(Mlp):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        z = torch.relu(self.act(self.first(x.float())))
        return torch.relu(self.last(z) * 2) + y.sum(-1, keepdim=True)


def test_readers_of_an_unsupported_input_run_in_torch(tmp_path: Path) -> None:
    result = build(
        tmp_path,
        Float64Inputs(),
        inputs=2,
        dtype="float64",
        fallback={"min_block_size": 1},
    )
    assert result.ok, result.error
    assert "tensorrt" in result.segments and "torch" in result.segments
    assert any(
        "input x: TensorRT has no float64" in warning for warning in result.warnings
    )
    whole = build(
        tmp_path,
        Float64Inputs(),
        inputs=2,
        dtype="float64",
        fallback={"require_full": True},
    )
    assert isinstance(whole.error, UsageError)


class EmptyTensor(Middle):
    """A model with an empty tensor as boundary tensor and output."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.relu(self.act(self.first(x)))
        nothing = z[:, 8:]
        return torch.relu(
            self.last(torch.special.bessel_j0(torch.cat([z, nothing], 1))) * 2
        ), nothing


@pytest.mark.parametrize("layout", ["fused", "ensemble"])
def test_tensors_without_elements_are_served(tmp_path: Path, layout: str) -> None:
    result = build(tmp_path, EmptyTensor(), layout=layout)
    assert (result.ok, result.layout) == (True, layout), result.error
