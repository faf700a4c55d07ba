"""From a TensorRT version to the container that has it, with its confidence, and the .env that
names it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from builder.errors import PublishError, UsageError
from builder.manifest.spec import Versions
from builder.triton import publish, releases, write_env
from builder.triton.environment import image_for, image_lines
from tests.triton.artifacts import scorer


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
def test_newest_release_with_closest_version_is_selected(
    version: str, tag: str, exact: bool
) -> None:
    match = releases.for_tensorrt(version)
    assert match is not None
    assert (match.release.tag, match.exact) == (tag, exact)


def test_an_unknown_version_has_no_release() -> None:
    assert releases.for_tensorrt("7.2.3") is None
    assert releases.for_tensorrt("99.1") is None


def test_release_with_two_tensorrt_versions_has_both() -> None:
    row = next(r for r in releases.releases() if r.tag == "25.01")
    assert row.tensorrt == ((10, 8, 0, 40), (10, 8, 0, 43))


@pytest.mark.parametrize("key", ["flavor", "flavour"])
def test_an_exact_match_names_image_and_confidence(key: str) -> None:
    """Plans that were published before 0.2 have the British spelling."""
    text = "\n".join(image_lines([{key: "tensorrt", "tensorrt": "10.13.3.9"}]))
    assert text.endswith("TRITON_IMAGE=nvcr.io/nvidia/tritonserver:25.10-py3")
    assert "confidence B" in text and "NOT THE SAME" not in text


def test_inexact_match_is_marked() -> None:
    assert "NOT THE SAME VERSION" in "\n".join(
        image_lines([{"flavor": "tensorrt", "tensorrt": "10.5.0.99"}])
    )


def test_plans_of_two_tensorrt_versions_are_refused() -> None:
    with pytest.raises(PublishError, match=r"10.9.0.34 and 8.6.1"):
        image_lines(
            {"flavor": "tensorrt", "tensorrt": version}
            for version in ("8.6.1", "10.9.0.34")
        )


def test_rtx_plans_match_any_release_with_a_note() -> None:
    text = "\n".join(image_lines([{"flavor": "tensorrt-rtx", "tensorrt": "1.7.1.116"}]))
    assert (
        "Python runtime" in text and "TRITON_IMAGE=nvcr.io/nvidia/tritonserver:" in text
    )


def write_plan(root: Path, **facts: str) -> Path:
    """A repository with one plan of these facts; returns the repository."""
    version = root / "repository" / "model" / "1"
    version.mkdir(parents=True, exist_ok=True)
    (version / "plan.json").write_text(json.dumps(facts))
    return root / "repository"


def variables(env: Path) -> dict[str, str]:
    """The variables that the file sets."""
    lines = [line for line in env.read_text().splitlines() if not line.startswith("#")]
    assert len({line.partition("=")[0] for line in lines}) == len(lines)
    return dict(line.split("=", 1) for line in lines)


def test_env_file_keeps_user_lines_and_replaces_generated_block(tmp_path: Path) -> None:
    env = tmp_path / ".env"
    env.write_text(
        "HTTP_PORT=9000\n# trt-build: an older version's reason\nTRITON_IMAGE=old\n"
    )
    write_env(write_plan(tmp_path, flavor="tensorrt-rtx", tensorrt="1.7.1.116"))
    assert variables(env)["COMPOSE_PROFILES"] == "cpu"
    for tensorrt in ("10.9.0.34", "10.13.3.9"):
        assert (
            write_env(write_plan(tmp_path, flavor="tensorrt", tensorrt=tensorrt)) == env
        )
    assert variables(env) == {
        "HTTP_PORT": "9000",
        "COMPOSE_PROFILES": "gpu",
        "MODEL_REPOSITORY": "./repository",
        "TRITON_IMAGE": "nvcr.io/nvidia/tritonserver:25.10-py3",
    }
    assert "10.9.0.34" not in env.read_text() and "older version" not in env.read_text()
    assert sorted(p.name for p in tmp_path.iterdir()) == [".env", "repository"]


def test_variable_set_by_user_is_not_changed(tmp_path: Path) -> None:
    env = tmp_path / ".env"
    env.write_text("TRITON_IMAGE=my/server:1\nexport COMPOSE_PROFILES=cpu\n")
    write_env(write_plan(tmp_path, flavor="tensorrt", tensorrt="10.9.0.34"))
    text = env.read_text()
    assert text.startswith("TRITON_IMAGE=my/server:1\nexport COMPOSE_PROFILES=cpu\n")
    assert variables(env)["TRITON_IMAGE"] == "my/server:1"
    assert "set above, so not here: TRITON_IMAGE=nvcr.io/nvidia/tritonserver:" in text


def test_cpu_service_starts_without_a_tensorrt_plan(tmp_path: Path) -> None:
    env = write_env(write_plan(tmp_path, flavor="tensorrt-rtx", tensorrt="1.7.1.116"))
    assert variables(env)["COMPOSE_PROFILES"] == "cpu"


def test_gpu_service_starts_if_one_plan_is_for_the_backend(tmp_path: Path) -> None:
    repository = write_plan(tmp_path, flavor="tensorrt-rtx", tensorrt="1.7.1.116")
    (repository / "model").rename(repository / "other")
    write_plan(tmp_path, flavor="tensorrt", tensorrt="10.13.3.9")
    assert variables(write_env(repository))["COMPOSE_PROFILES"] == "gpu"
    assert image_for(repository) == "nvcr.io/nvidia/tritonserver:25.10-py3"


def test_image_is_that_of_the_current_version(tmp_path: Path) -> None:
    for tensorrt in ("10.9.0.34", "10.13.3.9"):
        facts = {"flavor": "tensorrt", "tensorrt": tensorrt}
        model = scorer(plan=tensorrt.encode(), facts=facts, versions=Versions(keep=2))
        publish(model, tmp_path / "repository")
    assert sorted(tmp_path.glob("repository/scorer/[0-9]")) == [
        tmp_path / "repository" / "scorer" / number for number in "12"
    ]
    assert image_for(tmp_path / "repository") == "nvcr.io/nvidia/tritonserver:25.10-py3"


def test_env_file_keeps_its_mode_and_symlink(tmp_path: Path) -> None:
    target = tmp_path / "secrets.env"
    target.write_text("TOKEN=1\n")
    target.chmod(0o600)
    (tmp_path / ".env").symlink_to(target)
    write_env(write_plan(tmp_path, flavor="tensorrt", tensorrt="10.9.0.34"))
    assert (tmp_path / ".env").is_symlink()
    assert target.stat().st_mode & 0o777 == 0o600
    assert variables(target)["TOKEN"] == "1"


def test_invalid_env_file_is_reported_with_its_path(tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(b"\xff\xfe")
    repository = write_plan(tmp_path, flavor="tensorrt", tensorrt="10.9.0.34")
    with pytest.raises(PublishError, match="UTF-8") as refused:
        write_env(repository)
    assert ".env" in str(refused.value)
    assert (tmp_path / ".env").read_bytes() == b"\xff\xfe"
    (tmp_path / ".env").unlink()
    os.mkfifo(tmp_path / ".env")
    with pytest.raises(PublishError, match="it is not a regular file"):
        write_env(repository)


def test_newline_in_plan_version_is_refused(tmp_path: Path) -> None:
    plan = write_plan(
        tmp_path, flavor="tensorrt", tensorrt="10.9\nTRITON_IMAGE=evil/image"
    )
    with pytest.raises(UsageError, match="not a version of TensorRT"):
        write_env(plan)
    assert not (tmp_path / ".env").exists()
