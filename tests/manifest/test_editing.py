"""Values of a manifest are edited in place: nothing else changes, and edits that are impossible
in place are refused.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from builder.errors import UsageError
from builder.manifest import document
from builder.manifest.editing import edit

FOUND = {"precision": "fp16", "keep_fp32": ["big/aten::linear_0", "a [b]"]}
HEAD = "# why\ninputs:\n  - {name: x, dtype: float32, shape: [batch, 4]}  # rows\n"
TAIL = "dims:\n  batch: {min: 1, opt: 2, max: 8}\n# the end\n"
WRITTEN = 'keep_fp32: ["big/aten::linear_0", "a [b]"]\n'


def changed(folder: Path, text: str, values: dict[str, Any] = FOUND) -> str:
    path = folder / "net.yaml"
    path.write_bytes(text.encode())
    edit(path, values)
    return path.read_bytes().decode()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            HEAD + TAIL,
            HEAD
            + TAIL.replace("# the end", "precision: fp16\n" + WRITTEN + "# the end"),
        ),
        (
            HEAD + "precision: fp32  # for now\n" + TAIL,
            HEAD
            + "precision: fp16  # for now\n"
            + TAIL.replace("# the end", WRITTEN + "# the end"),
        ),
        (
            HEAD + "keep_fp32: [a]   # one\nprecision: bf16\n" + TAIL,
            HEAD + WRITTEN.rstrip() + "   # one\nprecision: fp16\n" + TAIL,
        ),
        (
            HEAD + "precision: fp16\nkeep_fp32:\n  - a  # one\n  - b\n# dims\n" + TAIL,
            HEAD
            + "precision: fp16\nkeep_fp32:\n  "
            + WRITTEN.removeprefix("keep_fp32: ")
            + "# dims\n"
            + TAIL,
        ),
        ("inputs: []", "inputs: []\nprecision: fp16\n" + WRITTEN),
        (
            "inputs: []\r\n# x\r\n",
            "inputs: []\r\nprecision: fp16\r\n" + WRITTEN.strip() + "\r\n# x\r\n",
        ),
        ("inputs: []\n...\n", "inputs: []\nprecision: fp16\n" + WRITTEN + "...\n"),
        ("  inputs: []\n", "  inputs: []\n  precision: fp16\n  " + WRITTEN),
    ],
)
def test_only_edited_values_change(tmp_path: Path, before: str, after: str) -> None:
    assert changed(tmp_path, before) == after


def test_empty_list_removes_the_key(tmp_path: Path) -> None:
    before = HEAD + "keep_fp32: [a]  # one\n" + TAIL
    after = changed(tmp_path, before, {"precision": "fp32", "keep_fp32": []})
    assert after == HEAD + TAIL.replace("# the end", "precision: fp32\n# the end")


def test_unchanged_manifest_is_not_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "net.yaml"
    path.write_text(HEAD + "precision: fp16\n")
    before = path.stat().st_mtime_ns
    assert edit(path, {"precision": "fp16", "keep_fp32": []}) is False
    assert path.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    "text",
    [
        "{inputs: [], precision: fp32}\n",
        "inputs: []\nprecision: &p fp32\nmodule: *p\n",
        "--- {inputs: []}\n",
    ],
)
def test_values_that_cannot_be_edited_in_place_are_refused(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "net.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match="cannot be changed") as refusal:
        edit(path, FOUND)
    assert "precision: fp16; keep_fp32:" in str(refusal.value)
    assert path.read_text() == text and [p.name for p in tmp_path.iterdir()] == [
        "net.yaml"
    ]


def test_invalid_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="it has mistakes"):
        changed(tmp_path, "inputs: []\ninputs: []\n")


def test_permissions_and_links_are_preserved(tmp_path: Path) -> None:
    real, link = tmp_path / "real.yaml", tmp_path / "net.yaml"
    real.write_text(HEAD)
    real.chmod(0o640)
    link.symlink_to(real)
    assert edit(link, FOUND)
    assert link.is_symlink() and real.stat().st_mode & 0o777 == 0o640
    assert document.read(real).data["keep_fp32"] == FOUND["keep_fp32"]


def test_failed_write_leaves_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        changed(tmp_path, HEAD)
    assert [p.name for p in tmp_path.iterdir()] == ["net.yaml"] and (
        tmp_path / "net.yaml"
    ).read_text() == HEAD


PLAIN = st.recursive(
    st.text("ab# :", max_size=5) | st.integers(0, 9) | st.booleans(),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from("pqr"), inner, max_size=2)
    ),
    max_leaves=5,
)


@given(
    st.dictionaries(
        st.sampled_from(["inputs", "precision", "keep_fp32", "dims"]), PLAIN, min_size=1
    ),
    st.booleans(),
)
def test_edit_preserves_all_other_values(
    tmp_path_factory: pytest.TempPathFactory, data: dict[str, Any], flow: bool
) -> None:
    """Or the edit is refused. The data is written by YAML in block and flow style."""
    path = tmp_path_factory.mktemp("any") / "net.yaml"
    path.write_text(
        yaml.safe_dump(
            data, default_flow_style=None if flow else False, sort_keys=False
        )
    )
    before = document.read(path).data
    try:
        edit(path, FOUND)
    except UsageError:
        assert document.read(path).data == before
    else:
        assert document.read(path).data == {**before, **FOUND}


@pytest.mark.parametrize(
    ("before", "values", "after"),
    [
        (
            "a: 1  # one\n",
            {"b": {"c": 2, "d": [{"e": 1}]}},
            'a: 1  # one\nb:\n  c: 2\n  d: [{"e": 1}]\n',
        ),
        (
            "b:  # of b\n  c: 1  # of c\n  x: y\na: 1\n",
            {"b": {"c": 2, "d": 3}},
            "b:  # of b\n  c: 2  # of c\n  x: y\n  d: 3\na: 1\n",
        ),
        (
            "b: {c: 1, x: y}  # of b\n",
            {"b": {"c": 2}},
            'b: {"x": "y", "c": 2}  # of b\n',
        ),
        ("a: 1\nb:\n  c: 1\n  x: y\n", {"b": {"c": []}}, "a: 1\nb:\n  x: y\n"),
        ("a: 1\nb:\n  c: 1\n", {"b": {"c": []}}, "a: 1\n"),
        ("a: 1\r\n", {"b": {"c": 2}}, "a: 1\r\nb:\r\n  c: 2\r\n"),
    ],
)
def test_keys_of_a_section_are_edited_individually(
    tmp_path: Path, before: str, values: dict[str, Any], after: str
) -> None:
    path = tmp_path / "m.yaml"
    path.write_bytes(before.encode())
    assert edit(path, values) and path.read_bytes().decode() == after


def test_flow_style_section_with_comment_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(text := "b: {c: 1, # of c\n  x: y}\n")
    with pytest.raises(UsageError, match="cannot be changed"):
        edit(path, {"b": {"c": 2}})
    assert path.read_text() == text


@pytest.mark.parametrize(
    "section",
    [
        "triton:\n  dynamic_batching: {policy: {size: 64, action: REJECT}}  # ours\n"
        "  tags: {a: b}\n",
        "triton:\n  dynamic_batching:\n    policy:\n      size: 64\n      action: REJECT\n"
        "  tags: {a: b}\n",
    ],
)
def test_field_of_a_section_is_replaced_entirely(tmp_path: Path, section: str) -> None:
    """As `adopt` does for a field whose former value had a default written out."""
    path = tmp_path / "model.yaml"
    path.write_text(f"outputs: [y]\n{section}instances: 2  # two\n")
    assert edit(path, {"triton": {"dynamic_batching": {"policy": {"size": 65}}}})
    manifest = yaml.safe_load(path.read_text())
    assert manifest["triton"] == {
        "dynamic_batching": {"policy": {"size": 65}},
        "tags": {"a": "b"},
    }
    assert manifest["instances"] == 2 and "# two" in path.read_text()
