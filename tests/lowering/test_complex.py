"""Complex numbers become pairs of real ones, and the outputs stay the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import builder
from builder.lowering import LoweredGraph, ir
from builder.lowering.passes.environment import resolve_environment
from tests.lowering.asserting import assert_equal_outputs
from tests.lowering.cases import floats as sample
from tests.torchscript.saving import saved

COMPLEX = (
    "aten::view_as_complex",
    "aten::view_as_real",
    "aten::complex",
    "aten::polar",
    "aten::real",
    "aten::imag",
)


CIS = torch.polar(
    torch.rand(16, 4) + 0.5,
    torch.randn(16, 4, generator=torch.Generator().manual_seed(0)),
)
"""Complex numbers of 16 positions, as rotary embeddings keep them."""


def lowered(source: Any, *inputs: Tensor) -> LoweredGraph:
    """The lowered module or function; its outputs must match."""
    specs = [builder.TensorSpec("float32", tuple(x.shape)) for x in inputs]
    result = builder.lower(
        source.graph if isinstance(source, torch.jit.ScriptFunction) else source,
        specs=specs,
    )
    assert_equal_outputs(result, source, inputs, rtol=1e-5, atol=1e-6)
    return result


def complex_values(graph: Any) -> list[str]:
    """The dtypes of complex constants, and the kinds of nodes on complex values."""
    constants = [
        ir.constant(node.output()) for node in ir.nodes_of(graph, "prim::Constant")
    ]
    complex_constants = [
        str(c.dtype) for c in constants if isinstance(c, Tensor) and c.is_complex()
    ]
    return complex_constants + [node.kind() for node in ir.nodes_of(graph, *COMPLEX)]


class Rotary(nn.Module):
    """As in Llama's code: pairs of features are complex numbers that each position rotates."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cis", CIS)

    def forward(self, x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(
            x.float().reshape(x.shape[0], x.shape[1], x.shape[2], -1, 2)
        )
        cis = self.cis[: x.shape[1]].view(1, x.shape[1], 1, pairs.shape[-1])
        return torch.view_as_real(pairs * cis).flatten(3).type_as(x)


@pytest.mark.parametrize("script", [True, False])
def test_rotary_embedding_has_no_complex_values(script: bool) -> None:
    x = sample(2, 5, 3, 8)
    source = saved(
        torch.jit.script(Rotary()) if script else torch.jit.trace(Rotary(), x)
    )
    assert complex_values(lowered(source, x).graph) == []


Z, W = "torch.view_as_complex(x)", "torch.view_as_complex(y)"
SUPPORTED = {
    "dtype of a tensor": "torch.view_as_real(torch.zeros(3, 4, dtype=z.dtype) + z)",
    "mul": "torch.view_as_real(z * w)",
    "mul by a real": "torch.view_as_real(z * a), torch.view_as_real(a * z)",
    "mul by a number": "torch.view_as_real(z * 2), torch.view_as_real(2.5 * z)",
    "mul by i": (
        "torch.view_as_real(z * 1j), torch.view_as_real((2 - 3j) * z), torch.view_as_real(a * 1j)"
    ),
    "add": "torch.view_as_real(z + w), torch.view_as_real(torch.add(z, w, alpha=3))",
    "add a real": "torch.view_as_real(z + a), torch.view_as_real(a + z)",
    "add with broadcasting": "torch.view_as_real(z[0] + a), torch.view_as_real(z[0, 0] + a)",
    "add a number": (
        "torch.view_as_real(z + 2), torch.view_as_real(1 + z), torch.view_as_real(z + 1j)"
    ),
    "sub": "torch.view_as_real(z - w), torch.view_as_real(a - z), torch.view_as_real(z - a)",
    "sub numbers": (
        "torch.view_as_real(z - 2), torch.view_as_real(2 - z), torch.view_as_real(z - (1 + 2j))"
    ),
    "rsub": "torch.view_as_real(torch.rsub(z, 2)), torch.view_as_real(torch.rsub(z, w, alpha=2))",
    "masked_fill and pad": (
        "torch.view_as_real(z.masked_fill(a > 0, 2.0)), torch.nn.functional.pad(z, [1, 2],"
        " value=3.0).imag"
    ),
    "div": (
        "torch.view_as_real(z / w), torch.view_as_real(z / a), torch.view_as_real(a / z),"
        " torch.view_as_real(z / 2), torch.view_as_real(3 / w)"
    ),
    "real and imag": "z.real, z.imag, torch.real(w) + torch.imag(w)",
    "abs": "z.abs(), torch.abs(w), z.abs().pow(2)",
    "angle": "torch.angle(z), z.angle()",
    "neg": "torch.view_as_real(-z)",
    "conj": (
        "torch.view_as_real(z.conj().resolve_conj()), (z * z.conj()).real,"
        " torch.view_as_real(z.conj() * w)"
    ),
    "square": "torch.view_as_real(z ** 2), torch.view_as_real(torch.square(z))",
    "exp": "torch.view_as_real(torch.exp(z)), torch.view_as_real(torch.exp(1j * a))",
    "polar": "torch.view_as_real(torch.polar(a.abs(), a) * z), torch.polar(a.abs(), a).real",
    "rfft and irfft": (
        "torch.view_as_real(torch.fft.rfft(a) * 2), torch.fft.irfft(z * w, n=5, dim=0)"
    ),
    "complex": (
        "torch.view_as_real(torch.complex(a, -a) * z), torch.view_as_real(torch.complex(a,"
        " b).reshape(-1))"
    ),
    "complex with broadcasting": (
        "torch.view_as_real(torch.complex(a[:, :1], b[:1]).reshape(-1))"
    ),
    "reshape and transpose": (
        "torch.view_as_real(z.reshape(-1, 2)), torch.view_as_real(z.t()),"
        " torch.view_as_real(z.transpose(0, 1))"
    ),
    "expand and permute": (
        "torch.view_as_real(z.unsqueeze(1).expand(3, 5, 4)), torch.view_as_real(z.permute(1,"
        " 0).flatten())"
    ),
    "select and slice": (
        "torch.view_as_real(z[1]), torch.view_as_real(z[:, ::2]), torch.view_as_real(z.narrow(1,"
        " 1, 2))"
    ),
    "index": (
        "torch.view_as_real(z[p]), torch.view_as_real(z.index_select(0, p)),"
        " torch.view_as_real(z[:, p])"
    ),
    "cat and stack": (
        "torch.view_as_real(torch.cat([z, w], 1)), torch.view_as_real(torch.stack([z, w]))"
    ),
    "stack with a real": "torch.view_as_real(torch.stack([z, a + 0j * a]))",
    "chunk and split": (
        "torch.view_as_real(z.chunk(2, 1)[1]), torch.view_as_real(torch.split(z, [1, 3], 1)[1] * 2)"
    ),
    "unbind": "torch.view_as_real(z.unbind(0)[1] * w.unbind(0)[0])",
    "sum and mean": (
        "torch.view_as_real(z.sum(0)), torch.view_as_real(z.mean(1)),"
        " torch.view_as_real(torch.sum(z))"
    ),
    "cumsum": "torch.view_as_real(z.cumsum(1))",
    "matmul and bmm": (
        "torch.view_as_real(z @ w.t()), torch.view_as_real(torch.bmm(z[None], w.t()[None]))"
    ),
    "where": "torch.view_as_real(torch.where(a > 0, z, w))",
    "cast": (
        "torch.view_as_real(a.to(torch.complex64) * z), torch.view_as_real(z.to(torch.complex64))"
    ),
    "zeros": "torch.view_as_real(z + torch.zeros_like(z))",
    "shapes": "torch.ones(z.shape), torch.zeros(z.size(1)), torch.full([z.numel()], z.dim())",
    "cast to another's dtype": (
        "torch.view_as_real(a.to(z.dtype) * z), (z / 2).to(w.dtype).real, a.to(z).imag"
    ),
    "cast alone": "(a.to(torch.complex64) * 1j).imag",
    "is complex": "(a if z.is_complex() else b), (b if a.is_complex() else a)",
    "constant": "torch.view_as_real(z * torch.polar(torch.ones(3, 4), torch.full([3, 4], 0.5)))",
}


def scripted(expressions: str) -> Any:
    lines = [
        "def f(x, y, a, b):",
        f"    z, w = {Z}, {W}",
        "    p = torch.tensor([2, 0, 1])",
        f"    return {expressions}",
    ]
    return torch.jit.CompilationUnit("\n".join([*lines, ""])).f


@pytest.mark.parametrize("name", SUPPORTED)
def test_complex_operator_becomes_real_pairs(name: str) -> None:
    inputs = sample(3, 4, 2), sample(3, 4, 2) * 2, sample(3, 4), sample(3, 4) + 1
    assert complex_values(lowered(scripted(SUPPORTED[name]), *inputs).graph) == []


class InPlace(nn.Module):
    """In-place scaling, as of spectrograms by their window, and numbers that are written."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.view_as_complex(x)
        z /= x.abs().sum()
        z *= 2
        w = z.clone()
        w[:, 0] = 2.0
        w[0] = 1 + 3j
        return z.abs(), torch.view_as_real(w)


def test_in_place_writes_become_real_pairs() -> None:
    assert (
        complex_values(lowered(torch.jit.script(InPlace()), sample(3, 4, 2)).graph)
        == []
    )


UNSUPPORTED = {
    "Fourier transform": "torch.fft.ifftn(z * 2).real + torch.fft.fftn(a).imag",
    "transform of all axes": "torch.fft.rfftn(a).real, torch.fft.irfftn(z)",
    "reader of a Fourier transform": (
        "(torch.fft.fftn(a) * z).real,"
        " torch.view_as_real(torch.fft.fftn(a).conj().resolve_conj())"
    ),
    "zeros_like with a dtype": "torch.view_as_real(torch.zeros_like(z, dtype=torch.complex64))",
    "operator without a rule": "torch.view_as_real(torch.tanh(z))",
    "view of a permuted tensor": (
        "torch.view_as_real(torch.tanh(torch.view_as_complex(torch.stack([a, b]).permute(1, 2,"
        " 0).contiguous())))"
    ),
    "reader without a rule": "torch.view_as_real(z * w), torch.tanh(z * w).abs()",
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_operators_without_a_rule_stay_complex(name: str) -> None:
    inputs = sample(3, 4, 2), sample(3, 4, 2) * 2, sample(3, 4), sample(3, 4) + 1
    assert complex_values(lowered(scripted(UNSUPPORTED[name]), *inputs).graph)


def test_values_beside_a_fourier_transform_become_real_pairs() -> None:
    inputs = sample(3, 4, 2), sample(3, 4, 2) * 2, sample(3, 4), sample(3, 4) + 1
    expressions = (
        "torch.view_as_real(z * torch.fft.fftn(a).abs()), torch.ones(torch.fft.fftn(a).size(0)) *"
        " w.abs()[0, 0]"
    )
    # only abs reads the transform
    assert complex_values(lowered(scripted(expressions), *inputs).graph) == []


class BranchAndLoop(nn.Module):
    """A complex output of a branch, and a complex loop-carried value."""

    def forward(self, x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.view_as_complex(x)
        w = z * 2j if bool(n.sum() > 0) else z
        rotated, length = z, x[..., 0]
        for _ in range(int(n.sum())):
            rotated = rotated * z
            length = length + rotated.abs()
        return torch.view_as_real(w), length + torch.view_as_real(rotated * z)[..., 0]


@pytest.mark.parametrize("n", [0, 3])
def test_complex_values_of_branches_and_loops_match_torch(n: int) -> None:
    lowered(torch.jit.script(BranchAndLoop()), sample(3, 2), torch.tensor([float(n)]))


class InsideBranchAndLoop(nn.Module):
    """Complex values inside a branch and a loop body only."""

    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        if bool(n.sum() > 0):
            x = torch.view_as_real(torch.view_as_complex(x) * 2j)
        for _ in range(int(n.sum())):
            x = torch.view_as_real(torch.view_as_complex(x) * (1 + 1j))
        return x


@pytest.mark.parametrize("n", [0, 3])
def test_complex_values_inside_a_branch_become_real_pairs(n: int) -> None:
    lowered_graph = lowered(
        torch.jit.script(InsideBranchAndLoop()), sample(3, 2), torch.tensor([float(n)])
    )
    (branch,) = ir.nodes_of(lowered_graph.graph, "prim::If")
    assert all(complex_values(block) == [] for block in branch.blocks())


class RotaryPlusOne(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rotary = Rotary()

    def forward(self, x: Tensor) -> Tensor:
        return self.rotary(x) + 1


def test_fallback_module_keeps_complex_values() -> None:
    result = builder.lower(
        torch.jit.script(RotaryPlusOne()), fallback_modules=("Rotary",)
    )
    (node,) = ir.nodes_of(result.graph, "aten::complex")
    assert ir.in_fallback(node) and "aten::view_as_real" in complex_values(result.graph)


def magnitude_if_complex(x: Tensor) -> Tensor:
    y = torch.fft.fft(x)
    if y.is_complex():
        return y.abs()
    return x


def test_is_complex_of_a_fourier_transform_is_not_folded_to_false() -> None:
    graph = torch.jit.script(magnitude_if_complex).graph.copy()
    resolve_environment(graph)
    # it was folded to False, which took the other branch
    assert ir.nodes_of(graph, "aten::is_complex")
    lowered(torch.jit.script(magnitude_if_complex), sample(3, 4))
