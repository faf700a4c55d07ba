"""Versions of trt-build's code, as digests of the source files that can change a result.

The version of a file includes every trt-build file that it imports, so a helper that converters
share is part of their versions. A public name of a package stands for the file that defines it, and
a public subpackage for all of its files. Other statements of a package's `__init__.py` are not
followed. Neither are imports for type checkers, which never run.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from builder import exports
from builder.reachable import reachable
from builder.templates import config_templates

ROOT = Path(__file__).resolve().parents[1]
UNSEEN = ("cli", "farm", "serving", "store", "__pycache__")
"""Packages that do not affect published files."""

_IMPORT = re.compile(
    r"^[ \t]*from (builder[\w.]*) import (\([^)]*\)|[^\n]+)", re.MULTILINE
)
_FOR_TYPES = re.compile(r"^if TYPE_CHECKING:\n(?:[ \t]+[^\n]*\n|\n)+", re.MULTILINE)


@cache
def version_of_all() -> str:
    """The version of all of trt-build's code and templates that may change what is published."""
    digest = hashlib.sha256()
    code = [
        entry
        for entry in ROOT.rglob("*")
        if not set(entry.relative_to(ROOT).parts) & set(UNSEEN)
    ]
    for path in sorted({*code, *config_templates().glob("*.pbtxt")}):
        if path.is_file():
            name = path.relative_to(ROOT.parent)
            digest.update(
                f"{name}\0{path.stat().st_size}\0".encode() + path.read_bytes()
            )
    return digest.hexdigest()


@cache
def version(module: str) -> str:
    """The version of a trt-build module and its trt-build imports: 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for name in sorted(_closure(module)):
        digest.update(f"{name}\0".encode() + _text(name).encode() + b"\0")
    return digest.hexdigest()[:16]


def version_of_plugin(module: str) -> str:
    """The version of a module outside trt-build (a plugin): the hash of its own file."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return hashlib.sha256(
        Path(file).read_bytes() if file else module.encode()
    ).hexdigest()[:16]


def _closure(module: str) -> set[str]:
    return set(reachable([module], _imports))


@cache
def _imports(module: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_imported(_text(module))))


def _imported(source: str) -> Iterator[str]:
    for package, names in _IMPORT.findall(_FOR_TYPES.sub("", source)):
        words = re.findall(r"\w+", re.sub(r"#[^\n]*| as \w+", "", names))
        for name in (
            package,
            *(defined for word in words for defined in _defined(package, word)),
        ):
            if _path(name).is_file():
                yield name


def _defined(package: str, name: str) -> list[str]:
    """The modules that define this name, imported from this package or module."""
    folder = _path(package).with_suffix("")
    stub = folder / "__init__.pyi"
    public = exports.names(stub) if stub.is_file() else {}
    if name in public and (folder / name).is_dir():
        files = sorted((folder / name).glob("[!_]*.py"))
        return [f"{package}.{name}.{file.stem}" for file in files]
    return [f"{package}.{public.get(name) or name}"]


def _text(module: str) -> str:
    return _path(module).read_text(encoding="utf-8")


def _path(module: str) -> Path:
    return ROOT.joinpath(*module.split(".")[1:]).with_suffix(".py")
