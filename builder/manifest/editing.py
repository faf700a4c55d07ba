"""Change single values of a manifest and keep every other byte, with comments and order.

A YAML library that writes documents (ruamel.yaml) does not keep indentation, line ends and all
comments. So the new values are inserted into the text at the positions that the parser reports.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from builder import files
from builder.errors import EnvironmentProblem, UsageError
from builder.manifest import document

NOTE = "# tune: "
"""How each line of the notes begins."""


def edit(path: Path, values: Mapping[str, Any], notes: Sequence[str] = ()) -> bool:
    """Set keys of the manifest to scalars or lists, or key by key to the values of a mapping.

    An empty list removes a key. `notes` become comments at the end and replace former notes. The
    file is written completely or not at all. Returns whether the file changed.

    Raises UsageError, with the lines to write by hand, if the text cannot be changed without
    changing other values. Examples are a manifest in braces, several documents, and a value with an
    anchor. Raises OSError if the file cannot be written.
    """
    text = _read(path)
    changed = preview(path, values)
    if notes:
        changed = _with_notes(changed, notes)
    if changed == text:
        return False
    files.write_text(path.resolve(), changed, keep_mode=True)
    return True


def preview(path: Path, values: Mapping[str, Any]) -> str:
    """The text that `edit` would write. Raises UsageError as `edit` does, OSError."""
    text = _read(path)
    before = _data(text, path)
    after = _merged(before, values)
    if after == before:
        return text
    changed = _changed(text, values)
    if changed is None or document.parsed(changed, str(path)).data != after:
        raise _refusal(path, values)
    return changed


def _with_notes(text: str, notes: Sequence[str]) -> str:
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = [
        line for line in text.splitlines(keepends=True) if not line.startswith(NOTE)
    ]
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += newline
    return "".join((*lines, *(f"{NOTE}{note}{newline}" for note in notes)))


def _merged(before: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The data with the values set; a mapping that loses its last key is removed."""
    after = dict(before)
    for key, value in values.items():
        former = after.pop(key, None)
        if isinstance(value, Mapping):
            value = _replaced(former, value) or []
        if value != []:
            after[key] = value
    return after


def _replaced(section: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """The section with its keys set, each to the whole of its value; an empty list removes one."""
    former = section if isinstance(section, Mapping) else {}
    unchanged = {key: value for key, value in former.items() if key not in values}
    return unchanged | {key: value for key, value in values.items() if value != []}


def _changed(text: str, values: Mapping[str, Any]) -> str | None:
    """The text with the keys set one by one; None if a key cannot be inserted."""
    for key, value in values.items():
        root = _root(text)
        if root is None:
            return None
        if isinstance(value, Mapping):
            changed = _changed_within(text, root, key, value)
        else:
            changed = _set(text, root, key, value)
        if changed is None:
            return None
        text = changed
    return text


def _root(text: str) -> yaml.MappingNode | None:
    """The block mapping of the text; None for any other text."""
    try:
        root = document.compose(text)
    except yaml.YAMLError:  # an earlier change broke it
        return None
    if isinstance(root, yaml.MappingNode) and _is_block(root):
        return root
    return None


def _is_block(node: yaml.Node) -> bool:
    return (
        isinstance(node, yaml.MappingNode) and not node.flow_style and bool(node.value)
    )


def _changed_within(
    text: str, root: yaml.MappingNode, key: str, values: Mapping[str, Any]
) -> str | None:
    """The text with keys of the mapping `key` set; None if a comment would be lost."""
    node = _value_node(root, key)
    before = document.parsed(text, "").data.get(key)
    after = _replaced(before, values)
    if not after:
        return _set(text, root, key, [])
    if node is None:
        newline = "\r\n" if "\r\n" in text else "\n"
        lines = (f"{name}: {_yaml(value)}" for name, value in after.items())
        indent = " " * (root.value[0][0].start_mark.column + 2)
        return _appended(
            text, root, f"{newline}{indent}".join((f"{key}:", *lines)), newline
        )
    if not _is_block(node):
        lost = "#" in text[node.start_mark.index : node.end_mark.index]
        if lost:
            return None
        return _set(text, root, key, after)
    for name, value in values.items():
        new_root = _root(text)
        node = _value_node(new_root, key) if new_root else None
        if not isinstance(node, yaml.MappingNode) or not node.value:
            return None
        text = _set(text, node, name, value)
    return text


def _value_node(root: yaml.MappingNode, key: str) -> Any:
    return next((pair[1] for pair in root.value if pair[0].value == key), None)


def check(path: Path) -> None:
    """Raise UsageError if `edit` cannot change the manifest, EnvironmentProblem if it must not."""
    folder = path.resolve().parent
    if not os.access(folder, os.W_OK | os.X_OK):
        fix = "run the search in a writable copy"
        raise EnvironmentProblem(
            f"the folder {folder} is not writable", where=str(path), fix=fix
        )
    text = _read(path)
    _data(text, path)
    if _changed(text, {"precision": "fp16"}) is None:
        raise _refusal(path, {"precision": "..."})


def _read(path: Path) -> str:
    with path.open(encoding="utf-8", newline="") as stream:
        return stream.read()


def _data(text: str, path: Path) -> dict[str, Any]:
    parsed = document.parsed(text, str(path))
    if parsed.mistakes or not isinstance(parsed.data, dict):
        raise UsageError(f"{path} cannot be changed: it has mistakes")
    return parsed.data


def _set(text: str, root: yaml.MappingNode, key: str, value: object) -> str:
    """The text with one key replaced, added on a line after the last one, or removed."""
    pair = next((pair for pair in root.value if pair[0].value == key), None)
    newline = "\r\n" if "\r\n" in text else "\n"
    if pair is None:
        if value == []:
            return text
        return _appended(text, root, f"{key}: {_yaml(value)}", newline)
    begin = pair[0].start_mark.index
    end = _end(pair[1])
    if value == []:
        begin = text.rfind("\n", 0, begin) + 1
        end = text.find("\n", end) + 1 or len(text)
        return text[:begin] + text[end:]
    head = text[: pair[1].start_mark.index]
    space = " " if head.endswith(":") else ""
    return f"{head}{space}{_yaml(value)}{text[end:]}"


def _appended(text: str, root: yaml.MappingNode, line: str, newline: str) -> str:
    """The text with a new line after the line of the last value."""
    last = text.find("\n", _end(root))
    at = len(text) if last < 0 else last + 1
    indent = " " * root.value[0][0].start_mark.column
    head = text[:at]
    if not head.endswith("\n"):
        head += newline
    return f"{head}{indent}{line}{newline}{text[at:]}"


def _end(node: Any) -> int:
    """The end of the value's own text. The end mark of a block is after the comments that follow
    it.
    """
    if isinstance(node, yaml.ScalarNode) or node.flow_style or not node.value:
        return int(node.end_mark.index)
    last = node.value[-1]
    return _end(last[1] if isinstance(last, tuple) else last)


def _yaml(value: Any) -> str:
    """Plain letters unchanged, everything else as JSON, which is valid YAML."""
    text = str(value)
    if not isinstance(value, list) and text.isalnum() and not text.isdigit():
        return text
    return json.dumps(value, ensure_ascii=False)


def _refusal(path: Path, values: Mapping[str, Any]) -> UsageError:
    changed = {key: value for key, value in values.items() if value != []}
    lines = [f"{key}: {_yaml(value)}" for key, value in changed.items()]
    return UsageError(
        "the manifest cannot be changed without changing its other values",
        where=str(path),
        fix=f"write by hand: {'; '.join(lines)}",
    )
