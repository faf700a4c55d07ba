"""Writes a report as JUnit XML, which CI services read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from xml.etree import ElementTree

from builder.printable import printable

Case = tuple[str, float, str | None, str | None]
"""A test case: name, seconds, failure, and reason for a skip."""


def junit(report: Mapping[str, Any]) -> str:
    """Return one test suite for each model: its build, its files, each golden, and each load."""
    root = ElementTree.Element(
        "testsuites", {"name": f"trt-build {_text(report['repository'])}"}
    )
    totals = {"tests": 0, "failures": 0, "skipped": 0}
    for model in report["models"]:
        cases = list(_cases(model))
        counts = {
            "tests": len(cases),
            "failures": sum(wrong is not None for _, _, wrong, _ in cases),
            "skipped": sum(why is not None for *_, why in cases),
        }
        totals = {key: totals[key] + count for key, count in counts.items()}
        attributes = {key: str(count) for key, count in counts.items()}
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            {
                "name": _text(model["name"]),
                "timestamp": report["generated_at"],
                **attributes,
            },
        )
        for case in cases:
            _write(suite, model["name"], case)
    root.attrib.update({key: str(count) for key, count in totals.items()})
    ElementTree.indent(root)
    return ElementTree.tostring(root, "unicode", xml_declaration=True) + "\n"


def _write(suite: ElementTree.Element, model: str, case: Case) -> None:
    name, seconds, wrong, why = case
    attributes = {
        "classname": _text(model),
        "name": _text(name),
        "time": f"{seconds:.3f}",
    }
    element = ElementTree.SubElement(suite, "testcase", attributes)
    if wrong is not None:
        message = _text(wrong.partition("\n")[0])
        ElementTree.SubElement(element, "failure", {"message": message}).text = _text(
            wrong
        )
    elif why is not None:
        ElementTree.SubElement(element, "skipped", {"message": _text(why)})


def _files(model: Mapping[str, Any]) -> Case:
    damaged = [entry["damaged"] for entry in model["history"] if entry["damaged"]]
    wrong = "\n".join(
        [*model["unreadable"], *(f"{name} is damaged" for name in damaged)]
    )
    unpublished = None if model["is_published"] else "not published"
    return "files", 0.0, wrong or None, unpublished


def _cases(model: Mapping[str, Any]) -> Iterator[Case]:
    build = model["build"]
    verify = model["verify"]
    error = (build or {}).get("error") or {}
    failed = build is not None and not build.get("ok")
    problem = error.get("message", "") if failed else None
    yield "build", model["build_seconds"] or 0.0, problem, None
    yield _files(model)
    if verify is None or not verify["current"]:
        why = "no verify --record" if verify is None else "another version was verified"
        yield "verify", 0.0, None, why
    else:
        yield from _verified(verify)
    for entry in model["ladder"]:
        if not entry["current"]:
            continue
        for step in entry["steps"]:
            skipped = step["note"] if step["result"] == "not run" else None
            yield f"ladder {step['name']}", 0.0, step["problem"], skipped
    for entry in model["bisect"]:
        if entry["current"]:
            yield "bisect", 0.0, entry.get("problem"), None
    for entry in model["bench"]:
        unmeasured = None if entry["current"] else "another version was measured"
        memory = "" if entry["memory"] == "none" else f" {entry['memory']}"
        problem = entry["problem"] if not unmeasured else None
        yield f"bench {entry['protocol']}{memory}", 0.0, problem, unmeasured


def _verified(verify: Mapping[str, Any]) -> Iterator[Case]:
    """Return the cases of the record of `verify`: the record itself and each golden."""
    yield "verify", 0.0, "\n".join(verify["problems"]) or None, None
    for result in verify["goldens"]:
        problems = None
        if not result["passed"]:
            problems = "\n".join(result["problems"]) or "failed"
        name = f"golden {result['golden']} {result['protocol']}"
        yield name, (result["median_ms"] or 0.0) / 1e3, problems, None


def _text(text: str) -> str:
    """Remove characters that XML does not have."""
    return "".join(
        character if _is_xml(character) else "?" for character in printable(str(text))
    )


def _is_xml(character: str) -> bool:
    """Whether XML 1.0 allows the character."""
    if character in "\t\n" or " " <= character <= "\ud7ff":
        return True
    return character > "\udfff" and character not in "\ufffe\uffff"
