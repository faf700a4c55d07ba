"""Checks Kubernetes objects against the published JSON schemas (kubernetes-validate), and KServe's
against the fields of its API.

`python -m tests.deployment.schemas kserve-0.21.0-py3-none-any.whl` writes kserve.json: the fields
of KServe's API with their types, from the models of the `kserve` wheel (`pip download --no-deps`).
"""

from __future__ import annotations

import ast
import functools
import json
import re
import sys
import zipfile
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import referencing
import referencing.jsonschema

KUBERNETES = "1.37"
FIELDS = Path(__file__).with_name("kserve.json")
ROOTS = {
    "ServingRuntime": "V1alpha1ServingRuntime",
    "InferenceService": "V1beta1InferenceService",
}
METADATA = "V1ObjectMeta"
STATUS = "V1beta1InferenceServiceStatus"
SIMPLE = {"str": str, "int": int, "bool": bool, "float": float, "object": object}


def check(document: dict[str, Any]) -> None:
    """Raise ValueError with the mistakes of an object, and for a kind without a schema."""
    if document["kind"] in ROOTS:
        mistakes = [*_kserve(document, ROOTS[document["kind"]], document["kind"])]
        if mistakes:
            raise ValueError("\n".join(mistakes))
        return
    try:
        kubernetes_validate.validate(document, KUBERNETES, strict=True)
    except kubernetes_validate.ValidationError as error:
        raise ValueError(
            f"{document['kind']}{error.json_path[1:]}: {error.message}"
        ) from error


def _kserve(value: Any, kind: str, where: str) -> Iterator[str]:
    """The mistakes of a value of KServe's API; `kind` as in kserve.json, or a core type."""
    if listed := re.fullmatch(r"list\[(.+)\]", kind):
        if not isinstance(value, list):
            yield f"{where} is not a list"
            return
        for index, one in enumerate(value):
            yield from _kserve(one, listed.group(1), f"{where}[{index}]")
    elif mapped := re.fullmatch(r"dict\(str, (.+)\)", kind):
        if not isinstance(value, dict):
            yield f"{where} is not a mapping"
            return
        for key, one in value.items():
            yield from _kserve(one, mapped.group(1), f"{where}.{key}")
    elif kind in SIMPLE:
        if type(value) is not SIMPLE[kind] and kind != "object":
            yield f"{where} is no {kind}"
    elif kind in (table := _kserve_types()):
        fields = table[kind]
        if not isinstance(value, dict):
            yield f"{where} is not a mapping"
            return
        for key, one in value.items():
            if key in fields:
                yield from _kserve(one, fields[key], f"{where}.{key}")
            else:
                yield f"{where} has no field {key}"
    else:
        yield from _core(value, kind, where)


def _core(value: Any, kind: str, where: str) -> Iterator[str]:
    """The mistakes of a value of a core type, such as V1Container."""
    name = re.fullmatch(r"V1([A-Z]\w+)", kind)
    assert name, kind
    schema = _schema(f"{name.group(1).lower()}-v1.json")
    if schema is None:
        schema = _schema(f"{name.group(1).lower()}-meta-v1.json")
    assert schema is not None, kind
    for error in jsonschema.Draft7Validator(schema, registry=REGISTRY).iter_errors(
        value
    ):
        yield f"{where}{error.json_path[1:]}: {error.message}"


@functools.cache
def _kserve_types() -> Any:
    return json.loads(FIELDS.read_text())["types"]


@functools.cache
def _schema(name: str) -> Any:
    folder = files("kubernetes_validate") / "kubernetes-json-schema"
    file = folder / f"v{KUBERNETES}.0-local-strict" / name
    return json.loads(file.read_text()) if file.is_file() else None


@functools.cache
def _retrieve(uri: str) -> referencing.Resource[Any]:
    found = _schema(uri.rpartition("/")[2])
    return referencing.Resource.from_contents(found, referencing.jsonschema.DRAFT7)


REGISTRY: Any = referencing.Registry(retrieve=_retrieve)  # type: ignore[call-arg]


def read_fields(wheel: Path) -> dict[str, dict[str, str]]:
    """The type of each field of all KServe types that ROOTS use."""
    texts = zipfile.ZipFile(wheel)
    known = {}
    for name in texts.namelist():
        if name.startswith("kserve/models/v1"):
            tree = ast.parse(texts.read(name))
            for found in (node for node in tree.body if isinstance(node, ast.ClassDef)):
                known[found.name] = _attributes(found)
    reached: dict[str, dict[str, str]] = {}
    waiting = [*ROOTS.values()]
    while waiting:
        kind = waiting.pop()
        if kind in reached or kind not in known or kind == STATUS:
            continue
        reached[kind] = known[kind]
        waiting += [
            word for text in known[kind].values() for word in re.findall(r"\w+", text)
        ]
    return dict(sorted(reached.items()))


def _attributes(found: ast.ClassDef) -> dict[str, str]:
    """The type of each field of a generated class, by its name in YAML."""
    tables = {
        target.id: ast.literal_eval(node.value)
        for node in found.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
        and target.id in ("openapi_types", "attribute_map")
    }
    names = tables.get("attribute_map", {})
    types = tables.get("openapi_types", {})
    return {names[key]: kind for key, kind in sorted(types.items())}


if __name__ == "__main__":
    source = Path(sys.argv[1])
    lines = [
        f'  "{kind}": {json.dumps(of)}' for kind, of in read_fields(source).items()
    ]
    types = ",\n".join(lines)
    FIELDS.write_text(
        f'{{\n "source": "{source.name}",\n "types": {{\n{types}\n }}\n}}\n'
    )
