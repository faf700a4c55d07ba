"""Cases for each pass: a source graph, and inputs for which the outputs must not change.

`expected/` contains the text of both graphs (`tests.lowering.expected`), from which
docs/lowering.md is generated.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Dict, Optional  # noqa: UP035

import torch

from builder.lowering.emit import Emit
from builder.lowering.graph import canonical
from builder.lowering.passes import Context
from builder.lowering.pipeline import ALL
from builder.manifest.spec import TensorSpec

PASSES = {step.name: step for step in ALL}


def floats(*shape: int) -> torch.Tensor:
    """A random tensor that is the same in every run."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@dataclass(frozen=True)
class Case:
    """`source` is IR text or a function to script; `params` are bound to its trailing inputs; `raw`
    skips constant propagation before the pass, `calls` keeps calls of functions, and `alone` skips
    the cleanup passes. The text of the graph loses `removed` and contains `present`.
    """

    step: str
    source: str | Callable[..., Any]
    inputs: tuple[Any, ...]
    removed: tuple[str, ...]
    present: tuple[str, ...]
    params: tuple[Any, ...] = ()
    context: Context = field(default_factory=Context)
    name: str = ""
    raw: bool = False
    calls: bool = False
    alone: bool = False

    def graph(self) -> Any:
        """The source as a graph, cleaned as earlier passes leave it."""
        from builder.lowering.lower import bind

        if isinstance(self.source, str):
            graph = torch._C.parse_ir(self.source)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                graph = torch.jit.script(self.source).graph.copy()
        bind(graph, self.params)
        if not self.calls:
            torch._C._jit_pass_inline(graph)
        if not self.raw:
            torch._C._jit_pass_constant_propagation(graph)
        return graph

    def lowered(self) -> Any:
        """The graph after the pass and the cleanup passes."""
        graph = self.graph()
        PASSES[self.step](graph, self.new_context())
        if self.alone:
            return graph
        for cleanup in (
            "lower-tuples",
            "propagate-constants",
            "pool-constants",
            "eliminate-dead-code",
        ):
            if cleanup != self.step and not (
                cleanup == "lower-tuples" and "flatten" in self.step
            ):
                PASSES[cleanup](graph)
        return graph

    def new_context(self) -> Context:
        """The context with new lists, which the interface passes fill."""
        return replace(self.context, inputs=[], outputs=[])

    def text(self, *, lowered: bool) -> str:
        """The canonical text before or after the pass."""
        return canonical(self.lowered() if lowered else self.graph())


def weights(*scores: str, keys: str = "%q") -> str:
    """Attention's weights in IR; `scores` compute %b from the queries %q, the keys %k and %root.
    The keys are the transpose of `keys`.
    """
    return "\n".join(
        (
            "graph(%x : Tensor, %w : Tensor):",
            "  %none : NoneType = prim::Constant()",
            "  %root : float = prim::Constant[value=8.]()",
            "  %last : int = prim::Constant[value=-1]()",
            "  %before : int = prim::Constant[value=-2]()",
            "  %q : Tensor = aten::linear(%x, %w, %none)",
            f"  %k : Tensor = aten::transpose({keys}, %last, %before)",
            *(f"  {line.replace(' =', ' : Tensor =')}" for line in scores),
            "  %weights : Tensor = aten::softmax(%b, %last, %none)",
            "  return (%weights)",
        )
    )


def guard(x):
    if x.dim() != 2:
        raise ValueError("not two axes")
    return x + 1


def nested_guard(x):
    if x.dim() > 1:  # noqa: SIM102
        if x.size(0) > 100:
            raise ValueError("too many")
    assert x.size(1) == 4, "four columns"
    return x + 1


def environment_queries(x):
    if torch.is_grad_enabled() or x.requires_grad:
        return x * 2
    return x.to(x.device) + 1


def optional(x, y: torch.Tensor | None = None):
    if y is not None:
        return x + y
    return x


def pair(x, state: tuple[torch.Tensor, torch.Tensor]):
    return x + state[0] * state[1]


def nested_output(x):
    return {"hidden": x, "states": (x + 1, x + 2)}


def loop(x):
    for i in range(3):
        x = x * 2 + i
    return x


def none_in_loop(x):
    scale: Optional[torch.Tensor] = None  # noqa: UP045
    for _ in range(x.size(0)):
        if scale is not None:
            x = x * scale
            scale = scale + 1
        x = x * 2
    return x if scale is None else x - scale


def none_before_loop(x):
    before: Optional[torch.Tensor] = None  # noqa: UP045
    for i in range(x.size(0)):
        y = x * i
        before = y if before is None else before + y
    return before


def empty_update(x):
    losses = {"sum": x * 2}
    more: Dict[str, torch.Tensor] = {}  # noqa: UP006
    losses.update(more)
    return losses["sum"]


def nested_loops(x):
    for i in range(2):
        for j in range(i + 1):
            x = x + i * j
    return x


def constant_sum(x):
    return x + torch.tensor(2) * 3


def hardswish(x):
    return torch.nn.functional.hardswish(x)


def hardsigmoid(x):
    return torch.ops.aten.hardsigmoid(x)


def silu(x):
    return torch.nn.functional.silu(x)


def rsqrt(x):
    return torch.rsqrt(x)


def in_place(x):
    y = x.clone()
    y[:, 0] = 5
    return y


def full_slice(x):
    return x[:, 1]


def inverse_pairs(x):
    y = (
        x.t()
        .t()
        .transpose(0, 1)
        .transpose(1, 0)
        .permute(1, 0)
        .permute(1, 0)
        .neg()
        .neg()
    )
    return y.expand(-1, -1).reshape(4, 3).reshape(2, 6)


def nested_cat(x):
    inner = torch.cat([x, x + 1], 1)
    read_twice = torch.cat([x, x], 1)
    joined = torch.cat(
        [inner, torch.cat([torch.cat([x, x], 0)[: x.size(0)], x * 2], -1 + 2)], 1
    )
    other_axis = torch.cat([torch.cat([read_twice, read_twice], 0), read_twice], 0)
    return joined.sum() + other_axis.sum()


def equal_operators(x):
    return torch.relu(x) + torch.relu(x)


def tuples(x):
    both = (x + 1, x + 2) if bool(x.sum() > 0) else (x, x * 2)
    return both[0] * both[1]


def list_of_two(x):
    both = [x + 1, x + 2]
    return both[1] * len(both)


def condition_on_text(x):
    why = ""
    if x.dim() != 2:
        why = f"{x.dim()} axes"
    if len(why) > 0:
        return x * 2
    return x


def size_chain(x):
    return x.reshape(x.size()[0] * 1, -1)


def unpacked_sizes(x):
    n, t = x.size()
    return x.reshape(t, n)


def rotary_embedding(x, angles):
    rotations = torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(torch.view_as_complex(x) * rotations)


def spectrum(x):
    window = torch.hann_window(16)
    return torch.stft(x, 16, 4, window=window, center=False, return_complex=True).abs()


def masked_update(x):
    large = x > 1
    return torch.index_put(x, [large], torch.log(x[large]) + 1), x[x < 0].sum()


def dtype_of_comparison(x):
    mask = x > 0
    if mask.dtype == torch.bool:
        return mask.logical_not()
    return mask


def attention(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=0.3)


def attention_causal(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def attention_masked(q, k, v, mask):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def attention_grouped(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def pad_constant(x):
    return torch.nn.functional.pad(x, [1, 2], "constant", 3.0)


def pad_reflect_3d(x):
    return torch.nn.functional.pad(x, [1, 1, 1, 0, 0, 1], "reflect")


def pad_replicate(x):
    return torch.nn.functional.pad(x, [1, 0, 2, 1], "replicate")


def pad_circular(x):
    return torch.nn.functional.pad(x, [1, 2, 2, 0], "circular")


def pad_circular_cropping(x):
    return torch.nn.functional.pad(x, [-1, 2, 1, -1], "circular")


def conv1d_same(x, w):
    return torch.conv1d(x, w, None, 1, "same", 1, 1)


def conv2d_grouped(x, w, b):
    return torch.conv2d(x, w, b, [2, 1], [1, 0], [1, 2], 2)


def conv3d_valid(x, w):
    return torch.conv3d(x, w, None, 1, "valid", 1, 1)


def conv1d_unbatched(x, w):
    return torch.conv1d(x, w, None, 1, "same", 1, 1)


def conv_transpose1d(x, w):
    return torch.conv_transpose1d(x, w, None, 2, 1, 0, 1, 1)


def addmm_integers(x, y, b):
    return torch.addmm(b, x, y, beta=2, alpha=3)


def matmul_of_integers(x, w):
    return torch.matmul(x, w)


def pad_reflect_1d(x):
    return torch.nn.functional.pad(x, [2, 1], "reflect")


def pad_integers(x):
    return torch.nn.functional.pad(x, [1, 0, 0, 1])


def tile_known_size(x):
    return x.tile([2, 3]) + x.tile([2, 3])


def conv_transposed(x, w, b):
    return torch.conv_transpose2d(x, w, b, [2, 2], [1, 1], [1, 0], 1, [1, 2])


def matmul_bias(x, w, b):
    return torch.matmul(x, w) + b


def addmm_plain(x, w, b):
    return torch.addmm(b, x, w)


def addmm_scaled(x, y, b):
    return torch.addmm(b, x, y, beta=0.5, alpha=2)


def addmm_beta_0(x, y, b):
    return torch.addmm(b, x, y, beta=0)


def linear_in_both_branches(x, w, b):
    if x.dim() == 2:  # noqa: SIM108
        y = torch.nn.functional.linear(x, w, b)
    else:
        y = torch.nn.functional.linear(x, w, b)
    return y


def casts(x, y):
    return (
        x.to(y) + x.to("cpu") + x.float() + x.to(dtype=torch.float64).to(torch.float32)
    )


def same_casts(x):
    return (x > 0).to(torch.bool), x.to(x.dtype)


def as_type(x, y):
    return x.type_as(y) + y


def tile(x):
    return x.tile([2]) + x.tile([1, 2])


def views(x, y):
    return x.view(-1) + y.view_as(x).reshape_as(x).view(-1)


def floor_division(x, y):
    return torch.floor_divide(x, y) + x // -3


def native_attention(q, wi, bi, wo, bo):
    a, b = torch._native_multi_head_attention(
        q, q, q, 8, 2, wi, bi, wo, bo, None, True, True, None
    )
    return a, b


def copies(x):
    return x.clone() + x.contiguous() + x.detach()


def dropout(x):
    y = torch.feature_dropout(torch.dropout(x, 0.5, False), 0.1, False)
    return torch.alpha_dropout(y, 0.0, True)


def select_scatter_unknown_index(x, y, i: int):
    return torch.select_scatter(x, y, 0, i)


def silu_and_relu(x):
    return torch.relu(torch.nn.functional.silu(x))


def tokens_of_a_convolution(x, kernel, positions, weight, bias, scale):
    y = torch._convolution(
        x, kernel, None, [1], [0], [1], False, [0], 1, False, False, True, True
    )
    y = y.transpose(1, 2) + positions
    z = torch.nn.functional.layer_norm(y, [4], scale, bias)
    z = torch.nn.functional.gelu(torch.nn.functional.linear(z, weight, bias))
    return y + z * scale


def patches_as_tokens(x, kernel):
    y = torch._convolution(
        x, kernel, None, [2], [0], [1], False, [0], 1, False, False, True, True
    )
    return y.flatten(2).transpose(1, 2)


def optional_by_data(x):
    y: torch.Tensor | None = None
    if bool(x.sum() > 0):
        y = x * 2
    if bool(x[0] < 0):
        y = x - 1
    if y is not None:
        return y + x
    return x


def embedding_with_max_norm(index, weight):
    torch.embedding_renorm_(weight.detach(), index, 1.0, 2.0)
    return torch.embedding(weight, index)


def fake_quantize(x, scale, zero_point):
    return torch.fake_quantize_per_tensor_affine(x, scale, zero_point, 0, 255)


def calls_helper(x):
    return _helper(x) * _helper(x + 1)


def _helper(x):
    return torch.relu(x) + 1


def encoder_layer(x, wi, bi, wo, bo, n, w1, b1, w2, b2):
    return torch._transformer_encoder_layer_fwd(
        x,
        8,
        2,
        wi,
        bi,
        wo,
        bo,
        True,
        False,
        1e-5,
        n,
        n,
        n,
        n,
        w1,
        b1,
        w2,
        b2,
        None,
        None,
    )


def half_and_back(graph):
    """A policy that computes every relu in half precision."""
    for node in graph.findAllNodes("aten::relu", True):
        if node.inputsAt(0).node().kind() != "aten::to":
            emit = Emit(graph, node)
            half = emit.op("aten::to", node.inputsAt(0), 5, False, False, None)
            back = emit.op(
                "aten::to", emit.op("aten::relu", half), 6, False, False, None
            )
            node.output().replaceAllUsesWith(back)
            node.destroy()


MAT, VEC = floats(4, 3), floats(3)
_Q = tuple(floats(2, 4, 5, 8) for _ in range(3))
_GROUPED = (floats(2, 4, 5, 8), floats(2, 2, 6, 8), floats(2, 2, 6, 8))
_MASK = torch.tensor(
    [[True, False, True, True, False], [False] * 5, [True] * 5, [True] * 5, [True] * 5]
)
_INTS = (torch.tensor([7, -7, 6, -6, 0]), torch.tensor([3, 3, -4, -4, 5]))
_X = floats(3, 4)
_W = torch.tensor([[1, 2, 3], [4, 5, 6]])
_LAYER = (
    floats(24, 8),
    floats(24),
    floats(8, 8),
    floats(8),
    floats(8),
    floats(16, 8),
    floats(16),
    floats(8, 16),
    floats(8),
)
_NATIVE = (floats(24, 8), floats(24), floats(8, 8), floats(8))

UNROLLED = "prim::Loop"
CASES = (
    Case(
        "inline",
        calls_helper,
        (_X,),
        ("prim::CallFunction",),
        ("aten::relu",),
        calls=True,
        raw=True,
        alone=True,
    ),
    Case(
        "mark-fallback",
        """graph(%x : Tensor):
          %y : Tensor = aten::relu(%x)
          return (%y)""",
        (_X,),
        (),
        ("aten::relu(",),
        name="graph without module names",
        context=Context(fallback_modules=("Swish",)),
        alone=True,
    ),
    Case(
        "remove-guards",
        """graph(%x : Tensor):
          %y : Tensor = prim::unchecked_cast(%x)
          %z : Tensor = aten::relu(%y)
          return (%z)""",
        (_X,),
        ("unchecked_cast",),
        ("aten::relu",),
        alone=True,
    ),
    Case(
        "precision",
        silu_and_relu,
        (_X,),
        (),
        ("aten::to",),
        context=Context(precision=half_and_back),
        name="a policy",
    ),
    Case("precision", silu_and_relu, (_X,), (), ("aten::silu",), name="no policy"),
    Case(
        "pool-constants",
        """graph(%x : Tensor, %v : Tensor, %w : Tensor):
          %one : int = prim::Constant[value=1]()
          %uno : int = prim::Constant[value=1]()
          %half : float = prim::Constant[value=0.5]()
          %y : Tensor = aten::add(%x, %v, %one)
          %z : Tensor = aten::add(%y, %w, %uno)
          %u : Tensor = aten::mul(%z, %half)
          return (%u)""",
        (_X,),
        (),
        ("aten::add",),
        (torch.ones(4), torch.ones(4)),
        raw=True,
        alone=True,
    ),
    Case(
        "unpack-transformer-encoder-layer",
        encoder_layer,
        (floats(2, 3, 8),),
        ("_transformer_encoder_layer_fwd",),
        ("aten::layer_norm", "aten::softmax"),
        _LAYER,
    ),
    Case(
        "peephole",
        inverse_pairs,
        (_X,),
        ("aten::t(", "transpose", "permute", "neg", "expand"),
        ("aten::reshape",),
    ),
    Case("peephole", nested_cat, (_X,), (), ("aten::cat",)),
    Case("remove-full-slices", full_slice, (_X,), ("aten::slice",), ("aten::select",)),
    Case("flatten-inputs", optional, (_X,), (), (), name="optional input"),
    Case(
        "flatten-inputs",
        pair,
        (_X, _X, _X),
        (),
        ("prim::TupleConstruct",),
        name="tuple",
    ),
    Case(
        "flatten-outputs",
        nested_output,
        (_X,),
        ("prim::DictConstruct",),
        ("aten::add",),
    ),
    Case(
        "resolve-environment",
        environment_queries,
        (_X,),
        ("is_grad_enabled", "requires_grad(", "prim::device"),
        ("aten::add",),
    ),
    Case(
        "propagate-constants",
        constant_sum,
        (_X,),
        ("aten::mul",),
        ("aten::add",),
        raw=True,
    ),
    Case(
        "eliminate-exceptions",
        guard,
        (_X,),
        ("prim::If", "RaiseException"),
        ("aten::add",),
    ),
    Case(
        "eliminate-exceptions",
        nested_guard,
        (_X,),
        ("prim::If", "RaiseException"),
        ("aten::add",),
        name="nested",
    ),
    Case(
        "select-by-size",
        """graph(%x : Tensor):
          %none : NoneType = prim::Constant()
          %zero : int = prim::Constant[value=0]()
          %one : int = prim::Constant[value=1]()
          %five : int = prim::Constant[value=5]()
          %n : int = aten::size(%x, %one)
          %long : bool = aten::gt(%n, %five)
          %y : Tensor = prim::If(%long)
            block0():
              %cut : Tensor = aten::slice(%x, %one, %none, %five, %one)
              -> (%cut)
            block1():
              %missing : int = aten::sub(%five, %n)
              %amounts : int[] = prim::ListConstruct(%zero, %missing)
              %padded : Tensor = aten::constant_pad_nd(%x, %amounts, %zero)
              -> (%padded)
          return (%y)""",
        (floats(2, 4),),
        (),
        ("prim::If",),
    ),
    Case(
        "resolve-static-ifs",
        """graph(%x : Tensor):
          %yes : bool = prim::Constant[value=1]()
          %y : Tensor = prim::If(%yes)
            block0():
              %a : Tensor = aten::relu(%x)
              -> (%a)
            block1():
              -> (%x)
          return (%y)""",
        (_X,),
        ("prim::If",),
        ("aten::relu",),
        raw=True,
    ),
    Case(
        "fold-none-in-loops",
        none_in_loop,
        (_X,),
        ("Tensor?", "aten::__is__"),
        ("prim::Loop", "aten::mul"),
    ),
    Case(
        "fold-none-in-loops",
        none_before_loop,
        (_X,),
        ("aten::__is__",),
        ("prim::Loop", "aten::sub"),
        context=Context(
            specs=(TensorSpec("float32", ("n", 4), dims={"n": (1, 3, 8)}),)
        ),
        name="only before",
    ),
    Case(
        "fold-none-in-loops",
        none_before_loop,
        (_X,),
        (),
        ("prim::Loop", "aten::__is__"),
        context=Context(
            specs=(TensorSpec("float32", ("n", 4), dims={"n": (0, 3, 8)}),)
        ),
        name="no iteration",
    ),
    Case(
        "remove-empty-updates", empty_update, (_X,), ("aten::update",), ("aten::mul",)
    ),
    Case("unroll-loops", loop, (_X,), (UNROLLED,), ("aten::mul",)),
    Case(
        "unroll-loops", nested_loops, (_X,), (UNROLLED,), ("aten::add",), name="nested"
    ),
    Case(
        "unroll-loops",
        loop,
        (_X,),
        (),
        (UNROLLED,),
        context=Context(unroll_limit=2),
        name="beyond the limit",
    ),
    Case("remove-dropout", dropout, (_X,), ("dropout",), ()),
    Case(
        "unify-fake-quantize",
        fake_quantize,
        (_X,),
        ("Float(1",),
        ("float = prim::Constant[value=0.25]", "fake_quantize_per_tensor_affine"),
        (torch.tensor([0.25]), torch.tensor([3], dtype=torch.int32)),
    ),
    Case(
        "renormalize-embeddings",
        embedding_with_max_norm,
        (torch.tensor([[0, 2], [1, 2]]),),
        ("embedding_renorm_",),
        ("aten::embedding",),
        (floats(3, 4),),
    ),
    Case("functionalize", in_place, (_X,), ("copy_",), ("aten::cat",)),
    Case(
        "peephole-lists",
        list_of_two,
        (_X,),
        ("__getitem__", "aten::len"),
        ("aten::mul",),
    ),
    Case(
        "fold-string-lengths", condition_on_text, (_X,), ("aten::len",), ("aten::ne",)
    ),
    Case("lower-tuples", tuples, (_X,), ("Tuple",), ("aten::mul",)),
    Case(
        "split-optionals",
        optional_by_data,
        (torch.tensor([-1.0, 3.0]),),
        ("Tensor?", "__isnot__"),
        ("prim::Uninitialized",),
    ),
    Case(
        "eliminate-common-subexpressions", equal_operators, (_X,), (), ("aten::relu",)
    ),
    Case(
        "eliminate-dead-code",
        """graph(%x : Tensor):
          %y : Tensor = aten::relu(%x)
          %z : Tensor = aten::mul(%y, %y)
          return (%y)""",
        (_X,),
        ("aten::mul",),
        ("aten::relu",),
        raw=True,
    ),
    Case(
        "view-to-reshape",
        views,
        (floats(3, 4), floats(12)),
        ("aten::view", "reshape_as"),
        ("aten::reshape",),
    ),
    Case("remove-contiguous", copies, (_X,), ("contiguous",), ("aten::clone",)),
    Case("remove-clone", copies, (_X,), ("clone",), ("aten::detach",)),
    Case("remove-detach", copies, (_X,), ("detach",), ("aten::clone",)),
    Case(
        "unpack-native-multi-head-attention",
        native_attention,
        (floats(2, 3, 8),),
        ("_native",),
        ("aten::softmax",),
        _NATIVE,
    ),
    Case(
        "unpack-scaled-dot-product-attention",
        attention,
        _Q,
        ("scaled_dot",),
        ("aten::softmax",),
        name="scale",
    ),
    Case(
        "unpack-scaled-dot-product-attention",
        attention_causal,
        _Q,
        ("scaled_dot",),
        ("aten::softmax",),
        name="causal",
    ),
    Case(
        "unpack-scaled-dot-product-attention",
        attention_masked,
        (*_Q, _MASK),
        ("scaled_dot",),
        ("softmax",),
        name="bool mask",
    ),
    Case(
        "unpack-scaled-dot-product-attention",
        attention_masked,
        (*_Q, floats(5, 5)),
        ("scaled_dot",),
        (),
        name="float mask",
    ),
    Case(
        "unpack-scaled-dot-product-attention",
        attention_grouped,
        _GROUPED,
        ("scaled_dot",),
        (),
        name="grouped",
    ),
    Case(
        "unpack-pad",
        pad_constant,
        (_X,),
        ("aten::pad",),
        ("constant_pad_nd",),
        name="constant",
    ),
    Case(
        "unpack-pad",
        pad_reflect_3d,
        (floats(1, 2, 3, 4, 5),),
        ("aten::pad",),
        ("reflection_pad3d",),
        name="reflect",
    ),
    Case(
        "unpack-pad",
        pad_replicate,
        (floats(1, 2, 3, 4),),
        ("aten::pad",),
        ("replication_pad2d",),
        name="replicate",
    ),
    Case(
        "unpack-pad",
        pad_circular,
        (floats(1, 2, 3, 4),),
        ("aten::pad",),
        ("aten::cat",),
        name="circular",
    ),
    Case(
        "unpack-pad",
        pad_circular_cropping,
        (floats(1, 2, 3, 4),),
        ("aten::pad",),
        ("aten::cat",),
        name="circular, cropping",
    ),
    Case(
        "unify-convolutions",
        conv1d_same,
        (floats(1, 2, 9),),
        ("conv1d",),
        ("_convolution",),
        (floats(3, 2, 4),),
        name="same",
    ),
    Case(
        "unify-convolutions",
        conv2d_grouped,
        (floats(1, 4, 9, 9),),
        ("conv2d",),
        ("_convolution",),
        (floats(6, 2, 3, 3), floats(6)),
    ),
    Case(
        "unify-convolutions",
        conv2d_grouped,
        (floats(4, 9, 9),),
        (),
        ("aten::conv2d",),
        (floats(6, 2, 3, 3), floats(6)),
        context=Context(specs=(TensorSpec("float32", (4, 9, 9)),)),
        name="no batch",
    ),
    Case(
        "unify-convolutions",
        conv1d_unbatched,
        (floats(2, 9).double(),),
        (),
        ("aten::conv1d",),
        (floats(3, 2, 4).double(),),
        context=Context(specs=(TensorSpec("float64", (2, 9)),)),
        name="no batch, float64",
    ),
    Case(
        "unify-convolutions",
        conv_transpose1d,
        (floats(2, 3, 5),),
        ("conv_transpose1d",),
        ("_convolution",),
        (floats(3, 2, 4),),
    ),
    Case(
        "unpack-addmm",
        addmm_integers,
        (_W, _W.t(), torch.ones(2, 2, dtype=torch.int64)),
        ("addmm",),
        ("matmul",),
    ),
    Case(
        "fuse-linear",
        matmul_of_integers,
        (_W,),
        (),
        ("aten::matmul",),
        (_W.t(),),
        name="integers stay",
    ),
    Case(
        "fuse-linear",
        matmul_bias,
        (_X,),
        (),
        ("aten::linear", "aten::add"),
        (MAT, floats(1, 3)),
        name="no bias",
    ),
    Case(
        "unpack-pad",
        pad_reflect_1d,
        (floats(2, 3, 4),),
        ("aten::pad",),
        ("reflection_pad1d",),
        name="reflect 1-D",
    ),
    Case(
        "unpack-pad",
        pad_integers,
        (torch.tensor([[1, 2]]),),
        ("aten::pad",),
        ("constant_pad",),
        name="integers",
    ),
    Case(
        "tile-to-repeat",
        tile_known_size,
        (floats(4),),
        ("aten::tile",),
        ("aten::repeat",),
    ),
    Case(
        "unify-convolutions",
        conv3d_valid,
        (floats(1, 2, 4, 4, 4),),
        ("conv3d",),
        ("_convolution",),
        (floats(3, 2, 2, 2, 2),),
    ),
    Case(
        "unify-convolutions",
        conv_transposed,
        (floats(1, 2, 5, 5),),
        ("transpose2d",),
        ("_convolution",),
        (floats(2, 3, 3, 3), floats(3)),
    ),
    Case(
        "unpack-aliases",
        """graph(%x : Tensor, %y : Tensor):
          %z : Tensor = aten::multiply(%x, %y)
          %w : Tensor = aten::true_divide(%z, %y)
          return (%w)""",
        (_X, floats(3, 4)),
        ("true_divide", "multiply"),
        ("aten::div", "aten::mul"),
    ),
    Case("unpack-silu", silu, (_X,), ("silu",), ("aten::sigmoid",)),
    Case(
        "unpack-floor-divide",
        floor_division,
        _INTS,
        ("floor_divide",),
        ("aten::div",),
        name="integers",
    ),
    Case("unpack-rsqrt", rsqrt, (floats(4).abs(),), ("rsqrt",), ("aten::reciprocal",)),
    Case(
        "unpack-select-scatter",
        select_scatter_unknown_index,
        (_X, floats(4), -1),
        ("select_scatter",),
        ("aten::where",),
    ),
    Case("tile-to-repeat", tile, (_X,), ("aten::tile",), ("aten::repeat",)),
    Case(
        "fuse-linear",
        matmul_bias,
        (floats(2, 5, 4),),
        ("aten::add",),
        ("aten::linear",),
        (MAT, VEC),
    ),
    Case(
        "fuse-linear",
        addmm_plain,
        (_X,),
        ("aten::addmm",),
        ("aten::linear",),
        (MAT, VEC),
        name="addmm",
    ),
    Case(
        "fuse-addmm-branches",
        linear_in_both_branches,
        (_X,),
        ("prim::If",),
        ("aten::linear",),
        (MAT.t(), VEC),
    ),
    Case("unpack-addmm", addmm_scaled, (_X, MAT, VEC), ("addmm",), ("aten::matmul",)),
    Case(
        "unpack-addmm",
        addmm_beta_0,
        (_X, MAT, VEC * float("nan")),
        ("addmm",),
        ("aten::matmul",),
        name="beta 0",
    ),
    Case("unpack-type-as", as_type, (_X, _X.double()), ("type_as",), ("aten::to",)),
    Case("unify-to", casts, (_X, _X.double()), ("Device",), ("aten::to",)),
    Case(
        "split-complex",
        rotary_embedding,
        (floats(3, 4, 2), floats(3, 4)),
        ("view_as", "polar", "complex"),
        ("aten::cos",),
    ),
    Case(
        "split-complex",
        """graph(%x : Tensor, %c : Tensor):
          %z : Tensor = aten::mul(%x, %c)
          %y : Tensor = aten::abs(%z)
          return (%y)""",
        (floats(3, 4),),
        ("aten::abs",),
        ("aten::hypot",),
        params=(torch.complex(floats(3, 4), floats(4, 3).t()),),
        name="a constant",
    ),
    Case(
        "split-complex",
        spectrum,
        (floats(40),),
        ("aten::abs",),
        ("aten::stft", "aten::hypot"),
    ),
    Case(
        "fold-known-facts", dtype_of_comparison, (_X,), ("prim::If",), ("logical_not",)
    ),
    Case("remove-casts", same_casts, (_X,), ("aten::to",), ("aten::gt",)),
    Case(
        "masks-to-where",
        masked_update,
        (_X,),
        ("aten::index",),
        ("aten::where",),
        context=Context(
            specs=(TensorSpec("float32", ("n", 4), dims={"n": (1, 3, 8)}),)
        ),
    ),
    Case(
        "fold-scalar-chains",
        """graph(%x : Tensor, %two : Tensor):
          %zero : int = prim::Constant[value=0]()
          %n : int = aten::size(%x, %zero)
          %t : Tensor = prim::NumToTensor(%n)
          %m : Tensor = aten::mul(%t, %two)
          %k : int = aten::Int(%m)
          %y : Tensor = aten::mul(%x, %k)
          return (%y)""",
        (_X,),
        ("NumToTensor", "aten::Int"),
        ("aten::mul",),
        (torch.tensor(2),),
    ),
    Case(
        "fold-scalar-tensors",
        """graph(%x : Tensor, %w : Tensor, %half : Tensor):
          %none : NoneType = prim::Constant()
          %y : Tensor = aten::linear(%x, %w, %none)
          %z : Tensor = aten::mul(%y, %half)
          return (%z)""",
        (_X,),
        ("device=cpu) = prim::Constant[value={0.5}]",),
        ("float = prim::Constant[value=0.5]",),
        (MAT.t(), torch.tensor(0.5)),
    ),
    Case(
        "scale-queries",
        weights("%a = aten::matmul(%q, %k)", "%b = aten::div(%a, %root)"),
        (_X,),
        ("aten::div(%8",),
        ("aten::div(%5",),
        (MAT.t(),),
    ),
    Case(
        "fold-query-scale",
        weights("%a = aten::div(%q, %root)", "%b = aten::matmul(%a, %k)", keys="%x"),
        (_X,),
        ("aten::div",),
        (),
        (floats(4, 4),),
    ),
    Case(
        "flatten-tokens",
        tokens_of_a_convolution,
        (floats(2, 3, 5),),
        (),
        ("aten::reshape(",),
        (floats(4, 3, 2), floats(1, 4, 4), floats(4, 4), floats(4), floats(4)),
        Context(specs=(TensorSpec("float32", (2, 3, 5)),), weakly_typed=True),
    ),
    Case(
        "patches-to-linear",
        patches_as_tokens,
        (floats(2, 3, 4, 6),),
        ("aten::_convolution",),
        ("aten::linear",),
        (floats(5, 3, 2, 2),),
        Context(specs=(TensorSpec("float32", (2, 3, 4, 6)),), weakly_typed=True),
    ),
    Case(
        "scale-scores",
        weights("%a = aten::div(%q, %root)", "%b = aten::matmul(%a, %k)"),
        (_X,),
        ("aten::div(%6",),
        ("aten::div(%8",),
        (MAT.t(),),
    ),
    Case(
        "fold-widths",
        """graph(%x : Tensor, %w : Tensor):
          %none : NoneType = prim::Constant()
          %last : int = prim::Constant[value=-1]()
          %two : int = prim::Constant[value=2]()
          %y : Tensor = aten::linear(%x, %w, %none)
          %width : int = aten::size(%y, %last)
          %half : int = aten::floordiv(%width, %two)
          %sizes : int[] = prim::ListConstruct(%last, %half)
          %z : Tensor = aten::reshape(%y, %sizes)
          return (%z)""",
        (_X,),
        ("aten::size",),
        ("aten::reshape",),
        (floats(4, 4),),
    ),
    Case(
        "fold-widths",
        """graph(%x : Tensor, %y : Tensor, %w : Tensor):
          %none : NoneType = prim::Constant()
          %zero : int = prim::Constant[value=0]()
          %one : int = prim::Constant[value=1]()
          %last : int = prim::Constant[value=2]()
          %sum : Tensor = aten::add(%x, %y, %one)
          %t : Tensor = aten::transpose(%sum, %zero, %one)
          %width : int = aten::size(%t, %last)
          %z : Tensor = aten::linear(%t, %w, %none)
          %s : Tensor = aten::mul(%z, %width)
          return (%s)""",
        (floats(3, 5, 4), floats(3, 5, 4)),
        ("aten::size",),
        ("aten::mul",),
        (floats(4, 4),),
        context=Context(
            specs=(TensorSpec("float32", (3, 5, 4)), TensorSpec("float32", (3, 5, 4)))
        ),
        name="read by a layer alone",
    ),
    Case(
        "split-projections",
        """graph(%x : Tensor, %w : Tensor):
          %none : NoneType = prim::Constant()
          %last : int = prim::Constant[value=-1]()
          %before : int = prim::Constant[value=-2]()
          %two : int = prim::Constant[value=2]()
          %y : Tensor = aten::linear(%x, %w, %none)
          %parts : Tensor[] = aten::chunk(%y, %two, %last)
          %q : Tensor, %k : Tensor = prim::ListUnpack(%parts)
          %t : Tensor = aten::transpose(%k, %last, %before)
          %scores : Tensor = aten::matmul(%q, %t)
          return (%scores)""",
        (_X,),
        ("aten::chunk",),
        ("aten::linear(%x",),
        (floats(6, 4),),
        context=Context(specs=(TensorSpec("float32", (3, 4)),)),
    ),
    Case(
        "merge-reshapes",
        """graph(%x : Tensor):
          %zero : int = prim::Constant[value=0]()
          %one : int = prim::Constant[value=1]()
          %two : int = prim::Constant[value=2]()
          %t : int = aten::size(%x, %zero)
          %b : int = aten::size(%x, %one)
          %bh : int = aten::mul(%b, %two)
          %joined : int[] = prim::ListConstruct(%t, %bh, %two)
          %y : Tensor = aten::reshape(%x, %joined)
          %z : Tensor = aten::transpose(%y, %zero, %one)
          %apart : int[] = prim::ListConstruct(%b, %two, %t, %two)
          %heads : Tensor = aten::reshape(%z, %apart)
          return (%heads)""",
        (floats(3, 5, 4),),
        ("aten::transpose",),
        ("aten::permute",),
    ),
    Case(
        "sink-transposes",
        """graph(%x : Tensor, %w : Tensor):
          %none : NoneType = prim::Constant()
          %zero : int = prim::Constant[value=0]()
          %one : int = prim::Constant[value=1]()
          %two : int = prim::Constant[value=2]()
          %b : int = aten::size(%x, %zero)
          %t : int = aten::size(%x, %one)
          %y : Tensor = aten::transpose(%x, %zero, %one)
          %z : Tensor = aten::linear(%y, %w, %none)
          %apart : int[] = prim::ListConstruct(%t, %b, %two, %two)
          %heads : Tensor = aten::reshape(%z, %apart)
          %order : int[] = prim::Constant[value=[1, 2, 0, 3]]()
          %first : Tensor = aten::permute(%heads, %order)
          return (%first)""",
        (floats(3, 5, 4),),
        ("aten::transpose", "[1, 2, 0, 3]"),
        ("aten::linear(%x", "[0, 2, 1, 3]"),
        (floats(4, 4),),
        context=Context(
            specs=(
                TensorSpec(
                    "float32", ("b", "t", 4), dims={"b": (1, 2, 8), "t": (1, 4, 16)}
                ),
            )
        ),
    ),
    Case("fold-sizes", size_chain, (_X,), ("__getitem__",), ("aten::size",)),
    Case("fold-sizes", unpacked_sizes, (_X,), ("prim::ListUnpack",), ("aten::size",)),
)
