"""Whether a server serves the config that lies in the repository."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.json_format import MessageToDict

_AUTO = "KIND_AUTO"


def differences(file: Any, server: Any) -> tuple[str, ...]:
    """Every field that the file states and the server has otherwise; what Triton adds of its own
    (names, defaults) is no difference.
    """
    return tuple(_differ(_plain(file), _plain(server), ""))


def _plain(message: Any) -> dict[str, Any]:
    plain: dict[str, Any] = MessageToDict(message, preserving_proto_field_name=True)
    plain.setdefault("max_batch_size", 0)
    return plain


def _differ(file: Any, server: Any, where: str) -> Iterator[str]:
    if isinstance(file, dict) and isinstance(server, dict):
        for key, value in file.items():
            yield from _differ(value, server.get(key), f"{where}.{key}" if where else key)
    elif isinstance(file, list) and isinstance(server, list) and len(file) == len(server):
        for index, (one, other) in enumerate(zip(file, server, strict=True)):
            yield from _differ(one, other, f"{where}[{index}]")
    elif file != server and not _normalized(file, server, where):
        yield f"{where} is {file} in config.pbtxt, the server has {server}"


def _normalized(file: Any, server: Any, where: str) -> bool:
    """Triton settles KIND_AUTO when it loads, and leaves out a message of which it keeps
    nothing.
    """
    return (where.endswith(".kind") and file == _AUTO) or (file == {} and server is None)
