"""Options of TensorRT's builder in `repo` and `explain`. They override the manifests."""

from __future__ import annotations

import contextlib
from typing import Any

import click

from builder import engine
from builder.cli import options

FLAGS = {
    "sparse_weights": "Allow kernels for weights with 2:4 sparsity.",
    "refit": "Build plans whose weights can be refitted.",
    "strip_plan": "Build plans without weights.",
    "version_compatible": "Build plans that later versions of TensorRT can load.",
    "error_on_timing_cache_miss": (
        "Fail if a layer is missing from the timing cache, instead of measuring it."
    ),
}
MOST = (1 << 53) - 1  # the manifest's limit too
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class Size(click.ParamType[int]):
    """Bytes: `512M`, `2GiB`, `1048576`."""

    name = "SIZE"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        if isinstance(value, int):
            return value
        number = value.upper().removesuffix("B").removesuffix("I")
        unit = ""
        if number[-1:] in ("K", "M", "G"):
            unit = number[-1:]
        with contextlib.suppress(ValueError, OverflowError):
            size = int(float(number.removesuffix(unit)) * UNITS[unit])
            if 0 < size <= MOST:
                return size
        self.fail(f"{value!r} is not a size, such as 512M or 2GiB", param, ctx)


class Pool(click.ParamType[tuple[str, int]]):
    """A memory pool and its limit: `tactic_dram=1GiB`."""

    name = "NAME=SIZE"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        name, equals, size = value.partition("=")
        if not (name and equals):
            self.fail(
                f"{value!r} is not a memory pool with its limit, such as tactic_dram=1GiB",
                param,
                ctx,
            )
        return name.lower(), Size().convert(size, param, ctx)


build_options = options.together(
    click.option(
        "--target",
        "targets",
        multiple=True,
        metavar="SM",
        help=(
            "Target GPU architecture, such as sm_89. Repeatable with TensorRT for RTX; TensorRT "
            "builds only for the GPU of this host."
        ),
    ),
    click.option(
        "--workspace",
        "workspace_bytes",
        type=Size(),
        help="Maximum workspace memory of the engine, such as 2GiB. [default: TensorRT's]",
    ),
    click.option(
        "--pool",
        "pools",
        type=Pool(),
        multiple=True,
        help="Limit of another memory pool, such as tactic_dram=1GiB. Repeatable.",
    ),
    click.option(
        "--optimization-level",
        type=click.IntRange(0, 5),
        metavar="LEVEL",
        help="TensorRT's builder optimization level. 0 builds fastest, 5 searches longest. "
        "[default: TensorRT's]",
    ),
    click.option(
        "--tactic-source",
        "sources",
        multiple=True,
        metavar="NAME",
        help="Use only this tactic source: cublas, cublas_lt, cudnn, edge_mask_convolutions or "
        "jit_convolutions. Repeatable.",
    ),
    options.choice(
        "--hardware-compatible",
        values=("ampere_plus", "same_compute_capability"),
        help="Build plans that other GPUs can run.",
    ),
    options.path(
        "--timing-cache",
        help="Timing cache file. [default: one for each GPU and TensorRT version]",
    ),
    *(
        options.flag(f"--{name.replace('_', '-')}", name, help=text)
        for name, text in FLAGS.items()
    ),
)

request_options = options.together(
    options.models_options,
    options.layout,
    options.torch_steps,
    build_options,
    options.store,
    options.plugins,
)
"""MODELS, and the options of the request, the store and the plugins."""


def take(settings: dict[str, Any]) -> Any:
    """Take the builder's options out of a command's settings, as BuildOptions. Raises
    UsageError.
    """
    names = (
        "workspace_bytes",
        "optimization_level",
        "hardware_compatible",
        "timing_cache",
        *FLAGS,
    )
    chosen = {name: settings.pop(name) for name in names}
    sources = settings.pop("sources")
    pools = dict(settings.pop("pools"))
    targets = engine.parse_capabilities(settings.pop("targets"))
    return engine.BuildOptions(
        **chosen,
        compute_capabilities=targets,
        tactic_sources=sources or None,
        memory_pools=pools,
    )
