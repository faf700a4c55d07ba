"""Equal plans have equal keys. Each part that changes a plan changes its key, and the reason names
the part.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from builder.conversion import convert, registry
from builder.engine import BuildOptions, caches, flavor
from builder.lowering import weights_digest
from builder.manifest.spec import TensorSpec
from builder.store import because, key, sources
from builder.store.canonical import digest
from tests.store.conftest import small

DEFAULT = BuildOptions()
ROOT = Path(__file__).parents[2]


def reason(before: Any, after: Any) -> str:
    return because(before, after, key.DERIVED)


def test_equal_conversions_have_equal_keys() -> None:
    first, second = key.parts(small(), DEFAULT), key.parts(small(), DEFAULT)
    assert first == second
    assert len(digest(first)) == 64


@pytest.mark.slow
def test_key_is_the_same_in_every_process() -> None:
    """The key depends on no address, no order of a set, and no earlier work of the process."""
    program = (
        "from tests.store.conftest import small\nfrom builder.store import key\nfrom"
        " builder.store.canonical import digest\nfrom builder.engine"
        " import BuildOptions\nprint(digest(key.parts(small(), BuildOptions())))"
    )
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    other = subprocess.run(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": seed},
        check=True,
    )
    small(2.0, precision="fp16")
    here = digest(key.parts(small(), DEFAULT))
    assert len(here) == 64
    assert other.stdout.strip() == here


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"scale": 1.5}, "weights changed"),
        ({"precision": "fp16"}, "precision fp32 -> fp16"),
        ({"batch": (1, 2, 16)}, "profiles.0.batch [1, 2, 8] -> [1, 2, 16]"),
        ({"output_names": ["y"]}, 'outputs ["output"] -> ["y"]'),
    ],
)
def test_change_of_conversion_changes_key_and_is_named(
    conversion: Any, changed: dict[str, Any], words: str
) -> None:
    before, after = key.parts(conversion, DEFAULT), key.parts(small(**changed), DEFAULT)
    assert digest(before) != digest(after)
    assert reason(before, after).startswith(words)


def test_keep_fp32_changes_the_network_part() -> None:
    keep_fp32 = key.parts(small(precision="fp16", keep_fp32=["*linear*"]), DEFAULT)
    half = key.parts(small(precision="fp16"), DEFAULT)
    assert reason(half, keep_fp32) == "network changed"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (BuildOptions(optimization_level=1), "options.optimization_level none -> 1"),
        (
            BuildOptions(compute_capabilities=((8, 9),)),
            "options.compute_capabilities none -> [[8, 9]]",
        ),
        (BuildOptions(sparse_weights=True), "options.sparse_weights none -> true"),
        (
            BuildOptions(memory_pools={"tactic_dram": 9}),
            "options.memory_pools.tactic_dram none -> 9",
        ),
    ],
)
def test_build_option_is_in_the_key(
    conversion: Any, options: BuildOptions, words: str
) -> None:
    assert words in reason(
        key.parts(conversion, DEFAULT), key.parts(conversion, options)
    )


def test_all_fields_of_build_options_are_in_the_key() -> None:
    """This includes fields that are added later. Only the timing cache is left out, see below."""
    values = {
        "timing_cache": Path("/none"),
        "compute_capabilities": ((8, 6),),
        "memory_pools": {"a": 1},
    }
    for name in BuildOptions.__dataclass_fields__:
        parts = key.option_parts(BuildOptions(**{name: values.get(name, "x")}))
        assert (name in parts) == (name != "timing_cache")


def test_required_timing_cache_is_in_the_key(tmp_path: Path) -> None:
    cache = tmp_path / "a.cache"
    cache.write_bytes(b"one")
    assert key.option_parts(BuildOptions(timing_cache=cache)) == {}
    strict = BuildOptions(timing_cache=cache, error_on_timing_cache_miss=True)
    first = key.option_parts(strict)
    cache.write_bytes(b"two")
    assert key.option_parts(strict) != first


def test_required_default_timing_cache_is_in_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --timing-cache, the plan depends on the timing cache in the cache folder."""
    monkeypatch.setenv(caches.CACHE_VARIABLE, str(tmp_path))
    strict = BuildOptions(error_on_timing_cache_miss=True)
    none = key.option_parts(strict)
    caches.timing_cache().parent.mkdir()
    caches.timing_cache().write_bytes(b"one")
    first = key.option_parts(strict)
    caches.timing_cache().write_bytes(b"two")
    assert (
        len({digest(parts) for parts in (none, first, key.option_parts(strict))}) == 3
    )
    assert key.option_parts(BuildOptions()) == {}


def test_weights_digest_depends_on_shape_dtype_and_scale() -> None:
    zeros = [torch.zeros(60), torch.zeros(6, 10), torch.zeros(60, dtype=torch.int32)]
    ones = torch.ones(60, dtype=torch.int8)
    scaled = [
        torch._make_per_tensor_quantized_tensor(ones, scale, 0) for scale in (0.5, 0.25)
    ]
    graphs = [torch._C.Graph() for _ in (*zeros, *scaled)]
    for graph, tensor in zip(graphs, (*zeros, *scaled), strict=True):
        graph.registerOutput(graph.insertConstant(tensor))
    assert len({weights_digest(graph) for graph in graphs}) == 5


def test_key_has_only_converters_of_the_models_operators(conversion: Any) -> None:
    versions = key.parts(conversion, DEFAULT)["converters"]
    assert {"aten::linear", "aten::relu"} <= set(versions)
    assert not any("conv2d" in name for name in versions)


def test_changed_converter_is_named(
    conversion: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = key.parts(conversion, DEFAULT)
    module = registry.CONVERTERS["aten::relu"].build.__module__
    real = sources.version
    monkeypatch.setattr(
        sources, "version", lambda name: "0" * 16 if name == module else real(name)
    )
    after = key.parts(conversion, DEFAULT)
    assert "converters.aten::relu changed" in reason(before, after)
    assert "aten::linear" not in reason(before, after)


def test_version_of_plugin_converter_depends_on_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = tmp_path / "plugin.py"
    plugin.write_text("one = 1\n")
    monkeypatch.setitem(sys.modules, "plugin", type(sys)("plugin"))
    sys.modules["plugin"].__file__ = str(plugin)
    first = sources.version_of_plugin("plugin")
    plugin.write_text("one = 2\n")
    assert sources.version_of_plugin("plugin") != first


def test_version_includes_imported_modules() -> None:
    assert "builder.conversion.context" in sources._closure(
        "builder.conversion.convert"
    )
    assert "builder.engine.config" in sources._closure("builder.engine.build")
    assert "builder.cli.repo" not in sources._closure("builder.conversion.convert")


def test_version_includes_module_that_defines_a_public_name() -> None:
    assert (
        "from builder.engine import ILayer, ITensor, tensorrt8, trt"
        in sources._text("builder.conversion.arrangement")
    )
    files = sources._closure("builder.conversion.arrangement")
    assert {"builder.engine.flavor", "builder.engine.tensorrt8.refused"} <= files


def test_version_includes_all_files_of_an_imported_folder() -> None:
    source = "from builder.engine import tensorrt8\n"
    files = set(sources._imported(source))
    assert {
        f"builder.engine.tensorrt8.{path.stem}"
        for path in (ROOT / "builder" / "engine" / "tensorrt8").glob("[!_]*.py")
    } <= files


def test_version_of_all_code_depends_on_each_source_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str, text: str) -> str:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        return sources.version_of_all.__wrapped__()

    monkeypatch.setattr(sources, "ROOT", tmp_path)
    monkeypatch.setattr(sources, "config_templates", lambda: tmp_path)
    first = version("a/one.py", "1")
    assert version("a/__pycache__/one.pyc", "compiled") == first
    assert version("a/two.py", "") != first
    assert version("a/one.py", "2") != first


def test_version_excludes_type_checking_imports() -> None:
    source = (
        "if TYPE_CHECKING:\n    from builder.conversion.convert import Conversion\n\n"
        "from builder.conversion.dynamic import Size\n"
    )
    assert list(sources._imported(source)) == ["builder.conversion.dynamic"]


def test_installed_version_equals_imported_version() -> None:
    name = flavor.resolve()
    assert flavor.installed_version(name) == flavor.load().__version__


def test_key_depends_on_constants_of_the_graph() -> None:
    def parts(value: str) -> dict[str, Any]:
        graph = torch._C.parse_ir(
            f"graph(%x : Tensor):\n  %c : float = prim::Constant[value={value}]()\n"
            "  %y : Tensor = aten::mul(%x, %c)\n  return (%y)"
        )
        return key.parts(convert(graph, [TensorSpec("float32", (2,))]), DEFAULT)

    assert "graph changed" in reason(
        parts("0.10000000000000001"), parts("0.10000000000000002")
    )


def test_zero_option_differs_from_unset_option() -> None:
    before, after = (
        key.parts(small(), options)
        for options in (DEFAULT, BuildOptions(optimization_level=0))
    )
    assert digest(before) != digest(after)
    assert reason(before, after) == "options.optimization_level none -> 0"


def test_key_depends_on_gpu_by_hardware_compatibility_level(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def key_on(level: str | None, name: str, architecture: str) -> str:
        gpu = {"name": name, "architecture": architecture, "cuda": "13.0"}
        monkeypatch.setattr(
            key,
            "machine",
            lambda: {"flavor": "tensorrt", "tensorrt": "10.0", "gpu": gpu},
        )
        return digest(key.parts(small(), BuildOptions(hardware_compatible=level)))

    a100, h100, h200 = ("A100", "sm_80"), ("H100", "sm_90"), ("H200", "sm_90")
    assert key_on(None, *h100) != key_on(None, *h200)
    assert key_on("ampere_plus", *a100) == key_on("ampere_plus", *h100)
    assert key_on("same_compute_capability", *h100) == key_on(
        "same_compute_capability", *h200
    )
    assert key_on("same_compute_capability", *a100) != key_on(
        "same_compute_capability", *h100
    )


def test_text_none_differs_from_no_value() -> None:
    assert because({}, {"verbosity": "none"}) == 'verbosity none -> "none"'
    assert because({"verbosity": "none"}, {}) == 'verbosity "none" -> none'
