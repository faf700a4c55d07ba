"""Finds the models of a folder: which file is a model, which manifest belongs to it, and under what
name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from builder.errors import Mistake, UsageError
from builder.manifest.suggest import did_you_mean

MODEL_SUFFIXES = (".pt", ".pth", ".ts", ".jit", ".torchscript")
MANIFEST_SUFFIXES = (".yaml", ".yml")
FIXED_STEM = "model"  # `resnet/model.pt` is called resnet

_SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Found:
    """A model file, a manifest, or both, under the name that they give."""

    name: str
    model: Path | None
    manifest: Path | None


def find(path: Path) -> list[Found]:
    """Every model at `path`, by name: a folder of them, a model's own folder, a model file or a
    manifest.

    Raises UsageError where there is no such path or nothing in it.
    """
    if path.is_symlink() and not path.exists():
        raise UsageError(f"{path} is a link to {path.readlink()}, which is not there")
    if path.exists() and not (path.is_dir() or path.is_file()):
        raise UsageError(f"{path} is neither a folder nor a file")
    if not path.exists():
        siblings = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        raise UsageError(
            f"there is no {path}", fix=did_you_mean(path.name, siblings, otherwise_list=False)
        )
    found = list(_in_folder(path)) if path.is_dir() else [_of_file(path)]
    if not found:
        suffixes = ", ".join(f"*{suffix}" for suffix in MODEL_SUFFIXES)
        raise UsageError(
            f"no models in {path}",
            fix=f"put TorchScript files there ({suffixes}), each with its .yaml",
        )
    return sorted(found, key=lambda one: one.name)


def mistakes(found: list[Found]) -> Iterator[Mistake]:
    """What is wrong with names and missing partners."""
    seen: dict[str, Found] = {}
    for one in found:
        file = str(one.model or one.manifest)
        if one.model is None:
            yield Mistake(
                file, 1, "there is no model file for this manifest", _near_model(one.manifest)
            )
        if not _SAFE_NAME.fullmatch(one.name):
            fix = (
                "rename it to"
                f" {re.sub(r'[^A-Za-z0-9_.-]+', '_', one.name).lstrip('.-') or 'model'!r}"
            )
            allowed = "letters, digits, _ . -, the first none of . -"
            yield Mistake(file, 1, f"{one.name!r} cannot name a Triton model ({allowed})", fix)
        if one.name in seen:
            other = seen[one.name].model or seen[one.name].manifest
            yield Mistake(
                file, 1, f"a second model with the name {one.name!r}", f"the first is {other}"
            )
        seen[one.name] = one


def _near_model(manifest: Path | None) -> str | None:
    if manifest is None:
        return None
    beside = [
        p.name
        for p in sorted(manifest.parent.iterdir())
        if p.suffix in MODEL_SUFFIXES and p.is_file()
    ]
    expected = f"{manifest.stem}.pt"
    return (
        did_you_mean(expected, beside, otherwise_list=False)
        or f"expected {manifest.with_name(expected)}"
    )


def _name(path: Path) -> str:
    return path.resolve().parent.name if path.stem == FIXED_STEM else path.stem


def _in_folder(folder: Path) -> Iterator[Found]:
    yield from _pairs(folder)
    for child in sorted(folder.iterdir()):
        if child.is_dir() and not child.name.startswith("."):
            yield from (
                one
                for one in _pairs(child)
                if (one.model or one.manifest or child).stem == FIXED_STEM
            )


def _pairs(folder: Path) -> Iterator[Found]:
    """Files of one folder, each model with the manifest of its stem; a manifest alone is a mistake
    for later.
    """
    files = [p for p in sorted(folder.iterdir()) if p.is_file() and not p.name.startswith(".")]
    manifests = {p.stem: p for p in reversed(files) if p.suffix in MANIFEST_SUFFIXES}
    models = [p for p in files if p.suffix in MODEL_SUFFIXES]
    yield from (Found(_name(model), model, manifests.get(model.stem)) for model in models)
    alone = set(manifests) - {model.stem for model in models}
    yield from (Found(_name(manifests[stem]), None, manifests[stem]) for stem in sorted(alone))


def _of_file(path: Path) -> Found:
    suffixes = MODEL_SUFFIXES if path.suffix in MANIFEST_SUFFIXES else MANIFEST_SUFFIXES
    beside = (path.with_suffix(suffix) for suffix in suffixes)
    partner = next((other for other in beside if other.is_file()), None)
    if path.suffix in MANIFEST_SUFFIXES:
        return Found(_name(path), partner, path)
    return Found(_name(path), path, partner)
