"""Random programs: the lowered graph gives the outputs of TorchScript for any combination of
operators, in-place writes and views.

`python tests/lowering/test_random_graphs.py 5000` runs that many programs from seed 0 on. SEEDS has
the seeds of counterexamples.
"""

from __future__ import annotations

import random
import sys
import warnings

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import builder
from builder.errors import LoweringError

# Statements over float tensors of shape (3, 4) in a, b, c, d; each keeps that shape. {x} {y} are
# tensors, {n} {k} small numbers.
VALUES = [
    "{x} = {y} + {n}",
    "{x} = {y} * {x}",
    "{x} = torch.relu({y})",
    "{x} = F.gelu({y})",
    "{x} = F.silu({y})",
    "{x} = F.hardswish({y})",
    "{x} = F.hardsigmoid({y})",
    "{x} = F.log_softmax({y}, dim={k})",
    "{x} = {y} - torch.std({x}, {k}, keepdim=True)",
    "{x} = {y} / (1 + torch.var({x}, 1, unbiased=False, keepdim=True))",
    # 0.1234 avoids the steps, where rounding decides the result
    "{x} = torch.remainder({y} + 0.1234, {n} + 0.5)",
    "{x} = ({y} + 0.1234) // 0.7",
    "{x} = torch.rsqrt({y}.abs() + 0.1)",
    "{x} = {y}.clone()",
    "{x} = {y}.contiguous().clone()",
    "{x} = F.dropout({y}, 0.5, False).clone()",
    "{x} = {y}.type_as({x}).clone()",
    "{x} = torch.cat([{y}[1:], {x}[:1]])",
    "{x} = F.linear({y}, w)",
    "{x} = torch.addmm({x}, {y}, w, beta={n}, alpha=2)",
    "{x} = {y}.t().contiguous().t().clone()",
    "{x} = F.pad({y}, [1, 1, 0, 0], mode='constant', value=1.0)[:, 1:5].clone()",
    "{x} = torch.where({y} > 0, {x}, {y})",
    "{x} = {y}.masked_fill({x} > 0.5, 1.0)",
    "{x} = torch.stack([{y}, {x}]).sum(0)",
    (
        "{x} = F.scaled_dot_product_attention({y}[None], {x}[None], {y}[None],"
        " is_causal=True).squeeze(0)"
    ),
    "{x} = {y}.tile([2, 1])[:3].clone()",
    "{x} = torch.softmax({y}, -1) + {n}",
    "{x} = {y}.view(4, 3).reshape(3, 4).clone()",
    "{x} = {y}.to(torch.float64).to(torch.float32)",
    "{x} = torch.fake_quantize_per_tensor_affine({y}, 0.25, {k}, -128, 127)",
    "{x} = F.linear({y}, torch.fake_quantize_per_tensor_affine(w, 0.01, 0, -128, 127))",
]
WRITES = [
    "{x}.add_({y})",
    "{x} *= {n}",
    "{x}[0] = {n}",
    "{x}[:, {k}] = {y}[:, 0]",
    "{x}[1:] += 1",
    "{x}[..., ::2] = {y}[..., ::2]",
    "{x}.relu_()",
    "{x}[-1].copy_({y}[0])",
    "{x}[:, 1:3].zero_()",
    "{x}.fill_({n})",
    "{x}.masked_fill_({x} > 1, 0.5)",
    "{x}.transpose(0, 1)[{k}] = {n}",
    "{x}.view(-1)[2:5].mul_(2)",
    "{x}.narrow(1, 1, 2).sub_(1)",
    "{x}.unbind(0)[1].add_(3)",
    "{x}.clamp_(-2, 2)",
    "{x}[{x} > 0] = 0.25",
    "{x}.unsqueeze(0)[0, 1].neg_()",
    "{x}.chunk(2, 1)[1].div_(2)",
    "{x}.t().add_({n})",
]
VIEWS = [
    "v = {x}[1:]",
    "v = {x}.t()",
    "v = {x}[:, {k}]",
    "v = {x}.view(-1)",
    "v = {x}.unsqueeze(1)",
    "v = {x}.split([1, 3], 1)[1]",
    "v = {x}.detach()",
]
LISTS = [
    "held = [{x}, {y}]\n    held.append({x} + 1)\n    {y} = held[{k}] + held[-1]",
    "held = [{x}]\n    held[0].add_(1)\n    {y} = torch.cat(held)",
    (
        'named = {{"p": {x}}}\n    named.update({{"q": {y}, "p": {x} + 1}})\n    {y} = named["q"] +'
        ' named["p"]'
    ),
    (
        'kept = {{"p": {x}}}\n    kept["p"].add_({n})\n    {y} = kept.copy()["p"] *'
        ' kept.setdefault("q", {y})'
    ),
    'many = {{"p": {x}, "q": {y}}}\n    for one in many.values():\n        {x} = {x} + one',
    "sizes = [3]\n    sizes += [4]\n    {x} = {y}.t().reshape(sizes)",
]


def program(seed: int, length: int = 8) -> str:
    """The source of a function of two tensors, with a view, branches and loops."""
    rng = random.Random(seed)

    def pick(kinds: list[str], names: str = "abc") -> str:
        x, y = rng.choice(names), rng.choice(names)
        return rng.choice(kinds).format(
            x=x, y=y, n=rng.choice([0, 1, 2, -1]), k=rng.choice([0, 1])
        )

    lines = ["c = a.clone()", "a = a.clone()", "b = b.clone()", pick(VIEWS)]
    for _ in range(length):
        shape = rng.random()
        if shape < 0.4:
            lines.append(pick(VALUES))
        elif shape < 0.7:
            lines.append(pick(WRITES))
        elif shape < 0.75:
            lines.append("v.add_(1)")
        elif shape < 0.8:
            lines.append(pick(LISTS))
        elif shape < 0.9:
            lines.append(
                f"if bool({rng.choice('ab')}.sum() > 0):\n        {pick(WRITES)}\n    else:\n      "
                f"  {pick(WRITES)}"
            )
        else:
            iterations = rng.choice(["2", "int(a.size(0))"])
            lines.append(
                f"for i in range({iterations}):\n        {pick(WRITES)}\n        {pick(VALUES)}"
            )
    body = "\n    ".join(lines)
    return (
        f"def f(a: Tensor, b: Tensor, w: Tensor):\n    {body}\n    return a, b, c, v\n"
    )


def check(seed: int) -> str:
    """`equal`; `refused` if lowering cannot functionalize a write; `invalid` if torch itself fails.
    Raises an AssertionError with the program if the outputs differ.
    """
    source = program(seed).replace("F.", "torch.nn.functional.")
    names = {"torch": torch, "Tensor": torch.Tensor, "__name__": __name__}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = _script(source, names, seed)
    generator = torch.Generator().manual_seed(seed)
    a, b, w = (
        torch.randn(shape, generator=generator) for shape in ((3, 4), (3, 4), (4, 4))
    )
    try:
        lowered = builder.lower(graph, params=[w])
    except LoweringError as error:
        assert "writes in place" in str(error), f"seed {seed}: {error}\n{source}"
        return "refused"
    exec(source, names)
    try:
        with torch.no_grad():
            expected = names["f"](a.clone(), b.clone(), w)
    except RuntimeError:
        return "invalid"  # a view that the strides do not allow
    try:
        torch.testing.assert_close(
            lowered.run(a.clone(), b.clone()),
            expected,
            rtol=1e-3,
            atol=1e-4,
            equal_nan=True,
        )
    except AssertionError as error:
        raise AssertionError(
            f"seed {seed}: {error}\n{source}\n{lowered.text}"
        ) from None
    return "equal"


def _script(source: str, names: dict, seed: int):
    """torch.jit.script reads source lines: provide them through linecache."""
    import linecache

    file = f"<program {seed}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    scope = dict(names)
    exec(compile(source, file, "exec"), scope)
    return torch.jit.script(scope["f"]).graph


# 7638: attention over equal values gave 1 with a rounding error, where remainder by 0.5 has a step.
SEEDS: list[int] = [7638]


def test_fixed_seeds_match_torchscript() -> None:
    """No outputs differ, and most programs can be lowered."""
    assert [check(seed) for seed in SEEDS] == ["equal"] * len(SEEDS)
    results = [check(seed) for seed in range(60)]
    assert results.count("equal") > 45, results


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(min_value=0, max_value=10**9))
def test_random_program_matches_torchscript(seed: int) -> None:
    assert check(seed) in ("equal", "refused", "invalid")


@pytest.mark.slow
@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(min_value=0, max_value=10**9))
def test_many_random_programs_match_torchscript(seed: int) -> None:
    assert check(seed) in ("equal", "refused", "invalid")


if __name__ == "__main__":
    found = {"equal": 0, "refused": 0, "invalid": 0}
    for number in range(int(sys.argv[1])):
        try:
            found[check(number)] += 1
        except Exception as failure:
            print(f"{number}: {str(failure)[:1500]}", flush=True)
            found["failed"] = found.get("failed", 0) + 1
            if found["failed"] > 3:
                break
    print(found)
