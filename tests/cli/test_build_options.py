"""The builder's options on the command line: each reaches TensorRT, or is refused with words that
help.
"""

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
from builder.engine import BuildOptions, flavour
from builder.manifest import load
from builder.pipeline import Order
from tests.cli.conftest import Small, save

Run = Callable[..., Result]
RTX = ("--flavour", "tensorrt-rtx")
on_rtx = pytest.mark.skipif(
    flavour.resolve() != "tensorrt-rtx", reason="what RTX has and has not"
)


@pytest.mark.parametrize(
    "size", ["", "0", "-1G", "inf", "nan", "1e400", "9999999G", "much", "0.1"]
)
@pytest.mark.parametrize("option", ["--workspace", "--pool"])
def test_what_is_no_size_is_usage(
    small: Path, tmp_path: Path, run: Run, option: str, size: str
) -> None:
    given = size if option == "--workspace" else f"tactic_dram={size}"
    result = run("repo", small, "--out", tmp_path / "out", option, given)
    assert result.exit_code == 2
    assert f"'{option}': {size!r} is not a size, such as 512M or 2GiB" in result.output


@pytest.mark.parametrize("pool", ["tactic_dram", "=1G", ""])
def test_a_pool_has_a_name_and_a_limit(
    small: Path, tmp_path: Path, run: Run, pool: str
) -> None:
    result = run("repo", small, "--out", tmp_path / "out", "--pool", pool)
    assert result.exit_code == 2
    assert "not a memory pool with its limit, such as tactic_dram=1GiB" in result.output


@on_rtx
def test_an_option_that_the_flavour_lacks_is_refused_though_the_plan_is_in_the_store(
    small: Path, tmp_path: Path, run: Run
) -> None:
    """The timing cache is in no key: where a plan was found, TensorRT never saw the option."""
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
@pytest.mark.skipif(flavour.has_gpu(), reason="there is a GPU here")
@pytest.mark.parametrize("option", ["--refit", "--strip-plan"])
@pytest.mark.parametrize("command", ["repo", "check"])
def test_what_needs_a_gpu_is_refused_before_anything_is_lowered(
    small: Path, tmp_path: Path, run: Run, option: str, command: str
) -> None:
    more = ("--out", tmp_path / "out") if command == "repo" else ()
    result = run(command, small, *more, *RTX, option)
    assert result.exit_code == 2
    assert (
        f"builds with {option[2:].replace('-', ' ')} only with a GPU" in result.output
    )
    assert "lower" not in result.stderr


GIVEN = {
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
def test_the_command_that_reproduces_a_crash_has_every_option(
    small: Path, name: str
) -> None:
    """It is read back by the command line itself; profiling_verbosity stands in manifests alone."""
    chosen = BuildOptions(**{name: GIVEN.get(name, True)})
    (spec,) = load(small)
    words = shlex.split(
        replace(
            Order(spec, Path("out")), flavour="tensorrt-rtx", options=chosen
        ).reproduce
    )
    assert words[:2] == ["trt-build", "repo"]
    context = repo_command.make_context("repo", words[2:])
    assert build_options.take(dict(context.params)) == chosen


@pytest.mark.parametrize(
    ("url", "read"), [(None, (None, True)), ("s3://b/plans", ("s3://b/plans", False))]
)
def test_the_command_that_reproduces_a_crash_leaves_other_stores_alone(
    small: Path, url: str | None, read: tuple[str | None, bool]
) -> None:
    (spec,) = load(small)
    given = repo_command.make_context(
        "repo", shlex.split(Order(spec, Path("out"), store=url).reproduce)[2:]
    ).params
    assert (given["store"], given["no_store"]) == read


def test_the_command_that_reproduces_a_crash_has_the_samples_values(
    tmp_path: Path,
) -> None:
    file, sample = save(Small(), tmp_path / "net.pt", None), tmp_path / "a b.npz"
    numpy.savez(sample, x=numpy.full((2, 4), 7, "float32"))
    (spec,) = load(file, sample=sample)
    given = repo_command.make_context(
        "repo", shlex.split(Order(spec, Path("out")).reproduce)[2:]
    ).params
    assert load(
        given["models"], inputs=options.parsed(given["inputs"]), sample=given["sample"]
    ) == [spec]
