"""Reductions, softmax, norms and moments: ranks, axes, dtypes, empty lists, and cases in which
naive formulas lose all digits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from builder.errors import UnsupportedOperators
from tests.conversion.harness import check

SUMS = 1e-5
"""Up to 120 terms in another order than torch's: 120 * 2^-24 = 7e-6."""
GENERATOR = torch.Generator()


def sample(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=GENERATOR.manual_seed(seed)) * 2 + 0.5


REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": torch.sum,
    "mean": torch.mean,
    "amax": torch.amax,
    "amin": torch.amin,
    "any": torch.any,
    "all": torch.all,
    "logsumexp": torch.logsumexp,
    "count_nonzero": lambda x, dim, keepdim=False: torch.count_nonzero(x, dim),
    "norm": lambda x, dim, keepdim=False: torch.linalg.vector_norm(x, 2, dim, keepdim),
    "var": lambda x, dim, keepdim=False: torch.var(x, dim, keepdim=keepdim),
    "std_mean": lambda x, dim, keepdim=False: torch.std_mean(
        x, dim, correction=0, keepdim=keepdim
    ),
}
AXES = [
    ((5,), (0,)),
    ((3, 4), (-1,)),
    ((3, 1, 4), (0, 2)),
    ((2, 3, 4, 5), (1, -1)),
    ((2, 2, 3, 2, 3), (0, 1, 2, 3, 4)),
]


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize(("shape", "axes"), AXES)
@pytest.mark.parametrize("keepdim", [False, True])
def test_axes(
    name: str, shape: tuple[int, ...], axes: tuple[int, ...], keepdim: bool
) -> None:
    check(
        lambda x: REDUCTIONS[name](x, axes, keepdim),
        sample(*shape),
        rtol=SUMS,
        atol=SUMS,
        compile=keepdim,
        dynamic={0: {0: "n"}},
        spans={"n": (2, 4, 9)},
    )


@pytest.mark.parametrize(
    "name",
    [
        "sum",
        "mean",
        "prod",
        "max",
        "min",
        "any",
        "all",
        "var",
        "std",
        "norm",
        "count_nonzero",
    ],
)
@pytest.mark.parametrize("shape", [(), (1,), (4,), (2, 3, 4)])
def test_all_elements(name: str, shape: tuple[int, ...]) -> None:
    reduce = getattr(torch, name)
    if torch.Size(shape).numel() == 1 and name in ("var", "std"):
        return check_nan(reduce, sample(*shape))
    check(reduce, sample(*shape), rtol=SUMS)


def check_nan(function: Callable[..., Any], x: torch.Tensor) -> None:
    """No degrees of freedom: 0 / 0."""
    check(function, x, compile=False)


def test_two_dynamic_axes() -> None:
    x = sample(3, 4, 5)
    for name in ("sum", "var", "std_mean", "logsumexp", "norm"):
        check(
            lambda x, n=name: REDUCTIONS[n](x, (0, 1)),
            x,
            dynamic={0: {0: "n", 1: "m"}},
            rtol=SUMS,
            atol=SUMS,
            more=[(sample(2, 7, 5),), (sample(6, 1, 5),)],
        )


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool])
@pytest.mark.parametrize(
    "name",
    [
        "sum",
        "prod",
        "max",
        "min",
        "amax",
        "amin",
        "any",
        "all",
        "count_nonzero",
        "cumsum",
        "cumprod",
    ],
)
def test_integers_and_bools(name: str, dtype: torch.dtype) -> None:
    x = torch.tensor([[3, 0, 2], [5, 1, 4]]).to(dtype)
    check(lambda x: getattr(torch, name)(x, 1), x, compile=dtype == torch.int64)
    if not name.startswith("cum"):
        check(lambda x: getattr(torch, name)(x), x, compile=False)


@pytest.mark.parametrize(
    "name", ["sum", "mean", "prod", "cumsum", "cumprod", "softmax", "log_softmax"]
)
def test_dtype_argument_is_applied(name: str) -> None:
    function = getattr(torch, name)
    axis = [] if name in ("sum", "mean", "prod") else [0]
    check(
        lambda x: function(x, *axis, dtype=torch.float32),
        torch.tensor([1, 2, 4]),
        rtol=SUMS,
    )
    check(
        lambda x: function(x, 0, dtype=torch.float32),
        sample(40).half(),
        rtol=SUMS,
        compile=False,
    )
    check(
        lambda x: function(x, 0, dtype=torch.float64),
        sample(4).half(),
        rtol=SUMS,
        compile=False,
    )
    if name in ("sum", "prod", "cumsum"):
        check(
            lambda x: function(x, 0, dtype=torch.int32),
            torch.tensor([1.7, -2.7, 3.0]),
            compile=False,
        )


def test_any_of_one_and_minus_one() -> None:
    check(lambda x: torch.any(x, 0), torch.tensor([[1, 0], [-1, 0]]))
    check(lambda x: torch.any(x), torch.tensor([float("nan"), 0.0]))
    check(lambda x: torch.all(x, dim=(0, 1)), torch.tensor([[0.5, -1.0], [1.0, 2.0]]))


@pytest.mark.parametrize("shape", [(0, 4), (2, 0)])
def test_any_and_all_of_empty_tensors(shape: tuple[int, ...]) -> None:
    x = torch.zeros(shape)
    check(
        lambda x: (
            x.any(),
            x.all(),
            x.any(0),
            x.all(1),
            (x > 0).any(-1, keepdim=True),
            x.byte().any(),
        ),
        x,
    )


@pytest.mark.parametrize("shape", [(0,), (3, 0)])
def test_scans_of_empty_tensors(shape: tuple[int, ...]) -> None:
    check(
        lambda x: (
            x.flip(-1),
            x.diff(),
            torch.trapezoid(x),
            torch.cumulative_trapezoid(x, x),
        ),
        torch.zeros(shape),
    )


@pytest.mark.parametrize("function", [torch.median, torch.nanmedian])
def test_median_of_an_empty_tensor_is_refused(function: Callable[..., Any]) -> None:
    for x in (torch.zeros(0), torch.zeros(2, 0).int()):
        with pytest.raises(UnsupportedOperators, match="empty tensor"):
            check(lambda x: function(x), x)


def test_empty_lists_are_all_axes() -> None:
    for name in ("sum", "mean", "amax", "amin", "any"):
        check(lambda x, n=name: getattr(torch, n)(x, ()), sample(2, 3), rtol=SUMS)


def test_logsumexp_of_infinities() -> None:
    inf = float("inf")
    check(
        lambda x: torch.logsumexp(x, 1),
        torch.tensor([[-inf, -inf], [inf, 0.0], [-inf, 2.0], [300.0, 300.0]]),
    )


def test_aminmax() -> None:
    check(lambda x: torch.aminmax(x, dim=1, keepdim=True), sample(3, 4))
    check(torch.aminmax, torch.tensor([3, -1]))


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((), 0), ((5,), -1), ((3, 4), 0), ((2, 3, 4), -2), ((2, 1, 3, 2, 4), 4)],
)
def test_softmax(name: str, shape: tuple[int, ...], axis: int) -> None:
    dynamic = {0: {0: "n"}} if shape else None
    check(
        lambda x: getattr(torch, name)(x, axis),
        sample(*shape),
        dynamic=dynamic,
        rtol=SUMS,
    )
    check(lambda x: getattr(torch, name)(x, axis), sample(*shape).half(), compile=False)


def test_log_softmax_where_softmax_underflows() -> None:
    """softmax(-200) is 0 in float32; its logarithm is -200, not -inf."""
    check(
        lambda x: torch.log_softmax(x, 1),
        torch.tensor([[0.0, -200.0, -90.0], [500.0, 0.0, -500.0]]),
    )


@pytest.mark.parametrize("correction", [0, 1, 2, 0.5, 5])
@pytest.mark.parametrize("name", ["var", "std", "var_mean", "std_mean"])
def test_corrections(name: str, correction: float) -> None:
    """Five values: correction 5 leaves no degree of freedom, and the result is inf."""
    function = getattr(torch, name)
    check(
        lambda x: function(x, 1, correction=correction),
        sample(3, 5),
        rtol=SUMS,
        compile=False,
    )
    check(
        lambda x: function(x, correction=correction, keepdim=True),
        sample(5),
        rtol=SUMS,
        compile=False,
    )
    check(
        lambda x: function(x, 0, correction=correction),
        sample(5, 2),
        dynamic={0: {0: "n"}},
        rtol=SUMS,
    )
    if correction == 1:
        check(
            lambda x: function(x, (0, 1), False), sample(3, 5), rtol=SUMS, compile=False
        )
        check(lambda x: function(x, False), sample(3, 5), rtol=SUMS, compile=False)


def test_variance_has_no_cancellation() -> None:
    """Around 4096 with a deviation of 1/8, exactly representable: E[x^2] - E[x]^2 would be off by 1
    in float32.
    """
    x = 4096 + torch.tensor([[0.125, -0.125, 0.25, -0.25, 0.5, -0.5, 0.0, 0.0]])
    check(lambda x: torch.var(x, 1), x)


@pytest.mark.parametrize("order", [2, 1, 0, 3, 0.5, float("inf"), -float("inf"), -1])
def test_vector_norms(order: float) -> None:
    """Powers: the exponent 1/p of a sum near 100 carries 5 * 2^-24."""
    x = sample(3, 4)
    check(
        lambda x: torch.linalg.vector_norm(x, order, 1),
        x,
        dynamic={0: {0: "n"}},
        rtol=SUMS,
    )
    check(lambda x: torch.linalg.vector_norm(x, order), x, rtol=SUMS, compile=False)
    check(lambda x: torch.norm(x, order, 0, keepdim=True), x, rtol=SUMS, compile=False)
    check(lambda x: torch.norm(x, order), x, rtol=SUMS, compile=False)
    check(
        lambda x: torch.ops.aten.norm(x, order, [1], False, dtype=torch.float32),
        x.half(),
        rtol=SUMS,
        compile=False,
    )
    check(
        lambda x: torch.ops.aten.norm(x, order, dtype=torch.float32),
        x.half(),
        rtol=SUMS,
        compile=False,
    )
    check(
        lambda x: torch.ops.aten.linalg_norm(x, order, [1]), x, rtol=SUMS, compile=False
    )


@pytest.mark.parametrize("order", ["fro", 1, -1, float("inf"), -float("inf")])
def test_matrix_norms(order: Any) -> None:
    check(lambda x: torch.linalg.matrix_norm(x, order), sample(2, 3, 4), rtol=SUMS)
    check(
        lambda x: torch.linalg.norm(x, order, dim=(0, 2), keepdim=True),
        sample(2, 3, 4),
        rtol=SUMS,
        compile=False,
    )
    check(
        lambda x: torch.ops.aten.frobenius_norm(x, [0, 1], True),
        sample(2, 3, 4),
        rtol=SUMS,
        compile=False,
    )
    check(torch.linalg.norm, sample(3, 4), rtol=SUMS, compile=False)


def test_cosine_similarity() -> None:
    a, b = sample(3, 4, 5), sample(1, 4, 5, seed=1)
    for axis in (-1, 1):
        check(
            lambda a, b, d=axis: torch.cosine_similarity(a, b, d),
            a,
            b,
            rtol=SUMS,
            atol=SUMS,
        )
    check(
        lambda a, b: torch.cosine_similarity(a, b, -1),
        torch.zeros(2, 3),
        sample(2, 3),
        compile=False,
    )


@pytest.mark.parametrize("p", [2.0, 1.0, 0.0, float("inf"), 3.0])
def test_distances(p: float) -> None:
    """torch computes p = 2 of large sets by a matrix product, which cancels; these sets are
    small.
    """
    a, b = sample(2, 3, 4), sample(2, 5, 4, seed=1)
    check(
        lambda a, b: torch.cdist(a, b, p),
        a,
        b,
        dynamic={0: {1: "n"}, 1: {1: "m"}},
        rtol=SUMS,
    )
    check(lambda a, b: torch.dist(a, b[:, :3], p), a, b, rtol=SUMS)
    check(
        lambda a, b: torch.pairwise_distance(a, b[:, :3], p),
        a,
        b,
        rtol=SUMS,
        compile=False,
    )


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
@pytest.mark.parametrize(
    ("shape", "axis"), [((), 0), ((1,), 0), ((7,), -1), ((4, 3), 0), ((2, 3, 5), 1)]
)
def test_running_sums_and_products(
    name: str, shape: tuple[int, ...], axis: int
) -> None:
    dynamic = {0: {0: "n"}} if shape else None
    more = [(sample(2 * shape[0], *shape[1:]),)] if shape else []
    check(
        lambda x: getattr(torch, name)(x, axis),
        sample(*shape),
        dynamic=dynamic,
        more=more,
        rtol=SUMS,
        atol=SUMS,
    )


def test_running_sums_without_a_cumulative_layer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """TensorRT 8.6 has none: the doubling scan gives the same."""
    from builder.engine.capabilities import Capabilities

    real = Capabilities.has_layer
    monkeypatch.setattr(
        Capabilities,
        "has_layer",
        lambda self, method: method != "add_cumulative" and real(self, method),
    )
    conversion = check(lambda x: torch.cumsum(x, 1), torch.arange(26).reshape(2, 13))
    kinds = {
        conversion.network.get_layer(i).type.name
        for i in range(conversion.network.num_layers)
    }
    assert "CUMULATIVE" not in kinds
