"""Finds the models of a folder: their files, their manifests and their names."""

from __future__ import annotations

import codecs
import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.errors import Mistake, UsageError
from builder.manifest.suggest import did_you_mean

MODEL_SUFFIXES = (".pt", ".pth", ".ts", ".jit", ".torchscript", ".pt2")
MANIFEST_SUFFIXES = (".yaml", ".yml")
UNREAD_SUFFIXES = (".onnx",)
FIXED_STEM = "model"  # `resnet/model.pt` is the model `resnet`

SAMPLE = 1024
"""The number of bytes that are read to recognize a text file."""

_SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class ModelFiles:
    """A model file, a manifest, or both, with the model's name. `second` is another manifest of
    the same model.
    """

    name: str
    model: Path | None
    manifest: Path | None
    second: Path | None = None

    @property
    def file(self) -> Path | None:
        """The model file, else the manifest."""
        return self.model or self.manifest


def find_models(path: Path) -> list[ModelFiles]:
    """Every model at `path`, sorted by name.

    `path` is a folder of models, the folder of one model, a model file or a manifest. Raises
    UsageError if the path does not exist or contains no model.
    """
    _refuse_encoding(path)
    if path.is_symlink() and not path.exists():
        raise UsageError(f"{path} is a link to {path.readlink()}, which does not exist")
    if path.exists() and not (path.is_dir() or path.is_file()):
        raise UsageError(f"{path} is neither a folder nor a file")
    if not path.exists():
        raise missing_path(path)
    models = list(_in_folder(path)) if path.is_dir() else [_files_of_path(path)]
    if not models:
        suffixes = ", ".join(f"*{suffix}" for suffix in MODEL_SUFFIXES)
        raise UsageError(
            f"no models in {path}",
            fix=f"add TorchScript files or exported programs ({suffixes}), each with a manifest",
        )
    return sorted(models, key=lambda model: model.name)


def missing_path(path: Path) -> UsageError:
    """The error for a path that does not exist, with the nearest name in its folder."""
    siblings = (
        [sibling.name for sibling in path.parent.iterdir()]
        if path.parent.is_dir()
        else []
    )
    return UsageError(
        f"{path} does not exist",
        fix=did_you_mean(path.name, siblings, otherwise_list=False),
    )


def _refuse_encoding(path: Path) -> None:
    """Raise UsageError for a path that is not UTF-8 text: torch encodes the names of files so."""
    text = os.path.abspath(path)
    if os.fsencode(text) != text.encode("utf-8", "replace"):
        raise UsageError(
            f"the path {path} is not UTF-8 text, and torch opens no other",
            fix="rename the folder, or use a UTF-8 locale, such as LANG=C.UTF-8",
        )


def unread(path: Path) -> dict[str, str]:
    """The names of model files in the folder `path` that are not read, with the reason."""
    if not path.is_dir():
        return {}
    reasons = {}
    for child in sorted(path.iterdir()):
        suffix = child.suffix.lower()
        if suffix in UNREAD_SUFFIXES:
            reasons[child.name] = (
                "trt-build reads .pt and .pt2 files; write one with torch.jit.trace,"
                " torch.jit.script or torch.export"
            )
        elif suffix in MODEL_SUFFIXES and suffix != child.suffix:
            reasons[child.name] = f"rename its suffix to {suffix}"
    return reasons


def mistakes(models: list[ModelFiles]) -> Iterator[Mistake]:
    """Mistakes in names, manifests without a model file, and second manifests."""
    by_name: dict[str, ModelFiles] = {}
    for files in models:
        yield from _own_mistakes(files)
        other = by_name.setdefault(files.name.casefold(), files)
        if other is not files:
            text = f"another model has the name {other.name!r}"
            if other.name != files.name:
                text += (
                    f", which differs from {files.name!r} only in case: some file systems"
                    " have one folder for both"
                )
            fix = f"rename one of them; the other is {other.file}"
            yield Mistake(str(files.file), 1, text, fix)


def _own_mistakes(files: ModelFiles) -> Iterator[Mistake]:
    """The mistakes of one model."""
    if files.model is None:
        fix = _near_model(files.manifest)
        yield Mistake(str(files.file), 1, "this manifest has no model file", fix)
    elif files.manifest and (broken := broken_link(files.model)):
        yield broken
    if files.second is not None:
        subject = "this model file" if files.model else f"the model {files.name!r}"
        yield Mistake(
            str(files.second),
            1,
            f"{subject} has two manifests",
            f"remove one; the other is {files.manifest}",
        )
    if not _SAFE_NAME.fullmatch(files.name):
        allowed = "letters, digits, _ . and -, not starting with . or -"
        safe = re.sub(r"[^A-Za-z0-9_.-]+", "_", files.name).lstrip(".-") or "model"
        yield Mistake(
            str(files.file),
            1,
            f"{files.name!r} is not a valid name of a Triton model ({allowed})",
            f"rename it to {safe!r}",
        )


def _near_model(manifest: Path | None) -> str | None:
    if manifest is None:
        return None
    for suffix in MODEL_SUFFIXES:
        if problem := _not_a_file(manifest.with_suffix(suffix)):
            return problem
    beside = [
        path.name
        for path in sorted(manifest.parent.iterdir())
        if path.suffix in MODEL_SUFFIXES and path.is_file()
    ]
    expected = f"{manifest.stem}.pt"
    return (
        did_you_mean(expected, beside, otherwise_list=False)
        or f"expected {manifest.with_name(expected)}"
    )


def broken_link(path: Path) -> Mistake | None:
    """The mistake of a model file that is a link to a missing file."""
    if not _is_broken_link(path):
        return None
    text = f"{path.name} is a broken link to {path.readlink()}"
    return Mistake(str(path), 1, text, "correct or remove the link")


def _is_broken_link(path: Path) -> bool:
    return path.is_symlink() and not path.exists()


def _not_a_file(path: Path) -> str | None:
    """Why the path cannot be read as a file. None if it is a file or does not exist."""
    if path.is_dir():
        return f"{path} is a folder"
    if path.exists() and not path.is_file():
        return f"{path} is not a regular file"
    return None


def _name(path: Path) -> str:
    if path.stem == FIXED_STEM:
        return path.resolve().parent.name
    return path.stem


def _in_folder(folder: Path) -> Iterator[ModelFiles]:
    yield from _pairs(folder)
    for child in sorted(folder.iterdir()):
        if child.is_dir() and not child.name.startswith("."):
            yield from (
                files
                for files in _pairs(child)
                if (files.file or child).stem == FIXED_STEM
            )


def _pairs(folder: Path) -> Iterator[ModelFiles]:
    """The model files of one folder, each with the manifest of the same stem.

    A manifest without a model file is returned too; `mistakes` reports it.
    """
    files = [
        path
        for path in sorted(folder.iterdir())
        if not path.name.startswith(".") and (path.is_file() or _is_broken_link(path))
    ]
    manifests: dict[str, list[Path]] = {}
    for path in files:
        if path.suffix in MANIFEST_SUFFIXES:
            manifests.setdefault(path.stem, []).append(path)
    models = [path for path in files if path.suffix in MODEL_SUFFIXES]
    yield from (_paired(model, manifests.get(model.stem, ())) for model in models)
    alone = set(manifests) - {model.stem for model in models}
    yield from (
        ModelFiles(_name(manifests[stem][0]), None, *manifests[stem])
        for stem in sorted(alone)
    )


def _paired(model: Path, manifests: Sequence[Path]) -> ModelFiles:
    """The model file with its manifests, of which it should have one."""
    return ModelFiles(_name(model), model, *(manifests or (None,)))


def _refuse_text(path: Path) -> None:
    """Raise UsageError for a text file that is not a manifest."""
    if path.suffix in (*MODEL_SUFFIXES, *MANIFEST_SUFFIXES):
        return
    with path.open("rb") as file:
        start = file.read(SAMPLE)
    with contextlib.suppress(UnicodeDecodeError):
        codecs.getincrementaldecoder("utf-8")().decode(start)
        if b"\0" not in start:
            raise UsageError(
                f"{path} is neither a model file nor a manifest",
                fix=f"name a folder, a model file ({', '.join(MODEL_SUFFIXES)}) or a manifest"
                f" ({', '.join(MANIFEST_SUFFIXES)})",
            )


def _files_of_path(path: Path) -> ModelFiles:
    _refuse_text(path)
    suffixes = MODEL_SUFFIXES if path.suffix in MANIFEST_SUFFIXES else MANIFEST_SUFFIXES
    candidates = (path.with_suffix(suffix) for suffix in suffixes)
    beside = [candidate for candidate in candidates if candidate.is_file()]
    if path.suffix in MANIFEST_SUFFIXES:  # the caller chose one of two manifests
        return ModelFiles(_name(path), beside[0] if beside else None, path)
    return _paired(path, beside)
