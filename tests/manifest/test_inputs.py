"""Inputs without a manifest: command-line syntax, sample files and validation of TensorSpec."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest

from builder.errors import UsageError
from builder.manifest import TensorSpec, merged_profile, parse_input
from builder.manifest.inputs import specs_from_sample


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        (
            "image:float32:batch(1,8,32)x3x224x224",
            TensorSpec(
                "float32",
                ("batch", 3, 224, 224),
                dims={"batch": (1, 8, 32)},
                name="image",
            ),
        ),
        (
            "ids:int64:max(1, 2, 3)xx(4,5,6)",
            TensorSpec(
                "int64", ("max", "x"), {"max": (1, 2, 3), "x": (4, 5, 6)}, "ids"
            ),
        ),
        ("float16:1x3", TensorSpec("float16", (1, 3))),
        ("flag:torch.bool:", TensorSpec("bool", (), name="flag")),
    ],
)
def test_parse_input(text: str, spec: TensorSpec) -> None:
    assert parse_input(text) == spec


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("image", "write [NAME:]DTYPE:SHAPE"),
        ("a:b:c:d", "write [NAME:]DTYPE:SHAPE"),
        ("a:float:1", "did you mean 'float32'?"),
        ("a:float32:batchx3", "write a dynamic axis as name(min,opt,max)"),
        ("a:float32:b(1,2)x3", "b(1,2) does not have the form b(min,opt,max)"),
        ("a:float32:b(3,2,4)", "min 3 is greater than opt 2"),
        ("a:float32:1,3", "join sizes by x"),
        ("a:float32:1x", "join sizes by x"),
        ("a:float32:-1x3", "cannot read the shape from '-1x3'"),
    ],
)
def test_invalid_input_text_is_reported(text: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_input(text)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("float", (1,)), "unknown dtype 'float' (did you mean 'float32'?)"),
        (("float32", ("n",)), "axis 'n' has no range"),
        (("float32", ("n",), {"m": (1, 1, 1)}), "axis 'n' has no range"),
        (("float32", (-1,)), "size -1 is neither"),
        (("float32", (True,)), "size True is neither"),
        (("float32", ("n",), {"n": (2, 1, 3)}), "min 2 is greater than opt 1"),
        (("float32", ("n",), {"n": (1, 4, 3)}), "opt 4 is greater than max 3"),
        (("float32", ("n",), {"n": (-1, 4, 5)}), "min -1 is below 0"),
        (("float32", ("n",), {"n": (1, 2)}), "three whole numbers"),
    ],
)
def test_invalid_tensor_spec_is_refused(
    arguments: tuple[object, ...], words: str
) -> None:
    with pytest.raises(UsageError) as caught:
        TensorSpec(*arguments)  # type: ignore[arg-type]
    assert words in str(caught.value)


def test_all_errors_of_a_tensor_spec_are_reported_together() -> None:
    with pytest.raises(UsageError, match=r"dtype.*axis 'n'.*size -2"):
        TensorSpec("floaty", ("n", -2))


def test_different_ranges_of_one_axis_are_refused() -> None:
    first = TensorSpec("bool", ("n",), dims={"n": (1, 2, 3)})
    assert merged_profile([first, first]) == {"n": (1, 2, 3)}
    with pytest.raises(UsageError, match="'n' has two different ranges"):
        merged_profile([first, TensorSpec("bool", ("n",), dims={"n": (1, 2, 4)})])


def test_unnamed_arrays_of_a_sample_stay_unnamed(tmp_path: Path) -> None:
    numpy.savez(tmp_path / "s.npz", numpy.zeros((1, 2), "float16"))
    assert specs_from_sample(tmp_path / "s.npz") == (TensorSpec("float16", (1, 2)),)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("absent", "No such file or directory\n"),
        ("text", "EOF"),
        ("npy", "a single array"),
        ("objects", "pickled objects"),
        ("strings", "input 'a': unknown dtype '<U1'"),
    ],
)
def test_invalid_sample_file_is_refused(tmp_path: Path, kind: str, words: str) -> None:
    path = tmp_path / "s.npz"
    if kind == "text":
        path.write_text("hello")
    elif kind == "npy":
        with path.open("wb") as file:
            numpy.save(file, numpy.zeros(3))
    elif kind == "objects":
        numpy.savez(path, a=numpy.array([{}], dtype=object))
    elif kind == "strings":
        numpy.savez(path, a=numpy.array(["x"]))
    with pytest.raises(UsageError, match=words):
        specs_from_sample(path)
