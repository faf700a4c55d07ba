"""Infer the inputs of a model file. An exported program states them all. For TorchScript, the
example inputs of a trace are used first, then the uses of each input in the graph.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder import frontends, lowering, manifest, torchscript
from builder.cli import guess_state
from builder.dtypes import name_of
from builder.errors import LoweringError, ModelError, TrtBuildError, UnboundedListError

if TYPE_CHECKING:
    from builder.frontends import ExportedModule
    from builder.graph_types import Value
    from builder.lowering import LoweredGraph
    from builder.manifest import TensorSpec
    from builder.torchscript import Example

Axis = int | str
StatedRange = tuple[tuple[int, int, int], str]
"""The range (minimum, optimum, maximum) of an axis, and a comment on it."""

RANGES: dict[str, tuple[int, int, int]] = {
    "batch": (1, 8, 32),
    "length": (16, 128, 512),
    "depth": (16, 32, 64),
    "height": (64, 224, 512),
    "width": (64, 224, 512),
}
"""Default ranges. A manifest that init writes marks them as guesses."""

NUMBER_DTYPES = {"int": "int64", "float": "float32", "bool": "bool"}
"""The dtype of the input that passes a number of this type."""

MAX_LENGTH = 16
"""The largest length of a list to start from."""
PARTS_SHOWN = 5
MOST_STEPS = 6
_UNKNOWN = "? not stated in the file"
_SPATIAL = {1: ("length",), 2: ("height", "width"), 3: ("depth", "height", "width")}


@dataclass(frozen=True)
class Guess:
    """One input. `dtype_from` and `shape_from` name the source of the dtype and the shape; they
    begin with a question mark if it is a guess.
    """

    name: str
    dtype: str
    shape: tuple[Axis, ...]
    dtype_from: str
    shape_from: str


@dataclass(frozen=True)
class Guessed:
    """A guess for every input that the lowered graph has, the names of its outputs, which (input,
    output) may be state, and the arguments of forward that are not inputs, with the reason.
    `dims` are the ranges of the axes with a comment on each; of others RANGES has one to start
    from. `max_lengths` are guesses of the largest length of each list of unknown length.
    """

    inputs: list[Guess]
    outputs: list[str]
    state: list[tuple[str, str]]
    dropped: dict[str, str]
    dims: dict[str, StatedRange] = field(default_factory=dict)
    max_lengths: dict[str, int] = field(default_factory=dict)


def guesses(
    file: Path,
    module: str | None = None,
    libraries: Sequence[Path] = (),
    plugins: Sequence[str] = (),
) -> Guessed:
    """Infer the inputs of the file.

    Raises ModelFileError and LoweringError for a file that cannot be built with any manifest; their
    fix names the submodules that could be built alone (--module).
    """
    try:
        return _guesses(file, module, libraries, plugins)
    except ModelError as error:
        if parts := [] if module else _parts(file, libraries):
            first = ", ".join(parts[:PARTS_SHOWN])
            alone = f"build one submodule alone: --module with one of {first}"
            error.fix = f"{error.fix}; or {alone}" if error.fix else alone
        raise


def _parts(file: Path, libraries: Sequence[Path]) -> list[str]:
    """The submodules whose forward takes tensors only."""
    if file.suffix == frontends.SUFFIX:
        return []
    with contextlib.suppress(Exception):  # the error of the whole file is reported
        loaded = torchscript.load(file, None, libraries=libraries)
        return [name for name, part in loaded.named_children() if _takes_tensors(part)]
    return []


def _takes_tensors(part: Any) -> bool:
    schema = getattr(getattr(part, "forward", None), "schema", None)
    arguments = schema.arguments[1:] if schema else []
    return bool(arguments) and all(
        str(argument.type) == "Tensor" for argument in arguments
    )


def _guesses(
    file: Path, module: str | None, libraries: Sequence[Path], plugins: Sequence[str]
) -> Guessed:
    torchscript.plugins.load(plugins)
    loaded = frontends.load(file, module, libraries=libraries)
    elements = _first_elements(loaded)
    numbers = _numbers(loaded)
    declared = [*elements, *numbers]
    lowered, max_lengths = _lowered(loaded, declared)
    if not lowered.inputs:
        raise LoweringError(
            "the model has no tensor inputs, so no request can be sent to it",
            where=str(file),
            fix="let forward take a tensor",
        )
    lowered = lowered.named(lowered.distinct(lowered.inputs))
    if isinstance(loaded, frontends.ExportedModule):
        return _of_exported(loaded, lowered)
    examples = {} if module else _examples(file, loaded)
    inputs = [
        numbers.get(guess.name, guess)
        for guess in _noted(_inputs(lowered, examples), elements)
    ]
    state = guess_state.pairs(lowered)
    dropped = _dropped(loaded, lowered.inputs)
    # their number depends on the lengths of lists
    outputs = [] if max_lengths or elements else list(lowered.results)
    if max_lengths:
        max_lengths = _with_ranks(loaded, declared, inputs, max_lengths)
    return Guessed(inputs, outputs, state, dropped, max_lengths=max_lengths)


def _inputs(lowered: LoweredGraph, examples: Mapping[str, Example]) -> list[Guess]:
    """A guess for each input: of its example, of the recurrent layer that reads it, or of its
    uses.
    """
    batch = next(
        (example.shape[0] for example in examples.values() if example.shape), None
    )
    hidden = guess_state.shapes(lowered)
    lengths = guess_state.lengths(lowered)

    def guess(name: str, value: Value) -> Guess:
        if name in examples:
            return _of_example(name, examples[name], batch)
        if name in hidden:
            why = "as the recurrent layer needs it"
            return Guess(name, "float32", hidden[name], "", why)
        if name in lengths:
            why = "the length of each packed row"
            return Guess(name, "int64", ("batch",), "", why)
        return _of_uses(name, value)

    pairs = zip(lowered.inputs, lowered.graph.inputs(), strict=True)
    return [guess(name, value) for name, value in pairs]


def _noted(inputs: list[Guess], elements: Mapping[str, str]) -> list[Guess]:
    """The guesses, with a comment on each first element of a list."""
    return [
        replace(guess, dtype_from=f"? add an input for each further element of {name}")
        if (name := elements.get(guess.name))
        else guess
        for guess in inputs
    ]


def _with_ranks(
    loaded: Any,
    declared: Collection[str],
    inputs: Sequence[Guess],
    max_lengths: dict[str, int],
) -> dict[str, int]:
    """The `max_lengths` that are needed if the inputs have the guessed ranks: the sizes of a tensor
    are then a list of known length. All of them if the model cannot be lowered for these inputs,
    such as complex ones.
    """
    with contextlib.suppress(TrtBuildError):
        _, max_lengths = _lowered(loaded, declared, _of_ranks(inputs))
    return max_lengths


def _of_ranks(inputs: Sequence[Guess]) -> list[TensorSpec]:
    """Specs of the guessed dtypes and ranks, without known sizes."""
    specs = []
    for guess in inputs:
        axes = tuple(f"axis_{index}" for index in range(len(guess.shape)))
        specs.append(
            manifest.TensorSpec(guess.dtype, axes, dict.fromkeys(axes, (1, 2, 8)))
        )
    return specs


def _lowered(
    loaded: Any, declared: Collection[str], specs: Sequence[TensorSpec] = ()
) -> tuple[LoweredGraph, dict[str, int]]:
    """The lowered graph, and a guess of the largest length of each list of unknown length.
    `declared` are the inputs that forward's signature alone does not make inputs.
    """
    max_lengths: dict[str, int] = {}
    optional = list(declared)
    while True:
        try:
            lowered = lowering.lower(
                loaded, specs=specs, max_lengths=max_lengths, optional_inputs=optional
            )
            return lowered, max_lengths
        except LoweringError as error:
            if isinstance(loaded, frontends.ExportedModule):
                raise
            reason = error
        try:  # torch can serve it all the same
            lowered = lowering.as_written(
                loaded,
                reason,
                max_lengths=max_lengths,
                specs=specs,
                optional_inputs=optional,
            )
            return lowered, max_lengths
        except UnboundedListError as unbounded:
            if unbounded.name in max_lengths:
                raise
            max_lengths[unbounded.name] = MAX_LENGTH


def _first_elements(module: Any) -> dict[str, str]:
    """By the name of an input, such as `images_0`, the list of tensors whose element it is: a
    manifest has as many of them as a request.
    """
    return {
        f"{argument.name}_0": argument.name
        for argument in _required(module)
        if str(argument.type) == "List[Tensor]"
    }


def _numbers(module: Any) -> dict[str, Guess]:
    """The inputs that pass the numbers among forward's arguments, by name."""
    return {
        argument.name: Guess(
            argument.name,
            NUMBER_DTYPES[kind],
            (),
            "",
            f"? forward takes {kind}; or fix its value: constants: {{{argument.name}: ...}}",
        )
        for argument in _required(module)
        if (kind := argument.type.annotation_str) in NUMBER_DTYPES
    }


def _required(module: Any) -> list[Any]:
    """The arguments of forward without a default."""
    schema = getattr(getattr(module, "forward", None), "schema", None)
    arguments = schema.arguments[1:] if schema else ()
    return [argument for argument in arguments if not argument.has_default_value()]


def _of_exported(program: ExportedModule, lowered: LoweredGraph) -> Guessed:
    axes = program.axes
    specs = axes.specs()
    inputs = [Guess(str(spec.name), spec.dtype, spec.shape, "", "") for spec in specs]
    dims = {
        axis: (span, axes.comment(axis))
        for axis, span in manifest.axis_ranges(specs).items()
    }
    return Guessed(
        inputs, list(lowered.outputs), guess_state.pairs(lowered), program.fixed, dims
    )


def _dropped(module: Any, inputs: Sequence[str]) -> dict[str, str]:
    """The arguments of forward that are not inputs of the lowered graph, with the reason."""
    schema = getattr(getattr(module, "forward", None), "schema", None)
    dropped = {}
    arguments = schema.arguments[1:] if schema else ()
    for argument in arguments:
        name = argument.name
        if any(lowering.contains(name, inner) for inner in inputs):
            continue
        dropped[name] = "no output depends on it"
        if argument.has_default_value():
            dropped[name] = f"its default {argument.default_value!r} is used"
    return dropped


def guesses_here(
    file: Path,
    module: str | None,
    libraries: Sequence[Path],
    plugins: Sequence[str],
    report: Any,
) -> Guessed | TrtBuildError:
    """As `guesses`, in a worker.

    An error of a file is returned, so that the other files are still read.
    """
    from builder import unforeseen

    try:
        return guesses(file, module, libraries, plugins)
    except Exception as error:
        return unforeseen.as_defect(error)


def _examples(file: Path, module: Any) -> dict[str, Example]:
    """The example inputs of the trace by argument name; only forward of the whole file has them."""
    recorded = torchscript.inspect(file, check_sums=False).examples
    names = [argument.name for argument in module.forward.schema.arguments[1:]]
    return {
        name: example
        for name, example in zip(names, recorded, strict=False)
        if example is not None
    }


def _of_example(name: str, example: Example, batch: int | None) -> Guess:
    """The first axis is a batch if its size equals that of the first input's first axis. The other
    axes keep the traced sizes.
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


def _of_uses(name: str, value: Any) -> Guess:
    """The guess from the first node that determines a dtype or shape of the input."""
    for use in value.uses():
        rule = _RULES.get(use.user.kind())
        guess = None
        if rule:
            guess = rule(name, use.user, use.offset)
        if guess:
            return guess
    if guess := _behind_elementwise(name, value):
        return guess
    if ids := _embedded(value):
        return Guess(name, "int64", ("batch", "length"), f"ids below {ids}", _UNKNOWN)
    rank = "? unknown, also the number of axes"
    dtype, why = _argument(value) or ("float32", _UNKNOWN)
    return Guess(name, dtype, ("batch",), why, rank)


def _behind_elementwise(name: str, value: Any, steps: int = MOST_STEPS) -> Guess | None:
    """The guess from a node that reads the value after operators that keep its shape, such as the
    normalization of an image.
    """
    for use in value.uses():
        if not steps or use.offset:
            continue
        is_flatten = use.user.kind() == "aten::flatten"
        if is_flatten and (guess := _behind_flatten(name, use.user)):
            return guess
        if use.user.kind() not in _KEEPS_SHAPE:
            continue
        output = use.user.output()
        for later in output.uses():
            rule = _RULES.get(later.user.kind())
            guess = rule(name, later.user, later.offset) if rule else None
            if guess:
                comment = f"? {guess.shape_from.removeprefix('? ')}"
                return replace(guess, dtype_from=_UNKNOWN, shape_from=comment)
        if guess := _behind_elementwise(name, output, steps - 1):
            return guess
    return None


def _behind_flatten(name: str, node: Any) -> Guess | None:
    """The guess from a node that reads all axes except the batch as one."""
    if (_constant(node, 1), _constant(node, 2)) != (1, -1):
        return None
    guess = _of_uses(name, node.output())
    if len(guess.shape) != 2 or not isinstance(guess.shape[1], int):
        return None
    why = f"? {guess.shape_from.removeprefix('? ')}, the product of flattened axes"
    return replace(guess, shape_from=why)


def _constant(node: Any, index: int) -> Any:
    inputs = list(node.inputs())
    if index < len(inputs) and inputs[index].node().kind() == "prim::Constant":
        return inputs[index].toIValue()
    return None


def _dtype(tensor: Any) -> str:
    return name_of(tensor.dtype)


def _convolution(groups: int) -> Callable[[str, Any, int], Guess | None]:
    """For an operator whose weight is argument 1 and whose group count is argument `groups`."""

    def rule(name: str, node: Any, offset: int) -> Guess | None:
        weight = _constant(node, 1)
        count = _constant(node, groups)
        if (
            offset != 0
            or weight is None
            or count is None
            or weight.dim() - 2 not in _SPATIAL
        ):
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


def _layer_norm(name: str, node: Any, offset: int) -> Guess | None:
    sizes = node.inputsAt(1).toIValue()
    if offset != 0 or not sizes:
        return None
    why = f"? as {node.kind()} needs the last axes"
    return Guess(name, "float32", ("batch", *sizes), _UNKNOWN, why)


def _batch_norm(name: str, node: Any, offset: int) -> Guess | None:
    """The class of the module gives the number of axes; BatchNorm1d reads two or three."""
    mean = _constant(node, 3)
    if offset != 0 or mean is None:
        return None
    kinds = _BATCH_NORM.findall(node.getModuleHierarchy())
    axes = _SPATIAL[int(kinds[-1])] if kinds and kinds[-1] != "1" else ()
    shape = ("batch", mean.shape[0], *axes)
    if axes:
        why = f"as BatchNorm{kinds[-1]}d needs it"
        return Guess(name, _dtype(mean), shape, "", why)
    later = _of_uses(name, node.output())
    if later.shape[:2] == shape:
        return later
    why = f"? as {node.kind()} needs the second axis"
    return Guess(name, _dtype(mean), shape, "", why)


_BATCH_NORM = re.compile(r"\(BatchNorm([123])d\)")


def _embedding(name: str, node: Any, offset: int) -> Guess | None:
    weight = _constant(node, 0)
    if offset != 1 or weight is None:
        return None
    return Guess(
        name,
        "int64",
        ("batch", "length"),
        f"ids below {weight.shape[0]}",
        _UNKNOWN,
    )


def _embedded(value: Any, steps: int = MOST_STEPS) -> int | None:
    """The number of rows of the embedding that reads the value, directly or through operators that
    keep integers: casts, offsets, clamps and reshapes.
    """
    for use in value.uses():
        node = use.user
        if node.kind() == "aten::embedding" and use.offset == 1:
            weight = _constant(node, 0)
            if weight is None:
                return None
            return int(weight.shape[0])
        if steps and node.kind() in _KEEPS_INTEGERS and use.offset == 0:
            for output in node.outputs():
                if rows := _embedded(output, steps - 1):
                    return rows
    return None


def _argument(value: Any, steps: int = MOST_STEPS) -> tuple[str, str] | None:
    """The dtype of an index or mask and its comment, if an operator reads the value as one,
    directly or through operators that keep the dtype.
    """
    for use in value.uses():
        kind = use.user.kind()
        if found := _ARGUMENTS.get((kind, use.offset)):
            return found
        is_kept = kind in _KEEPS_DTYPE and use.offset == 0
        if not steps or not (is_kept or kind == "prim::ListConstruct"):
            continue
        if found := _argument(use.user.output(), steps - 1):
            return found
    return None


_INDEX, _MASK = ("int64", "? used as an index"), ("bool", "? used as a mask")
_ARGUMENTS = {
    ("aten::index", 1): _INDEX,
    ("aten::index_put", 1): _INDEX,
    ("aten::index_put_", 1): _INDEX,
    **{
        (f"aten::{name}", 2): _INDEX
        for name in """
            gather index_select index_add index_add_ index_copy index_fill scatter scatter_
            scatter_add scatter_add_ scatter_reduce
        """.split()
    },
    ("aten::where", 0): _MASK,
    ("aten::masked_fill", 1): _MASK,
    ("aten::masked_fill_", 1): _MASK,
}
"""By operator and position of an argument: its dtype, and the comment of the guess."""
_SHAPING = """
    view reshape flatten unsqueeze squeeze transpose permute contiguous slice select expand clone
"""
_KEEPS_DTYPE = {f"aten::{name}" for name in _SHAPING.split()}
_KEEPS_INTEGERS = _KEEPS_DTYPE | {
    f"aten::{name}"
    for name in "add sub rsub clamp clamp_min clamp_max to masked_fill remainder".split()
}
_KEEPS_SHAPE = {
    f"aten::{name}"
    for name in "add sub mul div to clamp contiguous clone dropout relu tanh".split()
}
_RULES: dict[str, Callable[[str, Any, int], Guess | None]] = {
    "aten::conv1d": _convolution(6),
    "aten::conv2d": _convolution(6),
    "aten::conv3d": _convolution(6),
    "aten::_convolution": _convolution(8),
    "aten::convolution": _convolution(8),
    "aten::linear": _linear,
    "aten::batch_norm": _batch_norm,
    "aten::embedding": _embedding,
    "aten::layer_norm": _layer_norm,
}
