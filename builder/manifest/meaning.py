"""Checks that JSON Schema cannot express: matching names, ordered ranges, existing files.

Each check skips parts that the schema already rejected, so that all mistakes are reported together.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from builder.manifest import defaults, states
from builder.manifest.document import Document, Route
from builder.manifest.schema import label
from builder.manifest.suggest import did_you_mean, nearest
from builder.manifest.validate import range_mistakes

_SIZES = ("min", "opt", "max")


def check(document: Document, folder: Path) -> None:
    """Add every mistake to the document. File names are relative to `folder`."""
    if not isinstance(document.data, dict):
        return
    for rule in _RULES:
        rule(document)
    _files_exist(document, folder)


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _axes(document: Document) -> Iterator[tuple[Route, str]]:
    """Every named axis of every input, with its path in the document."""
    for index, item in enumerate(document.mappings("inputs")):
        for position, axis in enumerate(_list(item.get("shape"))):
            if isinstance(axis, str) and axis.isidentifier():
                yield ("inputs", index, "shape", position), axis


def _versions_are_kept(document: Document) -> None:
    """Check that no more versions are served than kept, and that models with cached responses have
    version numbers. `versions` writes Triton's version policy.
    """
    section = _mapping(document.data.get("versions"))
    keep = section.get("keep")
    serve = section.get("serve")
    if isinstance(keep, int) and isinstance(serve, int) and serve > keep:
        document.add(
            ("versions", "serve"),
            f"{serve} versions cannot be served: {keep} are kept",
            f"write keep: {serve}",
        )
    if section and "version_policy" in _mapping(document.data.get("triton")):
        document.add(
            ("triton", "version_policy"),
            "`versions` writes the version policy",
            "use versions: {keep: N, serve: N} alone",
        )
    cache = _mapping(_mapping(document.data.get("triton")).get("response_cache"))
    if cache.get("enable") is True and not keep:
        document.add(
            ("triton", "response_cache"),
            "after an update Triton's cache would still have the responses of the replaced model,"
            " because the version number is the same",
            "add versions: {keep: 1}, so that each publication gets a new version"
            " number",
        )


def _profiles(document: Document) -> list[tuple[Route, dict[str, Any]]]:
    """Each profile with its path; one empty profile if there is neither `dims` nor `profiles`."""
    several = document.data.get("profiles")
    if "dims" in document.data or several is None:
        return [(("dims",), _mapping(document.data.get("dims")))]
    return [
        (("profiles", index), _mapping(profile))
        for index, profile in enumerate(_list(several))
    ]


def _ranges_are_ordered(document: Document) -> None:
    by_data = _mapping(_mapping(document.data.get("fallback")).get("ranges"))
    for route, profile in [*_profiles(document), (("fallback", "ranges"), by_data)]:
        for axis, sizes in profile.items():
            values: list[Any] = [_mapping(sizes).get(size) for size in _SIZES]
            if all(
                isinstance(value, int) and not isinstance(value, bool) and value >= 0
                for value in values
            ):
                for mistake in range_mistakes(values):
                    document.add(
                        (*route, axis),
                        f"{label((*route, axis))}: {mistake}",
                        "min <= opt <= max",
                    )


def _axes_have_ranges(document: Document) -> None:
    first: dict[str, Route] = {}
    for axis_route, axis in _axes(document):
        # one mistake for each axis, however often it occurs
        first.setdefault(axis, axis_route)
    for route, profile in _profiles(document):
        for axis, axis_route in first.items():
            if axis not in profile:
                near = did_you_mean(axis, profile, otherwise_list=False)
                fix = (
                    near
                    or f"add '{axis}: {{min: 1, opt: 8, max: 32}}' to '{label(route)}'"
                )
                message = (
                    f"axis {axis!r} of {label(axis_route[:2])} has no range in"
                    f" '{label(route)}'"
                )
                document.add(axis_route, message, fix)


def _ranges_are_used(document: Document) -> None:
    used = {axis for _, axis in _axes(document)}
    if not used and not isinstance(document.data.get("inputs"), list):
        return  # the inputs are the mistake
    for route, profile in _profiles(document):
        # already reported at the shape
        meant = {nearest(axis, profile) for axis in used if axis not in profile}
        for axis in profile:
            if axis not in used and axis not in meant:
                here = (*route, axis)
                fix = (
                    did_you_mean(axis, sorted(used), otherwise_list=False)
                    or "remove it"
                )
                document.add(
                    here,
                    f"{label(here)!r} is a range for an axis that no input has",
                    fix,
                    key=True,
                )


def _names_are_unique(document: Document) -> None:
    inputs = [
        (("inputs", index, "name"), item.get("name"))
        for index, item in enumerate(document.mappings("inputs"))
    ]
    outputs = [
        (("outputs", index), name)
        for index, name in enumerate(_list(document.data.get("outputs")))
    ]
    route_of_name: dict[str, Route] = {}
    for route, name in [*inputs, *outputs]:
        if isinstance(name, str) and name in route_of_name:
            first = document.line(route_of_name[name])
            document.add(
                route,
                f"the name {name!r} is used twice",
                f"rename it; {label(route_of_name[name])} on line {first} has it too",
            )
        elif isinstance(name, str):
            route_of_name[name] = route


def _first_axes(document: Document) -> set[str]:
    """The different first axes of the inputs that are not state, as text: `None` for a shape
    without axes.
    """
    # not validated: a name may be a list, which no set can hold
    state_inputs = [item.get("input") for item in document.mappings("state")]
    inputs = document.mappings("inputs")
    shapes = [
        _list(item.get("shape"))
        for item in inputs
        if item.get("name") not in state_inputs
    ]
    return {str(shape[0]) if shape else "None" for shape in shapes}


def _batch_is_possible(document: Document) -> None:
    batching = _mapping(document.data.get("batching"))
    first = _first_axes(document)
    axes = {axis for _, axis in _axes(document)}
    if batching.get("enabled") is True and not (len(first) == 1 and first <= axes):
        fix = "name it in every shape: [batch, ...], or remove 'enabled'"
        document.add(
            ("batching", "enabled"),
            "batching needs a dynamic first axis that all inputs share",
            fix,
        )
    batch = next(iter(first), "")
    tops = [
        _mapping(profile.get(batch)).get("max") for _, profile in _profiles(document)
    ]
    limit = max((top for top in tops if isinstance(top, int)), default=None)
    for key, kind in (("preferred", "preferred batch"), ("graphs", "batch of a graph")):
        for index, size in enumerate(_list(batching.get(key))):
            if isinstance(size, int) and limit is not None and size > limit:
                document.add(
                    ("batching", key, index),
                    f"{kind} {size} is above the axis's max {limit}",
                    f"remove it, or write max: {size} for the axis",
                )


def _batch_sizes_are_possible(document: Document) -> None:
    written = document.data.get("batch_sizes")
    if not isinstance(written, list | str):
        return
    firsts = _first_axes(document)
    dims = _mapping(document.data.get("dims"))
    if document.mappings("state") or len(firsts) != 1 or not firsts <= dims.keys():
        document.add(
            ("batch_sizes",),
            "'batch_sizes' needs a first axis with a range in 'dims' that all inputs share, and no"
            " state",
            "write the profiles one by one under 'profiles'",
        )
        return
    span = _mapping(dims[next(iter(firsts))])
    low = span.get("min")
    high = span.get("max")
    for index, size in enumerate(_list(written)):
        known = all(isinstance(number, int) for number in (size, low, high))
        if known and not low <= size <= high:
            message = f"batch size {size} is outside the axis's range, {low} to {high}"
            fix = "remove it, or widen the range"
            document.add(("batch_sizes", index), message, fix)


def _padding_is_possible(document: Document) -> None:
    """Check that each padded input has a dynamic axis after the batch, and that no other input has
    one.
    """
    pad = document.data.get("pad")
    if not isinstance(pad, dict) or not pad:
        return
    if document.mappings("state"):
        fix = "remove 'pad': requests of a sequence are not joined by length"
        document.add(("pad",), "'pad' needs a model without state", fix, key=True)
        return
    if _mapping(document.data.get("batching")).get("enabled") is False:
        document.add(
            ("pad",), "'pad' needs batching", "remove batching.enabled: false", key=True
        )
    inputs = {str(item.get("name")): item for item in document.mappings("inputs")}
    lengths = {name: _lengths(item) for name, item in inputs.items()}
    _check_padded(document, pad, inputs, lengths)
    padded = {axis for name in pad for axis in lengths.get(name, ())}
    for name in lengths.keys() - pad.keys():
        for axis in sorted(lengths[name] & padded):
            document.add(
                ("pad",),
                f"input {name!r} has the padded axis {axis!r}, and 'pad' has no value for it",
                f"add '{name}: 0' to 'pad'",
                key=True,
            )


def _check_padded(
    document: Document,
    pad: Mapping[str, Any],
    inputs: Mapping[str, Mapping[str, Any]],
    lengths: Mapping[str, Collection[str]],
) -> None:
    """Check that each padded input exists, has a dynamic axis after the batch, and can hold the
    value.

    `lengths` are the names of the dynamic axes after the first.
    """
    for name, value in pad.items():
        if name not in lengths:
            near = did_you_mean(str(name), list(lengths))
            document.add(
                ("pad", name), f"pad: no input has the name {name!r}", near, key=True
            )
        elif not lengths[name]:
            document.add(
                ("pad", name),
                f"input {name!r} has no dynamic axis behind the first",
                "remove it from 'pad', or name the axis in the input's shape",
                key=True,
            )
        elif isinstance(value, int | float) and (
            why := defaults.not_a_value(value, str(inputs[name].get("dtype")))
        ):
            document.add(("pad", name), f"pad.{name}: {why}", None)


def _lengths(item: dict[str, Any]) -> set[str]:
    """The named axes of an input after the first."""
    return {axis for axis in _list(item.get("shape"))[1:] if isinstance(axis, str)}


def _files_exist(document: Document, folder: Path) -> None:
    """The schema reports names with other suffixes."""
    for route, name, suffixes in _files(document):
        is_file_name = isinstance(name, str) and name.endswith(suffixes)
        if is_file_name and not os.path.isfile(folder / name):
            suffix = name.rpartition(".")[2]
            beside = sorted(path.name for path in folder.glob(f"*.{suffix}"))
            fix = did_you_mean(name, beside, otherwise_list=False)
            document.add(route, f"the file {folder / name} does not exist", fix)


def _files(document: Document) -> Iterator[tuple[Route, Any, tuple[str, ...]]]:
    """The path in the document, the name, and the possible suffixes of each file."""
    yield ("goldens",), document.data.get("goldens"), (".npz",)
    for index, item in enumerate(document.mappings("state")):
        yield ("state", index, "initial"), item.get("initial"), (".npy",)
    for index, name in enumerate(_list(document.data.get("libraries"))):
        yield ("libraries", index), name, (".py", ".so")
    for route, name in _calibration_data(document):
        yield route, name, (".npz", ".npy")


def _calibration_data(document: Document) -> Iterator[tuple[Route, Any]]:
    names = _list(_mapping(document.data.get("calibration")).get("data"))
    for index, name in enumerate(names):
        yield ("calibration", "data", index), name


def _arrays_have_inputs(document: Document) -> None:
    inputs = len(document.mappings("inputs"))
    for route, name in _calibration_data(document):
        if isinstance(name, str) and name.endswith(".npy") and inputs > 1:
            document.add(
                route,
                f"an .npy has one array, but the model has {inputs} inputs",
                "use an .npz",
            )


def _percentile_has_its_method(document: Document) -> None:
    calibration = _mapping(document.data.get("calibration"))
    if "percentile" in calibration and calibration.get("method", "max") != "percentile":
        document.add(
            ("calibration", "percentile"),
            "'percentile' needs the method percentile",
            "write method: percentile",
        )


_RULES: tuple[Callable[[Document], None], ...] = (
    _names_are_unique,
    _ranges_are_ordered,
    _axes_have_ranges,
    _ranges_are_used,
    _batch_is_possible,
    _batch_sizes_are_possible,
    _padding_is_possible,
    _percentile_has_its_method,
    _arrays_have_inputs,
    _versions_are_kept,
    states.are_tensors,
    states.need_no_sequences,
    defaults.are_values,
    defaults.have_a_shape,
)
