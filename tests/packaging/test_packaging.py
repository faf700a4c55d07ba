"""A fresh checkout: links have targets, every version is pinned, and the import is light."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.packaging import lock

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
FREE = {"tensorrt", "trt-build"}
"""TensorRT must be the one of the server that loads the plans, so no single version is right."""


def constraints() -> list[Requirement]:
    lines = (
        line.strip() for line in (ROOT / "constraints.txt").read_text().splitlines()
    )
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def required(
    package: str, extras: frozenset[str], seen: set[tuple[str, frozenset[str]]]
) -> Iterator[str]:
    """The names of everything that `package[extras]` brings on this machine."""
    if (package, extras) in seen:
        return
    seen.add((package, extras))
    yield package
    for text in importlib.metadata.requires(package) or []:
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        applies = requirement.marker is None or any(
            requirement.marker.evaluate({"extra": extra}) for extra in ("", *extras)
        )
        if applies and name != "tensorrt":
            yield from required(name, frozenset(requirement.extras), seen)


def test_constraints_are_exact_public_versions() -> None:
    for requirement in constraints():
        assert [item.operator for item in requirement.specifier] == ["=="], requirement
        assert not re.search(r"[*+]", str(requirement.specifier)), requirement


def test_lock_has_hashes_for_every_constraint() -> None:
    blocks = (
        lock.LOCK.read_text()
        .removeprefix(lock.HEADER)
        .replace(" \\\n", "")
        .splitlines()
    )
    locked = {
        block.split("    --hash", 1)[0]: block.count("--hash=sha256:")
        for block in blocks
    }
    expected = {str(pin) for pin in lock.pins()}
    assert locked.keys() == expected, (
        f"run python -m tests.packaging.lock: {locked.keys() ^ expected}"
    )
    assert all(locked.values()), [pin for pin, count in locked.items() if not count]


def test_installed_packages_match_their_pins() -> None:
    pinned = {
        canonicalize_name(item.name): item
        for item in constraints()
        if item.marker is None or item.marker.evaluate()
    }
    extras = frozenset({"rtx", "server", "examples", "dev"})
    names = set(required("trt-build", extras, set())) - FREE
    assert {"torch", "grpcio", "tensorrt-rtx", "nvidia-pytriton", "pyyaml"} <= names
    assert names - set(pinned) == set()
    installed = {
        name: importlib.metadata.version(name).partition("+")[0] for name in names
    }
    assert {
        name
        for name, version in installed.items()
        if version not in pinned[name].specifier
    } == set()


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12"])
def test_packages_are_pinned_once_per_python_version(python: str) -> None:
    environment = {"python_version": python, "python_full_version": f"{python}.0"}
    names = [
        canonicalize_name(item.name)
        for item in constraints()
        if item.marker is None or item.marker.evaluate(environment)
    ]
    assert sorted(names) == sorted(set(names))


PAGES = sorted(
    path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md")
)
RECIPES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "docs/contributing").glob("*.md")
)


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings: small letters, hyphens for blanks, no other marks."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {
        re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-")
        for heading in headings
    }


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", *PAGES, *RECIPES])
def test_links_of_a_page_have_targets(page: str) -> None:
    # a graph in a code block has brackets, too: prim::GetAttr[name="scale"](%self)
    text = re.sub(
        r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL
    )
    for link, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", text):
        if not link.startswith("http"):
            target = (ROOT / page).parent / link if link else ROOT / page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), f"{link}#{anchor}"


def test_readme_links_every_page() -> None:
    assert set(PAGES) - set(re.findall(r"\]\(([^)#]+)", README)) == set()


def test_contributing_links_every_recipe() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert set(RECIPES) - set(re.findall(r"\]\(([^)#]+)", text)) == set()


def test_readme_lists_every_command() -> None:
    """The first column of the table under "Commands"."""
    import click

    from builder.cli import main

    table = README.partition("## Commands")[2].partition("\n## ")[0]
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    named = set(re.findall(r"`([a-z]+)`", " ".join(rows)))
    assert named == set(main.list_commands(click.Context(main)))


SOURCE_FOLDERS = ("builder/", "tests/", "docs/", "examples/", "benchmarks/", "docker/")


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", "docs/architecture.md", *RECIPES]
)
def test_paths_in_guides_exist(page: str) -> None:
    """A path in backticks, such as `builder/errors.py`; `tests/<package>` is a pattern."""
    for path in re.findall(r"`([\w/.-]+)`", (ROOT / page).read_text()):
        if path.startswith(SOURCE_FOLDERS):
            assert (ROOT / path).exists(), f"{page} names {path}, which does not exist"


def test_ci_runs_make_demo_and_make_test() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert {"make demo", "make test"} <= set(re.findall(r"make \w+", script))


def test_import_of_builder_imports_no_heavy_modules() -> None:
    heavy = [
        "torch",
        "numpy",
        "tensorrt",
        "tensorrt_rtx",
        "polygraphy",
        "tritonclient",
        "google.protobuf",
    ]
    program = (
        f"import sys, builder; print([name for name in {heavy} if name in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )


def test_data_files_are_in_the_package() -> None:
    package = files("builder")
    for name in (
        "manifest/model.schema.json",
        "templates/runtime/model.py",
        "templates/runtime/trt_build_runtime/engine.py",
    ):
        assert (package / name).is_file(), name
