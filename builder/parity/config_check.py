"""Compare a server's config with the one in the repository."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.json_format import MessageToDict

_AUTO = "KIND_AUTO"


def differences(file: Any, server: Any) -> tuple[str, ...]:
    """Every field of the file with another value in the server. Fields that Triton adds (names,
    defaults) are ignored.
    """
    return tuple(_differences(_as_dict(file), _as_dict(server), ""))


def _as_dict(message: Any) -> dict[str, Any]:
    plain: dict[str, Any] = MessageToDict(message, preserving_proto_field_name=True)
    plain.setdefault("max_batch_size", 0)
    return plain


def _differences(file: Any, server: Any, where: str) -> Iterator[str]:
    if isinstance(file, dict) and isinstance(server, dict):
        for key, value in file.items():
            yield from _differences(
                value, server.get(key), f"{where}.{key}" if where else key
            )
    elif (
        isinstance(file, list) and isinstance(server, list) and len(file) == len(server)
    ):
        for index, (file_element, server_element) in enumerate(
            zip(file, server, strict=True)
        ):
            yield from _differences(file_element, server_element, f"{where}[{index}]")
    elif file != server and not _normalized(file, server, where):
        yield f"{where} is {file} in config.pbtxt, the server has {server}"


def _normalized(file: Any, server: Any, where: str) -> bool:
    """Normalize a config: Triton resolves KIND_AUTO when it loads, and omits empty messages."""
    return (where.endswith(".kind") and file == _AUTO) or (
        file == {} and server is None
    )
