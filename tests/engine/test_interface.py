"""Every use of TensorRT exists in 8.6, 10 and 11, with the arguments of the call.

These versions cannot be installed here. Their interfaces are in api/*.json, which extract.py in the
same folder reads from the published bindings. Intended differences are listed in ABSENT: there the
code checks first.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import builder
from tests.engine.uses import ANY, HERE, Use, attributes, uses

API = Path(__file__).parent / "api"
ROOT = Path(builder.__file__).parent
VERSIONS = sorted(
    (path.stem for path in API.glob("*.json")),
    key=lambda v: [int(part) for part in v.split(".")],
)

OLD, TEN = ("8.6.1",), ("8.6.1", "10.0.1")
NEW = ("11.0.0.114", "11.4.0.106")
SINCE_TEN = """
    GELU_ERF GELU_TANH INT64 BF16 INT4 STRONGLY_TYPED STRIP_PLAN ERROR_ON_TIMING_CACHE_MISS
""".split()
SINCE_LATER = "ISNAN E8M0 CUMULATIVE SQUEEZE UNSQUEEZE".split()
ABSENT = {
    # checked with hasattr, or used only if the capabilities have it
    "trt.IProgressMonitor": OLD,
    "type NetworkDefinitionCreationFlag.STRONGLY_TYPED": OLD,
    "type NetworkDefinitionCreationFlag.EXPLICIT_BATCH": NEW,
    "ILayer.precision": NEW,
    "ILayer+.precision": NEW,
    "ILayer+.precision_is_set": NEW,
    "ILayer+.set_output_type": NEW,
    "type PreviewFeature.PROFILE_SHARING_0806": NEW,
    "an enumeration's.PROFILE_SHARING_0806": NEW,
    "INetworkDefinition.add_cumulative": TEN,
    "ICumulativeLayer.get_output": TEN,
    "trt.CumulativeOperation": TEN,
    "type CumulativeOperation.SUM": TEN,
    "ITopKLayer.indices_type": TEN,
    # activations.py uses what the engine has
    "trt.ExecutionContextAllocationStrategy": OLD,
    "type ExecutionContextAllocationStrategy.USER_MANAGED": OLD,
    "ICudaEngine.create_execution_context": OLD,
    "ICudaEngine.create_execution_context_without_device_memory": NEW,
    "ICudaEngine.device_memory_size": NEW,
    "ICudaEngine.device_memory_size_v2": TEN,
    "IExecutionContext.set_device_memory": TEN,
    # plan_check leaves out only the tactic sources that the library has
    "an enumeration's.CUBLAS": NEW,
    "an enumeration's.CUBLAS_LT": NEW,
    "an enumeration's.CUDNN": NEW,
    # called with the dtype, which TypedNetwork drops where the network has no such argument
    **dict.fromkeys(
        (
            f"INetworkDefinition.add_{name}"
            for name in ("fill", "quantize", "dequantize")
        ),
        OLD,
    ),
    # named in text: checked with hasattr, or read from layers and tensors that only later versions
    # create
    **dict.fromkeys((f"{ANY}.{name}" for name in SINCE_TEN), OLD),
    **dict.fromkeys((f"{ANY}.{name}" for name in SINCE_LATER), TEN),
    # the reference reads it from layers that only later versions create
    "ILayer+.exclusive": TEN,
}
"""Names that trt-build uses although these versions do not have them."""


class Interface:
    """One version's classes and functions."""

    def __init__(self, version: str) -> None:
        read = json.loads((API / f"{version}.json").read_text())
        self.classes, self.functions = read["classes"], read["functions"]

    def member(self, owner: str, name: str) -> list[Any] | None:
        """The overloads of a member: empty if it is no function, None if it does not exist."""
        if owner == "":
            return [] if name in self.classes else self.functions.get(name)
        if owner == ANY:
            return next(
                (
                    kind["members"][name]
                    for kind in self.classes.values()
                    if name in kind["members"]
                ),
                None,
            )
        if owner == "ILayer+":
            return next(
                (
                    m
                    for kind in self._layers()
                    if (m := self.member(kind, name)) is not None
                ),
                None,
            )
        kind = self.classes.get(owner.removeprefix("type "))
        if kind is None:
            return None
        inherited = (self.member(base, name) for base in kind["bases"])
        found = kind["members"].get(name)
        return (
            found
            if found is not None
            else next((m for m in inherited if m is not None), None)
        )

    def anywhere(self, name: str) -> bool:
        """Whether a class of any version has the member. Other text is not a name of TensorRT."""
        return any(
            interface(version).member(ANY, name) is not None for version in VERSIONS
        )

    def returned(self, owner: str, name: str) -> str | None:
        """The class that a method returns, where all its overloads agree and it is a class of
        TensorRT's.
        """
        kinds = {
            overload["returns"] for overload in self.member(owner, name) or ()
        } & set(self.classes)
        return kinds.pop() if len(kinds) == 1 else None

    def _layers(self) -> list[str]:
        """The layer classes, in any order."""
        return [
            name
            for name in self.classes
            if name in ("ILoop", "IIfConditional") or self._is_layer(name)
        ]

    def _is_layer(self, name: str) -> bool:
        return name == "ILayer" or any(
            map(self._is_layer, self.classes.get(name, {"bases": ()})["bases"])
        )

    def problem(self, use: Use) -> str | None:
        """Why the use fails in this version; None where it does not."""
        found = self.member(use.owner, use.name)
        if found is None:
            return f"{use.owner or 'trt'}.{use.name} does not exist"
        if (
            use.call is None
            or not found
            or any(fits(overload, use.call) for overload in found)
        ):
            return None
        return (
            f"{use.owner}.{use.name} does not take {use.call[0]} arguments and"
            f" {list(use.call[1])}"
        )


def fits(overload: Any, call: tuple[int, tuple[str, ...]]) -> bool:
    """Whether positional arguments and keywords can be bound to the parameters after self."""
    count, keywords = call
    parameters = [p for p in overload["parameters"] if p[0] != "self"]
    rest = dict(map(tuple, parameters[count:]))
    needed = {name for name, has_default in rest.items() if not has_default}
    return count <= len(parameters) and needed <= set(keywords) <= set(rest)


@cache
def interface(version: str) -> Interface:
    return Interface(version)


@cache
def all_uses() -> tuple[Use, ...]:
    return tuple(uses(ROOT, interface(VERSIONS[-1])))


def test_every_use_exists_in_all_versions() -> None:
    """Exactly the entries of ABSENT are missing: a stale entry would hide a later mistake."""
    missing: dict[str, list[str]] = {}
    locations: dict[str, str] = {}
    for version in VERSIONS:
        for problem, where in {
            p: use.where for use in all_uses() if (p := interface(version).problem(use))
        }.items():
            subject = problem.partition(" does ")[0]
            locations[subject] = f"{where}: {problem}"
            missing.setdefault(subject, [])
            missing[subject] += [version] if version not in missing[subject] else []
    unexpected = {
        subject: locations[subject]
        for subject in missing
        if tuple(missing[subject]) != ABSENT.get(subject)
    }
    assert unexpected == {}
    assert set(ABSENT) == set(missing)


def test_uses_of_each_kind_are_found() -> None:
    """Without uses the test above would pass and check nothing."""
    used = {(use.owner, use.name) for use in all_uses()}
    wanted = {
        ("INetworkDefinition", "add_convolution_nd"),
        ("", "BuilderFlag"),
        ("type DataType", "HALF"),
    }
    assert wanted <= used
    owners = {owner for owner, _ in used}
    assert {"IGatherLayer", "ITensor", "ISliceLayer", "ILayer+"} <= owners
    assert {
        "IBuilderConfig",
        "ICudaEngine",
        "IExecutionContext",
        "Runtime",
        "IIfConditional",
    } <= owners
    assert len(all_uses()) > 400
    assert sum(use.call is not None for use in all_uses()) > 100


NOT_OF_TENSORRT = {
    "profiling_verbosity",
    "tactic_sources",  # of BuildOptions
    "load_library",  # torch.ops
    "is_constant",  # of a ConversionContext
}
"""Names of two words that TensorRT has too."""


def test_all_names_of_tensorrt_are_checked() -> None:
    """Uses of unknown type are found by their names: names of two words are rarely ambiguous."""
    known = {
        name
        for kind in interface(VERSIONS[-1]).classes.values()
        for name in kind["members"]
    }
    read = {
        name
        for name in attributes(ROOT)
        if "_" in name.strip("_") and not name.startswith("_")
    }
    assert (read & known) - {use.name for use in all_uses()} == NOT_OF_TENSORRT
    assert {
        file
        for file in HERE
        if not any(use.where.startswith(f"{file}:") for use in all_uses())
    } == set()


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("trt.ILogger.Severity.EROR", "type ILogger.EROR does not exist"),
        (
            "layer = net.add_unary(x, 1)\nlayer = net.add_shuffle(x)\nlayer.color",
            "ILayer+.color does not exist",
        ),
        ("ctx.net.add_unarry(x, 1)", "INetworkDefinition.add_unarry does not exist"),
        (
            "ctx.net.add_unary(x)",
            "INetworkDefinition.add_unary does not take 1 arguments and []",
        ),
        (
            "ctx.net.add_unary(x, operation=1)",
            "does not take 1 arguments and ['operation']",
        ),
        ("trt.UnaryOperation.SQURE", "type UnaryOperation.SQURE does not exist"),
        ("trt.Unary", "trt.Unary does not exist"),
        (
            "layer = net.add_unary(x, 1)\nlayer.axes = 1",
            "IUnaryLayer.axes does not exist",
        ),
        ("net.add_topk(x, op, 1, 1).get_output(0).size", "ITensor.size does not exist"),
        ("layer.color", "ILayer+.color does not exist"),
    ],
)
def test_invalid_uses_are_found(tmp_path: Path, code: str, problem: str) -> None:
    (tmp_path / "conversion").mkdir()
    (tmp_path / "conversion" / "new.py").write_text(code)
    newest = interface(VERSIONS[-1])
    problems = [p for use in uses(tmp_path, newest) if (p := newest.problem(use))]
    assert any(problem in p for p in problems), problems


def test_members_named_in_strings_are_checked(tmp_path: Path) -> None:
    (tmp_path / "conversion").mkdir()
    (tmp_path / "conversion" / "new.py").write_text(
        "ctx.unary('ISINF', x); say('HELLO_YOU'); ctx.unary('ISNAN', x)"
    )
    unresolved = [
        use for use in uses(tmp_path, interface(VERSIONS[-1])) if use.owner == ANY
    ]
    assert [use.name for use in unresolved] == ["ISINF", "ISNAN"]
    assert [bool(interface("8.6.1").problem(use)) for use in unresolved] == [
        False,
        True,
    ]


def test_extract_reads_the_installed_interface() -> None:
    """extract.py is checked against the installed library."""
    from builder.engine.flavor import trt
    from tests.engine.api.extract import _class

    read = _class(trt.INetworkDefinition)["members"]
    assert read["add_unary"][0]["parameters"] == [
        ["self", False],
        ["input", False],
        ["op", False],
    ]
    assert read["add_unary"][0]["returns"] == "IUnaryLayer"
    assert read["num_layers"] == []
