"""Builder options on the command line: each reaches TensorRT or is refused with a clear message."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import numpy
import pytest
from click.testing import Result

from builder.cli import build_options, options
from builder.cli.repo import repo_command
from builder.engine import BuildOptions, flavor
from builder.manifest import load
from builder.pipeline import Order
from tests.cli.conftest import Small, save

Run = Callable[..., Result]
RTX = ("--flavor", "tensorrt-rtx")
on_rtx = pytest.mark.skipif(
    flavor.resolve() != "tensorrt-rtx", reason="tests the options of tensorrt-rtx"
)


@pytest.mark.parametrize(
    "size", ["", "0", "-1G", "inf", "nan", "1e400", "9999999G", "much", "0.1"]
)
@pytest.mark.parametrize("option", ["--workspace", "--pool"])
def test_invalid_size_is_a_usage_error(
    small: Path, tmp_path: Path, run: Run, option: str, size: str
) -> None:
    text = size if option == "--workspace" else f"tactic_dram={size}"
    result = run("repo", small, "--out", tmp_path / "out", option, text)
    assert result.exit_code == 2
    assert f"'{option}': {size!r} is not a size, such as 512M or 2GiB" in result.output


@pytest.mark.parametrize("pool", ["tactic_dram", "=1G", ""])
def test_memory_pool_without_name_or_limit_is_a_usage_error(
    small: Path, tmp_path: Path, run: Run, pool: str
) -> None:
    result = run("repo", small, "--out", tmp_path / "out", "--pool", pool)
    assert result.exit_code == 2
    assert "not a memory pool with its limit, such as tactic_dram=1GiB" in result.output


@on_rtx
def test_option_missing_in_flavor_is_refused_even_with_a_stored_plan(
    small: Path, tmp_path: Path, run: Run
) -> None:
    """The timing cache is not part of the key, so a stored plan matches with and without it."""
    arguments = (
        "repo",
        small,
        "--out",
        tmp_path / "out",
        "--store",
        tmp_path / "store",
        *RTX,
    )
    assert run(*arguments).exit_code == 0
    refused = run(*arguments, "--timing-cache", tmp_path / "a.cache")
    assert refused.exit_code == 2
    assert "tensorrt-rtx has no timing cache" in refused.output
    assert "rebuilt" not in refused.output


@on_rtx
@pytest.mark.skipif(flavor.has_gpu(), reason="there is a GPU here")
@pytest.mark.parametrize("option", ["--refit", "--strip-plan"])
@pytest.mark.parametrize("command", ["repo", "check"])
def test_option_that_needs_a_gpu_is_refused_before_lowering(
    small: Path, tmp_path: Path, run: Run, option: str, command: str
) -> None:
    more = ("--out", tmp_path / "out") if command == "repo" else ()
    result = run(command, small, *more, *RTX, option)
    assert result.exit_code == 2
    name = option[2:].replace("-", " ")
    assert f"needs a GPU for {name}, and this machine has none" in result.output
    assert "lower" not in result.stderr


OPTION_VALUES = {
    "compute_capabilities": ((8, 6), (12, 0)),
    "workspace_bytes": 1 << 30,
    "memory_pools": {"tactic_dram": 1 << 28, "dla_local_dram": 9},
    "optimization_level": 0,
    "tactic_sources": ("cublas", "cudnn"),
    "hardware_compatible": "ampere_plus",
    "timing_cache": Path("a b.cache"),
}


@pytest.mark.parametrize(
    "name",
    sorted({field.name for field in fields(BuildOptions)} - {"profiling_verbosity"}),
)
def test_reproduction_command_has_every_build_option(small: Path, name: str) -> None:
    """The command line parses the command. Only manifests have profiling_verbosity."""
    chosen = BuildOptions(**{name: OPTION_VALUES.get(name, True)})
    (spec,) = load(small)
    words = shlex.split(
        replace(
            Order(spec, Path("out")), flavor="tensorrt-rtx", options=chosen
        ).reproduce
    )
    assert words[:2] == ["trt-build", "repo"]
    context = repo_command.make_context("repo", words[2:])
    assert build_options.take(dict(context.params)) == chosen


@pytest.mark.parametrize(
    ("url", "read"), [(None, (None, True)), ("s3://b/plans", ("s3://b/plans", False))]
)
def test_reproduction_command_has_the_store_url_or_no_store(
    small: Path, url: str | None, read: tuple[str | None, bool]
) -> None:
    (spec,) = load(small)
    params = repo_command.make_context(
        "repo", shlex.split(Order(spec, Path("out"), store=url).reproduce)[2:]
    ).params
    assert (params["store"], params["no_store"]) == read


def test_reproduction_command_has_the_values_of_the_sample(
    tmp_path: Path,
) -> None:
    file, sample = save(Small(), tmp_path / "net.pt", None), tmp_path / "a b.npz"
    numpy.savez(sample, x=numpy.full((2, 4), 7, "float32"))
    (spec,) = load(file, sample=sample)
    params = repo_command.make_context(
        "repo", shlex.split(Order(spec, Path("out")).reproduce)[2:]
    ).params
    assert load(
        params["models"],
        inputs=options.parsed(params["inputs"]),
        sample=params["sample"],
    ) == [spec]
