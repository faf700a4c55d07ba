"""Changes of a published repository by an attacker who knows the formats."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import shutil
import socket
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.hostile.counts import SECRET, UNEXPECTED
from tests.hostile.manifests import Executes

VALUES: tuple[Any, ...] = (
    *UNEXPECTED,
    "../../secret.txt",
    "/etc/passwd",
    *([], {}, [[]], {"a": {"a": {}}}),
    ["../../secret.txt"],
    {"9.0": "../../../secret.txt"},
)
FOREIGN_NAMES = (
    "../../secret.txt",
    "../../../../secret.txt",
    "/etc/hostname",
    "..",
    "",
    ".",
    "1",
    "x",
)
"""Names that are not files of the model."""


def _file(chance: random.Random, model: Path) -> Path:
    return chance.choice(sorted(path for path in model.rglob("*") if path.is_file()))


def special(chance: random.Random, model: Path, executed: Path) -> None:
    """A link, a pipe, a socket or a folder instead of a file."""
    file = _file(chance, model)
    file.unlink()
    how = chance.randrange(8)
    if how < 2:
        os.mkfifo(file)
    elif how == 2:
        with socket.socket(socket.AF_UNIX) as server:
            os.chdir(file.parent)
            server.bind(file.name)
            os.chdir("/")
    elif how == 3:
        file.mkdir()
    else:
        file.symlink_to(
            chance.choice(
                ("/dev/zero", "/dev/stdin", "../../../secret.txt", "/", file.name)
            )
        )


def special_folder(chance: random.Random, model: Path, executed: Path) -> None:
    """A link instead of a folder, or additional entries."""
    folders = [path for path in model.rglob("*") if path.is_dir()]
    chosen = chance.choice([model, *folders])
    how = chance.randrange(5)
    if how == 0:
        (chosen / "loop").symlink_to("..")
    elif how == 4:
        (chosen / "extra").symlink_to(
            os.path.relpath(model.parents[1] / "secret.txt", chosen)
        )
    elif how == 1:
        os.mkfifo(chosen / "extra.npz")
    elif how == 2:
        (chosen / ("n" * 255)).write_text("x")
    else:
        shutil.rmtree(chosen)
        chosen.symlink_to(chance.choice(("/etc", "/proc/self", "..", chosen.name)))


def change_json(chance: random.Random, model: Path, executed: Path) -> None:
    """Another value in a JSON file."""
    file = chance.choice(sorted(model.rglob("*.json")))
    data = json.loads(file.read_text())
    owner: Any = data
    while True:
        keys = list(owner) if isinstance(owner, dict) else range(len(owner))
        key = chance.choice(list(keys))
        if (
            not isinstance(owner[key], dict | list)
            or not owner[key]
            or chance.random() < 0.3
        ):
            break
        owner = owner[key]
    if chance.random() < 0.2 and isinstance(owner, dict):
        del owner[key]
    else:
        owner[key] = chance.choice(VALUES)
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


def lead_out(chance: random.Random, model: Path, executed: Path) -> None:
    """A sealed trt-build.json with names of files, steps and versions outside the model."""
    from builder.store import published

    records = sorted(model.rglob(published.SIDECAR))
    file = chance.choice([records[-1], *records])
    record = json.loads(file.read_text())
    name, digest = (
        chance.choice(FOREIGN_NAMES),
        hashlib.sha256(SECRET.encode()).hexdigest(),
    )
    how = chance.choice(
        ("files", "steps", "version", "kept", "last_version", "retired", "policy")
    )
    if how == "files":
        record["files"] = {**chance.choice(({}, record["files"])), name: digest}
    elif how == "steps":
        record.update(steps=[name], seals={name: digest})
    elif how == "version":
        record["version"] = chance.choice((name, -1, True, 2**70, 1.5, 10**4000))
    elif how == "kept":
        record["kept"] = {
            chance.choice((name, "-1", "7", "9" * 5000, "\u0663")): digest
        }
    elif how == "last_version":
        record["last_version"] = chance.choice((name, 2**70, -5, None, [1]))
    elif how == "retired":
        record["retired"] = {name: chance.choice((0, -1e308, None))}
    else:
        record["versions_policy"] = record["version_policy"] = {
            "keep": 10**9,
            "serve": name,
        }
    published.write(file.parent, record)


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
    """A model with plans for several GPUs, whose file names are outside the model."""
    version = model / "1"
    (version / "model.plan").write_bytes(b"plan")
    name = chance.choice(
        ("../../../secret.txt", "/etc/passwd", "..", "", "x" * 300, "model.plan")
    )
    (model / "config.pbtxt").write_text(
        f'name: "{model.name}"\nplatform: "tensorrt_plan"\nmax_batch_size: 8\n'
        f'cc_model_filenames {{ key: "9.0" value: "{name}" }}\n'
        f'default_model_filename: "{name}"\n'
    )
    plans = chance.choice(
        ({"9.0": {}}, {"9.0": None}, {"../x": {}}, {"ampere_plus": {}}, [1])
    )
    (version / "plan.json").write_text(
        json.dumps(
            {"plans": plans, "compute_capabilities": chance.choice((["9.0"], 9, None))}
        )
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
        "long header": (
            "input:x.npy",
            b"\x93NUMPY\x02\x00" + b"\xff" * 4 + b"{" * 1000,
        ),
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
        np.savez(
            file, **{"input:x": np.ones((0, 9), np.complex64), "output:y": np.ones(())}
        )
    else:
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr(*members[how])


def _npy(array: Any, pickled: bool = False) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=pickled)
    return stream.getvalue()


CRAFTS: tuple[Callable[[random.Random, Path, Path], None], ...] = (
    *(special, special_folder, change_json, change_json, no_json),
    *(change_config, change_plans, change_goldens, change_goldens, lead_out, lead_out),
)
SEALED = (lead_out,)
"""Those that seal the record that they write."""
