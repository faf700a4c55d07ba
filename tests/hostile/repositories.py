"""Crafted repositories, and published files that were damaged."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import socket
import zipfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.hostile.counts import SECRET, Case, command, outcome
from tests.hostile.manifests import VALID, Executes, Small

CRAFTED = "tests.hostile.repositories:attempt_crafted"
DAMAGED = "tests.hostile.repositories:attempt_damaged"
MODEL = "small"
HUGE: tuple[Any, ...] = (
    *(None, True, -1, 2**63, 1e308, "", "x" * 5000, "\x00", "../../secret.txt", "/etc/passwd"),
    *([], {}, [[]], {"a": {"a": {}}}, ["../../secret.txt"], {"9.0": "../../../secret.txt"}),
)


def prepare(folder: Path) -> Path:
    """A repository with one small model."""
    from builder.repository import build_repository

    models, out = folder / "models", folder / "published"
    models.mkdir()
    torch.manual_seed(0)
    torch.jit.script(Small().eval()).save(str(models / f"{MODEL}.pt"))
    (models / f"{MODEL}.yaml").write_text(VALID[0])
    (result,) = build_repository(models, out)
    assert result.ok, result.error
    (out.parent / "secret.txt").write_text(SECRET)
    return out


def craft(folder: Path, seed: int, original: Path, executed: Path) -> Case:
    """A copy of the repository, changed by an attacker who knows the formats and seals anew."""
    chance = random.Random(seed)
    shutil.copytree(original, folder / "r", symlinks=True)
    (folder / "secret.txt").write_text(SECRET)
    kind = chance.choice(CRAFTS)
    model = folder / "r" / MODEL
    kind(chance, model, executed)
    if chance.random() < 0.5:
        _seal(model)
    return Case(kind.__name__, (str(folder),))


def _seal(model: Path) -> None:
    """As `repo` seals: the digests of the files that are there now."""
    from builder.store import published
    from builder.torchscript import sha256

    said = published.read(model / published.SIDECAR)
    files = {
        path.relative_to(model).as_posix(): sha256(path)
        for path in model.rglob("*")
        if path.is_file() and not path.is_symlink() and path.name != published.SIDECAR
    }
    if said and not (model / published.SIDECAR).is_symlink():
        published.write(model, {**said, "files": files})


def _file(chance: random.Random, model: Path) -> Path:
    return chance.choice(sorted(path for path in model.rglob("*") if path.is_file()))


def special(chance: random.Random, model: Path, executed: Path) -> None:
    """A link, a pipe, a socket or a folder in place of a file."""
    file = _file(chance, model)
    file.unlink()
    how = chance.randrange(8)
    if how < 2:
        os.mkfifo(file)
    elif how == 2:
        with socket.socket(socket.AF_UNIX) as made:
            os.chdir(file.parent)
            made.bind(file.name)
            os.chdir("/")
    elif how == 3:
        file.mkdir()
    else:
        file.symlink_to(
            chance.choice(("/dev/zero", "/dev/stdin", "../../../secret.txt", "/", file.name))
        )


def special_folder(chance: random.Random, model: Path, executed: Path) -> None:
    """A link in place of a folder, or more entries than there were."""
    folders = [path for path in model.rglob("*") if path.is_dir()]
    chosen = chance.choice([model, *folders])
    how = chance.randrange(4)
    if how == 0:
        (chosen / "loop").symlink_to("..")
    elif how == 1:
        os.mkfifo(chosen / "extra.npz")
    elif how == 2:
        (chosen / ("n" * 255)).write_text("x")
    else:
        shutil.rmtree(chosen)
        chosen.symlink_to(chance.choice(("/etc", "/proc/self", "..", chosen.name)))


def change_json(chance: random.Random, model: Path, executed: Path) -> None:
    """Another value somewhere in a JSON file."""
    file = chance.choice(sorted(model.rglob("*.json")))
    data = json.loads(file.read_text())
    owner: Any = data
    while True:
        keys = list(owner) if isinstance(owner, dict) else range(len(owner))
        key = chance.choice(list(keys))
        if not isinstance(owner[key], dict | list) or not owner[key] or chance.random() < 0.3:
            break
        owner = owner[key]
    if chance.random() < 0.2 and isinstance(owner, dict):
        del owner[key]
    else:
        owner[key] = chance.choice(HUGE)
    file.write_text(json.dumps(data))


def no_json(chance: random.Random, model: Path, executed: Path) -> None:
    file = chance.choice(sorted(model.rglob("*.json")))
    text = file.read_bytes()
    file.write_bytes(
        chance.choice(
            (
                b"",
                b"[]",
                b"null",
                b"[" * 100_000,
                b'{"a":' * 100_000,
                b"\xff\xfe",
                text[: len(text) // 2],
                b'"' + b"x" * 100_000,
                b"1" * 5000,
                b"NaN",
            )
        )
    )


def change_config(chance: random.Random, model: Path, executed: Path) -> None:
    file = model / "config.pbtxt"
    more = (
        'cc_model_filenames { key: "9.0" value: "../../../secret.txt" }',
        'default_model_filename: "../../../secret.txt"',
        'default_model_filename: "pipe"',
        'backend: "tensorrt"',
        'platform: "tensorrt_plan"',
        'name: "../evil"',
        "max_batch_size: -2147483648",
        "max_batch_size: 99999999999999",
        "parameters { key: 'EXECUTION_ENV_PATH' value { string_value: '/tmp/evil' } }",
        "ensemble_scheduling { step { model_name: '../../x' model_version: -1 } }",
        "input { name: 'x' data_type: TYPE_FP32 dims: [-9223372036854775808] }",
        "{" * 1000,
        "\x00",
        "input [" * 2000,
        "unknown_field: 3",
        "backend: 'python' backend: '\xff'",
    )
    text = file.read_text()
    if chance.random() < 0.3:
        text = text.replace('backend: "python"', 'platform: "tensorrt_plan"')
    file.write_text(text + "\n" + chance.choice(more))


def change_plans(chance: random.Random, model: Path, executed: Path) -> None:
    """A model with a plan for several GPUs whose file names lead out of the model."""
    version = model / "1"
    (version / "model.plan").write_bytes(b"plan")
    name = chance.choice(("../../../secret.txt", "/etc/passwd", "..", "", "x" * 300, "model.plan"))
    (model / "config.pbtxt").write_text(
        f'name: "{MODEL}"\nplatform: "tensorrt_plan"\nmax_batch_size: 8\n'
        f'cc_model_filenames {{ key: "9.0" value: "{name}" }}\n'
        f'default_model_filename: "{name}"\n'
    )
    plans = chance.choice(({"9.0": {}}, {"9.0": None}, {"../x": {}}, {"ampere_plus": {}}, [1]))
    (version / "plan.json").write_text(
        json.dumps({"plans": plans, "compute_capabilities": chance.choice((["9.0"], 9, None))})
    )


def change_goldens(chance: random.Random, model: Path, executed: Path) -> None:
    folder = model / "goldens"
    folder.mkdir(exist_ok=True)
    file = folder / chance.choice(("default.npz", "g" * 250 + ".npz", "\u202e.npz"))
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (1 << 30, 1 << 10)}
    )
    members = {
        "pickle": ("input:x.npy", _npy(np.array([Executes(executed)], object), True)),
        "text": ("input:x", b"text"),
        "text.npy": ("input:x.npy", b"\x93NUMPY no array"),
        "escape": ("../../../evil.npy", _npy(np.ones(2))),
        "huge header": ("input:x.npy", header.getvalue()),
        "long header": ("input:x.npy", b"\x93NUMPY\x02\x00" + b"\xff" * 4 + b"{" * 1000),
        "empty": ("input:x.npy", b""),
        "name": ("input:" + "n" * 60000 + ".npy", _npy(np.ones(2, np.float32))),
        "bfloat": ("input:x|bfloat16.npy", _npy(np.ones(2, np.float64))),
    }
    how = chance.choice([*members, "bomb", "no zip", "truncated", "other shape"])
    if how == "bomb":
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            zeros = np.zeros(1 << 26, np.uint8)  # 64 MiB in 64 KiB
            for index in range(20):
                archive.writestr(f"input:x{index}.npy", _npy(zeros))
    elif how == "no zip":
        file.write_bytes(chance.randbytes(1000))
    elif how == "truncated":
        np.savez(file, **{"input:x": np.ones((2, 4), np.float32)})
        file.write_bytes(file.read_bytes()[: chance.randrange(1, 200)])
    elif how == "other shape":
        np.savez(file, **{"input:x": np.ones((0, 9), np.complex64), "output:y": np.ones(())})
    else:
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr(*members[how])


def _npy(array: Any, pickled: bool = False) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=pickled)
    return stream.getvalue()


CRAFTS: tuple[Callable[[random.Random, Path, Path], None], ...] = (
    *(special, special_folder, change_json, change_json, no_json),
    *(change_config, change_plans, change_goldens, change_goldens),
)


def attempt_crafted(folder: str, report: Any) -> tuple[str, str]:
    """Every command that reads a repository, on this one; the worst outcome."""
    base = Path(folder)
    repository = base / "r"
    model = repository / MODEL
    out = base / "out" / "merged"
    found = []
    for arguments in (
        ("explain", model, "--no-store", "--json"),
        ("inspect", repository, "--json"),
        ("inspect", model, "--json"),
        ("inspect", model / "1" / "model.plan", "--json"),
        ("merge", repository, "--out", out, "--json"),
        ("verify", repository, "--url", "127.0.0.1:9", "--timeout", "2", "--json"),
    ):
        report(base.name, arguments[0])
        code, text = command(*arguments)
        if arguments[0] == "verify" and code == 4:
            continue  # no server answers, which says nothing of the repository
        found.append(outcome(code, f"{' '.join(map(str, arguments))}: {text}"))
    if _leaks(out):
        return "leaks", "merge copied the secret"
    return _worst(found)


def _leaks(out: Path) -> bool:
    files = [path for path in out.rglob("*") if path.is_file()] if out.exists() else []
    return any(SECRET.encode() in path.read_bytes() for path in files)


def _worst(found: list[tuple[str, str]]) -> tuple[str, str]:
    """A defect before a refusal before acceptance."""
    for wanted in ("exit_70", "refused"):
        for one in found:
            if one[0] == wanted:
                return one
    return "accepted_right", ""


def damage(folder: Path, seed: int, original: Path) -> Case:
    """A copy of the repository with one damaged file of the model."""
    chance = random.Random(seed)
    shutil.copytree(original, folder / "r")
    model = folder / "r" / MODEL
    files = sorted(path for path in model.rglob("*") if path.is_file())
    file = chance.choice(files)
    kind = chance.choice(("flip", "flip", "flip", "cut", "empty", "grow", "remove", "exchange"))
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
    return Case(kind, (str(folder), name, same))


def attempt_damaged(folder: str, name: str, same: bool, report: Any) -> tuple[str, str]:
    """`explain` and `merge` name the damage, and the runtime refuses or answers right."""
    base = Path(folder)
    model = base / "r" / MODEL
    report(base.name, "explain")
    code, text = command("explain", model, "--no-store", "--json")
    if code == 70:
        return "exit_70", text
    named = code != 0 or "is damaged" in text
    report(base.name, "merge")
    merged, said = command("merge", base / "r", "--out", base / "out" / "merged", "--json")
    if merged == 70:
        return "exit_70", said
    report(base.name, "runtime")
    answer = _served(model)
    if answer == "wrong":
        return "wrong_answers", f"{name}: the runtime answered with other numbers"
    edited = name == "config.pbtxt"  # which people change by hand
    if not same and not edited and not (named and merged != 0):
        return "wrong_answers", f"{name}: explain {text!r}, merge {said!r}"
    return ("refused" if named or answer == "refused" else "accepted_right"), ""


@lru_cache(maxsize=1)
def _runtime() -> Any:
    from tests.serving import fakes

    return fakes.runtime()[0]


def _served(model: Path) -> str:
    """What this installation's runtime does with the files: "refused", "right" or "wrong"."""
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
        (answer,) = served._run([x])
    except Exception:
        return "refused"
    return "right" if torch.allclose(answer, expected, atol=1e-4) else "wrong"
