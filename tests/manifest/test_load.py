"""A folder of models becomes ModelSpecs: names, files, defaults, profiles."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
from jsonschema import Draft202012Validator

from builder.errors import ManifestError, UsageError
from builder.manifest import (
    SCHEMA_PATH,
    Batching,
    Fallback,
    ModelSpec,
    State,
    TensorSpec,
    Tolerance,
    load,
    manifest_location,
)
from builder.manifest.spec import Runtime, Sequences

MANIFEST = """\
inputs:
  - {name: image, dtype: float32, shape: [n, 3, h, 224]}
  - {name: flag, dtype: bool, shape: []}
"""
DIMS = "dims: {n: {min: 1, opt: 8, max: 32}, h: {min: 64, opt: 224, max: 512}}\n"


def model(path: Path, manifest: str | None = MANIFEST + DIMS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    if manifest is not None:
        path.with_suffix(".yaml").write_text(manifest)
    return path


def test_both_folder_layouts_are_loaded(tmp_path: Path) -> None:
    model(tmp_path / "resnet.pt")
    model(tmp_path / "bert" / "model.pt")
    (tmp_path / "notes").mkdir()
    (tmp_path / ".hidden").mkdir()
    assert [(spec.name, spec.path) for spec in load(tmp_path)] == [
        ("bert", tmp_path / "bert" / "model.pt"),
        ("resnet", tmp_path / "resnet.pt"),
    ]


@pytest.mark.parametrize("target", [".", "model.pt", "model.yaml"])
def test_model_is_found_by_folder_file_or_manifest(tmp_path: Path, target: str) -> None:
    path = model(tmp_path / "bert" / "model.pt")
    assert [(spec.name, spec.path) for spec in load(path.parent / target)] == [
        ("bert", path)
    ]


def test_omitted_keys_have_documented_defaults(tmp_path: Path) -> None:
    path = model(tmp_path / "net.pt")
    profile = {"n": (1, 8, 32), "h": (64, 224, 512)}
    assert load(path) == [
        ModelSpec(
            name="net",
            path=path,
            inputs=(
                TensorSpec("float32", ("n", 3, "h", 224), dims=profile, name="image"),
                TensorSpec("bool", (), name="flag"),
            ),
            profiles=(profile,),
            manifest=tmp_path / "net.yaml",
        )
    ]


def test_schema_defaults_match_dataclasses() -> None:
    """The schema, which editors show, has the defaults that the code uses."""
    properties = json.loads(SCHEMA_PATH.read_text())["properties"]
    spec = ModelSpec("x", Path("x"), ())
    for key in ("precision", "instances", "unroll_limit"):
        assert properties[key]["default"] == getattr(spec, key)
    for key, section in (
        ("batching", Batching()),
        ("fallback", Fallback()),
        ("sequences", Sequences()),
    ):
        for name, part in properties[key]["properties"].items():
            if "default" in part:
                assert part["default"] == getattr(section, name)
        assert set(properties[key]["properties"]) == set(vars(section))


def test_schema_is_valid_and_describes_every_key() -> None:
    whole = json.loads(SCHEMA_PATH.read_text())
    Draft202012Validator.check_schema(whole)
    assert all("description" in part for part in whole["properties"].values())


def test_every_key_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "own.npz").touch()
    path = model(
        tmp_path / "net.pt",
        MANIFEST
        + DIMS
        + """\
outputs: [scores, boxes.xy]
module: encoder.0
precision: fp16
tolerance: {rtol: 1e-3, atol: 0}
batching: {enabled: false, max_queue_delay_us: 100, preferred: [4, 8], graphs: [1]}
instances: 2
fallback: {ops: ["aten::nonzero"], modules: [Head], min_block_size: 5, require_full: true}
goldens: own.npz
unroll_limit: 8
""",
    )
    (spec,) = load(path)
    assert spec.outputs == ("scores", "boxes.xy")
    assert (spec.module, spec.precision, spec.instances, spec.unroll_limit) == (
        "encoder.0",
        "fp16",
        2,
        8,
    )
    assert spec.tolerance == Tolerance(rtol=0.001, atol=0)
    assert spec.batching == Batching(False, 100, (4, 8), (1,))
    assert spec.fallback == Fallback(("aten::nonzero",), ("Head",), 5, True)
    assert spec.goldens == tmp_path / "own.npz"


def test_runtime_section_is_loaded(tmp_path: Path) -> None:
    (spec,) = load(
        model(
            tmp_path / "net.pt",
            MANIFEST + DIMS + "runtime: {cuda_graphs: false, keep_mapped: 4}\n",
        )
    )
    assert spec.runtime == Runtime(cuda_graphs=False, keep_mapped=4)
    (spec,) = load(model(tmp_path / "net.pt", MANIFEST + DIMS))
    assert spec.runtime == Runtime(cuda_graphs=True, keep_mapped=0)


STATEFUL = """\
inputs: [{name: x, dtype: float32, shape: [n, 3]}, {name: h, dtype: float32, shape: [2, n, 5]}]
dims: {n: {min: 1, opt: 2, max: 4}}
state:
- {input: h, output: hn, initial: h0.npy}
"""


def test_state_and_sequences_are_loaded(tmp_path: Path) -> None:
    (tmp_path / "h0.npy").touch()
    path = model(tmp_path / "net.pt", STATEFUL + "sequences: {max: 4, idle_us: 1000}\n")
    (spec,) = load(path)
    assert spec.state == spec.server_state == (State("h", "hn", tmp_path / "h0.npy"),)
    assert spec.sequences == Sequences("implicit", 4, 1000)
    assert [tensor.name for tensor in spec.stateless_inputs] == ["x"]
    assert manifest_location(spec, "state", 0) == f"{spec.manifest}:4"


def test_command_line_sets_the_state_mode(tmp_path: Path) -> None:
    (tmp_path / "h0.npy").touch()
    stateful, stateless = model(tmp_path / "a.pt", STATEFUL), model(tmp_path / "b.pt")
    specs = load(tmp_path, state="explicit")
    assert [spec.path for spec in specs] == [stateful, stateless]
    assert specs[0].state and not specs[0].server_state
    assert specs[1].sequences == Sequences()


def test_input_range_covers_all_profiles(tmp_path: Path) -> None:
    """Each profile is kept; an input's own range covers them all, tuned for the first."""
    profiles = """\
profiles:
  - {n: {min: 1, opt: 1, max: 1}, h: {min: 64, opt: 64, max: 64}}
  - {n: {min: 4, opt: 16, max: 32}, h: {min: 32, opt: 64, max: 128}}
"""
    (spec,) = load(model(tmp_path / "net.pt", MANIFEST + profiles))
    assert [profile["n"] for profile in spec.profiles] == [(1, 1, 1), (4, 16, 32)]
    assert spec.inputs[0].dims == {"n": (1, 1, 32), "h": (32, 64, 128)}
    assert spec.inputs[0].at(spec.profiles[1], 2) == (32, 3, 128, 224)


def test_yaml_1_1_booleans_are_axis_names(tmp_path: Path) -> None:
    text = "inputs: [{name: x, dtype: float32, shape: [no, on]}]\n"
    text += "dims: {no: {min: 1, opt: 1, max: 1}, on: {min: 1, opt: 1, max: 1}}\n"
    assert load(model(tmp_path / "net.pt", text))[0].inputs[0].shape == ("no", "on")


def test_manifest_without_model_suggests_a_similar_file(
    tmp_path: Path,
) -> None:
    model(tmp_path / "resnet50.pt")
    (tmp_path / "resnet5.yaml").write_text(MANIFEST + DIMS)
    with pytest.raises(
        ManifestError,
        match=r"resnet5\.yaml:1: this manifest has no model file .*'resnet50\.pt'",
    ):
        load(tmp_path)


@pytest.mark.parametrize(
    ("create", "problem"),
    [
        (Path.mkdir, "net.pt is a folder"),
        (os.mkfifo, "net.pt is not a regular file"),
        (lambda path: path.symlink_to("gone"), "net.pt is a broken link to gone"),
        (lambda path: path.symlink_to("net.pt"), "net.pt is a broken link to net.pt"),
    ],
)
def test_model_that_is_not_a_file_is_named(
    tmp_path: Path, create: Callable[[Path], None], problem: str
) -> None:
    create(tmp_path / "net.pt")
    (tmp_path / "net.yaml").write_text(MANIFEST + DIMS)
    with pytest.raises(ManifestError, match=problem):
        load(tmp_path)


def test_broken_link_without_manifest_is_named(tmp_path: Path) -> None:
    model(tmp_path / "other.pt", MANIFEST + DIMS)
    (tmp_path / "net.pt").symlink_to("gone")
    without: dict[str, ManifestError] = {}
    assert [spec.name for spec in load(tmp_path, without=without)] == ["other"]
    assert "net.pt is a broken link to gone" in str(without["net"])


def test_second_manifest_is_refused(tmp_path: Path) -> None:
    file = model(tmp_path / "net.pt", MANIFEST + DIMS)
    (tmp_path / "net.yml").write_text(MANIFEST + DIMS)
    for path in (tmp_path, file):
        with pytest.raises(ManifestError, match=r"net\.yml:1: .* has two manifests"):
            load(path)
    assert load(tmp_path / "net.yml")[0].name == "net"
    file.unlink()
    with pytest.raises(
        ManifestError, match=r"the model 'net' has two manifests"
    ) as two:
        load(tmp_path)
    assert "this manifest has no model file" in str(two.value)


@pytest.mark.parametrize("name", ["my model", ".net", "-net", "näh", "a+b"])
def test_invalid_triton_model_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ManifestError, match="is not a valid name of a Triton model"):
        load(model(tmp_path / f"{name}.pt"))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ("net", "another model has the name 'net'"),
        ("Net", r"has the name '(net|Net)', which differs from '(net|Net)' only in"),
    ],
)
def test_duplicate_model_names_are_refused(
    tmp_path: Path, other: str, message: str
) -> None:
    model(tmp_path / "net.pt")
    model(tmp_path / other / "model.pt")
    with pytest.raises(ManifestError, match=message):
        load(tmp_path)


def test_path_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    """torch would fail on it with the signature of one of its functions."""
    folder = tmp_path / os.fsdecode(b"m\xf6dels")
    folder.mkdir()
    with pytest.raises(UsageError, match="is not UTF-8 text") as refused:
        load(model(folder / "net.pt"))
    assert "LANG=C.UTF-8" in str(refused.value.fix)


def test_model_without_manifest_suggests_init(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="trt-build init"):
        load(model(tmp_path / "net.pt", None))


def test_command_line_inputs_replace_only_a_missing_manifest(tmp_path: Path) -> None:
    model(tmp_path / "a.pt")
    model(tmp_path / "b.pt", None)
    given = TensorSpec("int64", ("t",), dims={"t": (1, 2, 3)}, name="ids")
    first, second = load(tmp_path, inputs=[given])
    assert [spec.name for spec in first.inputs] == ["image", "flag"]
    assert second.inputs == (given,)
    assert second.profiles == ({"t": (1, 2, 3)},)


@pytest.mark.parametrize(
    "given", [{"inputs": [TensorSpec("int64", (2,))]}, {"sample": Path("s.npz")}]
)
def test_unused_inputs_and_samples_are_refused(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    model(tmp_path / "net.pt")
    with pytest.raises(UsageError, match="every model has one") as raised:
        load(tmp_path / "net.pt", **given)
    assert raised.value.where == str(tmp_path / "net.yaml")


def test_sample_defines_inputs_and_golden(tmp_path: Path) -> None:
    sample = tmp_path / "s.npz"
    numpy.savez(sample, ids=numpy.zeros((2, 3), "int64"), mask=numpy.ones((2, 3), bool))
    (spec,) = load(model(tmp_path / "net.pt", None), sample=sample)
    assert [(i.name, i.dtype, i.shape) for i in spec.inputs] == [
        ("ids", "int64", (2, 3)),
        ("mask", "bool", (2, 3)),
    ]
    assert spec.goldens == sample


def test_command_line_sets_precision_and_selects_models(tmp_path: Path) -> None:
    model(tmp_path / "a.pt")
    model(tmp_path / "b.pt")
    assert [
        (spec.name, spec.precision)
        for spec in load(tmp_path, only=["b"], precision="fp16")
    ] == [("b", "fp16")]


def test_mistakes_of_unselected_models_are_not_reported(tmp_path: Path) -> None:
    model(tmp_path / "a.pt")
    model(tmp_path / "b.pt", "nonsense: 1")
    assert [spec.name for spec in load(tmp_path, only=["a"])] == ["a"]


def test_usage_errors_suggest_existing_names(tmp_path: Path) -> None:
    model(tmp_path / "resnet.pt")
    with pytest.raises(UsageError, match="did you mean 'resnet'"):
        load(tmp_path, only=["resnett"])
    with pytest.raises(UsageError, match=r"did you mean 'resnet\.pt'"):
        load(tmp_path / "resent.pt")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no models in"):
        load(tmp_path / "empty")


@pytest.mark.parametrize(
    ("written", "sizes"), [("[32, 1, 8]", (1, 8, 32)), ("auto", (1, 8, 32))]
)
def test_batch_sizes_add_static_profiles_before_dims(
    tmp_path: Path, written: str, sizes: tuple[int, ...]
) -> None:
    text = """\
inputs: [{name: x, dtype: float32, shape: [n, t]}]
dims: {n: {min: 1, opt: 8, max: 32}, t: {min: 2, opt: 3, max: 4}}
"""
    (spec,) = load(model(tmp_path / "net.pt", f"{text}batch_sizes: {written}\n"))
    assert spec.batch_sizes == sizes
    assert [profile["n"] for profile in spec.profiles] == [
        (8, 8, 8),
        (1, 1, 1),
        (32, 32, 32),
        (1, 8, 32),
    ]
    assert {profile["t"] for profile in spec.profiles} == {(2, 3, 4)}
    assert spec.inputs[0].dims == {"n": (1, 8, 32), "t": (2, 3, 4)}


def test_duplicate_static_profile_is_not_added(tmp_path: Path) -> None:
    text = "inputs: [{name: x, dtype: float32, shape: [batch, 8]}]\n"
    ranges = "dims: {batch: {min: 1, opt: 1, max: 1}}\nbatch_sizes: auto\n"
    (spec,) = load(model(tmp_path / "net.pt", text + ranges))
    assert spec.profiles == ({"batch": (1, 1, 1)},)
