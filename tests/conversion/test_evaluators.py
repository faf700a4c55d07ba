"""Numbers, lists, dictionaries and metadata: each snippet with static sizes, and with sizes that
the engine knows.
"""

from __future__ import annotations

import linecache
import math
from typing import Any

import pytest
import torch

from builder.conversion import converters, evaluators
from builder.conversion.registry import CONVERTERS, EVALUATORS
from builder.errors import UnsupportedOperators
from tests.conversion.harness import check, convert
from tests.conversion.test_shape import sample

_ = converters, evaluators

NODE_KINDS = frozenset(
    f"prim::{k}"
    for k in "If Loop Constant ListConstruct TupleConstruct ListUnpack DictConstruct shape".split()
)
"""Node kinds that TorchScript builds without a schema (prim::shape is what older versions write for
aten::size).
"""


def schema_of(key: str) -> Any:
    """The registered schema of a key; None for a node kind that has none (prim::If)."""
    name, _, overload = key.partition(".")
    return next(
        (
            s
            for s in torch._C._jit_get_schemas_for_operator(name)
            if s.overload_name == overload
        ),
        None,
    )


def test_every_evaluator_has_a_torch_operator() -> None:
    assert len(EVALUATORS) > 100
    unknown = [
        key for key in EVALUATORS if key not in NODE_KINDS and schema_of(key) is None
    ]
    assert unknown == []


def test_converter_arguments_match_torch_schema() -> None:
    keys = [key for key in CONVERTERS if key.startswith("aten::")]
    assert len(keys) > 100
    assert [key for key in keys if schema_of(key) is None] == []
    other = {key: arguments(schema_of(key)) for key in keys}
    assert {key: arguments(CONVERTERS[key].schema) for key in keys} == other


def arguments(schema: Any) -> list[Any]:
    """What a caller of the schema must know of each argument."""
    return [
        (a.name, str(a.type), a.default_value, a.kwarg_only) for a in schema.arguments
    ]


NUMBERS = {
    "arithmetic": "return n + 2, n - 5, 5 - n, n * w, -n",
    "division": "return n // 3, n % 3, (n - 5) // 3, (n - 5) % 3, n / 4",
    "division of negative numbers": "return (n - 9) // 4, (n - 9) % 4, (n - 9) // -4, (n - 9) % -4",
    "division of floats": "return (n * 0.5) // 1.5, (n * 0.7) % 0.5",
    "powers": "return n ** 2, n ** 0.5, 2 ** n, w ** n",
    "minimum and maximum": (
        "return min(n, w), max(n, 3), min([n, w, 2]), max(n, 2.5), min(0.5 * n, 1)"
    ),
    "absolute values": "return abs(n - 3), abs(3.5 - n)",
    "rounding": (
        "return math.floor(n * 0.4), math.ceil(n * 0.4), round(n * 0.5), int(n * 0.9), int(-0.9"
        " * n)"
    ),
    "functions": "return math.sqrt(n), math.exp(n / 8), math.log(w), math.sqrt(float(n * w))",
    "conversions": "return int(n), float(n), bool(n - 1), float(n > 2), int(w > 2)",
    "comparisons": "return n == 3, n != 3, n < w, n <= 2, n > 2, n >= w, n == 2.0, n > 1.5",
    "logic": "return n > 1 and w > 3, n > 1 or w > 3, not n > 2",
    "logic of bits": "return (n > 1) ^ (w > 2), (n > 1) & (w > 2), (n > 1) | (w > 2)",
    "sizes of a range": "return len([i for i in range(2)]), n",
    "sums": "return sum([n, w, 1]), n",
}
LISTS = {
    "building": (
        "l = [n, w]\n    l.append(3)\n    l.extend([n])\n    l.insert(1, 7)\n    return"
        " torch.tensor(l)"
    ),
    "taking apart": (
        "l = [n, w, 5, 6]\n    a = l.pop()\n    l.reverse()\n    del l[0]\n    return"
        " torch.tensor(l), a, l[-1], len(l)"
    ),
    "slices": "l = [n, w, 5, 6][1:3]\n    return torch.tensor(l + [1] * 2), torch.tensor(l.copy())",
    "setting": "l = [n, w]\n    l[0] = l[1] + 1\n    return torch.tensor(l)",
    "membership": "return 3 in [1, 2, 3], 'a' in ['b'], n",
    "equality": "return [1, 2] == [1, 2], [1.5] != [1.5], n",
    "lists of tensors": (
        "l = [x]\n    l.append(x * 2)\n    l[0] = x + 1\n    return torch.cat(l), len(l)"
    ),
    "dictionaries": (
        "d = {'a': x}\n    d['b'] = x * 2\n    d['c'] = x + 1\n"
        "    return d['a'], d.get('b'), d.pop('c'), len(d), 'z' in d"
    ),
    "dictionaries in order": (
        "d = {'a': n, 'b': w}\n    return torch.tensor(list(d.values())), len(d.keys())"
    ),
    "dictionaries of numbers": "d = {1: n, 2: w}\n    return d[2], d.get(7, 5)",
    "lists of static tensors": (
        "l: List[int] = torch.arange(1, len(x.shape) + 1).tolist()\n    i: int ="
        " torch.tensor(3).tolist()\n    return x[None].mean(dim=l, keepdim=True), l[0] + i, n"
    ),
    "strings": (
        "s = 'ab'.upper()\n    return len(s), s == 'AB', s != 'x', 'b'.join(['1', '2']) == '1b2', n"
    ),
}
METADATA = {
    "sizes": "return x.size(0), x.size(-1), torch.tensor(x.shape), x.numel(), x.dim(), len(x)",
    "dtypes": (
        "return x.is_floating_point(), x.is_complex(), x.dtype == torch.float32, x.is_signed(),"
        " x.element_size()"
    ),
    "devices": (
        "return x.is_cuda, x.device == torch.device('cpu'), x.is_quantized, x.requires_grad,"
        " x.is_contiguous()"
    ),
    "items": "return x.sum().item() > 1, int(x[0, 0]), float(x[0, 0]), bool(x[0, 0] > 1)",
    "tolist of 0-d": (
        "a: float = x[0, 0].tolist()\n    b: int = x.sum().long().tolist()\n"
        "    return a / 2, b + 1"
    ),
}


def graph_of(body: str) -> torch._C.Graph:
    """The graph of a function of x, n = x.size(0) and w = x.size(1); scripting reads its source, so
    it has a file.
    """
    source = (
        f"def f(x: torch.Tensor):\n    n = x.size(0)\n    w = x.size(1)\n    {body}\n"
    )
    name = f"<{hash(body)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    scope: dict[str, Any] = {"torch": torch, "math": math, "__name__": __name__}
    exec(compile(source, name, "exec"), scope)
    return torch.jit.script(scope["f"]).graph


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", [*NUMBERS, *LISTS, *METADATA])
def test_size_arithmetic_in_a_graph(name: str, static: bool) -> None:
    body = {**NUMBERS, **LISTS, **METADATA}[name]
    dynamic = {} if static else {0: {0: "n", 1: "w"}}
    more = [] if static else [(sample(1, 1),), (sample(4, 3),), (sample(2, 8),)]
    check(graph_of(body), sample(2, 4), dynamic=dynamic, more=more, compile=not static)


def test_bitwise_operators_on_sizes_are_refused() -> None:
    with pytest.raises(
        UnsupportedOperators, match="number that is computed at run time"
    ):
        convert(graph_of("return n & 3"), [sample(2, 4)], dynamic={0: {0: "n"}})


def test_remainders_of_floats_in_tensors_are_refused() -> None:
    """1e9 % 0.7 was -64: in float32 the quotient is 64 too large."""
    with pytest.raises(UnsupportedOperators, match="remainder of a float that depends"):
        convert(graph_of("return float(x[0, 0]) % 0.7, n"), [sample(2, 4)])


def test_tolist_of_a_computed_tensor_is_refused() -> None:
    body = "l: List[int] = x[0].long().tolist()\n    return x * l[0], len(l)"
    with pytest.raises(UnsupportedOperators, match="tolist of a tensor"):
        convert(graph_of(body), [sample(2, 4)])


def test_dynamic_index_is_refused() -> None:
    with pytest.raises(
        UnsupportedOperators,
        match="the index must be known at build time but depends on n",
    ):
        convert(graph_of("return [1, 2, 3][n]"), [sample(2, 4)], dynamic={0: {0: "n"}})


TEXT = (
    "s = '{}|{}|{}|{}'.format(n, n / 4, n * 1.0, [w / 5])\n"
    "    return len(s), s == '2|0.5|2.|[0.80000000000000004]', len(str(n / 10)), x"
)


def test_texts_of_numbers_are_those_of_torchscript() -> None:
    check(graph_of(TEXT), sample(2, 4), compile=False)


def test_text_of_a_dynamic_size_is_refused() -> None:
    body = "return x * len('{}'.format(n))"
    with pytest.raises(UnsupportedOperators, match="that becomes text must be known"):
        convert(graph_of(body), [sample(2, 4)], dynamic={0: {0: "n"}})


TRACED = {
    "arithmetic on sizes": lambda x: x.reshape(x.size(0) * x.size(1) // 2, 2),
    "division": lambda x: x[
        :, : torch.div(torch.tensor(x.size(1)), 2, rounding_mode="floor") + 1
    ],
    "negative remainder": lambda x: torch.zeros(x.size(0), (-x.size(1)) % 4),
    "a size as a number": lambda x: x * x.size(1) + x.size(0) / x.size(1),
    "a shape copied": lambda x: torch.zeros(x.shape).view(x.shape[1], x.shape[0]),
}


@pytest.mark.parametrize("name", TRACED)
def test_sizes_in_traced_arithmetic(name: str) -> None:
    check(
        TRACED[name],
        sample(2, 4),
        dynamic={0: {0: "n", 1: "w"}},
        spans={"n": (1, 2, 4), "w": (2, 4, 8)},
        more=[(sample(1, 2),), (sample(3, 8),)],
        compile=False,
    )
