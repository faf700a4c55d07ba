"""Every builder option is set in TensorRT's config or refused; none is silently ignored."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from builder.engine import BuildOptions, build, caches, config, flavor, options
from builder.engine.flavor import trt
from builder.errors import EnvironmentProblem, UsageError
from tests.store.conftest import small

GIVEN: dict[str, Any] = {
    "compute_capabilities": ((8, 6), (8, 9)),
    "workspace_bytes": 1 << 30,
    "memory_pools": {"tactic_dram": 1 << 28},
    "optimization_level": 2,
    "tactic_sources": ("jit_convolutions",),
    "hardware_compatible": "ampere_plus",
    "profiling_verbosity": "none",
    "timing_cache": Path("/tmp/none.cache"),
}
"""A value that is not the default, for each option; the others are switches."""

SHOWS = {
    "compute_capabilities": lambda c: c.num_compute_capabilities == 2,
    "workspace_bytes": lambda c: (
        c.get_memory_pool_limit(trt.MemoryPoolType.WORKSPACE) == 1 << 30
    ),
    "memory_pools": lambda c: (
        c.get_memory_pool_limit(trt.MemoryPoolType.TACTIC_DRAM) == 1 << 28
    ),
    "optimization_level": lambda c: c.builder_optimization_level == 2,
    "sparse_weights": lambda c: c.get_flag(trt.BuilderFlag.SPARSE_WEIGHTS),
    "refit": lambda c: c.get_flag(trt.BuilderFlag.REFIT),
    "strip_plan": lambda c: c.get_flag(trt.BuilderFlag.STRIP_PLAN),
    "profiling_verbosity": lambda c: (
        c.profiling_verbosity == trt.ProfilingVerbosity.NONE
    ),
}
"""How each option that RTX has is seen in the config."""


def one(name: str) -> BuildOptions:
    return BuildOptions(**{name: GIVEN.get(name, True)})


@pytest.mark.skipif(
    flavor.resolve() != "tensorrt-rtx", reason="what RTX has and has not"
)
@pytest.mark.parametrize("name", [field.name for field in fields(BuildOptions)])
def test_every_option_is_set_or_refused(name: str) -> None:
    conversion = small()
    if name not in SHOWS:
        with pytest.raises(UsageError, match=options.called(name)):
            build(conversion, one(name))
        return
    created = config.create(conversion, one(name))(
        conversion.builder, conversion.network
    )
    assert SHOWS[name](created)
    plain = config.create(conversion, BuildOptions())(
        conversion.builder, conversion.network
    )
    assert not SHOWS[name](plain)


@pytest.mark.parametrize("which", ["tensorrt", "tensorrt-rtx"])
def test_options_missing_in_a_flavor_are_refused_with_a_fix(which: str) -> None:
    for name in options.LACKS[which]:
        with pytest.raises(
            UsageError, match=f"{which} has no {options.called(name)}"
        ) as caught:
            options.check(one(name), which, trt, "1.0")
        assert caught.value.fix


@pytest.mark.parametrize(
    ("which", "name", "feature"),
    [
        ("tensorrt-rtx", "hardware_compatible", "hardware compatibility"),
        ("tensorrt-rtx", "tactic_sources", "tactic sources"),
        ("tensorrt", "compute_capabilities", "choice of compute capabilities"),
    ],
)
def test_message_names_the_missing_feature(which: str, name: str, feature: str) -> None:
    with pytest.raises(UsageError) as caught:
        options.check(one(name), which, trt, "1.0")
    assert caught.value.message == f"{which} has no {feature}"


def test_options_missing_in_a_version_are_refused() -> None:
    old = SimpleNamespace(
        BuilderFlag=SimpleNamespace(REFIT=1), ProfilingVerbosity=object()
    )
    options.check(
        BuildOptions(refit=True, profiling_verbosity="detailed"), "tensorrt", old, "8.5"
    )
    for name in (
        "strip_plan",
        "hardware_compatible",
        "version_compatible",
        "error_on_timing_cache_miss",
    ):
        with pytest.raises(UsageError, match=r"tensorrt 8\.5 has no"):
            options.check(one(name), "tensorrt", old, "8.5")


def test_enumeration_members_ignore_case() -> None:
    assert (
        options.member(trt, "MemoryPoolType", "Workspace", "x")
        == trt.MemoryPoolType.WORKSPACE
    )
    with pytest.raises(
        UsageError, match="memory_pools: this TensorRT has no 'heap'"
    ) as caught:
        build(small(), BuildOptions(memory_pools={"heap": 1}))
    assert "workspace" in str(caught.value.fix)


@pytest.mark.parametrize("text", ["8.9", "sm_89", "SM89", "89"])
def test_compute_capability_spellings(text: str) -> None:
    assert options.capability(text) == (8, 9)
    assert options.capability("sm_120") == (12, 0)


@pytest.mark.parametrize(
    "text", ["", "sm", "hopper", "9", "8.9.1", "²³", "sm_90a", "sm_1000"]
)
def test_invalid_compute_capability_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a compute capability"):
        options.capability(text)


def test_compute_capabilities_are_sorted_and_unique() -> None:
    assert options.parse_capabilities(["sm_89", "8.6", "89"]) == ((8, 6), (8, 9))
    assert BuildOptions().over(
        {"compute_capabilities": ["8.9", "8.6", "8.9"]}
    ).compute_capabilities == ((8, 6), (8, 9))


def test_manifest_and_command_line_options_are_merged() -> None:
    manifest = {
        "optimization_level": 1,
        "compute_capabilities": ["8.6"],
        "tactic_sources": ["cublas"],
    }
    merged = BuildOptions(optimization_level=4, refit=True).over(manifest)
    assert merged == BuildOptions(
        optimization_level=4,
        refit=True,
        compute_capabilities=((8, 6),),
        tactic_sources=("cublas",),
    )
    assert BuildOptions().over({}) == BuildOptions()


def test_build_section_of_the_schema_has_all_options() -> None:
    """Except options of the machine, not of the model: the location of the timing cache."""
    from builder.manifest.schema import schema

    known = set(schema()["properties"]["build"]["properties"])
    assert {field.name for field in fields(BuildOptions)} - known == {
        "timing_cache",
        "error_on_timing_cache_miss",
    }
    assert known <= {field.name for field in fields(BuildOptions)}


@pytest.mark.gpu
def test_timing_cache_is_written_and_read(tmp_path: Path) -> None:
    from builder.engine.caches import timing_cache

    path = tmp_path / "a.cache"
    build(small(), BuildOptions(timing_cache=path))
    size = path.stat().st_size
    assert size > 0
    build(small(), BuildOptions(timing_cache=path))
    assert path.stat().st_size == size
    build(small())
    assert timing_cache().is_file()


def test_memory_pools_of_manifest_and_command_line_are_merged() -> None:
    manifest = {"memory_pools": {"tactic_dram": 1, "tactic_shared_memory": 2}}
    over = BuildOptions(memory_pools={"tactic_dram": 3}).over(manifest)
    assert over.memory_pools == {"tactic_dram": 3, "tactic_shared_memory": 2}
    assert BuildOptions().over(manifest).memory_pools == manifest["memory_pools"]
    with pytest.raises(UsageError, match="two limits"):
        BuildOptions(workspace_bytes=1).over({"memory_pools": {"workspace": 2}})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("tactic_sources", ("cubls",)),
        ("hardware_compatible", "same_compute_capability"),
    ],
)
def test_missing_enumeration_members_are_refused_early(
    monkeypatch: pytest.MonkeyPatch, option: str, value: Any
) -> None:
    """8.6 has neither."""
    old = SimpleNamespace(
        TacticSource=SimpleNamespace(__members__={"CUBLAS": 0}),
        __version__="8.6.0",
        HardwareCompatibilityLevel=SimpleNamespace(
            __members__={"NONE": 0, "AMPERE_PLUS": 1}
        ),
    )
    monkeypatch.setattr(config, "trt", old)
    monkeypatch.setattr(config.flavor, "name", lambda: "tensorrt")
    monkeypatch.setattr(config.options, "check", lambda *_: None)
    monkeypatch.setattr(config.options, "check_host", lambda *_: None)
    with pytest.raises(UsageError, match=f"{option}: this TensorRT has no"):
        config.check(BuildOptions(**{option: value}))


def test_folder_as_timing_cache_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="is a folder"):
        caches.timing_cache(tmp_path)
