"""Names at endpoints are valid and unique."""

from __future__ import annotations

import pytest

from builder.lowering.passes.outputs import TOO_LONG, flag_names
from builder.names import served_name, unique_name


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("boxes.0", "boxes.0"),
        ("my key", "my_key"),
        ("größe", "gr__e"),
        ("a:b", "a_b"),
        (".x", "_x"),
        ("_", "output"),
        ("", "output"),
        ("x" * 300, "x" * 200),
    ],
)
def test_served_name_is_one_that_the_manifest_accepts(key: str, name: str) -> None:
    assert served_name(key) == name


def test_unique_name_has_the_first_free_number() -> None:
    assert unique_name("x", ["y"]) == "x"
    assert unique_name("x", ["x", "x_2"]) == "x_3"
    assert unique_name("x", ["x"], separator="") == "x2"


def test_length_flag_of_a_key_with_a_space_has_a_valid_name() -> None:
    flags = flag_names(["my key", "my_key"], ["my_key_0", "my_key_1"], TOO_LONG)
    assert flags == {
        "my key": "my_key_is_too_long",
        "my_key": "my_key_is_too_long2",
    }
