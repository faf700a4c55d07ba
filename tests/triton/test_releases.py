"""From a TensorRT version to the container that has it, with its confidence, and the .env that
names it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.errors import PublishError
from builder.triton import releases, write_env
from builder.triton.environment import image_lines


@pytest.mark.parametrize(
    ("version", "tag", "exact"),
    [
        ("10.13.3.9", "25.10", True),
        ("8.6.1", "24.01", True),
        ("8.5.1.7", "22.11", True),
        ("10.14.1.48", "25.12", True),
        ("10.5.0.99", "24.10", False),
    ],
)
def test_the_newest_release_that_agrees_most(version: str, tag: str, exact: bool) -> None:
    match = releases.for_tensorrt(version)
    assert match is not None
    assert (match.release.tag, match.exact) == (tag, exact)


def test_an_unknown_version_has_no_release() -> None:
    assert releases.for_tensorrt("7.2.3") is None
    assert releases.for_tensorrt("99.1") is None


def test_rows_that_name_two_versions_know_both() -> None:
    row = next(r for r in releases.releases() if r.tag == "25.01")
    assert row.tensorrt == ((10, 8, 0, 40), (10, 8, 0, 43))


def test_an_exact_match_names_image_and_confidence() -> None:
    text = "\n".join(image_lines([{"flavour": "tensorrt", "tensorrt": "10.13.3.9"}]))
    assert text.endswith("TRITON_IMAGE=nvcr.io/nvidia/tritonserver:25.10-py3")
    assert "confidence B" in text and "NOT THE SAME" not in text


def test_a_near_match_says_that_it_is_none() -> None:
    assert "NOT THE SAME VERSION" in "\n".join(
        image_lines([{"flavour": "tensorrt", "tensorrt": "10.5.0.99"}])
    )


def test_plans_of_two_tensorrts_fit_no_container() -> None:
    with pytest.raises(PublishError, match=r"10.9.0.34 and 8.6.1"):
        image_lines(
            {"flavour": "tensorrt", "tensorrt": version} for version in ("8.6.1", "10.9.0.34")
        )


def test_rtx_plans_fit_any_release_and_say_what_that_means() -> None:
    text = "\n".join(image_lines([{"flavour": "tensorrt-rtx", "tensorrt": "1.7.1.116"}]))
    assert "Python runtime" in text and "TRITON_IMAGE=nvcr.io/nvidia/tritonserver:" in text


def test_the_env_keeps_the_users_lines_and_replaces_ours(tmp_path: Path) -> None:
    version = tmp_path / "repository" / "model" / "1"
    version.mkdir(parents=True)
    env = tmp_path / ".env"
    env.write_text("HTTP_PORT=9000\nTRITON_IMAGE=old\n")
    for tensorrt in ("10.9.0.34", "10.13.3.9"):
        (version / "plan.json").write_text(
            json.dumps({"flavour": "tensorrt", "tensorrt": tensorrt})
        )
        assert write_env(tmp_path / "repository") == env
    lines = env.read_text().splitlines()
    assert lines[0] == "HTTP_PORT=9000"
    assert [line for line in lines if line.startswith("TRITON_IMAGE=")] == [
        "TRITON_IMAGE=nvcr.io/nvidia/tritonserver:25.10-py3"
    ]
    assert "10.9.0.34" not in env.read_text()
    assert sorted(p.name for p in tmp_path.iterdir()) == [".env", "repository"]
