"""The warm-up requests of a config are run before publication: one that fails is left out, with a
warning, because it would keep the server from loading the model.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from builder import triton
from builder.pipeline import execution, warmup
from builder.pipeline.execution import LoadedFiles
from builder.repository import build_repository
from tests.pipeline import models
from tests.triton.artifacts import artifact, scorer, tensor


class SecondRowDecides(torch.nn.Module):
    """Fails for requests whose first row is positive, if it is the only row."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.size(0) == 1 and bool(x.sum() > 0):
            raise ValueError("one row that is positive")
        return x * 2


def positive_alone() -> Any:
    """An artifact whose goldens pass, and whose warm-up request does not."""
    model_artifact = artifact(
        torch.jit.script(torch.nn.Identity()),
        [tensor("x", "float32", "batch", 3)],
        ["y"],
    )
    rows = [
        replace(
            one,
            inputs={
                "x": abs(one.inputs["x"]) * (1 if len(one.inputs["x"]) > 1 else -1)
            },
        )
        for one in model_artifact.goldens
        if not one.name.endswith("-row")
    ]
    goldens = tuple(replace(one, outputs={"y": one.inputs["x"] * 2}) for one in rows)
    function = torch.jit.script(SecondRowDecides())
    return replace(
        model_artifact, goldens=goldens, lowered=bytes(function.save_to_buffer())
    )


def test_failing_warmup_request_is_omitted_with_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It runs the file that was loaded for the goldens."""
    model, files = positive_alone(), LoadedFiles()
    execution.check_artifact(model, files)
    monkeypatch.setattr(
        torch.jit, "load", lambda *args, **named: pytest.fail("loaded again")
    )
    (sample,) = triton.config(model).model_warmup
    assert (sample.name, sample.batch_size) == ("p0-opt", 1)
    without, (warning,) = warmup.confirm(model, files, engines=False)
    assert (
        "without the warm-up request p0-opt" in warning and "one row that is" in warning
    )
    assert list(triton.config(without).model_warmup) == []


def test_working_warmup_requests_are_kept() -> None:
    model = scorer()
    confirmed, warnings = warmup.confirm(model, LoadedFiles(), engines=False)
    assert warnings == ()
    assert (
        triton.config(confirmed).model_warmup == triton.config(model).model_warmup != []
    )


class Rows(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.softmax(1)


class Columns(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.softmax(0)


@pytest.mark.parametrize(("module", "dims"), [(Rows, [1, 4]), (Columns, [2, 4])])
def test_published_warmup_files_are_a_tested_request(
    tmp_path: Path, module: type[torch.nn.Module], dims: list[int]
) -> None:
    """Of a model that Triton batches: one row. Else: the whole golden."""
    source = models.save(tmp_path / "models", module())
    (result,) = build_repository(source, tmp_path / "out", isolate=False)
    assert result.ok, result.error
    folder = tmp_path / "out" / "m"
    config = text_format.Parse((folder / "config.pbtxt").read_text(), pb.ModelConfig())
    (sample,) = config.model_warmup
    batch = [sample.batch_size] if config.max_batch_size else []
    assert [*batch, *sample.inputs["x"].dims] == dims
    data = bytearray(
        (folder / "warmup" / sample.inputs["x"].input_data_file).read_bytes()
    )
    x = torch.frombuffer(data, dtype=torch.float32).reshape(dims)
    (output,) = torch.jit.load(str(folder / "1" / "lowered.pt"))(x)
    torch.testing.assert_close(output, module()(x))
