"""Polygraphy's CreateConfig of the flavor in use, from a Conversion and its BuildOptions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.engine import caches, flavor, fp8, options
from builder.engine.flavor import trt
from builder.engine.options import BuildOptions
from builder.engine.tensorrt8 import config as tensorrt8

if TYPE_CHECKING:
    from builder.conversion import Conversion
    from builder.manifest import Profile


def create(conversion: Conversion, chosen: BuildOptions, monitor: Any = None) -> Any:
    """A function (builder, network) -> IBuilderConfig. Raises UsageError for options that this
    flavor does not support.

    TF32 is only enabled if the precision requires it. A new config has it enabled.
    """
    from polygraphy.backend.trt import CreateConfig, PostprocessConfig

    options.check(chosen, flavor.name(), trt, trt.__version__)
    fp8.check_targets(conversion.precision, chosen.compute_capabilities)
    profiles = [profile(conversion, shapes) for shapes in conversion.profiles]
    common = {"profiles": profiles, "progress_monitor": monitor, **_settings(chosen)}
    if flavor.name() == "tensorrt-rtx":
        from polygraphy.backend.tensorrt_rtx import CreateConfigRTX

        targets: Sequence[tuple[int, int]] | None = chosen.compute_capabilities or None
        create_config = CreateConfigRTX(compute_capabilities=targets, **common)
    else:
        create_config = CreateConfig(
            **common, **_measured(chosen), **tensorrt8.flags(conversion)
        )
    tf32 = conversion.precision == "tf32"

    def finish(builder: Any, network: Any, config: Any) -> None:
        set_tf32(config, tf32)
        tensorrt8.share_profiles(config)

    return PostprocessConfig(create_config, finish)


def _settings(chosen: BuildOptions) -> dict[str, Any]:
    """The options that both flavors have."""
    verbosity = chosen.profiling_verbosity
    return {
        "builder_optimization_level": chosen.optimization_level,
        "memory_pool_limits": pools(chosen) or None,
        "sparse_weights": chosen.sparse_weights,
        "refittable": chosen.refit,
        "strip_plan": chosen.strip_plan,
        "version_compatible": chosen.version_compatible,
        "error_on_timing_cache_miss": chosen.error_on_timing_cache_miss,
        "profiling_verbosity": _member(
            "ProfilingVerbosity", verbosity, "profiling_verbosity"
        ),
    }


def check(chosen: BuildOptions) -> None:
    """Raise UsageError for an option that this flavor, its version or this machine does not
    support.
    """
    options.check(chosen, flavor.name(), trt, trt.__version__)
    options.check_host(chosen, flavor.name(), flavor.has_gpu())
    pools(chosen)
    if flavor.name() == "tensorrt":
        _tactic_sources(chosen)
        _hardware_level(chosen)


def timing_cache(chosen: BuildOptions) -> Path | None:
    """The timing cache that a build uses; None if the flavor does not time tactics. Creates its
    folder.

    Raises EnvironmentProblem if the folder cannot be written.
    """
    if flavor.name() == "tensorrt-rtx":
        return None
    return caches.with_folder(caches.timing_cache(chosen.timing_cache))


def _measured(chosen: BuildOptions) -> dict[str, Any]:
    """The settings of a flavor that times tactics."""
    cache = timing_cache(chosen)
    return {
        "load_timing_cache": str(cache) if cache and cache.is_file() else None,
        "tactic_sources": _tactic_sources(chosen),
        "hardware_compatibility_level": _hardware_level(chosen),
    }


def _tactic_sources(chosen: BuildOptions) -> list[Any] | None:
    sources = chosen.tactic_sources
    if sources is None:
        return None
    return [_member("TacticSource", name, "tactic_sources") for name in sources]


def _hardware_level(chosen: BuildOptions) -> Any:
    return _member(
        "HardwareCompatibilityLevel", chosen.hardware_compatible, "hardware_compatible"
    )


def _member(enumeration: str, name: str | None, option: str) -> Any:
    if name is None:
        return None
    return options.member(trt, enumeration, name, option)


def set_tf32(config: Any, enabled: bool) -> None:
    """Set TF32. A new config has it enabled, but float32 means float32 here unless the precision
    requires TF32.
    """
    if enabled:
        config.set_flag(trt.BuilderFlag.TF32)
    else:
        config.clear_flag(trt.BuilderFlag.TF32)


def pools(chosen: BuildOptions) -> dict[Any, int]:
    """The limit in bytes of each limited memory pool, by TensorRT's pool type."""
    pools = dict(chosen.memory_pools)
    if chosen.workspace_bytes:
        pools["workspace"] = chosen.workspace_bytes
    return {
        _member("MemoryPoolType", name, "memory_pools"): limit
        for name, limit in pools.items()
    }


def profile(conversion: Conversion, sizes: Profile) -> Any:
    """Polygraphy's Profile with the concrete min, opt and max shape of every input."""
    from polygraphy.backend.trt import Profile

    result = Profile()
    for spec in conversion.inputs:
        result.add(spec.name, *(spec.at(sizes, which) for which in range(3)))
    return result
