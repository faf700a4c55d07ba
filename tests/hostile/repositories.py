"""Crafted repositories, and damaged files of published models.

There are two repositories: one has a model and an ensemble with its steps, for `merge`; the other
has a model with a kept version, for `rollback` and `prune`.
"""

from __future__ import annotations

import json
import random
import shutil
import stat
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from builder.store import CONFIG, SIDECAR, SIGNATURE
from tests.hostile.counts import SECRET, Case, Snapshot, command, outcome, snapshot
from tests.hostile.crafts import CRAFTS, SEALED
from tests.hostile.manifests import VALID, Small

CRAFTED = "tests.hostile.repositories:attempt_crafted"
DAMAGED = "tests.hostile.repositories:attempt_damaged"
MODEL, ENSEMBLE = "small", "parts"
NO_SERVER = "127.0.0.1:9"
LIVE_LOAD_EVERY = 50
"""One of this many crafted repositories is benchmarked on a running server."""
KEEP_VERSIONS = "versions: {keep: 3}\n"
FALLBACK = "fallback: {ops: [aten::sigmoid], min_block_size: 1}\n"


class WithSigmoid(Small):
    """Becomes an ensemble, because the sigmoid runs in torch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.linear(x)) * 2 + 1


@dataclass(frozen=True)
class Published:
    """The signed repositories that are changed, with the models that they were built from."""

    folder: Path

    @property
    def plain(self) -> Path:
        """One version of each model, an ensemble among them."""
        return self.folder / "plain"

    @property
    def kept(self) -> Path:
        """A model with two versions."""
        return self.folder / "kept"

    @property
    def key(self) -> Path:
        """The private key; the public one is beside it."""
        return self.folder / "sign.key"


def prepare(folder: Path) -> Published:
    """Build and sign the repositories."""
    from builder.triton import signatures

    published = Published(folder)
    subprocess.run(
        signatures.MAKE_KEYS, shell=True, cwd=folder, check=True, capture_output=True
    )
    _build(
        folder / "plain.models",
        published.plain,
        {MODEL: VALID[0], ENSEMBLE: VALID[0] + FALLBACK},
    )
    for seed in (0, 1):
        _build(
            folder / "kept.models",
            published.kept,
            {MODEL: VALID[0] + KEEP_VERSIONS},
            seed,
        )
    for repository in (published.plain, published.kept):
        signatures.sign_missing(repository, published.key)
    return published


def _build(
    models: Path, out: Path, manifests: Mapping[str, str], seed: int = 0
) -> None:
    from builder.repository import build_repository

    models.mkdir(exist_ok=True)
    for name, text in manifests.items():
        torch.manual_seed(seed)
        module = Small() if name == MODEL else WithSigmoid()
        torch.jit.script(module.eval()).save(str(models / f"{name}.pt"))
        (models / f"{name}.yaml").write_text(text)
    for result in build_repository(models, out, layout="ensemble"):
        assert result.ok, result.error


def craft(
    folder: Path, seed: int, published: Published, executed: Path, url: str
) -> Case:
    """A copy of a repository, changed and often sealed again by an attacker who knows the formats.
    `url` is the address of a server of the unchanged models.
    """
    chance = random.Random(seed)
    original = chance.choice((published.plain, published.plain, published.kept))
    shutil.copytree(original, folder / "r", symlinks=True)
    shutil.copytree(original.with_name(f"{original.name}.models"), folder / "models")
    (folder / "secret.txt").write_text(SECRET)
    kind = chance.choice(CRAFTS)
    # the folder of a model or of an ensemble's step
    model = chance.choice(
        sorted(path for path in (folder / "r").iterdir() if path.is_dir())
    )
    kind(chance, model, executed)
    if kind not in SEALED and chance.random() < 0.5:
        _seal_all(folder / "r")
    changed = snapshot(folder / "r") != _original(original)
    loaded = url if seed % LIVE_LOAD_EVERY == 0 else NO_SERVER
    # steps are named by their ensemble
    name = MODEL if model.name == MODEL else ENSEMBLE
    kept = original == published.kept
    return Case(
        kind.__name__,
        (str(folder), name, kept, changed, str(published.key), url, loaded),
    )


@lru_cache(maxsize=2)
def _original(repository: Path) -> Snapshot:
    return snapshot(repository)


def _seal_all(repository: Path) -> None:
    """Seals the present files as `repo` does, kept versions and steps first."""
    from builder.store import published

    sidecars = sorted(
        repository.rglob(published.SIDECAR), key=lambda path: -len(path.parts)
    )
    models = [
        path.parent for path in sidecars if not path.is_symlink() and path.is_file()
    ]
    for model in sorted(
        models, key=lambda folder: "steps" in published.read(folder / SIDECAR)
    ):
        record = published.read(model / SIDECAR)
        if not isinstance(record.get("files"), dict):
            continue
        files = {
            name: _digest(model, name) or value
            for name, value in record["files"].items()
        }
        for key, name in (
            ("kept", "versions/{}/" + SIDECAR),
            ("seals", "../{}/" + SIDECAR),
        ):
            if isinstance(record.get(key), dict):
                record[key] = {
                    item: _digest(model, name.format(item)) or value
                    for item, value in record[key].items()
                }
        published.write(model, {**record, "files": files})


def _digest(model: Path, name: str) -> str | None:
    """The SHA-256 of a regular file that a trt-build.json names, also of a kept version."""
    from builder.torchscript import sha256

    for folder in (model, model.parents[1]):
        try:
            if stat.S_ISREG((folder / name).lstat().st_mode):
                return sha256(folder / name)
        except (OSError, ValueError):
            continue
    return None


def attempt_crafted(
    folder: str,
    name: str,
    kept: bool,
    changed: bool,
    key: str,
    url: str,
    loaded: str,
    report: Any,
) -> tuple[str, str]:
    """Run every command that reads a repository. Returns the most severe outcome."""
    base = Path(folder)
    outcomes = []
    for arguments in _commands(base, name, kept, key, url, loaded):
        report(base.name, arguments[0])
        code, text = command(*arguments, "--json")
        if code == 4 and arguments[0] in ("verify", "health", "bench"):
            continue  # without a server, the result does not depend on the repository
        outcomes.append(outcome(code, f"{' '.join(map(str, arguments))}: {text}"))
    if _leaks(base / "out"):
        return "leaks", "a command copied the secret"
    if outside := _outside(base / "out"):
        return "files_written", outside
    if changed and _signature_holds(base / "r", Path(key)):
        return "wrong_outputs", "the signature holds for changed files"
    return _most_severe(outcomes)


def _commands(
    base: Path, name: str, kept: bool, key: str, url: str, loaded: str
) -> Iterator[tuple[object, ...]]:
    """The command lines; those that change a repository use a copy."""
    repository, out = base / "r", base / "out"
    model = repository / name
    yield "explain", model, "--no-store"
    yield "inspect", repository
    yield "inspect", model
    yield "inspect", model / "1" / "model.plan"
    if not kept:
        yield "merge", repository, "--out", out / "merged"
    yield "verify", repository, "--url", NO_SERVER, "--timeout", 2
    yield "health", repository, "--url", url, "--timeout", 5
    load = ("--protocol", "http", "--concurrency", 1, "--seconds", 0.2, "--timeout", 5)
    yield "bench", repository, "--url", loaded, "--only", MODEL, *load
    yield "history", repository
    copy = _copy(base, out / "copy")
    yield "sign", copy / "r", "--key", key
    yield "promote", copy / "r", out / "promoted"
    yield "adopt", copy / "r", name, "--models", copy / "models"
    if kept:
        yield "rollback", copy / "r", name
        yield "prune", copy / "r", "--keep", 1


def _copy(base: Path, copy: Path) -> Path:
    """The crafted repository and the files beside it; cp also copies pipes and sockets."""
    copy.mkdir()
    words = [str(base / name) for name in ("r", "models", "secret.txt")]
    subprocess.run(["cp", "-a", *words, str(copy)], check=True)
    return copy


def _leaks(out: Path) -> bool:
    """Whether a command copied the secret."""
    files = [path for path in out.rglob("*") if stat.S_ISREG(path.lstat().st_mode)]
    files.remove(out / "copy" / "secret.txt")
    return any(SECRET.encode() in path.read_bytes() for path in files)


def _outside(out: Path) -> str:
    """The files that the commands wrote beside their repositories; empty if there are none."""
    more = {path.name for path in out.iterdir()} - {"copy", "merged", "promoted"}
    more |= {path.name for path in (out / "copy").iterdir()} - {
        "r",
        "models",
        "secret.txt",
    }
    if (out / "copy" / "secret.txt").read_text() != SECRET:
        more.add("secret.txt")
    return ", ".join(sorted(more))


def _signature_holds(repository: Path, key: Path) -> bool:
    from builder.errors import UsageError
    from builder.triton import signatures

    try:
        signatures.require(repository, key.with_suffix(".pub"))
    except UsageError:
        return False
    return True


def _most_severe(found: list[tuple[str, str]]) -> tuple[str, str]:
    """The first defect, else the first refusal, else acceptance."""
    for severe in ("exit_70", "refused"):
        for item in found:
            if item[0] == severe:
                return item
    return "accepted_correct", ""


def damage(folder: Path, seed: int, published: Published) -> Case:
    """A copy of the repository with one damaged file of the model, the ensemble or a step."""
    chance = random.Random(seed)
    shutil.copytree(published.plain, folder / "r")
    model = folder / "r" / MODEL
    if chance.random() < 0.5:
        model = chance.choice(
            sorted(path for path in model.parent.iterdir() if path != model)
        )
    # an empty file, which keeps Python from writing bytecode, has nothing to damage
    files = sorted(
        path for path in model.rglob("*") if path.is_file() and path.stat().st_size
    )
    file = chance.choice(files)
    kind = chance.choice(
        ("flip", "flip", "flip", "cut", "empty", "grow", "remove", "exchange")
    )
    data = file.read_bytes()
    if kind == "flip":
        changed = bytearray(data)
        for _ in range(chance.choice((1, 1, 4))):
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
        file.write_bytes(changed)
    elif kind == "cut":
        file.write_bytes(data[: chance.randrange(len(data))])
    elif kind == "empty":
        file.write_bytes(b"")
    elif kind == "grow":
        file.write_bytes(data + chance.randbytes(16))
    elif kind == "remove":
        file.unlink()
    else:
        file.write_bytes(chance.choice(files).read_bytes())
    same = file.is_file() and file.read_bytes() == data
    name = file.relative_to(model).as_posix()
    return Case(kind, (str(folder), model.name, name, same, str(published.key)))


def attempt_damaged(
    folder: str, damaged: str, name: str, same: bool, key: str, report: Any
) -> tuple[str, str]:
    """`explain` and `merge` must report the damage, the signature must not hold, and the runtime
    must refuse or return correct outputs.
    """
    base = Path(folder)
    model = base / "r" / (MODEL if damaged == MODEL else ENSEMBLE)
    report(base.name, "explain")
    code, text = command("explain", model, "--no-store", "--json")
    if code == 70:
        return "exit_70", text
    named = code != 0 or "is damaged" in text
    report(base.name, "merge")
    merged, record = command(
        "merge", base / "r", "--out", base / "out" / "merged", "--json"
    )
    if merged == 70:
        return "exit_70", record
    report(base.name, "runtime")
    output = _runtime_result(model) if damaged == MODEL else ""
    if output == "wrong":
        return "wrong_outputs", f"{name}: the runtime returned wrong outputs"
    signature = name == SIGNATURE
    if not same and not signature and _signature_holds(base / "r", Path(key)):
        return "wrong_outputs", f"{name}: the signature holds"
    edited = name == CONFIG  # users may edit it
    if not (same or edited or signature) and not (named and merged != 0):
        return "wrong_outputs", f"{name}: explain {text!r}, merge {record!r}"
    refused = named or output == "refused" or signature
    return ("refused" if refused else "accepted_correct"), ""


@lru_cache(maxsize=1)
def _runtime() -> Any:
    from tests.serving import fakes

    return fakes.runtime()[0]


def _runtime_result(model: Path) -> str:
    """The result of the Python runtime with the files: "refused", "correct" or "wrong"."""
    x = torch.linspace(-2, 2, 8).reshape(2, 4)
    torch.manual_seed(0)
    expected = Small().eval()(x)
    served = _runtime().TritonPythonModel()
    try:
        served.initialize(
            {
                "model_repository": str(model),
                "model_version": "1",
                "model_name": MODEL,
                "model_config": json.dumps({"max_batch_size": 8}),
                "model_instance_kind": "CPU",
                "model_instance_device_id": "0",
            }
        )
        (output,) = served._run([x])
    except Exception:
        return "refused"
    return "correct" if torch.allclose(output, expected, atol=1e-4) else "wrong"
