"""Arguments that are not tensors: the manifest fixes them, or makes a number an input."""

from __future__ import annotations

from pathlib import Path
from typing import Any, List, Optional  # noqa: UP035

import numpy as np
import pytest
import torch
from torch import nn

from builder.errors import LoweringError
from builder.lowering import lower
from builder.manifest import load
from builder.manifest.spec import TensorSpec
from builder.parity import record
from builder.pipeline import stages


class Settings(nn.Module):
    def forward(
        self,
        x: torch.Tensor,
        threshold: float,
        n: int,
        flag: bool,
        mode: str,
        sizes: List[int],  # noqa: UP006
        scale: Optional[float] = None,  # noqa: UP045
    ) -> torch.Tensor:
        y = torch.where(x > threshold, x, torch.zeros_like(x)) * n
        if flag:
            y = y + 1
        if mode == "double":
            y = y * 2
        if scale is not None:
            y = y * scale
        return y.reshape(sizes)


class Threshold(nn.Module):
    def forward(self, x: torch.Tensor, threshold: float, n: int) -> torch.Tensor:
        return torch.where(x > threshold, x, torch.zeros_like(x)) + n


CONSTANTS: dict[str, Any] = {
    "threshold": 0.5,
    "n": 3,
    "flag": True,
    "mode": "double",
    "sizes": [-1, 2],
    "scale": 4,
}
X = TensorSpec("float32", (4, 3), name="x")


def test_every_kind_of_constant_is_bound() -> None:
    lowered = lower(torch.jit.script(Settings()), specs=[X], constants=CONSTANTS)
    assert lowered.inputs == ("x",)
    x = torch.randn(4, 3)
    expected = Settings()(x, **{**CONSTANTS, "scale": 4.0})
    torch.testing.assert_close(lowered.run(x)[0], expected)


def test_missing_argument_value_is_an_error_with_a_fix() -> None:
    with pytest.raises(
        LoweringError, match="'threshold' of forward has the type float"
    ) as refused:
        lower(torch.jit.script(Settings()), specs=[X])
    assert "constants: {threshold: ...}" in str(refused.value)


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ({"treshold": 0.5}, "'treshold', which is not an argument of forward"),
        ({"n": 1.5}, "constant n: 1.5 is not a value of type int"),
        ({"flag": 1}, "constant flag: 1 is not a value of type bool"),
        ({"mode": 3}, "constant mode: 3 is not a value of type str"),
        ({"sizes": ["a"]}, "constant sizes"),
        ({"x": 1.0}, "constant x: 1.0 is not a value of type Tensor"),
    ],
)
def test_invalid_constant_is_reported_by_name(
    constants: dict[str, Any], message: str
) -> None:
    with pytest.raises(LoweringError, match=message):
        lower(
            torch.jit.script(Settings()),
            specs=[X],
            constants={**CONSTANTS, **constants},
        )


@pytest.mark.parametrize("threshold", [0.25, -0.5])
def test_number_argument_may_be_an_input_of_one_element(threshold: float) -> None:
    specs = [X, TensorSpec("float32", (), name="threshold")]
    module = torch.jit.script(Threshold())
    lowered = lower(
        module, specs=specs, optional_inputs=["x", "threshold"], constants={"n": 2}
    )
    assert lowered.inputs == ("x", "threshold")
    x = torch.randn(4, 3)
    torch.testing.assert_close(
        lowered.run(x, torch.tensor(threshold))[0], Threshold()(x, threshold, 2)
    )


def test_goldens_use_the_constants(tmp_path: Path) -> None:
    torch.jit.script(Threshold()).save(str(tmp_path / "m.pt"))
    (tmp_path / "m.yaml").write_text(
        "inputs:\n"
        "  - {name: x, dtype: float32, shape: [4, 3]}\n"
        "  - {name: threshold, dtype: float32, shape: []}\n"
        "constants: {n: 2}\n"
    )
    (spec,) = load(tmp_path)
    module = torch.jit.load(str(tmp_path / "m.pt"))
    for golden in record(module, spec):
        x, threshold = (torch.from_numpy(np.array(a)) for a in golden.inputs.values())
        expected = Threshold()(x, float(threshold), 2)
        torch.testing.assert_close(torch.from_numpy(golden.outputs["output"]), expected)


@pytest.mark.parametrize("key", ["constants: {treshold: 1}", "max_lengths: {boxes: 2}"])
def test_key_that_does_not_fit_the_module_has_its_line(
    tmp_path: Path, key: str
) -> None:
    torch.jit.script(nn.ReLU()).save(str(tmp_path / "m.pt"))
    (tmp_path / "m.yaml").write_text(
        f"inputs: [{{name: input, dtype: float32, shape: [4]}}]\n{key}\n"
    )
    (spec,) = load(tmp_path)
    with pytest.raises(LoweringError) as refused:
        stages.lower(stages.load(spec))
    assert refused.value.where == f"{tmp_path / 'm.yaml'}:2" and refused.value.fix
