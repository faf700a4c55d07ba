"""`builder.compile`: the signature and the outputs of the original module."""

import re
from pathlib import Path
from typing import ClassVar, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import builder
from builder import engine
from builder.engine.build import plan_facts
from builder.errors import UsageError
from builder.lowering import ir
from builder.pipeline import compiled as compiled_module

BATCH = {"batch": (1, 2, 4)}


def spec(
    *shape: int | str, dtype: str = "float32", name: str | None = None
) -> builder.TensorSpec:
    return builder.TensorSpec(
        dtype, shape, name=name, dims=BATCH if "batch" in shape else {}
    )


class State(NamedTuple):
    hidden: torch.Tensor
    count: torch.Tensor


class Step(nn.Module):
    """Everything that a forward may take and return."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.5)

    def forward(
        self, x: Tensor, state: State, mask: Tensor | None = None, scale: float = 2.0
    ) -> tuple[dict[str, Tensor], State]:
        y = self.drop(self.linear(x)) * scale + state.hidden
        if mask is not None:
            y = y * mask
        return {"y": y, "z": y.relu()}, State(y + 1, state.count + 1)


def same(found: object, wanted: object) -> None:
    """The values and the structure."""
    torch.testing.assert_close(found, wanted)
    assert type(found).__name__ == type(wanted).__name__


@pytest.fixture(scope="module")
def step() -> tuple[nn.Module, nn.Module]:
    module = torch.jit.script(Step())
    specs = [spec("batch", 4), spec("batch", 4), spec(1, dtype="int64")]
    return module, builder.compile(module, specs)


def arguments(batch: int) -> tuple[Tensor, State]:
    return torch.randn(batch, 4), State(torch.randn(batch, 4), torch.tensor([7]))


@pytest.mark.parametrize("batch", [1, 3, 4])
def test_compiled_module_has_the_signature_of_the_original(
    step: tuple[nn.Module, nn.Module], batch: int
) -> None:
    module, compiled = step
    x, state = arguments(batch)
    assert module.training  # it was not changed
    module.eval()
    wanted = module(x, state)
    module.train()
    for found in (compiled(x, state), compiled(x=x, state=state, mask=None, scale=2.0)):
        same(found[0]["y"], wanted[0]["y"])
        same(found, wanted)
        same(found[1].count, wanted[1].count)
    assert isinstance(compiled, nn.Module) and compiled.answered_by in ("plan", "torch")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scale": 3.0}, "compiled for scale=2.0, this call has 3.0"),
        (
            {"mask": torch.ones(2, 4)},
            "compiled for the inputs x, state.hidden, state.count; this",
        ),
        ({"x": torch.randn(9, 4)}, "axis batch is 2, not 9"),
        ({"x": torch.randn(2, 5)}, "axis 4 is 5, not 4"),
        ({"x": torch.randn(2, 4, dtype=torch.float64)}, "is torch.float64 of rank 2"),
    ],
)
def test_unsupported_arguments_are_rejected(
    step: tuple[nn.Module, nn.Module], change: dict[str, object], message: str
) -> None:
    x, state = arguments(2)
    with pytest.raises(UsageError, match=message):
        step[1](**{"x": x, "state": state, **change})
    with pytest.raises(UsageError, match="no profile includes the sizes batch=9"):
        step[1](*arguments(9))
    with pytest.raises(TypeError, match="requires the argument 'state'"):
        step[1](x)
    with pytest.raises(TypeError, match="forward takes"):
        step[1](x, state, x=x)


def test_optional_argument_and_constant_are_applied() -> None:
    specs = [
        spec("batch", 4, name="x"),
        spec("batch", 4, name="h"),
        spec(1, dtype="int64", name="n"),
        spec("batch", 4, name="mask"),
    ]
    model = Step().eval()
    compiled = builder.compile(model, specs, constants={"scale": 0.5})
    x, state = arguments(3)
    mask = torch.rand(3, 4)
    same(compiled(x, state, mask), model(x, state, mask, 0.5))
    assert not any(True for _ in compiled.parameters())


class Features(nn.Module):
    def forward(self, maps: dict[str, Tensor], more: list[Tensor]) -> dict[str, Tensor]:
        return {"sum": maps["a"] + maps["b"] * 2, "last": more[1] - more[0]}


def test_dictionary_and_list_inputs_are_supported() -> None:
    specs = [
        spec("batch", 4, name=name) for name in ("maps.a", "maps.b", "more_0", "more_1")
    ]
    model = torch.jit.script(Features())
    compiled = builder.compile(model, specs)
    a, b = torch.randn(3, 4), torch.randn(3, 4)
    wanted = model({"a": a, "b": b}, [a, b])
    same(compiled({"b": b, "a": a}, [a, b]), wanted)
    with pytest.raises(UsageError, match=r"this call has maps\.a, more_0"):
        compiled({"a": a}, [a])


class Partitioned(nn.Module):
    """bincount runs in torch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.first(x)).sigmoid() * 3
        counts = torch.bincount(y.flatten().to(torch.int64), minlength=16)[:16]
        return torch.tanh(self.last(x + counts.to(x.dtype))).sigmoid()


def test_partitioned_model_matches_torch() -> None:
    model = Partitioned().eval()
    compiled = builder.compile(model, [spec("batch", 16)])
    x = torch.randn(3, 16)
    same(compiled(x), model(x))
    assert any("torch" in warning for warning in compiled.warnings)


def test_model_that_only_torch_can_run_is_compiled() -> None:
    class Writes(nn.Module):
        def forward(self, x: Tensor, sizes: Tensor) -> Tensor:
            out: list[int] = []
            for size in sizes:
                out.append(int(size))
            out.sort()
            return x * out[0]

    model = torch.jit.script(Writes())
    compiled = builder.compile(model, [spec("batch", 4), spec(3, dtype="int64")])
    x, sizes = torch.randn(2, 4), torch.tensor([5, 3, 4])
    same(compiled(x, sizes), model(x, sizes))
    assert compiled.warnings and compiled.answered_by == "torch"


def test_traces_compile_and_unscriptable_modules_fail() -> None:
    model = nn.Sequential(nn.Linear(4, 2), nn.Softmax(-1)).eval()
    x = torch.randn(2, 4)
    compiled = builder.compile(torch.jit.trace(model, x), [spec("batch", 4)])
    same(compiled(torch.ones(4, 4)), model(torch.ones(4, 4)))
    assert not ir.CONVERTED_WHOLE

    class Star(nn.Module):
        def forward(self, *xs):
            return xs[0]

    with pytest.raises(
        builder.errors.LoweringError, match=r"torch\.jit\.script does not compile"
    ):
        builder.compile(Star(), [spec(1)])


README = Path(builder.__file__).parents[1] / "README.md"


def test_readme_example_runs() -> None:
    (example,) = re.findall(
        r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL
    )
    net = nn.Sequential(
        nn.Conv2d(3, 4, 7, 7), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    names = {
        "module": torch.jit.script(net.eval()),
        "image": torch.rand(2, 3, 224, 224),
    }
    exec(example, names)
    torch.testing.assert_close(names["logits"], net(names["image"]))
    torch.testing.assert_close(names["outputs"][0], net(names["image"]))


class Engine:
    """Replaces an engine: the reference evaluates the network of a plan."""

    networks: ClassVar[dict[bytes, builder.Conversion]] = {}
    wrong = False

    def __init__(self, plan: bytes) -> None:
        self.conversion = self.networks[plan]
        self.inputs = [str(spec.name) for spec in self.conversion.inputs]
        self.outputs = list(self.conversion.outputs)

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        outputs = builder.reference.run(self.conversion, tensors)
        return [output + self.wrong for output in outputs]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> type[Engine]:
    def build(conversion: builder.Conversion, options: object) -> engine.Plan:
        plan = f"plan {len(Engine.networks)}".encode()
        Engine.networks[plan] = conversion
        return engine.Plan(plan, plan_facts(conversion, options, plan, 0.0))

    monkeypatch.setattr(compiled_module, "_runs_plans", lambda: True)
    monkeypatch.setattr(
        compiled_module, "_build", lambda options: lambda c, _: build(c, options)
    )
    monkeypatch.setattr("builder.engine.run.Engine", Engine)
    monkeypatch.setattr(Engine, "wrong", False)
    return Engine


def test_plans_run_where_a_gpu_is_available(gpu: type[Engine]) -> None:
    for model, kind in (
        (nn.Linear(16, 4).eval(), "plan"),
        (Partitioned().eval(), "plan+torch"),
    ):
        compiled = builder.compile(model, [spec("batch", 16)])
        x = torch.randn(3, 16)
        assert compiled.answered_by == kind
        same(compiled(x), model(x))


def test_plans_with_wrong_outputs_are_not_used(
    gpu: type[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "wrong", True)
    model, x = nn.Linear(16, 4).eval(), torch.randn(3, 16)
    compiled = builder.compile(model, [spec("batch", 16)])
    assert compiled.answered_by == "torch"
    assert "torch runs the whole module: golden p0-" in compiled.warnings[-1]
    same(compiled(x), model(x))


@pytest.mark.gpu
def test_plan_runs_on_a_gpu() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    compiled = builder.compile(model, [spec("batch", 16)])
    assert compiled.answered_by == "plan"
    x = torch.randn(3, 16)
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-3, atol=1e-3)
    assert compiled(x.cuda()).is_cuda


class Mixed(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, int, list[int], float, None]:
        return x * 2, x.size(1), [1, 2], 0.5, None


def test_numbers_lists_and_none_are_returned_unchanged() -> None:
    model = torch.jit.script(Mixed())
    compiled = builder.compile(model, [spec("batch", 4)])
    x = torch.ones(1, 4)
    assert compiled(x)[1:] == model(x)[1:] == (4, [1, 2], 0.5, None)
    same(compiled(x)[0], x * 2)
