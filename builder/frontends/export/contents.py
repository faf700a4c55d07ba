"""Checks the text of an exported program.

`torch.export.load` evaluates some of it as Python: sizes (sympy), guards, and the code that it
generates from names. Loading therefore follows this check. Expressions may contain only numbers,
symbols and known functions. Names must be plain, and functions must be those of tensors and
numbers.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from builder.templates import reason

BAD_NAME = "has characters that no name has"
_SYMBOL = re.compile(r"[a-z]{1,3}\d+")
_NAME = re.compile(r"[\w.\-@+$]*")
_IDENTIFIER = re.compile(r"\w*")
_FREE_TEXT = frozenset(["metadata", "as_string", "as_strings"])
"""Keys whose text is never evaluated."""
_IDENTIFIERS = frozenset(["name", "as_name", "forward_arg_names"])
_TARGETS = frozenset(["target", "as_operator"])

FUNCTIONS = frozenset(
    """
    Symbol Integer Float Rational Mul Add Pow Mod Max Min Abs Eq Ne Lt Le Gt Ge And Or Not
    Equality Unequality StrictLessThan LessThan GreaterThan StrictGreaterThan Piecewise
    ExprCondPair floor ceiling sqrt log FloorDiv ModularIndexing Where PythonMod CleanDiv CeilToInt
    FloorToInt CeilDiv LShift RShift PowByNatural FloatPow FloatTrueDiv IntTrueDiv
    IsNonOverlappingAndDenseIndicator TruncToFloat TruncToInt RoundToInt RoundDecimal ToFloat
    Identity OpaqueUnaryFn_sqrt OpaqueUnaryFn_log2
    """.split()
)
"""Functions that size expressions may call."""
_CONSTANTS = frozenset(["true", "false", "True", "False", "oo", "int_oo", "nan", "inf"])
_GUARD_FUNCTIONS = frozenset(
    """
    max min abs int float len math torch sym_sum sym_ite sym_max sym_min sym_not sym_float sym_int
    floor ceil trunc sqrt pow round
    """.split()
)
_GUARD_METHODS = frozenset(
    ["size", "stride", "storage_offset", "dim", "numel", "item", "shape"]
)
_NODES = (
    *(
        ast.Expression,
        ast.BinOp,
        ast.UnaryOp,
        ast.BoolOp,
        ast.Compare,
        ast.Call,
        ast.keyword,
    ),
    *(ast.Name, ast.Constant, ast.Tuple, ast.List, ast.IfExp),
    *(ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context),
)
_GUARD_NODES = (*_NODES, ast.Subscript, ast.Attribute)

_OPERATORS = frozenset(
    """
    add sub mul floordiv truediv mod pow neg eq ne lt le gt ge and_ or_ not_ getitem lshift rshift
    """.split()
)
_MATH = frozenset(["trunc", "floor", "ceil", "sqrt"])
_TORCH = frozenset(
    """
    sym_not sym_max sym_min sym_float sym_int sym_ite sym_sum _sym_sqrt _sym_log2 _check
    _check_is_size
    """.split()
)
QUANTIZED = frozenset(
    """
    quantize_per_tensor dequantize_per_tensor quantize_per_channel dequantize_per_channel
    """.split()
)
"""Operators of PT2E in the namespace `quantized_decomposed`."""
TORCHAO = frozenset(["quantize_affine", "dequantize_affine", "choose_qparams_affine"])
"""Operators of torchao in the namespace `torchao`."""
_TORCHAO = (
    "operators of torchao that are read: "
    + ", ".join(sorted(TORCHAO))
    + ". Quantize with Int8StaticActivationInt8WeightConfig, with prepare_pt2e and convert_pt2e"
    " of torchao.quantization.pt2e, or only the weights (Int8WeightOnlyConfig)"
)
_HIGHER_ORDER = frozenset(
    """
    cond while_loop scan map_impl map wrap_with_set_grad_enabled wrap_with_autocast
    """.split()
)
_FACTORIES = frozenset(
    ["builtins.list", "builtins.dict", "builtins.int", "builtins.float"]
)


def problems(program: Any, *, custom: bool = False) -> Iterator[str]:
    """Return the forbidden expressions in a program's JSON.

    `custom` allows operator namespaces that torch does not have.
    """
    yield from _problems(program, "", custom)


def _problems(item: Any, key: str, custom: bool) -> Iterator[str]:
    if isinstance(item, dict):
        for name, value in item.items():
            if key == "range_constraints":
                yield from _expression(name)
            elif not _matches(name, _NAME) and key != "metadata":
                yield f"the name {_shown(name)} {BAD_NAME}"
            yield from _problems(value, name, custom)
    elif isinstance(item, list):
        for value in item:
            yield from _problems(value, key, custom)
    elif isinstance(item, str) and key not in _FREE_TEXT:
        yield from _text(item, key, custom)


def _text(text: str, key: str, custom: bool) -> Iterator[str]:
    if key in _METADATA:
        return
    if key == "expr_str":
        yield from _expression(text)
    elif key == "guards_code":
        yield from _guard(text)
    elif key in _TARGETS:
        if why := _refused(text, custom):
            yield f"the function {_shown(text)}: {why}"
    elif key in ("in_spec", "out_spec"):
        yield from _structure(text)
    elif not _matches(text, _IDENTIFIER if key in _IDENTIFIERS else _NAME):
        yield f"the name {_shown(text)} {BAD_NAME}"


_METADATA = frozenset(
    [
        "stack_trace",
        "nn_module_stack",
        "source_fn_stack",
        "torch_fn",
        "from_node",
        "custom",
    ]
)


def _matches(text: str, pattern: re.Pattern[str]) -> bool:
    return pattern.fullmatch(text) is not None


def _shown(text: str) -> str:
    return repr(text[:80])


def _expression(text: str) -> Iterator[str]:
    """Check a size expression: symbols, numbers and FUNCTIONS."""
    if not _consists_of(text, _in_expression):
        yield f"the size {_shown(text)} is more than an expression of numbers and symbols"


def _in_expression(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return node.id in FUNCTIONS | _CONSTANTS or _matches(node.id, _SYMBOL)
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS
    if isinstance(node, ast.Constant):
        return (
            not isinstance(node.value, str)
            or _matches(node.value, _SYMBOL)
            or _is_number(node)
        )
    return isinstance(node, _NODES)


def _is_number(node: ast.Constant) -> bool:
    """Whether a text is a number. sympy writes Float('1.5', precision=53)."""
    return bool(re.fullmatch(r"[\d.eE+\-]+", str(node.value)))


def _guard(text: str) -> Iterator[str]:
    """Check a condition on sizes of the arguments, `L['x'].size()[0] <= 32`."""
    if not _consists_of(text, _in_guard):
        yield f"the guard {_shown(text)} is more than a condition on sizes"


def _in_guard(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return node.id in _GUARD_FUNCTIONS | FUNCTIONS | _CONSTANTS or node.id == "L"
    if isinstance(node, ast.Attribute):
        return node.attr in _GUARD_METHODS | _GUARD_FUNCTIONS
    if isinstance(node, ast.Constant):
        return not isinstance(node.value, str) or _matches(node.value, _NAME)
    return isinstance(node, _GUARD_NODES)


def _consists_of(text: str, is_allowed: Callable[[ast.AST], bool]) -> bool:
    """Whether the text is a Python expression of such nodes."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return all(map(is_allowed, ast.walk(tree)))


def _refused(target: str, custom: bool) -> str | None:
    """Why a node may not call this function; None if it may."""
    parts = target.split(".")
    match parts:
        case ["torch", "ops", "higher_order", name]:
            if name in _HIGHER_ORDER:
                return None
            return "no higher-order operator that is known"
        case ["torch", "ops", "quantized_decomposed", name, _]:
            if name in QUANTIZED:
                return None
            return "quantized operators that are read: " + ", ".join(sorted(QUANTIZED))
        case ["torch", "ops", "torchao", name, _] if name in TORCHAO or not custom:
            return None if name in TORCHAO else _TORCHAO
        case ["torch", "ops", namespace, name, _]:
            return reason(namespace, name, custom)
        case ["_operator", name]:
            return None if name in _OPERATORS else "it is not a function of numbers"
        case ["math", name]:
            return None if name in _MATH else "it is not a function of numbers"
        case ["torch", name]:
            return None if name in _TORCH else "it is not a function of numbers"
    return "it is not an operator"


def _structure(text: str) -> Iterator[str]:
    """Check the structure of the arguments or results: JSON, with JSON in its contexts."""
    try:
        _, tree = json.loads(text)
        yield from _structure_node(tree)
    except (ValueError, TypeError, KeyError, RecursionError):
        yield f"the structure {_shown(text)} cannot be read"


def _structure_node(tree: Any) -> Iterator[str]:
    context = tree["context"]
    if tree["type"] is not None and not _matches(tree["type"], _NAME):
        yield f"the type {_shown(tree['type'])} {BAD_NAME}"
    for name in _strings(json.loads(context) if isinstance(context, str) else context):
        if not _matches(name, _NAME):
            yield f"the name {_shown(name)} {BAD_NAME}"
    if tree["type"] == "collections.defaultdict":
        factory = json.loads(context)
        module = (
            factory.get("default_factory_module") if isinstance(factory, dict) else None
        )
        if (
            module is not None
            and f"{module}.{factory['default_factory_name']}" not in _FACTORIES
        ):
            yield f"a defaultdict of {_shown(str(factory))}"
    for child in tree["children_spec"]:
        yield from _structure_node(child)


def _strings(item: Any) -> Iterator[str]:
    if isinstance(item, dict):
        for key, value in item.items():
            yield key
            yield from _strings(value)
    elif isinstance(item, list):
        for value in item:
            yield from _strings(value)
    elif isinstance(item, str):
        yield item
