"""Options of TensorRT's builder, as `repo` and `explain` take them; they override the
manifests'.
"""

from __future__ import annotations

import contextlib
from typing import Any

import click

from builder.cli.options import PATH

FLAGS = {
    "sparse_weights": "Use kernels for weights of 2:4 sparsity.",
    "refit": "Let the weights of the plan be replaced.",
    "strip_plan": "Leave the weights out of the plan.",
    "version_compatible": "Let later versions of TensorRT load the plan.",
    "error_on_timing_cache_miss": (
        "Fail where the timing cache does not have a layer, instead of measuring."
    ),
}
MOST = (1 << 53) - 1  # the manifest's limit too
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class Size(click.ParamType[int]):
    """Bytes: `512M`, `2GiB`, `1048576`."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        number = value.upper().removesuffix("B").removesuffix("I")
        unit = number[-1:] if number[-1:] in ("K", "M", "G") else ""
        with contextlib.suppress(ValueError, OverflowError):
            size = int(float(number.removesuffix(unit)) * UNITS[unit])
            if 0 < size <= MOST:
                return size
        self.fail(f"{value!r} is not a size, as in 512M or 2GiB", param, ctx)


class Pool(click.ParamType[tuple[str, int]]):
    """A memory pool and its limit: `tactic_dram=1GiB`."""

    name = "NAME=SIZE"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        name, equals, size = value.partition("=")
        if not (name and equals):
            self.fail(f"{value!r} is no pool with its limit, as in tactic_dram=1GiB", param, ctx)
        return name.lower(), Size().convert(size, param, ctx)


_OPTIONS = (
    click.option(
        "--target",
        "targets",
        multiple=True,
        metavar="SM",
        help=(
            "A GPU that the model is for, as sm_89; several times for several. TensorRT builds for"
            " this host's alone."
        ),
    ),
    click.option(
        "--workspace", "workspace_bytes", type=Size(), help="Scratch memory of the engine, at most."
    ),
    click.option(
        "--pool", "pools", type=Pool(), multiple=True, help="The limit of another memory pool."
    ),
    click.option(
        "--optimization-level",
        type=click.IntRange(0, 5),
        help="0 builds fastest, 5 searches longest.",
    ),
    click.option(
        "--tactic-source",
        "sources",
        multiple=True,
        metavar="NAME",
        help="The only libraries of kernels.",
    ),
    click.option(
        "--hardware-compatible",
        type=click.Choice(("ampere_plus", "same_compute_capability")),
        help="Let other GPUs run the plan.",
    ),
    click.option(
        "--timing-cache",
        type=PATH,
        metavar="FILE",
        help="In place of the one of this GPU and TensorRT.",
    ),
    *(
        click.option(f"--{name.replace('_', '-')}", name, is_flag=True, help=text)
        for name, text in FLAGS.items()
    ),
)


def build_options(function: Any) -> Any:
    """Add the options to a command."""
    for decorate in reversed(_OPTIONS):
        function = decorate(function)
    return function


def taken(settings: dict[str, Any]) -> Any:
    """Take the builder's options out of a command's settings, as BuildOptions. Raises
    UsageError.
    """
    from builder.engine import BuildOptions, parse_capabilities

    names = ("workspace_bytes", "optimization_level", "hardware_compatible", "timing_cache", *FLAGS)
    said = {name: settings.pop(name) for name in names}
    sources, pools = settings.pop("sources"), dict(settings.pop("pools"))
    targets = parse_capabilities(settings.pop("targets"))
    return BuildOptions(
        **said, compute_capabilities=targets, tactic_sources=sources or None, memory_pools=pools
    )
