"""Inspects the archive of an exported program without loading it."""

from __future__ import annotations

import io
import json
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder import torchscript
from builder.errors import ModelFileError
from builder.frontends.export import contents

MAX_TEXT_BYTES = 256 << 20
SCHEMA = 8
"""The major version of the format that this torch reads."""
_SAVE_AGAIN = (
    "save the program again with torch.export.save, from a source that you trust"
)
_EXPORT_IT = (
    "load the module in Python, then torch.export.save(torch.export.export(module, inputs),"
    " 'model.pt2')"
)
_PLAIN_ARGUMENTS = (
    "export it with arguments in tuples, lists, dictionaries or named tuples of tensors, which need"
    f" no other class; or {_SAVE_AGAIN}"
)
_REMEDIES = {
    contents.BAD_NAME: "use letters, digits, `_`, `-` and `.` in the names of arguments and keys",
    "no library that brings it": (
        "name the library of the operator under `libraries` in the manifest (trt-build init"
        " --library)"
    ),
    "'torch._functorch.": "export the program again with program.run_decompositions()",
}
"""The fix by the common type of all problems of a file."""
_MEMBERS = re.compile(
    r"archive_format|archive_version|byteorder|\.data/\w+|\.format_version|\.storage_alignment"
    r"|models/model\.json|extra/.*"
    r"|data/(weights|constants|sample_inputs)/[\w.\-]+"
)
"""The members that torch.export.save writes, below the archive's single folder."""
_OLD_MEMBERS = re.compile(
    r"version|serialized_exported_program\.json|extra_files/.*"
    r"|serialized_(state_dict|constants|example_inputs)\.pt"
)
"""The members of the earlier layout."""
_TORCH_SAVE = frozenset(
    [
        "torch._utils _rebuild_parameter",
        # torch.cond sets attributes of parameters while a program is exported
        "torch._utils _rebuild_parameter_with_state",
        "torch.serialization _get_layout",
    ]
)
"""What torch.save names for parameters and layouts. torch allows it with `weights_only`."""


@dataclass(frozen=True)
class ProgramFacts:
    """The facts of an inspected archive: its size, the torch version that wrote it, and the format
    version.
    """

    path: Path
    unpacked_bytes: int
    torch_version: str
    schema_version: str


def inspect(path: Path, *, custom: bool = False) -> ProgramFacts:
    """Inspect an exported program.

    `custom` allows operators of namespaces that torch does not have. Raises ModelFileError with the
    actual type of the file, or its problems.
    """
    try:
        with torchscript.opened(path, "an exported program") as archive:
            return _inspect(path, archive, custom)
    except ModelFileError as error:
        if error.fix and "torch.jit" in error.fix:  # the fix for a TorchScript file
            error.fix = _EXPORT_IT
        raise


def _inspect(path: Path, archive: zipfile.ZipFile, custom: bool) -> ProgramFacts:
    members = archive.infolist()
    root = _root(path, [member.filename for member in members])
    torchscript.check_sizes(path, members)
    if broken := archive.testzip():
        raise zipfile.BadZipFile(f"member {broken!r} does not match its checksum")
    name = f"{root}models/model.json" if root else "serialized_exported_program.json"
    program = _json(path, archive, name)
    facts = ProgramFacts(
        path=path,
        unpacked_bytes=sum(member.file_size for member in members),
        torch_version=str(program.get("torch_version", "<=2.4")),
        schema_version=_version(program.get("schema_version")),
    )
    _check_version(facts)
    _check_members(path, archive, root)
    problems = list(dict.fromkeys(contents.problems(program, custom=custom)))
    if problems:
        listed = "\n".join(f"  {problem}" for problem in problems[:8])
        raise torchscript.refusal(
            path,
            f"names objects that no exported program needs:\n{listed}",
            _remedy(problems),
        )
    return facts


def _remedy(problems: list[str]) -> str:
    """The fix for the findings of contents.problems, if all have one type."""
    for text, fix in _REMEDIES.items():
        if all(text in problem for problem in problems):
            return fix
    return _SAVE_AGAIN


def _root(path: Path, names: list[str]) -> str:
    """The folder that holds all members, with its slash; empty in the earlier layout."""
    if "serialized_exported_program.json" in names:
        root = ""
        pattern = _OLD_MEMBERS
    else:
        root = names[0].partition("/")[0] + "/"
        pattern = _MEMBERS
        _require_program(path, names, root)
    _refuse_compiled(path, names, root)
    for name in names:
        inner = name.removeprefix(root)
        if (
            not name.startswith(root)
            or ".." in name.split("/")
            or not pattern.fullmatch(inner)
        ):
            raise torchscript.refusal(
                path,
                f"has a member {name!r}, which torch.export.save does not write",
                _SAVE_AGAIN,
            )
    if len({name.casefold() for name in names}) != len(names):
        raise torchscript.refusal(
            path, "has two members with the same name", _SAVE_AGAIN
        )
    return root


def _refuse_compiled(path: Path, names: list[str], root: str) -> None:
    """Reject an archive with compiled code, which would run as it is loaded."""
    compiled = [name for name in names if name.startswith(f"{root}data/aotinductor/")]
    if compiled:
        raise torchscript.refusal(
            path,
            f"has compiled code ({compiled[0]}), which would run as it is loaded",
            _SAVE_AGAIN,
        )


def _require_program(path: Path, names: list[str], root: str) -> None:
    """Reject an archive without the member that describes one program."""
    if f"{root}constants.pkl" in names:
        raise torchscript.refusal(
            path, "is not an exported program but TorchScript", "give it the suffix .pt"
        )
    description = f"{root}models/model.json"
    if description in names:
        return
    models = [name for name in names if name.startswith(f"{root}models/")]
    if models or f"{root}archive_format" in names:
        others = ""
        if models:
            others = f" (it has {', '.join(models[:3])})"
        raise torchscript.refusal(
            path,
            f"has no member {description}{others}",
            "save one program by itself with torch.export.save",
        )
    raise torchscript.not_expected(path, names, "an exported program")


def _check_members(path: Path, archive: zipfile.ZipFile, root: str) -> None:
    """Reject pickles that name anything but tensors, and objects other than tensors."""
    for kind in ("weights", "constants"):
        name = f"{root}data/{kind}/model_{kind}_config.json"
        config = {}
        if name in archive.namelist():
            config = _json(path, archive, name)
        for entry in config.get("config", {}).values():
            member = str(entry.get("path_name"))
            if not member.startswith(("weight_", "tensor_")):
                raise torchscript.refusal(
                    path,
                    f"holds an object that is not a tensor ({member})",
                    "keep custom objects out of the model",
                )
            if entry.get("use_pickle"):
                _check_pickle(path, archive, f"{root}data/{kind}/{member}")
            else:
                _check_data(path, archive, f"{root}data/{kind}/{member}", entry)
    for member in archive.namelist():
        if member.removeprefix(root).endswith(".pt"):
            _check_pickle(path, archive, member)


def _check_data(
    path: Path, archive: zipfile.ZipFile, member: str, entry: dict[str, Any]
) -> None:
    """Reject a tensor without data, which torch would load as zeros."""
    if member not in archive.namelist():
        raise torchscript.refusal(path, f"has no member {member}", _SAVE_AGAIN)
    sizes = (entry.get("tensor_meta") or {}).get("sizes", ())
    if not archive.getinfo(member).file_size and all(
        size.get("as_int") != 0 for size in sizes
    ):
        raise torchscript.refusal(
            path, f"has no data in the member {member}", _SAVE_AGAIN
        )


def _check_pickle(path: Path, archive: zipfile.ZipFile, member: str) -> None:
    """Reject torch.save data unless it consists of tensors in plain containers."""
    data = archive.read(member)
    if not data:
        return
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as inner:
            pickles = [name for name in inner.namelist() if name.endswith(".pkl")]
            names = {
                name_of_global
                for name in pickles
                for name_of_global in torchscript.globals_of(inner.read(name))
            }
    except zipfile.BadZipFile as error:
        raise torchscript.refusal(
            path, f"has a pickle {member!r} in a format that is not checked"
        ) from error
    foreign = sorted(
        name
        for name in names
        if not torchscript.is_torchscripts(name) and name not in _TORCH_SAVE
    )
    if foreign:
        words = ", ".join(name.replace(" ", ".") for name in foreign[:5])
        raise torchscript.refusal(
            path,
            f"has a pickle {member!r} that names {words}; Python would run code on unpickling it",
            _SAVE_AGAIN if "sample_inputs" not in member else _PLAIN_ARGUMENTS,
        )


def _json(path: Path, archive: zipfile.ZipFile, member: str) -> dict[str, Any]:
    if archive.getinfo(member).file_size > MAX_TEXT_BYTES:
        raise torchscript.refusal(
            path, f"has a text {member!r} of more than {MAX_TEXT_BYTES >> 20} MiB"
        )
    try:
        data = json.loads(archive.read(member))
    except RecursionError as error:
        raise ValueError(f"{member} is nested too deeply") from error
    if not isinstance(data, dict):
        raise ValueError(f"{member} is not an object")
    return data


def _version(schema: Any) -> str:
    if not isinstance(schema, dict):
        return str(schema)
    return f"{schema.get('major')}.{schema.get('minor')}"


def _check_version(facts: ProgramFacts) -> None:
    major = facts.schema_version.partition(".")[0]
    if major != str(SCHEMA):
        raise torchscript.refusal(
            facts.path,
            f"was written by torch {facts.torch_version} in version"
            f" {facts.schema_version} of its format, and the installed torch reads"
            f" version {SCHEMA}",
            "export the program again with a newer torch",
        )
