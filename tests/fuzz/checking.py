"""Compares torch's outputs for one program with those of trt-build."""

from __future__ import annotations

import contextlib
import io
import linecache
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import builder
from builder import TensorSpec
from builder.engine import Engine
from builder.errors import LoweringError, TrtBuildError
from builder.pipeline.execution import TORCH_DEFECT
from tests.conversion.harness import (
    ENGINE_SLACK,
    QUICK,
    carried,
    unfinished_outputs,
)
from tests.torchscript.saving import saved

_DIMS = {"n": (1, 4, 8)}
SPECS = (
    TensorSpec("float32", ("n", 4), dims=_DIMS),
    TensorSpec("float32", ("n", 4), dims=_DIMS),
    TensorSpec("int64", ("n",), dims=_DIMS),
)
SIZES, SCALES = (4, 1, 3, 7), (1.0, 60.0, 0.1)
LARGEST = 1e6
"""Larger outputs are not compared, because their rounding errors may be large, too."""
_DEFECT = re.compile(r"the converter of \S+ failed: |^pass \S+ is defective")
"""A refusal caused by a defect of trt-build."""

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Outcome:
    """The outcome of a program.

    `verdict` is equal, invalid (torch itself fails), refused, wrong or crash; `reason` is the
    message. `network` is the result of the conversion.
    """

    verdict: str
    reason: str = ""
    network: str = ""


def check(source: str, name: str, engine: bool = False) -> Outcome:
    """Run the program of a source file in torch, lowered, saved, as a network and, with `engine`,
    as an engine of this machine's GPU, and compare.
    """
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            module = _module(source, name)
            cases = list(_cases(module))
        except Exception as error:  # torch raises many types
            return Outcome("invalid", type(error).__name__)
        if any(_too_large(tensor) for case in cases for tensor in case.plain):
            return Outcome("invalid", "too large")
        try:
            return _best_outcome(module, cases, source, engine)
        except AssertionError as error:
            return Outcome("wrong", str(error))
        except Exception as error:
            return Outcome("crash", f"{type(error).__name__}: {error}")


@dataclass(frozen=True)
class _Case:
    """Inputs, and torch's outputs for the file with its graph optimizer and without."""

    inputs: Tensors
    optimized: Tensors
    plain: Tensors


def _cases(module: Any) -> Iterator[_Case]:
    """The cases; for an exported program only those that its guards accept."""
    exported = isinstance(module, torch.export.ExportedProgram)
    call = module.module() if exported else module
    unoptimized = call if exported else saved(module)
    for inputs in _inputs():
        try:
            outputs = _tensors(call(*_copies(inputs)))
            with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
                plain = _tensors(unoptimized(*_copies(inputs)))
        except AssertionError:
            if not exported:
                raise
        else:
            # without its optimizer, some constants of a trace have another dtype in torch
            same = [tensor.dtype for tensor in plain] == [
                tensor.dtype for tensor in outputs
            ]
            yield _Case(inputs, outputs, plain if same else outputs)


def _best_outcome(
    module: Any, cases: Sequence[_Case], source: str, engine: bool
) -> Outcome:
    """Return the outcome for the plain outputs, else for the optimized ones, else for those of
    Python.

    torch's optimizer drops some writes to elements of lists, and to views of loop-carried values of
    a loop without iterations. It merges nested `cat` although an input is written in between.
    """
    try:
        return _checked(module, [(case.inputs, case.plain) for case in cases], engine)
    except AssertionError as error:
        for outputs in (lambda case: case.optimized, _in_python(source)):
            with contextlib.suppress(AssertionError):
                return _checked(
                    module, [(case.inputs, outputs(case)) for case in cases], engine
                )
        raise error from None


def _in_python(source: str) -> Callable[[_Case], Tensors]:
    """The outputs of a source file's module, without TorchScript."""
    module = _executed(source, "<program>", __name__)["Program"]().eval()
    return lambda case: _tensors(module(*_copies(case.inputs)))


def _checked(
    module: Any, cases: Sequence[tuple[Tensors, Tensors]], engine: bool
) -> Outcome:
    try:
        lowered = builder.lower(module, specs=SPECS)
    except LoweringError as error:
        if _DEFECT.search(error.message):
            return Outcome("crash", error.message)
        return Outcome("refused", general(error.message))
    file = io.BytesIO()
    lowered.save(file)
    file.seek(0)
    loaded = torch.jit.load(file)
    try:
        for inputs, expected in cases:
            _compare("lowered graph", lowered.run(*_copies(inputs)), expected)
            _compare("saved graph", loaded(*_copies(inputs)), expected)
    except RuntimeError as error:
        if not TORCH_DEFECT.search(str(error)):
            raise
        return Outcome("refused", "a defect of TorchScript's interpreter")
    exported = isinstance(module, torch.export.ExportedProgram)
    try:
        conversion = builder.convert(module if exported else lowered, SPECS)
    except TrtBuildError as error:
        if _DEFECT.search(error.message):
            return Outcome("crash", error.message)
        return Outcome("equal", network=general(error.message))
    targets = [
        (inputs, [tensor.to(carried(tensor.dtype)) for tensor in expected])
        for inputs, expected in cases
    ]
    for inputs, target in targets:
        _compare("network", builder.reference.run(conversion, inputs), target)
    assert not unfinished_outputs(conversion.network), "a value leaves its branch"
    return (
        _on_engine(conversion, targets) if engine else Outcome("equal", network="equal")
    )


def _on_engine(conversion: Any, targets: Sequence[tuple[Tensors, Any]]) -> Outcome:
    try:
        plan = builder.build_engine(conversion, QUICK)
    except TrtBuildError as error:
        return Outcome("equal", network=f"no engine: {general(error.message)}")
    with Engine(plan) as engine:
        for inputs, target in targets:
            if any(t.is_floating_point() and t.isnan().any() for t in target):
                continue
            outputs = dict(zip(engine.outputs, engine(*inputs), strict=True))
            got = [outputs[name] for name in conversion.outputs]
            _compare("engine", got, target, ENGINE_SLACK)
    return Outcome("equal", network="equal")


def _compare(
    label: str,
    outputs: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
    slack: float = 1,
) -> None:
    for index, (output, target) in enumerate(zip(outputs, expected, strict=True)):
        if output.dtype == target.dtype and torch.equal(output, target):
            continue
        largest = float(target.abs().max()) if target.numel() else 0.0
        exact = not target.dtype.is_floating_point
        torch.testing.assert_close(
            output,
            target,
            rtol=0 if exact else slack * 1e-3,
            atol=0 if exact else slack * (1e-4 + 1e-5 * largest),
            equal_nan=True,
            msg=lambda text, index=index: f"{label}, output {index}: {text}",
        )


def _module(source: str, name: str) -> Any:
    """The program's module, scripted or traced, as loaded from a file; or the exported program."""
    file = f"<{name}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    try:
        scope = _executed(source, file, f"tests.fuzz.{re.sub(r'[^a-z0-9]', '_', name)}")
        module = scope["Program"]().eval()
        if scope.get("EXPORTED"):
            rows = {0: torch.export.Dim.DYNAMIC(min=1, max=8)}
            return torch.export.export(
                module, next(_inputs()), dynamic_shapes=(rows,) * 3
            )
        if scope["TRACED"]:
            return saved(
                torch.jit.trace(module, _copies(next(_inputs())), check_trace=False)
            )
        return saved(torch.jit.script(module))
    finally:
        del linecache.cache[file]


def _executed(source: str, file: str, name: str) -> dict[str, Any]:
    """The globals of a source file after it was executed as the Python module `name`."""
    scope: dict[str, Any] = {"__name__": name}
    exec(compile(source, file, "exec"), scope)
    return scope


def _inputs() -> Any:
    generator = torch.Generator().manual_seed(0)
    for size in SIZES:
        for scale in SCALES if size == SIZES[0] else SCALES[:2]:
            x, y = (torch.randn(size, 4, generator=generator) * scale for _ in range(2))
            yield x, y, torch.randint(0, 4, (size,), generator=generator)


def _tensors(result: Any) -> Tensors:
    """Flatten a program's result. A smaller program may return nothing."""
    if not isinstance(result, tuple) or not all(
        isinstance(tensor, torch.Tensor) for tensor in result
    ):
        raise TypeError("a program returns a tuple of tensors")
    return result


def _copies(inputs: Tensors) -> Tensors:
    return tuple(tensor.clone() for tensor in inputs)


def _too_large(tensor: torch.Tensor) -> bool:
    return bool(tensor.numel()) and not bool((tensor.abs() < LARGEST).all())


def general(message: str) -> str:
    """Remove the program-specific parts of a message: names, numbers, nodes."""
    line = message.strip().splitlines()[0]
    line = re.sub(r"'[^']*'|\"[^\"]*\"|%[\w.]+", "_", line)
    return re.sub(r"-?\d+(\.\d+)?", "#", line)[:140]
