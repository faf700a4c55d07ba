"""What users add in plugins: the example of docs/extending.md, and one clear error for each
mistake.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import builder
from builder import manifest, torchscript
from builder import pipeline as pipeline_of_models
from builder.conversion import registry
from builder.decompositions import DECOMPOSITIONS
from builder.errors import ConversionError, LoweringError, ModelFileError, UsageError
from builder.lowering import ir, pipeline
from builder.pipeline import Order
from builder.torchscript import plugins
from tests.pipeline import models

PAGE = Path(builder.__file__).parents[1] / "docs" / "extending.md"
BLOCK = re.compile(r"```(?:python|yaml)\n# (\S+)\n(.*?)```", re.DOTALL)
COMMANDS = re.compile(r"```sh\n(.*?)```", re.DOTALL)


@pytest.fixture(autouse=True)
def tables() -> Iterator[None]:
    """Undo what a test registers."""
    kept = [registry.CONVERTERS, registry.EVALUATORS, DECOMPOSITIONS, plugins._loaded]
    before = [dict(table) for table in kept]
    whole, with_node = set(ir.CONVERTED_WHOLE), set(registry.WITH_NODE)
    yield
    for table, content in zip(kept, before, strict=True):
        table.clear()
        table.update(content)  # type: ignore[arg-type]
    pipeline.ADDED.clear()
    for names, old in ((ir.CONVERTED_WHOLE, whole), (registry.WITH_NODE, with_node)):
        names.clear()
        names.update(old)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """The files of the page."""
    (tmp_path / "models").mkdir()
    for name, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.slow
def test_every_command_on_the_page_works(shop: Path) -> None:
    (commands,) = COMMANDS.findall(PAGE.read_text(encoding="utf-8"))
    outputs = [_command(line, shop) for line in commands.strip().splitlines()]
    assert "-  %" in outputs[1] and "aten::relu" in outputs[1]
    assert re.search(r"shop +ok", outputs[2]) and "in torch" not in outputs[2]
    assert (shop / "model_repository" / "shop" / "1" / "model.plan").is_file()
    without = _command("trt-build check models", shop)
    assert "in torch: shop::halve" in without


def _command(line: str, folder: Path) -> str:
    python, main = sys.executable, "from builder.cli import main; main()"
    words = line.split()
    start = [python, "-c", main] if words[0] == "trt-build" else [python]
    more = ["--no-store"] if words[1] == "repo" else []
    process = subprocess.run(
        [*start, *words[1:], *more],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout + process.stderr


SPEC = builder.TensorSpec("float32", ("n", 4), dims={"n": (1, 2, 3)})


def converted(module: torch.nn.Module) -> builder.Conversion:
    return builder.convert(torch.jit.script(module.eval()), [SPEC])


def layers(conversion: builder.Conversion) -> list[str]:
    network = conversion.network
    return [network.get_layer(i).name for i in range(network.num_layers)]


def types(conversion: builder.Conversion) -> list[object]:
    network = conversion.network
    return [network.get_layer(i).type for i in range(network.num_layers)]


def test_converter_of_decomposed_operator_is_used() -> None:
    from builder.engine.flavor import trt

    assert "aten::silu_0" not in layers(converted(torch.nn.SiLU()))

    @builder.converter("aten::silu(Tensor self) -> Tensor", override=True)
    def silu(ctx, x):
        sigmoid = ctx.net.add_activation(x, trt.ActivationType.SIGMOID).get_output(0)
        return ctx.net.add_elementwise(x, sigmoid, trt.ElementWiseOperation.PROD)

    conversion, x = converted(torch.nn.SiLU()), torch.randn(2, 4)
    assert [name.split("_")[0] for name in layers(conversion)[:1]] == ["aten::silu"]
    torch.testing.assert_close(
        builder.reference.run(conversion, [x])[0], torch.nn.SiLU()(x)
    )


class Product(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = (
            torch.nn.Parameter(torch.eye(4)),
            torch.nn.Parameter(torch.ones(4)),
        )

    def forward(self, x):
        return torch.addmm(self.bias, torch.nn.functional.pad(x, (0, 0)), self.weight)


WHOLE = (
    "aten::pad(Tensor self, SymInt[] pad, str mode='constant', float? value=None) -> Tensor",
    "aten::addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1)"
    " -> Tensor",
)


def test_lowering_keeps_addmm_and_pad_for_user_converter() -> None:
    module = torch.jit.script(Product().eval())

    def kinds() -> set[str]:
        node_kinds = {node.kind() for node in builder.lower(module).graph.nodes()}
        return node_kinds & {"aten::pad", "aten::addmm", "aten::linear"}

    assert kinds() == {"aten::linear"}
    for schema in WHOLE:
        known = schema.partition("(")[0] in registry.CONVERTERS
        builder.converter(schema, override=known)(lambda ctx, x: x)
    assert kinds() == {"aten::pad", "aten::addmm"}


def test_user_definition_replaces_converter() -> None:
    @builder.decomposition("aten::relu(Tensor self) -> Tensor", override=True)
    def relu(self: torch.Tensor) -> torch.Tensor:
        return torch.clamp(self, min=0.0)

    conversion, x = converted(torch.nn.ReLU()), torch.randn(2, 4)
    torch.testing.assert_close(builder.reference.run(conversion, [x])[0], x.relu())
    assert not any("ACTIVATION" in str(layer) for layer in types(conversion))


def twice(ctx, x):
    return x


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (
            "aten::relu(Tensor self) -> Tensor",
            "aten::relu has a converter already; override=True",
        ),
        (
            "aten::relu6(Tensor x) -> Tensor",
            r"which is aten::relu6\(Tensor self\) -> Tensor",
        ),
        (
            "aten::relu6(Tensor self, int n) -> Tensor",
            "the schema differs from torch's operator",
        ),
        ("aten::relu6(Tensor self) -> (Tensor, Tensor)", "the schema differs"),
        (
            "aten::relu66(Tensor self) -> Tensor",
            "torch has no operator aten::relu66; it has",
        ),
        (
            "aten::add.Tenser(Tensor self) -> Tensor",
            "no operator aten::add.Tenser; it has .*Tensor",
        ),
    ],
)
def test_unknown_schema_is_refused(schema: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        builder.converter(schema, override="override" not in message)(twice)
    assert f"twice ({__file__}:" in str(error.value)


def test_an_evaluator_takes_the_arguments_of_its_operator() -> None:
    with pytest.raises(
        ValueError, match="called with 3 arguments: ctx, and the values of"
    ):
        builder.evaluator("aten::floordiv.int", override=True)(lambda ctx, a: a)
    with pytest.raises(ValueError, match="torch has no operator aten::floordivide"):
        builder.evaluator("aten::floordivide")(lambda ctx, a: a)
    with pytest.raises(ValueError, match="has an evaluator already"):
        builder.evaluator("aten::floordiv.int")(lambda ctx, a, b: a)


def test_converter_returning_none_is_reported_with_its_line() -> None:
    @builder.converter("aten::relu(Tensor self) -> Tensor", override=True)
    def nothing(ctx, x):
        ctx.net.add_identity(x)

    with pytest.raises(
        ConversionError, match=r"nothing \(.*test_extending.py:\d+\).*None"
    ) as error:
        converted(torch.nn.ReLU())
    assert "defect of trt-build" not in str(error.value) and error.value.where


class Top(torch.nn.Module):
    def forward(self, x):
        values, indices = torch.topk(x, 2)
        return values, indices


def check_warnings(folder: Path) -> list[str]:
    """The warnings of `check` for a model of the operator relu."""
    (spec,) = manifest.load(models.save(folder / "models", models.Whole()) / "m.pt")
    clock = pipeline_of_models.Clock(spec.name, lambda *_: None)
    return list(pipeline_of_models.check(Order(spec, folder / "out"), clock).warnings)


def test_converter_warning_is_shown_once_with_its_fix(tmp_path: Path) -> None:
    @builder.converter("aten::relu(Tensor self) -> Tensor", override=True)
    def nothing(ctx, x):
        ctx.net.add_identity(x)

    (warning,) = [text for text in check_warnings(tmp_path) if "returned None" in text]
    assert "in torch: aten::relu" in warning and "return a layer" in warning


def test_converter_with_wrong_values_is_reported_with_line(tmp_path: Path) -> None:
    @builder.converter("aten::relu(Tensor self) -> Tensor", override=True)
    def identity(ctx, x):
        return ctx.net.add_identity(x)

    warnings = "\n".join(check_warnings(tmp_path))
    assert "the network differs from the module" in warnings
    assert re.search(
        r"a plugin may change the outputs: identity \(\S+test_extending.py:\d+\)",
        warnings,
    )
    assert "defect of a converter" not in warnings


def test_converter_with_too_few_outputs_is_reported() -> None:
    schema = (
        "aten::topk(Tensor self, SymInt k, int dim=-1, bool largest=True, bool sorted=True)"
        " -> (Tensor values, Tensor indices)"
    )

    @builder.converter(schema, override=True)
    def one(ctx, x):
        return (x,)

    with pytest.raises(ConversionError, match="returned 1 values for 2 outputs"):
        converted(Top())


def test_converter_error_reports_the_failing_line() -> None:
    @builder.converter("aten::relu(Tensor self) -> Tensor", override=True)
    def divides(ctx, x):
        return 1 // 0

    with pytest.raises(
        ConversionError, match=r"divides .*failed at test_extending.py:\d+"
    ) as error:
        converted(torch.nn.ReLU())
    assert error.value.fix is not None and "correct the plugin" in error.value.fix


def test_a_pass_runs_at_its_position() -> None:
    @builder.add_pass("seen", before="fuse-linear")
    def seen(graph, context):
        pass

    names = [record.name for record in converted(torch.nn.ReLU()).lowered.trace]
    assert names[names.index("seen") + 1] == "fuse-linear"
    with pytest.raises(
        ValueError, match="no pass is called 'fuse-liner'; one of fuse-linear"
    ):
        builder.add_pass("other", after="fuse-liner")(seen)
    with pytest.raises(ValueError, match="there is a pass 'seen' already"):
        builder.add_pass("seen", after="fuse-linear")(seen)
    with pytest.raises(ValueError, match="needs `before` or `after`"):
        builder.add_pass("other")(seen)


def test_failing_pass_is_reported_with_its_line() -> None:
    @builder.add_pass("broken", after="functionalize")
    def broken(graph, context):
        raise KeyError("axis")

    with pytest.raises(
        LoweringError, match="the pass broken failed: KeyError: 'axis'"
    ) as error:
        converted(torch.nn.ReLU())
    assert "test_extending.py" in str(error.value.where)


def test_invalid_plugin_registration_is_a_usage_error(tmp_path: Path) -> None:
    plugin = tmp_path / "plugin.py"
    plugin.write_text(
        "import builder\n\n"
        "@builder.converter('aten::relu(Tensor self) -> Tensor')\n"
        "def relu(ctx, x):\n    return x\n"
    )
    with pytest.raises(
        UsageError, match=r"plugin.py:3\): aten::relu has a converter already"
    ):
        plugins.load([str(plugin)])


class Custom(torch.nn.Module):
    def forward(self, x):
        return torch.ops.trial_of_plugins.same(x)


def test_trial_process_loads_the_plugins(tmp_path: Path) -> None:
    """The operator is the plugin's; the library allows the namespace and brings nothing."""
    plugin, library = tmp_path / "plugin.py", tmp_path / "library.py"
    library.write_text("")
    plugin.write_text(
        "import torch\n"
        "library = torch.library.Library('trial_of_plugins', 'DEF')\n"
        "library.define('same(Tensor x) -> Tensor')\n"
        "library.impl('same', lambda x: x.clone(), 'CompositeExplicitAutograd')\n"
    )
    plugins.load([str(plugin)])
    torch.jit.script(Custom()).save(str(tmp_path / "model.pt"))
    plugins._loaded.clear()
    with pytest.raises(
        ModelFileError, match="Unknown builtin op: trial_of_plugins::same"
    ):
        torchscript.load(tmp_path / "model.pt", libraries=[library])
    plugins.load([str(plugin)])
    assert (
        torchscript.load(tmp_path / "model.pt", libraries=[library])(torch.ones(1)) == 1
    )


@pytest.mark.slow
def test_init_loads_libraries_and_names_them_in_the_manifest(shop: Path) -> None:
    _command("python export.py", shop)
    line = "trt-build init models/shop.pt --force --library operators.py --plugin plugin.py"
    assert "x" in _command(line, shop)
    manifest = (shop / "models" / "shop.yaml").read_text()
    assert 'libraries: ["../operators.py"]' in manifest
