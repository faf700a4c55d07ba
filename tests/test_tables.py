"""The tables of dtypes and precisions agree with torch and with files that cannot import them."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import builder
from builder import dtypes, precisions
from builder.choices import STATE_MODES

BUILDER = Path(builder.__file__).parent
CODE = torch.jit.CompilationUnit("def code(x: Tensor) -> int:\n    return x.dtype\n")
"""TorchScript's number for the dtype of a tensor."""


@pytest.mark.filterwarnings(
    "ignore"
)  # complex32 and the quantized dtypes are experimental
@pytest.mark.parametrize("entry", dtypes.TABLE, ids=lambda entry: str(entry.name))
def test_dtype_codes_match_torchscript(entry: dtypes.Dtype) -> None:
    dtype = dtypes.torch_dtype(entry)
    assert CODE.code(torch.empty(1, dtype=dtype)) == entry.code
    assert (dtypes.code_of(dtype), dtypes.dtype_of(entry.code)) == (entry.code, dtype)
    assert dtypes.name_of(dtype) == entry.name


def test_table_has_every_byte_sized_torch_dtype() -> None:
    known = {entry.name for entry in dtypes.TABLE}
    all_of_torch = {
        dtypes.name_of(value)
        for value in vars(torch).values()
        if isinstance(value, torch.dtype)
    }
    packed = {
        name
        for name in all_of_torch
        if name.startswith(("quint", "uint", "int", "bits"))
    }
    assert all_of_torch - known <= packed | {"float4_e2m1fn_x2"}


def test_manifest_schema_lists_the_tables() -> None:
    schema = json.loads(
        (BUILDER / "manifest/model.schema.json").read_text(encoding="utf-8")
    )
    listed = {tuple(found) for found in _enums(schema)}
    assert {precisions.PRECISIONS, dtypes.ENDPOINT_DTYPES, STATE_MODES} <= listed


def _enums(schema: Any) -> Iterator[list[Any]]:
    if isinstance(schema, dict) and isinstance(schema.get("enum"), list):
        yield schema["enum"]
    for inner in schema.values() if isinstance(schema, dict) else ():
        yield from _enums(inner)


def test_python_runtime_has_the_same_dtype_table() -> None:
    """The runtime is copied into models, where it cannot import builder."""
    source = BUILDER / "templates/runtime/trt_build_runtime/engine.py"
    table = next(
        node.value
        for node in ast.parse(source.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == "TENSORRT_TO_TORCH"
    )
    assert isinstance(table, ast.Dict)
    pairs = zip(map(ast.unparse, filter(None, table.keys)), table.values, strict=True)
    assert {ast.literal_eval(key): ast.unparse(value) for key, value in pairs} == {
        entry.tensorrt: f"torch.{entry.name}"
        for entry in dtypes.TABLE
        if entry.tensorrt and entry.triton
    }
