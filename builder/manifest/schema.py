"""Validates a document against model.schema.json and explains each mistake in plain words."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from builder.manifest.document import Document, Route, scalar
from builder.manifest.suggest import did_you_mean, nearest

if TYPE_CHECKING:
    from jsonschema import ValidationError

SCHEMA_PATH = Path(__file__).with_name("model.schema.json")
"""The JSON Schema (draft 2020-12) of a manifest, for editors."""

LONGEST = 40
"""Characters of a wrong value that are shown, because a wrong file may contain secrets."""


class Finding(NamedTuple):
    """A mistake at a path. `key` reports the line of the key instead of the value."""

    route: Route
    message: str
    fix: str | None = None
    key: bool = False


_NOUNS = {
    "array": "a list",
    "object": "a mapping of keys",
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "nothing",
}
_BOOLEANS = dict.fromkeys(("yes", "on"), "true") | dict.fromkeys(("no", "off"), "false")
"""Words of YAML 1.1 for true and false."""
_PYTHON_NOUNS = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}


@functools.cache
def _validator() -> Any:
    """A validator for draft 2020-12 with one difference: 2.0 is not an integer, as in Python."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    types = Draft202012Validator.TYPE_CHECKER.redefine(
        "integer",
        lambda _, value: isinstance(value, int) and not isinstance(value, bool),
    )
    return extend(Draft202012Validator, type_checker=types)  # type: ignore[no-untyped-call]


@functools.cache
def schema() -> dict[str, Any]:
    """The parsed schema."""
    loaded: dict[str, Any] = json.loads(SCHEMA_PATH.read_text(encoding="utf-8"))
    return loaded


def check(document: Document, schema_data: dict[str, Any] | None = None) -> None:
    """Add every violation of the schema `schema_data`, by default the manifest's, to the document's
    mistakes.
    """
    errors = list(_validator()(schema_data or schema()).iter_errors(document.data))
    mistyped = {
        tuple(error.absolute_path) for error in errors if error.validator == "type"
    }
    for error in errors:
        if error.validator != "type" and tuple(error.absolute_path) in mistyped:
            continue  # the type is the mistake
        for route, message, fix, key in explain(error):
            document.add(route, message, fix, key=key)


def explain(error: ValidationError) -> Iterator[Finding]:
    """The findings for one validation error."""
    route = tuple(error.absolute_path)
    explainer = _EXPLAIN.get(str(error.validator))
    if explainer is None:
        yield _finding(route, f": {error.message}")
    else:
        yield from explainer(error, route)


def label(route: Route) -> str:
    """The path as text, such as `inputs[0].dtype`."""
    text = "".join(
        f"[{step}]" if isinstance(step, int) else f".{step}" for step in route
    )
    return text.removeprefix(".") or "the manifest"


def _finding(route: Route, problem: str, fix: str | None = None) -> Finding:
    """A finding about the value at the route: `problem` continues its label."""
    return Finding(route, f"{label(route)}{problem}", fix)


def described(value: object) -> str:
    """The user's value with its kind, such as `text "two"`."""
    if value is None:
        return "nothing"
    kind = _NOUNS[_PYTHON_NOUNS[type(value)]]
    if isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, list | dict):
        return kind
    text = json.dumps(value)
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}..."
    return f"{kind} {text}" if isinstance(value, str) else text


def _unknown_keys(error: Any, route: Route) -> Iterator[Finding]:
    known = list(error.schema["properties"])
    for key in error.instance:
        if key not in known:
            unused = [name for name in known if name not in error.instance]
            near = did_you_mean(key, unused, otherwise_list=False)
            fix = (
                _belongs(key, route, error.schema["properties"])
                or near
                or f"use one of {', '.join(known)}"
            )
            yield Finding(
                (*route, key), f"unknown key {label((*route, key))!r}", fix, key=True
            )


def _belongs(key: str, route: Route, properties: dict[str, Any]) -> str | None:
    """The section to which a misplaced key belongs, among the `properties` of the document."""
    if route or nearest(key, properties):
        return None
    homes = [
        name for name, part in properties.items() if key in part.get("properties", {})
    ]
    return f"move it to {homes[0]!r}" if homes else None


def _missing_keys(error: Any, route: Route) -> Iterator[Finding]:
    # jsonschema reports each missing key separately and names it only in its message
    key = next(
        key for key in error.validator_value if error.message.startswith(repr(key))
    )
    known = error.schema["properties"]
    unused = [name for name in known if name not in error.instance]
    if any(
        name not in known and nearest(name, unused) == key for name in error.instance
    ):
        return  # reported as an unknown key
    yield _finding(route, f" has no {key!r}", _example(error.schema))


def _wrong_type(error: Any, route: Route) -> Iterator[Finding]:
    kinds = error.validator_value
    if not isinstance(kinds, list):
        kinds = [kinds]
    nouns = " or ".join(_NOUNS[str(kind)] for kind in kinds)
    fix = _typed(error.instance, kinds, error.schema) if route else None
    if error.instance is None:
        fix = _no_value(route)
    yield _finding(route, f" must be {nouns}, not {described(error.instance)}", fix)


def _typed(value: Any, kinds: Sequence[str], part: Mapping[str, Any]) -> str | None:
    """How to write the value with one of the types `kinds`, if that is clear."""
    if kinds == ["string"] and isinstance(value, int | float):
        return f'write "{json.dumps(value)}"'
    if isinstance(value, str):
        meant = scalar(value)
        word = _BOOLEANS.get(value.lower())
        if not isinstance(meant, str) and _PYTHON_NOUNS.get(type(meant)) in kinds:
            return "remove the quotes"
        if "boolean" in kinds and word:
            return f"write {word}"
        if kinds == ["array"] and part.get("items", {}).get("type") == "string":
            return f"write [{json.dumps(value, ensure_ascii=False)}]"
    return _example(part)


def _no_value(route: Route) -> str:
    """How to correct a key or item without a value."""
    is_item = bool(route) and isinstance(route[-1], int)
    return f"write a value, or remove the {'item' if is_item else 'key'}"


def _example(part: Mapping[str, Any]) -> str | None:
    """The schema's example for its values."""
    examples = part.get("examples")
    return f"for example {flow(examples[0])}" if examples else None


def flow(value: Any) -> str:
    """The value as one line of YAML: `{min: 1, opt: 8, max: 32}`."""
    if isinstance(value, dict):
        return (
            "{" + ", ".join(f"{key}: {flow(item)}" for key, item in value.items()) + "}"
        )
    if isinstance(value, list):
        return f"[{', '.join(map(flow, value))}]"
    return value if isinstance(value, str) else json.dumps(value)


def _not_in_enum(error: Any, route: Route) -> Iterator[Finding]:
    known = list(map(str, error.validator_value))
    value = described(error.instance)
    if isinstance(error.instance, str):
        fix = did_you_mean(error.instance, known)
        yield _finding(route, f": {value} is not a known value", fix)
    else:
        fix = _no_value(route) if error.instance is None else None
        yield _finding(route, f" must be one of {', '.join(known)}, not {value}", fix)


def _too_small(error: Any, route: Route) -> Iterator[Finding]:
    fix = None
    if route[-2:-1] == ("shape",) and error.instance == -1:
        fix = "name the axis and write its range in 'dims'"
    least = error.validator_value
    yield _finding(route, f" must be at least {least}, not {error.instance}", fix)


def _too_big(error: Any, route: Route) -> Iterator[Finding]:
    most = error.validator_value
    yield _finding(route, f" must be at most {most}, not {error.instance}")


def _too_long(error: Any, route: Route) -> Iterator[Finding]:
    most = error.validator_value
    length = len(error.instance)
    yield _finding(route, f" must have at most {most} characters, not {length}")


def _wrong_pattern(error: Any, route: Route) -> Iterator[Finding]:
    problem, fix = _pattern_problem(str(error.validator_value), route)
    if fix is not None:
        fix = fix.format(value=json.dumps(error.instance))
    yield _finding(route, problem.format(value=repr(error.instance)), fix)


def _pattern_problem(pattern: str, route: Route) -> tuple[str, str | None]:
    """The problem with a text that does not match the pattern, and the fix."""
    if pattern.startswith(r"\.npz"):
        return " must be an .npz file, not {value}", None
    if route[-2:-1] == ("data",):
        return " must be goldens, an .npz or an .npy file, not {value}", None
    if route[-1:] == ("initial",):
        return " must be zeros or an .npy file, not {value}", None
    if route[:1] == ("libraries",):
        return " must be a .py or .so file, not {value}", None
    if "::" in pattern:
        return ": {value} is not an operator name", "for example 'aten::nonzero'"
    if route == ("batch_sizes",):
        return " must be auto or a list of whole numbers, not {value}", None
    if route == ("keep_fp32",):
        return " must be auto or a list of patterns, not {value}", "write [{value}]"
    if route[-2:-1] == ("compute_capabilities",):
        return ": {value} is not a compute capability", "for example '8.9'"
    return ": {value} is not a valid name", "use letters, digits and _, but not _ alone"


def _too_short(error: Any, route: Route) -> Iterator[Finding]:
    yield _finding(route, " is empty")


def _exclude_each_other(error: Any, route: Route) -> Iterator[Finding]:
    message = "'dims' and 'profiles' exclude each other"
    yield Finding(("profiles",), message, "remove 'dims'", key=True)


_EXPLAIN: dict[str, Callable[[Any, Route], Iterator[Finding]]] = {
    "additionalProperties": _unknown_keys,
    "required": _missing_keys,
    "type": _wrong_type,
    "enum": _not_in_enum,
    "minimum": _too_small,
    "maximum": _too_big,
    "maxLength": _too_long,
    "pattern": _wrong_pattern,
    "minItems": _too_short,
    "minLength": _too_short,
    "not": _exclude_each_other,
}
