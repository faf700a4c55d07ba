"""One repository for a mixed fleet: a plan for each GPU, and nothing merged that is not the same
model.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from builder.cli import main
from builder.errors import PublishBlocked, PublishError, UsageError
from builder.manifest import Versions
from builder.store import Hashes, published, reason_to_rebuild, record
from builder.triton import EnsembleArtifact, merge, publish
from builder.triton.config import config_text, parse_config
from builder.triton.merge import NO_PLAN
from tests.triton.artifacts import RTX, TENSORRT, reseal, scorer


def endpoints(capability: str, version: str) -> dict[str, Any]:
    inputs = [{"name": "x", "dtype": "FLOAT"}, {"name": "ids", "dtype": "INT64"}]
    outputs = [{"name": "scores", "dtype": "FLOAT"}, {"name": "best", "dtype": "INT64"}]
    facts = {**TENSORRT, "tensorrt": version, "compute_capabilities": [capability]}
    return {**facts, "inputs": inputs, "outputs": outputs}


@pytest.fixture
def built(tmp_path: Path) -> Callable[..., Path]:
    """A repository as a host with such a GPU writes it; the plan is text, since nothing here loads
    it.
    """

    def build(
        name: str,
        capability: str,
        version: str = "10.13.3.9",
        options: Any = None,
        **more: Any,
    ) -> Path:
        plan, facts = (
            f"plan for {capability} of {name}".encode(),
            endpoints(capability, version),
        )
        artifact = scorer(plan=plan, facts={**facts, "options": options or {}}, **more)
        publish(artifact, tmp_path / name / "repository")
        return tmp_path / name / "repository"

    return build


def config_of(folder: Path) -> Any:
    return parse_config((folder / "config.pbtxt").read_text(), "merged")


def assert_refused(repositories: list[Path], out: Path, match: str) -> None:
    with pytest.raises(PublishError, match=match):
        merge(repositories, out)
    assert not out.exists()


def test_merged_model_selects_the_plan_by_gpu(
    built: Callable[..., Path], tmp_path: Path
) -> None:
    merged = merge([built("a", "8.0"), built("b", "9.0")], tmp_path / "out")
    assert merged == [("scorer", ("8.0", "9.0"))]
    folder = tmp_path / "out" / "scorer"
    message = config_of(folder)
    assert dict(message.cc_model_filenames) == {
        "8.0": "model_sm80.plan",
        "9.0": "model_sm90.plan",
    }
    assert message.default_model_filename == NO_PLAN
    assert {path.name for path in (folder / "1").iterdir()} == {
        "model_sm80.plan",
        "model_sm90.plan",
        "plan.json",
    }
    assert (folder / "1" / "model_sm90.plan").read_bytes() == b"plan for 9.0 of b"
    facts = json.loads((folder / "1" / "plan.json").read_text())
    assert facts["compute_capabilities"] == ["8.0", "9.0"]
    assert facts["plans"]["9.0"]["compute_capabilities"] == ["9.0"]


def test_merged_model_has_no_build_record(
    built: Callable[..., Path], tmp_path: Path
) -> None:
    a, b = built("a", "8.0"), built("b", "9.0")
    record(a / "scorer", {"precision": "fp32"}, {}, {})
    merge([a, b], tmp_path / "out")
    merged, hashes = tmp_path / "out" / "scorer", Hashes(tmp_path / "h")
    reason = "trt-build.json has no record of a build, as after trt-build merge"
    assert reason_to_rebuild(merged, {"precision": "fp32"}, hashes) == reason
    record(merged, {}, {}, {})
    assert reason_to_rebuild(merged, {}, hashes) is None


def test_merged_repository_accepts_new_and_newer_plans(
    built: Callable[..., Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    merge([built("a", "8.0"), built("b", "9.0")], out)
    assert merge([out, built("c", "12.0"), built("d", "9.0")], out) == [
        ("scorer", ("12.0", "8.0", "9.0"))
    ]
    assert (
        out / "scorer" / "1" / "model_sm90.plan"
    ).read_bytes() == b"plan for 9.0 of d"
    assert (
        out / "scorer" / "1" / "model_sm80.plan"
    ).read_bytes() == b"plan for 8.0 of a"
    assert config_of(out / "scorer").cc_model_filenames["12.0"] == "model_sm120.plan"


def test_plan_of_one_repository_is_limited_to_its_gpu(
    built: Callable[..., Path], tmp_path: Path
) -> None:
    """Triton would take `model.plan` for any GPU."""
    other = scorer(name="other", plan=None)
    publish(other, tmp_path / "b" / "repository")
    merged = merge([built("a", "8.0"), tmp_path / "b" / "repository"], tmp_path / "out")
    assert merged == [("scorer", ("8.0",)), ("other", ())]
    message = config_of(tmp_path / "out" / "scorer")
    assert (
        dict(message.cc_model_filenames) == {"8.0": "model_sm80.plan"}
        and message.default_model_filename == NO_PLAN
    )
    (plan,) = (tmp_path / "out" / "scorer" / "1").glob("*.plan")
    assert (plan.name, plan.read_bytes()) == ("model_sm80.plan", b"plan for 8.0 of a")
    assert config_of(tmp_path / "out" / "other").backend == "python"


def test_hardware_compatible_plan_is_the_default(
    built: Callable[..., Path], tmp_path: Path
) -> None:
    out, compatible = tmp_path / "out", {"hardware_compatible": "ampere_plus"}
    merged = merge([built("a", "8.6", options=compatible), built("b", "9.0")], out)
    assert merged == [("scorer", ("9.0", "ampere_plus"))]
    message = config_of(out / "scorer")
    assert dict(message.cc_model_filenames) == {"9.0": "model_sm90.plan"}
    assert message.default_model_filename == "model_ampere_plus.plan"
    assert (
        out / "scorer" / "1" / "model_ampere_plus.plan"
    ).read_bytes() == b"plan for 8.6 of a"
    facts = json.loads((out / "scorer" / "1" / "plan.json").read_text())
    assert facts["compute_capabilities"] == ["9.0"] and set(facts["plans"]) == {
        "9.0",
        "ampere_plus",
    }
    again = merge([out, built("c", "8.6"), built("d", "12.0", options=compatible)], out)
    assert again == [("scorer", ("8.6", "9.0", "ampere_plus"))]
    assert config_of(out / "scorer").default_model_filename == "model_ampere_plus.plan"
    assert (
        out / "scorer" / "1" / "model_ampere_plus.plan"
    ).read_bytes() == b"plan for 12.0 of d"


def test_single_hardware_compatible_plan_is_kept_unchanged(
    built: Callable[..., Path], tmp_path: Path
) -> None:
    repositories = [
        built(n, cc, options={"hardware_compatible": "ampere_plus"})
        for n, cc in (("a", "8.6"), ("b", "9.0"))
    ]
    assert merge(repositories, tmp_path / "out") == [("scorer", ("ampere_plus",))]
    message = config_of(tmp_path / "out" / "scorer")
    assert not message.cc_model_filenames and message.default_model_filename in (
        "",
        "model.plan",
    )
    assert (
        tmp_path / "out" / "scorer" / "1" / "model.plan"
    ).read_bytes() == b"plan for 9.0 of b"


def test_merge_skips_pycache_and_reports_a_full_disk(
    built: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = built("a", "8.0") / "scorer" / "1" / "__pycache__"
    compiled.mkdir()
    (compiled / "model.cpython-311.pyc").touch()
    merge([tmp_path / "a" / "repository"], tmp_path / "out")
    assert not list((tmp_path / "out").rglob("__pycache__")) and list(
        (tmp_path / "out").rglob("*.plan")
    )

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("shutil.copy2", full)
    with pytest.raises(PublishBlocked, match="No space left on device") as raised:
        merge([tmp_path / "a" / "repository"], tmp_path / "none")
    assert (
        raised.value.message.count("No space") == 1 and not (tmp_path / "none").exists()
    )


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"version": "10.9.0.34"}, "tensorrt_version is 10.13.3.9 and 10.9.0.34"),
        ({"precision": "fp16"}, "precision is fp32 and fp16"),
        ({"instances": 3}, "instance_group"),
    ],
)
def test_merge_of_different_models_writes_nothing(
    built: Callable[..., Path], tmp_path: Path, more: dict[str, Any], words: str
) -> None:
    assert_refused(
        [built("a", "8.0"), built("b", "9.0", **more)], tmp_path / "out", words
    )


def test_plans_of_the_python_runtime_are_not_merged(
    built: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(PublishError, match="Triton does not load its plan itself"):
        merge(
            [built("a", "8.0"), built("b", "9.0", serve_as="python")], tmp_path / "out"
        )


def test_merge_of_rtx_plans_is_refused(tmp_path: Path) -> None:
    for name in "ab":
        publish(scorer(plan=b"plan", facts=RTX), tmp_path / name / "repository")
    with pytest.raises(PublishError, match="with --target for each GPU"):
        merge(
            [tmp_path / "a" / "repository", tmp_path / "b" / "repository"],
            tmp_path / "out",
        )


def test_equal_torch_models_are_merged_into_one(tmp_path: Path) -> None:
    for name in "ab":
        publish(scorer(plan=None), tmp_path / name / "repository")
    repositories = [tmp_path / name / "repository" for name in "ab"]
    (repositories[1] / "scorer" / "1" / "marker").write_text("later")
    assert merge(repositories, tmp_path / "out") == [("scorer", ())]
    assert (tmp_path / "out" / "scorer" / "1" / "marker").read_text() == "later"
    publish(scorer(plan=None, instances=3), repositories[0])
    with pytest.raises(PublishError, match="instance_group"):
        merge(repositories, tmp_path / "other")


def _ensemble(repository: Path, capability: str) -> None:
    facts = endpoints(capability, "10.13.3.9")
    step = replace(
        scorer(name="whole.0.tensorrt", plan=capability.encode(), facts=facts),
        step_of="whole",
    )
    whole = replace(step.spec, name="whole")
    publish(
        EnsembleArtifact(
            whole, step.inputs, step.outputs, step.profiles, (step,), step.goldens
        ),
        repository,
    )


def test_ensembles_are_merged_with_the_plans_of_their_steps(tmp_path: Path) -> None:
    for capability in ("8.0", "9.0"):
        _ensemble(tmp_path / capability / "repository", capability)
    merged = merge(
        [tmp_path / cc / "repository" for cc in ("8.0", "9.0")], tmp_path / "out"
    )
    assert merged == [("whole", ()), ("whole.0.tensorrt", ("8.0", "9.0"))]
    name = config_of(tmp_path / "out" / "whole").ensemble_scheduling.step[0].model_name
    assert name.startswith("whole.0.tensorrt.")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"whole", name}
    assert not list(published.damaged(tmp_path / "out" / "whole"))
    assert config_of(tmp_path / "out" / name).name == name
    assert sorted(config_of(tmp_path / "out" / name).cc_model_filenames) == [
        "8.0",
        "9.0",
    ]


def test_ensemble_config_without_steps_is_refused(tmp_path: Path) -> None:
    repository = tmp_path / "a" / "repository"
    _ensemble(repository, "8.0")
    message = config_of(repository / "whole")
    message.ensemble_scheduling.ClearField("step")
    (repository / "whole" / "config.pbtxt").write_text(config_text(message))
    reseal(repository / "whole")
    assert_refused(
        [repository], tmp_path / "out", "does not have the steps of its record"
    )


def test_model_without_record_is_refused(
    built: Callable[..., Path], tmp_path: Path
) -> None:
    repository = built("a", "8.0")
    shutil.copytree(repository / "scorer", repository / "other")
    (repository / "other" / published.SIDECAR).unlink()
    assert_refused([repository], tmp_path / "out", "'other' has no trt-build")


def test_plan_without_compute_capability_is_refused(
    built: Callable[..., Path], tmp_path: Path
) -> None:
    a = built("a", "8.0")
    path = a / "scorer" / "1" / "plan.json"
    path.write_text(
        json.dumps({**json.loads(path.read_text()), "compute_capabilities": []})
    )
    reseal(a / "scorer")
    with pytest.raises(PublishError, match="does not name its GPU"):
        merge([a, built("b", "9.0")], tmp_path / "out")


@pytest.mark.parametrize("name", ["../../../secret.txt", "..", "", "/etc/hostname"])
def test_plan_path_outside_version_folder_is_refused(
    built: Callable[..., Path], tmp_path: Path, name: str
) -> None:
    merge([built("a", "8.0"), built("b", "9.0")], tmp_path / "both")
    (tmp_path / "secret.txt").write_text("secret")
    folder = tmp_path / "both" / "scorer"
    message = config_of(folder)
    message.cc_model_filenames["8.0"] = name
    (folder / "config.pbtxt").write_text(config_text(message))
    reseal(folder)
    assert_refused(
        [tmp_path / "both"], tmp_path / "out", "no file of its version folder"
    )


@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
@pytest.mark.parametrize(
    "name",
    [
        "1/model.plan",
        "1/extra",
        "config.pbtxt",
        "trt-build.json",
        "goldens/p0-opt.npz",
        ".",
    ],
)
def test_symlinks_and_pipes_are_refused(
    built: Callable[..., Path], tmp_path: Path, name: str, kind: str
) -> None:
    folder = built("a", "8.0") / "scorer"
    path, moved = folder / name, tmp_path / "moved"
    if name == "." and kind == "pipe":
        path, name = folder / "new", "new"
    if path.exists():
        path.rename(moved)
    else:
        moved.mkdir() if kind == "folder" else moved.touch()
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(moved)
    words = "a pipe, a socket or a device" if kind == "pipe" else "a link"
    where = "scorer" if name == "." else f"scorer/{name}"
    with pytest.raises((PublishError, UsageError), match=f"holds {words}: {where}\n"):
        merge([folder.parent], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_damaged_runtime_code_is_refused(
    built: Callable[..., Path], tmp_path: Path
) -> None:
    publish(scorer(plan=None), tmp_path / "a" / "repository")
    folder = tmp_path / "a" / "repository" / "scorer"
    code = folder / "1" / "trt_build_runtime" / "executors.py"
    code.write_text(code.read_text().replace("torch.", "torch ."))
    with pytest.raises(PublishError, match=r"executors\.py of 'scorer' is damaged"):
        merge([folder.parent], tmp_path / "out")


@pytest.mark.parametrize("harm", ["truncate", "remove"])
def test_damaged_plan_is_refused(
    built: Callable[..., Path], tmp_path: Path, harm: str
) -> None:
    one, other = built("a", "8.0"), built("b", "9.0")
    plan = next(other.glob("*/1/model.plan"))
    plan.write_bytes(plan.read_bytes()[:3]) if harm == "truncate" else plan.unlink()
    match = "is damaged" if harm == "truncate" else "is missing"
    assert_refused([one, other], tmp_path / "out", match)


def test_folder_without_models_is_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="contains no model"):
        merge([tmp_path], tmp_path / "out")


def test_damaged_model_and_invalid_output_are_reported(
    built: Callable[..., Path], tmp_path: Path
) -> None:
    repository = built("a", "8.0")
    (tmp_path / "file").touch()
    result = CliRunner().invoke(
        main, ["merge", str(repository), "--out", str(tmp_path / "file")]
    )
    assert result.exit_code == 2 and "is not a folder" in result.output
    (repository / "scorer" / "config.pbtxt").unlink()
    with pytest.raises(PublishError, match=r"config\.pbtxt cannot be read") as refused:
        merge([repository], tmp_path / "out")
    assert refused.value.fix and not (tmp_path / "out").exists()


def test_merge_command_lists_gpus_of_each_model(
    built: Callable[..., Path], tmp_path: Path
) -> None:
    words = [
        "merge",
        str(built("a", "8.0")),
        str(built("b", "9.0")),
        "--out",
        str(tmp_path / "m" / "out"),
    ]
    result = CliRunner().invoke(main, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "scorer  8.0, 9.0" in result.stdout
    assert not (tmp_path / "m" / ".env").exists()
    result = CliRunner().invoke(main, [*words, "--write-env"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "TRITON_IMAGE" in (tmp_path / "m" / ".env").read_text()


def test_folder_of_something_else_is_not_replaced(
    built: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "out" / "scorer").mkdir(parents=True)
    (tmp_path / "out" / "scorer" / "config.pbtxt").touch()
    with pytest.raises(UsageError, match="which trt-build did not write") as refused:
        merge([built("a", "8.0")], tmp_path / "out")
    assert "--" not in str(refused.value.fix)


def test_changes_of_a_target_that_is_merged_are_kept(
    built: Callable[..., Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    repositories = [built("a", "8.0"), built("b", "9.0")]
    merge(repositories[:1], out)
    for repository in (out, repositories[1]):
        config = repository / "scorer" / "config.pbtxt"
        config.write_text(config.read_text().replace("count: 1", "count: 2"))
    merge([out, repositories[1]], out)
    assert config_of(out / "scorer").instance_group[0].count == 2
    (out / "scorer" / "notes.txt").touch()
    with pytest.raises(UsageError, match=r"scorer/notes\.txt is a file"):
        merge([repositories[1], out], out)


def test_kept_versions_of_the_target_are_not_removed(
    built: Callable[..., Path], tmp_path: Path
) -> None:
    """Found before another model is merged."""
    kept = scorer(plan=None, versions=Versions(keep=2))
    publish(kept, tmp_path / "out")
    publish(replace(kept, lowered=b"changed"), tmp_path / "out")
    repository = built("a", "8.0")
    publish(scorer(name="another", plan=None), repository)
    with pytest.raises(UsageError, match="'scorer' has 2 versions, and the new"):
        merge([repository], tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["scorer"]
