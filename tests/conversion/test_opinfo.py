"""torch's operator database: a fixed sample of it always, all of it with `-m slow`."""

from __future__ import annotations

import pytest
import torch

from tests.conversion import opinfo

FEW = """
add div floor_divide remainder pow clamp where masked_fill atan2 bitwise_xor lerp eq log1p erfc
round nn.functional.gelu nn.functional.elu nn.functional.prelu nn.functional.softplus sum var_mean
amax any cumprod log_softmax logsumexp linalg.vector_norm sort topk argmax nn.functional.batch_norm
nn.functional.layer_norm nn.functional.group_norm reshape permute squeeze cat split gather
index_select matmul einsum nn.functional.conv2d nn.functional.max_pool2d nn.functional.interpolate
nn.functional.pad
""".split()


def accepted(name: str, limit: int | None, dynamic: bool = False) -> None:
    result = opinfo.run(name, limit, dynamic)
    assert not result.failed, "\n".join(result.failed)
    assert result.verdict in ("passed", "unsupported")


@pytest.mark.parametrize("name", FEW)
def test_samples_of_common_operators(name: str) -> None:
    accepted(name, 3)


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", opinfo.operators())
def test_every_operator(name: str, dynamic: bool) -> None:
    """On every sample, and on at most 20 of each kind with two dynamic axes. For all samples with
    dynamic axes: `python -m tests.conversion.opinfo --dynamic`.
    """
    if not opinfo.known(name):
        pytest.skip(f"torch {torch.__version__} has no samples of {name}")
    accepted(name, 20 if dynamic else None, dynamic)


def test_script_detects_wrong_result(monkeypatch: pytest.MonkeyPatch) -> None:
    from builder.conversion.converters import unary

    monkeypatch.setattr(unary, "expm1", lambda ctx, x: ctx.unary("EXP", x))
    assert opinfo.run("expm1", 2).verdict == "failed"


def test_families_list_each_operator_once() -> None:
    names = opinfo.operators()
    assert len(names) == len(set(names))
