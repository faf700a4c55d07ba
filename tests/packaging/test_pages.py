"""The snippets of the pages: manifests are valid, command lines parse, names exist."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from builder import farm, manifest
from builder.errors import ManifestError
from tests.cli.command_lines import CONTEXT, command_of, parse

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?<=\n\n)(?:    .*\n|\n(?=    ))+")
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
SNIPPET = re.compile(
    r"\s+(?:trt-build [a-z]+(?: \S|\n)|pip install|import |from \w+ import|\w+:\n)"
)
"""The first line of an indented block that should be fenced, with its language."""
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
MAKE_TARGETS = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
OTHER_YAML = {"resources", "patches"}
"""Keys of snippets that are neither a manifest nor a farm file."""


def snippets(*languages: str) -> list[Any]:
    """The fenced blocks of all pages in these languages, with the page and line as their id."""
    parameters = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in FENCED.finditer(text):
            line = text.count("\n", 0, block.start()) + 1
            name = f"{page.relative_to(ROOT)}:{line}"
            if block[1] in languages:
                parameters.append(pytest.param(block[2], id=name))
    return parameters


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_snippets_are_fenced_with_their_language(page: Path) -> None:
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    assert not [block for block in INDENTED.findall(text) if SNIPPET.match(block)]


@pytest.mark.parametrize("snippet", snippets("yaml"))
def test_yaml_is_a_valid_manifest_or_farm_file(snippet: str, tmp_path: Path) -> None:
    keys = yaml.safe_load(snippet).keys()
    if keys & {"address"}:
        (tmp_path / "farm.yaml").write_text(snippet)
        farm.read(tmp_path / "farm.yaml")
    elif not keys & OTHER_YAML:
        _check_manifest(snippet, tmp_path)


def _check_manifest(snippet: str, folder: Path) -> None:
    """Load the manifest, completed by an input and the ranges of its axes if it has none. Its files
    need not exist.
    """
    data = yaml.safe_load(snippet)
    if "inputs" not in data:
        ranges = data.get("dims") or data.get("profiles", [{"batch": None}])[0]
        shape = ", ".join(ranges)
        snippet += f"inputs: [{{name: x, dtype: float32, shape: [{shape}]}}]\n"
    if not data.keys() & {"dims", "profiles"}:
        items = yaml.safe_load(snippet)["inputs"]
        axes = {axis for item in items for axis in item["shape"]} - set(range(1000))
        ranges = ", ".join(f"{axis}: {{min: 1, opt: 2, max: 4}}" for axis in axes)
        snippet += f"dims: {{{ranges}}}\n"
    (folder / "net.pt").touch()
    (folder / "net.yaml").write_text(snippet)
    try:
        manifest.load(folder)
    except ManifestError as error:
        missing = [one.message.endswith(" does not exist") for one in error.mistakes]
        assert all(missing), str(error)


def commands(snippet: str) -> Iterator[list[str]]:
    """The words of each command, without assignments of environment variables."""
    for line in snippet.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;")
        lexer.whitespace_split = True
        words = list(lexer)
        while words:
            end = next((i for i, word in enumerate(words) if word[0] in "|&;"), None)
            command = words[:end]
            while command and re.match(r"\w+=", command[0]):
                command.pop(0)
            if command:
                yield command
            words = [] if end is None else words[end + 1 :]


@pytest.mark.parametrize("snippet", snippets("sh", "bash", "console"))
def test_command_lines_are_valid(snippet: str) -> None:
    for program, *arguments in commands(snippet):
        name = Path(program).name
        if name == "trt-build" and arguments:
            parse(arguments)
        elif name == "make":
            assert arguments[0] in MAKE_TARGETS
        elif name.startswith("python") and arguments[0] == "-m":
            assert importlib.util.find_spec(arguments[1]), arguments[1]


EXTRA = re.compile(r"(?:trt-build|'\.)\[([\w,]+)\]")
EXTRAS = set(
    re.findall(
        r"^(\w+) = \[",
        PYPROJECT.partition("optional-dependencies]")[2].partition("\n[")[0],
        re.MULTILINE,
    )
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_extras_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = {extra for names in EXTRA.findall(text) for extra in names.split(",")}
    assert named <= EXTRAS


def test_readme_lists_every_extra_for_users() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text.partition("| extra | for |")[2].partition("\n\n")[0]
    listed = {
        name
        for row in table.splitlines()
        for name in re.findall(r"`(\w+)`", row.split(" | ")[0])
    }
    assert listed == EXTRAS - {"dev", "examples"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_options_in_the_text_exist(page: Path) -> None:
    """Of code such as `repo --farm` and `make test`, but not of `push --pushes N`, which stands for
    `python -m tests.chaos push --pushes N`.
    """
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    names = CONTEXT.command.list_commands(CONTEXT)  # type: ignore[attr-defined]
    for code in INLINE.findall(text):
        program, *words = code.split()
        if program == "make":
            assert words[0] in MAKE_TARGETS, code
        elif program in names and "--pushes" not in words:
            assert not _unknown_options([program, *words]), code
        elif program == "trt-build" and words and words[0] in names:
            assert not _unknown_options(words), code


def _unknown_options(words: list[str]) -> set[str]:
    """The options of the command line that its command does not have."""
    command, arguments = command_of(words)
    names = {name for item in command.params for name in item.opts} | {"--help"}
    used = {word.partition("=")[0].strip("[]") for word in arguments}
    return {word for word in used if word.startswith("--")} - names


@pytest.mark.parametrize("snippet", snippets("python"))
def test_python_compiles_and_its_names_exist(snippet: str) -> None:
    """Imports and attributes of builder and tritonclient, and the arguments of their calls."""
    tree = ast.parse(snippet)
    known = {"builder": importlib.import_module("builder")}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            known |= dict(_imported(node))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (function := _resolved(node.func, known)):
            keywords = {one.arg: one.value for one in node.keywords if one.arg}
            inspect.signature(function).bind(*node.args, **keywords)
        elif isinstance(node, ast.Attribute):
            _resolved(node, known)


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, Any]]:
    """The names that the statement imports from builder and tritonclient."""
    source = getattr(node, "module", None)
    for alias in node.names:
        package = (source or alias.name).partition(".")[0]
        if package not in ("builder", "tritonclient"):
            continue
        if source is None:
            module = importlib.import_module(alias.name)
            yield alias.asname or package, module if alias.asname else _root(package)
            continue
        try:
            value = getattr(importlib.import_module(source), alias.name)
        except AttributeError:
            value = importlib.import_module(f"{source}.{alias.name}")
        yield alias.asname or alias.name, value


def _root(package: str) -> Any:
    return importlib.import_module(package)


def _resolved(node: ast.expr, known: dict[str, Any]) -> Any:
    """The object that a dotted name of builder or tritonclient means; None for another name."""
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _resolved(node.value, known)
        return None if owner is None else getattr(owner, node.attr)
    return None


def test_unknown_options_and_names_are_detected() -> None:
    with pytest.raises(click.UsageError):
        test_command_lines_are_valid("trt-build check models --no-such-option\n")
    with pytest.raises(AttributeError):
        test_python_compiles_and_its_names_exist("builder.no_such_name(1)\n")
    with pytest.raises(TypeError):
        test_python_compiles_and_its_names_exist("builder.convert(no_such=1)\n")
