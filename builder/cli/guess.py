"""What a TorchScript file tells of its inputs: example inputs of a trace first, then how its graph
uses each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from builder.torchscript import Example

Axis = int | str

RANGES: dict[str, tuple[int, int, int]] = {
    "batch": (1, 8, 32),
    "length": (16, 128, 512),
    "depth": (16, 32, 64),
    "height": (64, 224, 512),
    "width": (64, 224, 512),
}
"""Ranges to start from, wide enough to be useful; a manifest of init marks them as guesses."""

_SPATIAL = {1: ("length",), 2: ("height", "width"), 3: ("depth", "height", "width")}


@dataclass(frozen=True)
class Guess:
    """One input; `dtype_from` and `shape_from` say where that is known from, with a question mark
    where it is not.
    """

    name: str
    dtype: str
    shape: tuple[Axis, ...]
    dtype_from: str
    shape_from: str


def guesses(
    file: Path,
    module: str | None = None,
    libraries: Sequence[Path] = (),
    plugins: Sequence[str] = (),
) -> tuple[list[Guess], list[str], list[tuple[str, str]]]:
    """A guess for every input that the lowered graph has, the names of its outputs, and which
    (input, output) may be state.

    Raises ModelFileError and LoweringError for a file that could not be built whatever its manifest
    said.
    """
    from builder import lowering, torchscript
    from builder.cli import guess_state
    from builder.torchscript import plugins as loading

    loading.load(plugins)
    loaded = torchscript.load(file, module, libraries=libraries)
    lowered = lowering.lower(loaded)
    examples = (
        {} if module else _examples(torchscript.inspect(file, check_sums=False).examples, loaded)
    )
    batch = next((example.shape[0] for example in examples.values() if example.shape), None)
    hidden, lengths = guess_state.shapes(lowered), guess_state.lengths(lowered)
    found = [
        _of_example(name, examples[name], batch)
        if name in examples
        else _of_recurrent(name, hidden[name])
        if name in hidden
        else _of_lengths(name)
        if name in lengths
        else _of_uses(name, value)
        for name, value in zip(lowered.inputs, lowered.graph.inputs(), strict=True)
    ]
    return found, list(lowered.outputs), guess_state.pairs(lowered)


def guesses_here(
    file: Path,
    module: str | None,
    libraries: Sequence[Path],
    plugins: Sequence[str],
    report: Any,
) -> tuple[list[Guess], list[str], list[tuple[str, str]]]:
    """As guesses, in a worker."""
    return guesses(file, module, libraries, plugins)


def _examples(kept: Sequence[Example | None], module: Any) -> dict[str, Example]:
    """The example inputs of the trace by argument name; only forward of the whole file has them."""
    names = [argument.name for argument in module.forward.schema.arguments[1:]]
    return {
        name: example for name, example in zip(names, kept, strict=False) if example is not None
    }


def _of_example(name: str, example: Example, batch: int | None) -> Guess:
    """The first axis is a batch where it has the size of the first input's first axis; the others
    stay as traced.
    """
    shape: tuple[Axis, ...] = example.shape
    if shape and shape[0] == batch:
        shape = ("batch", *shape[1:])
    return Guess(
        name,
        example.dtype,
        shape,
        "",
        f"? traced with {list(example.shape)}; name the axes that vary",
    )


def _of_recurrent(name: str, shape: tuple[Axis, ...]) -> Guess:
    return Guess(name, "float32", shape, "", "as the recurrent layer needs it")


def _of_lengths(name: str) -> Guess:
    return Guess(name, "int64", ("batch",), "", "the length of each row that is packed")


def _of_uses(name: str, value: Any) -> Guess:
    """What the first node that tells anything makes of the input."""
    for use in value.uses():
        rule = _TELLING.get(use.user.kind())
        guess = rule(name, use.user, use.offset) if rule else None
        if guess:
            return guess
    return Guess(
        name,
        "float32",
        ("batch",),
        "? the file does not say",
        "? the file does not say, not even how many axes",
    )


def _constant(node: Any, index: int) -> Any:
    inputs = list(node.inputs())
    return (
        inputs[index].toIValue()
        if index < len(inputs) and inputs[index].node().kind() == "prim::Constant"
        else None
    )


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _convolution(groups: int) -> Callable[[str, Any, int], Guess | None]:
    """For an operator whose weight is argument 1 and whose group count is argument `groups`."""

    def rule(name: str, node: Any, offset: int) -> Guess | None:
        weight, count = _constant(node, 1), _constant(node, groups)
        if offset != 0 or weight is None or count is None or weight.dim() - 2 not in _SPATIAL:
            return None
        shape = ("batch", weight.shape[1] * count, *_SPATIAL[weight.dim() - 2])
        return Guess(name, _dtype(weight), shape, "", f"as {node.kind()} needs it")

    return rule


def _linear(name: str, node: Any, offset: int) -> Guess | None:
    weight = _constant(node, 1)
    if offset != 0 or weight is None:
        return None
    return Guess(
        name,
        _dtype(weight),
        ("batch", weight.shape[1]),
        "",
        f"? as {node.kind()} needs the last axis",
    )


def _embedding(name: str, node: Any, offset: int) -> Guess | None:
    weight = _constant(node, 0)
    if offset != 1 or weight is None:
        return None
    return Guess(
        name,
        "int64",
        ("batch", "length"),
        f"ids below {weight.shape[0]}",
        "? the file does not say",
    )


_TELLING: dict[str, Callable[[str, Any, int], Guess | None]] = {
    "aten::conv1d": _convolution(6),
    "aten::conv2d": _convolution(6),
    "aten::conv3d": _convolution(6),
    "aten::_convolution": _convolution(8),
    "aten::convolution": _convolution(8),
    "aten::linear": _linear,
    "aten::embedding": _embedding,
}
