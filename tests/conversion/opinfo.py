"""Run the samples of torch's own operator database, which are independent of trt-build.

    python -m tests.conversion.opinfo [--dynamic] [family or operator ...]

This prints a line for each operator, and the failures. Each operator of FAMILIES that `op_db` has
is run on its samples in float32, int64 and bool. The tensors of a sample become inputs, everything
else constants. The traced function is converted, and the network's reference is compared with
torch. With --dynamic the axes of two sizes are dynamic, and the network is also run at other sizes
for which the traced file runs.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from unittest import mock

import torch
from torch.utils import _pytree as pytree

import builder
from builder.engine import capabilities
from builder.errors import LoweringError, TrtBuildError, UnsupportedOperators
from tests.conversion import old
from tests.conversion.harness import carried, spec_of
from tests.torchscript.saving import traced

DTYPES = (torch.float32, torch.int64, torch.bool)
RTOL = ATOL = 2e-5
"""Sums of up to 200 terms in another order than torch's (200 * 2^-24 is 1.2e-5), and a few ulp for
the rest.
"""
WIDER = {
    # Four products in a row of values up to 9: terms near 600 cancel to 0.5, which keeps 600 / 0.5
    # * 2^-24 = 7e-5.
    "nn.functional.multi_head_attention_forward": 3e-4,
    # A distance of 0.0125 is the root of a difference of squares near 8: their error, 2^-20, is
    # divided by twice the distance.
    "cdist": 1e-4,
}
"""Operators whose samples need a larger tolerance, with the reasons."""
ANY_OF_EQUALS = ("kthvalue", "median", "mode", "nanmedian", "topk")
"""torch does not document which of several equal elements it returns, so the second output is not
compared.
"""

SORTED = ("bucketize", "searchsorted")
"""Operators that need a sorted sequence. `_resized` does not keep the order."""
CHANGES = ((0, 0), (1, -1), (2, 0))
"""The changes of the two dynamic sizes of a sample."""

FAMILIES: dict[str, str] = {
    "elementwise": (
        """
        __radd__ __rand__ __rdiv__ __rmod__ __rmul__ __ror__ __rpow__ __rsub__ __rxor__ add addcdiv addcmul atan2
        bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor clamp clamp_max clamp_min
        div eq floor_divide fmax fmin fmod ge gt isfinite isinf isnan isneginf isposinf le lerp logical_and logical_not
        logical_or logical_xor lt masked_fill maximum max minimum min mul nan_to_num ne pow remainder rsub sub
        true_divide where"""
    ),
    "unary": (
        """
        abs acos acosh asin asinh atan atanh ceil cos cosh deg2rad erf erfc exp exp2 expm1 floor frac log log10 log1p
        log2 logit neg positive rad2deg reciprocal round rsqrt sgn sigmoid sign sin sinc sinh sqrt square tan tanh
        trunc"""
    ),
    "activation": (
        """
        nn.functional.celu nn.functional.elu nn.functional.gelu nn.functional.glu nn.functional.hardshrink
        nn.functional.hardsigmoid nn.functional.hardswish nn.functional.hardtanh nn.functional.leaky_relu
        nn.functional.logsigmoid nn.functional.mish nn.functional.prelu nn.functional.relu nn.functional.relu6
        nn.functional.selu nn.functional.silu nn.functional.softplus nn.functional.softshrink nn.functional.softsign
        nn.functional.tanhshrink nn.functional.threshold"""
    ),
    "reduction": (
        """
        all amax amin aminmax any argmax argmin argsort cdist count_nonzero cumprod cumsum dist kthvalue linalg.norm
        linalg.matrix_norm linalg.vector_norm log_softmax logsumexp mean msort nn.functional.cosine_similarity
        nn.functional.normalize nn.functional.pairwise_distance nn.functional.softmin norm prod softmax sort std
        std_mean sum topk var var_mean"""
    ),
    "normalization": (
        """
        native_batch_norm native_layer_norm nn.functional.batch_norm nn.functional.group_norm
        nn.functional.instance_norm nn.functional.layer_norm nn.functional.local_response_norm
        nn.functional.rms_norm"""
    ),
    "shape": (
        """
        atleast_1d atleast_2d atleast_3d block_diag broadcast_tensors broadcast_to cat chunk column_stack
        constant_pad_nd cross linalg.cross diag_embed diagonal diff dsplit dstack expand expand_as flatten flip fliplr
        flipud hsplit hstack meshgrid movedim narrow nn.functional.channel_shuffle nn.functional.pad
        nn.functional.pixel_shuffle nn.functional.pixel_unshuffle nn.functional.unfold permute ravel repeat
        repeat_interleave reshape reshape_as roll rot90 split split_with_sizes squeeze stack t tensor_split tile
        transpose tril triu unbind unflatten unfold unsafe_chunk unsafe_split unsqueeze view view_as vsplit vstack"""
    ),
    "selecting": (
        """
        bucketize gather index_add index_copy index_fill index_put index_select masked_select
        nn.functional.embedding nn.functional.one_hot nonzero scatter scatter_add scatter_reduce searchsorted select
        select_scatter slice slice_scatter take take_along_dim __getitem__"""
    ),
    "creation and casting": (
        """
        bool byte char clone contiguous float full_like half int long new_full new_ones new_zeros ones_like to
        zeros_like linspace"""
    ),
    "linear": (
        """
        __rmatmul__ addbmm addmm addmv addr baddbmm bmm dot einsum inner linalg.multi_dot linalg.vecdot matmul mm mv
        nn.functional.bilinear nn.functional.linear outer tensordot vdot kron"""
    ),
    "convolution and pooling": (
        """
        nn.functional.adaptive_avg_pool1d nn.functional.adaptive_avg_pool2d nn.functional.adaptive_avg_pool3d
        nn.functional.adaptive_max_pool1d nn.functional.adaptive_max_pool2d nn.functional.adaptive_max_pool3d
        nn.functional.avg_pool1d nn.functional.avg_pool2d nn.functional.avg_pool3d nn.functional.conv1d
        nn.functional.conv2d nn.functional.conv3d nn.functional.conv_transpose1d nn.functional.conv_transpose2d
        nn.functional.conv_transpose3d nn.functional.max_pool1d nn.functional.max_pool2d nn.functional.max_pool3d
        nn.functional.grid_sample nn.functional.interpolate nn.functional.upsample_bilinear
        nn.functional.upsample_nearest _upsample_bilinear2d_aa grid_sampler_2d"""
    ),
    "losses": (
        """
        nn.functional.binary_cross_entropy nn.functional.binary_cross_entropy_with_logits
        nn.functional.cosine_embedding_loss nn.functional.cross_entropy nn.functional.gaussian_nll_loss
        nn.functional.hinge_embedding_loss nn.functional.huber_loss nn.functional.kl_div nn.functional.l1_loss
        nn.functional.margin_ranking_loss nn.functional.mse_loss nn.functional.multi_margin_loss
        nn.functional.multilabel_soft_margin_loss nn.functional.nll_loss nn.functional.poisson_nll_loss
        nn.functional.smooth_l1_loss nn.functional.soft_margin_loss nn.functional.triplet_margin_loss"""
    ),
    "composed": (
        """
        H T angle argwhere cartesian_prod combinations conj conj_physical copysign corrcoef cov cummax cummin
        cumulative_trapezoid diag diagflat grid_sampler_3d heaviside hypot index_reduce isclose isin isreal ldexp
        linalg.diagonal linalg.matrix_power logaddexp logaddexp2 logcumsumexp mH mT masked_scatter median mode nanmean
        nanmedian nanquantile nansum native_group_norm nn.functional.dropout nn.functional.embedding_bag
        nn.functional.max_unpool1d nn.functional.max_unpool2d nn.functional.max_unpool3d put quantile real
        resolve_conj resolve_neg signbit special.entr special.log_ndtr special.ndtr special.xlog1py sum_to_size
        torch.ops.aten._safe_softmax.default trace trapezoid trapz unravel_index xlogy"""
    ),
    "refused": (
        """
        as_strided bernoulli bincount cholesky digamma erfinv float_power gcd geqrf histc i0 igamma lcm lgamma
        linalg.inv linalg.solve matrix_exp multinomial nextafter nn.functional.ctc_loss nn.functional.pdist polygamma
        qr randn_like renorm to_sparse triangular_solve unique unique_consecutive"""
    ),
    "attention": (
        "nn.functional.scaled_dot_product_attention nn.functional.multi_head_attention_forward"
    ),
}

LATER = frozenset(["native_group_norm"])
"""Operators that are in the database of torch 2.13, and not in that of 2.11, which the GPU host
has.
"""


@dataclass
class Result:
    """The results of an operator's samples: how many passed, why others are unsupported, how others
    failed.
    """

    name: str
    passed: int = 0
    unsupported: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)

    @property
    def verdict(self) -> str:
        """`failed` if a sample failed, else `passed` if one passed, else `unsupported` (or `no
        sample`).
        """
        if self.failed:
            return "failed"
        return (
            "passed"
            if self.passed
            else "unsupported"
            if self.unsupported
            else "no sample"
        )


def operators(family: str | None = None) -> tuple[str, ...]:
    """The names of the operators of a family, or of all."""
    return tuple(
        name
        for key, names in FAMILIES.items()
        if family in (None, key)
        for name in names.split()
    )


@lru_cache
def _database() -> dict[str, list[Any]]:
    """The entries of op_db by name. An operator may have several: div has one for each rounding
    mode.
    """
    # would make the TF32 setting of all later tests permanent
    with mock.patch("torch.backends.disable_global_flags"):
        from torch.testing._internal.common_methods_invocations import op_db
    entries: dict[str, list[Any]] = {}
    for entry in op_db:
        entries.setdefault(entry.name, []).append(entry)
    return entries


def known(name: str) -> bool:
    """Whether the database of this torch has the operator."""
    return name not in LATER or name in _database()


def run(name: str, limit: int | None = None, dynamic: bool = False) -> Result:
    """Run an operator on its samples; at most `limit` of each entry and dtype, evenly spread. With
    `dynamic` the axes of two sizes are dynamic. Raises KeyError for an unknown operator.
    """
    result = Result(name)
    for entry in _database()[name]:
        for dtype in DTYPES:
            if dtype in entry.supported_dtypes("cpu"):
                for sample in _spread(_samples(entry, dtype), limit):
                    _judge(result, entry, sample, dynamic)
    return result


def _samples(entry: Any, dtype: torch.dtype) -> list[Any]:
    """The samples of torch's own generator, without two expensive steps: its search for a unittest
    on the stack, and the stacks that seeding other devices records for each sample.
    """
    with (
        mock.patch("torch.testing._internal.opinfo.core.extract_test_fn", lambda: None),
        mock.patch(
            "torch.testing._internal.common_utils.extract_test_fn", lambda: None
        ),
        mock.patch("torch.manual_seed", torch.default_generator.manual_seed),
    ):
        torch.manual_seed(0)
        return list(entry.sample_inputs("cpu", dtype, requires_grad=False))


def _spread(samples: list[Any], limit: int | None) -> list[Any]:
    if limit is None or len(samples) <= limit:
        return samples
    return [samples[i * (len(samples) - 1) // max(limit - 1, 1)] for i in range(limit)]


def _judge(result: Result, entry: Any, sample: Any, dynamic: bool) -> None:
    """Count one sample. A sample is skipped if torch cannot trace or run it, or no network can have
    its tensors.
    """
    function, tensors = _as_function(entry, sample)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # some samples move to a GPU
            expected = [
                t.cpu() for t in _tensors(function(*(t.clone() for t in tensors)))
            ]
            module = traced(
                lambda *arguments: tuple(_tensors(function(*arguments))), tensors
            )
        reason = _unfit(tensors, expected)
    except Exception as error:
        reason = f"torch: {str(error).splitlines()[0][:80]}"
    if reason:
        result.skipped[reason] += 1
        return
    try:
        if dynamic:
            _compare_dynamic(result.name, module, tensors)
        else:
            _compare(result.name, module, tensors, expected)
    except UnsupportedOperators as error:
        result.unsupported.update({o.reason for o in error.operators})
    except LoweringError as error:
        result.unsupported[str(error).splitlines()[0]] += 1
    except (TrtBuildError, AssertionError, RuntimeError, ValueError) as error:
        result.failed[
            f"{_words(sample)}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        ] += 1
    else:
        result.passed += 1


def _compare(
    name: str,
    module: Any,
    tensors: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
) -> None:
    conversion = builder.convert(module, [spec_of(t, {}, {}) for t in tensors])
    assert capabilities.current().strongly_typed or not old.refused(conversion.network)
    _evaluate(name, conversion, tensors, expected)


def _compare_dynamic(name: str, module: Any, tensors: Sequence[torch.Tensor]) -> None:
    """Names for axes of the two most frequent sizes; those of a convolution's weight stay static.
    Sizes for which the file itself does not run are left out.
    """
    resized = tensors[:1] if name.startswith("nn.functional.conv") else tensors
    counts = Counter(size for tensor in resized for size in tensor.shape if size > 1)
    named = {size: f"axis{size}" for size, _ in counts.most_common(2)}
    spans = {text: (1, size, size + 2) for size, text in named.items()}
    axes = [
        {at: named[size] for at, size in enumerate(t.shape) if size in named}
        for t in resized
    ]
    axes += [{}] * (len(tensors) - len(resized))
    specs = [spec_of(t, of, spans) for t, of in zip(tensors, axes, strict=True)]
    conversion = builder.convert(module, specs)
    for changes in CHANGES[:1] if name in SORTED else CHANGES:
        sizes = {
            size: size + change for size, change in zip(named, changes, strict=False)
        }
        arguments = [
            *(_resized(tensor, sizes) for tensor in resized),
            *tensors[len(resized) :],
        ]
        try:
            expected = [
                t.cpu() for t in _tensors(module(*(t.clone() for t in arguments)))
            ]
        except RuntimeError:
            continue
        _evaluate(name, conversion, arguments, expected)


def _resized(tensor: torch.Tensor, sizes: Mapping[int, int]) -> torch.Tensor:
    """The tensor with other sizes: cropped, or repeated from the start."""
    for axis, size in enumerate(tensor.shape):
        if size in sizes:
            tensor = tensor.index_select(axis, torch.arange(sizes[size]) % size)
    return tensor.clone()


def _evaluate(
    name: str,
    conversion: Any,
    tensors: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
) -> None:
    """Raise AssertionError if the network's outputs differ from torch's."""
    outputs = builder.reference.run(conversion, tensors)
    assert len(outputs) == len(expected), f"{len(outputs)} outputs for {len(expected)}"
    tolerance = WIDER.get(name, RTOL)
    count = 1 if name in ANY_OF_EQUALS else len(expected)
    for output, truth in zip(outputs[:count], expected[:count], strict=True):
        truth = truth.to(carried(truth.dtype))
        exact = not truth.dtype.is_floating_point
        torch.testing.assert_close(
            output,
            truth,
            rtol=0 if exact else tolerance,
            atol=0 if exact else max(ATOL, tolerance),
            equal_nan=True,
        )


def _as_function(
    entry: Any, sample: Any
) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """The operator as a function of the sample's tensors, and those."""
    tree = (sample.input, tuple(sample.args), dict(sample.kwargs))
    leaves = pytree.tree_leaves(tree)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def function(*arguments: torch.Tensor) -> Any:
        left = iter(arguments)
        first, args, kwargs = pytree.tree_map_only(
            torch.Tensor, lambda _: next(left), tree
        )
        return entry.op(first, *args, **kwargs)

    return function, [t.detach().clone() for t in tensors]


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [t for item in value for t in _tensors(item)]
    raise TypeError(f"an output is a {type(value).__name__}")


def _unfit(
    tensors: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]
) -> str | None:
    """Why a sample cannot be a network's inputs or outputs; None if it can."""
    if not tensors:
        return "no tensor among the arguments"
    for t in tensors:
        if t.dtype in (torch.float64, torch.complex64, torch.complex128, torch.int16):
            return f"an input is {t.dtype}"
        if (
            t.dtype == torch.int64
            and not capabilities.current().has_int64
            and not torch.equal(t, t.int().long())
        ):
            return "8.6 has no int64"
    if not expected:
        return "no output at all"
    return "an output is complex" if any(t.dtype.is_complex for t in expected) else None


def _words(sample: Any) -> str:
    def show(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        return [show(v) for v in value] if isinstance(value, list | tuple) else value

    kwargs = {key: show(value) for key, value in sample.kwargs.items()}
    return f"{show(sample.input)} {[show(a) for a in sample.args]} {kwargs}"


def table(names: Sequence[str] | None = None, limit: int | None = None) -> list[Result]:
    """The results of many operators (all by default), as docs/operators.md shows them. Unknown
    names are left out.
    """
    return [run(name, limit) for name in names or operators() if name in _database()]


def main(arguments: Sequence[str]) -> int:
    """Print the results of these families or operators. Returns 1 if a sample failed."""
    dynamic = "--dynamic" in arguments
    arguments = [word for word in arguments if word != "--dynamic"]
    names = [
        n
        for a in arguments or FAMILIES
        for n in (operators(a) if a in FAMILIES else (a,))
    ]
    failed = 0
    for name in names:
        if name not in _database():
            print(f"{name:45} not in op_db")
            continue
        result = run(name, dynamic=dynamic)
        failed += result.verdict == "failed"
        counts = {
            kind: sum(getattr(result, kind).values())
            for kind in ("unsupported", "failed", "skipped")
        }
        print(
            f"{name:45} {result.verdict:12} passed {result.passed}",
            *(f"{k} {n}" for k, n in counts.items()),
        )
        for kind in (result.unsupported, result.failed, result.skipped):
            for text, count in kind.most_common(None if kind is result.failed else 4):
                print(
                    f"        {count} x {'FAILED ' if kind is result.failed else ''}{text}"
                )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
