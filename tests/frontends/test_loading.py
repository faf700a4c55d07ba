"""A `.pt2` file is checked before torch, which evaluates parts of it as Python, loads it."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from builder import frontends, torchscript
from builder.errors import LoweringError, ModelFileError
from builder.frontends.export import archive
from tests.cli.conftest import python

Change = Callable[[dict[str, Any]], None]


def changed(file: Path, folder: Path, change: Change) -> Path:
    """The file with another model.json."""
    changed_file = folder / "changed.pt2"
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(changed_file, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name.endswith("models/model.json"):
                program = json.loads(data)
                change(program)
                data = json.dumps(program).encode()
            new.writestr(name, data)
    return changed_file


def with_member(file: Path, folder: Path, name: str, data: bytes) -> Path:
    """The file with a member replaced or added."""
    changed_file = folder / "changed.pt2"
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(changed_file, "w") as new:
        for one in old.namelist():
            if not one.endswith(name):
                new.writestr(one, old.read(one))
        new.writestr(f"{old.namelist()[0].partition('/')[0]}/{name}", data)
    return changed_file


def test_valid_file_is_loaded(small_file: Path) -> None:
    """The loaded program has the results of the exported one, and the file's facts are known."""
    loaded = frontends.load(small_file)
    assert isinstance(loaded, frontends.ExportedModule)
    x, bias = torch.randn(3, 4), torch.randn(4)
    whole, halves = loaded(x, bias)
    assert whole.shape == (3, 4) and halves.shape == (6, 2)
    facts = archive.inspect(small_file)
    assert facts.torch_version == torch.__version__ and facts.schema_version.startswith(
        "8."
    )


def expression(program: dict[str, Any]) -> None:
    values = program["graph_module"]["graph"]["sym_int_values"]
    next(iter(values.values()))["as_expr"]["expr_str"] = (
        "__import__('os').system('true')"
    )


def guard(program: dict[str, Any]) -> None:
    program["guards_code"] = ["L['x'].size()[0] <= 3 or print(1)"]


def guard_text(program: dict[str, Any]) -> None:
    program["guards_code"] = ["L['x\"+print(1)+\"'] != 3"]


def target(program: dict[str, Any]) -> None:
    program["graph_module"]["graph"]["nodes"][0]["target"] = "torch.hub.load"


def operator(program: dict[str, Any]) -> None:
    program["graph_module"]["graph"]["nodes"][0]["target"] = (
        "torch.ops.aten.from_file.default"
    )


def name(program: dict[str, Any]) -> None:
    program["graph_module"]["graph"]["inputs"][0]["as_tensor"]["name"] = "x=print(1)"


def bound(program: dict[str, Any]) -> None:
    program["range_constraints"] = {"print(1)": {"min_val": 0, "max_val": 1}}


def key(program: dict[str, Any]) -> None:
    signature = program["graph_module"]["module_call_graph"][0]["signature"]
    signature["in_spec"] = signature["in_spec"].replace("bias", "b'+print(1)+'")


@pytest.mark.parametrize(
    "change", [expression, guard, guard_text, target, operator, name, bound, key]
)
def test_text_that_torch_would_evaluate_is_refused(
    small_file: Path, tmp_path: Path, change: Change
) -> None:
    """Sizes, guards, functions and names with other code in them are refused."""
    with pytest.raises(
        ModelFileError, match="names objects that no exported program needs"
    ):
        archive.inspect(changed(small_file, tmp_path, change))


class Runs:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("true",)


def test_pickle_with_code_is_refused(small_file: Path, tmp_path: Path) -> None:
    """The example inputs may be tensors only."""
    buffer = io.BytesIO()
    torch.save({"x": Runs()}, buffer)
    changed_file = with_member(
        small_file, tmp_path, "data/sample_inputs/model.pt", buffer.getvalue()
    )
    with pytest.raises(ModelFileError, match=r"posix\.system|os\.system"):
        archive.inspect(changed_file)
    changed_file = with_member(
        small_file, tmp_path, "data/sample_inputs/model.pt", pickle.dumps(Runs())
    )
    with pytest.raises(ModelFileError, match="in a format that is not checked"):
        archive.inspect(changed_file)


def test_compiled_code_is_refused(small_file: Path, tmp_path: Path) -> None:
    """A library in the archive would be loaded with it."""
    changed_file = with_member(
        small_file, tmp_path, "data/aotinductor/model/model.so", b"\x7fELF"
    )
    with pytest.raises(ModelFileError, match="has compiled code"):
        archive.inspect(changed_file)
    changed_file = with_member(small_file, tmp_path, "data/other.bin", b"")
    with pytest.raises(ModelFileError, match=r"torch\.export\.save does not write"):
        archive.inspect(changed_file)


def without(file: Path, folder: Path, name: str, data: bytes | None = None) -> Path:
    """The file without a member, or with this content in it."""
    changed_file = folder / "damaged.pt2"
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(changed_file, "w") as new:
        for one in old.namelist():
            content = data if one.endswith(name) else old.read(one)
            if content is not None:
                new.writestr(one, content)
    return changed_file


def test_missing_members_are_reported(small_file: Path, tmp_path: Path) -> None:
    """torch would read a weight without data as zeros."""
    with pytest.raises(ModelFileError, match=r"has no data in the member .*weight_0"):
        frontends.load(without(small_file, tmp_path, "weight_0", b""))
    with pytest.raises(ModelFileError, match=r"has no member .*weight_0"):
        frontends.load(without(small_file, tmp_path, "weight_0"))
    with pytest.raises(ModelFileError, match=r"has no member small/models/model\.json"):
        frontends.load(without(small_file, tmp_path, "model.json"))


def test_edited_programs_are_refused(small_file: Path, tmp_path: Path) -> None:
    """Edited programs are refused; metadata other than text is ignored."""

    def twice(program: dict[str, Any]) -> None:
        names = program["graph_module"]["module_call_graph"][0]["signature"]
        names["forward_arg_names"] = ["x", "x"]

    def number(program: dict[str, Any]) -> None:
        for node in program["graph_module"]["graph"]["nodes"]:
            node["metadata"]["stack_trace"] = 7

    def root(program: dict[str, Any]) -> None:
        program["graph_module"]["module_call_graph"][0]["fqn"] = "inner"

    with pytest.raises(ModelFileError, match="cannot be loaded"):
        frontends.load(changed(small_file, tmp_path, root))
    with pytest.raises(
        LoweringError, match="two arguments of the program have the same name"
    ):
        frontends.load(changed(small_file, tmp_path, twice))
    loaded = frontends.load(changed(small_file, tmp_path, number))
    assert isinstance(loaded, frontends.ExportedModule)


def test_checkpoint_with_pt2_suffix_is_reported(tmp_path: Path) -> None:
    """The fix is that of exported programs."""
    file = tmp_path / "weights.pt2"
    torch.save(torch.nn.Linear(2, 2).state_dict(), file)
    with pytest.raises(ModelFileError, match=r"a checkpoint of torch\.save") as caught:
        frontends.load(file)
    assert "torch.export.save" in str(caught.value.fix)


def test_constants_other_than_tensors_are_refused(
    small_file: Path, tmp_path: Path
) -> None:
    """Constants that torch would unpickle are refused."""
    config = {"config": {"key": {"path_name": "opaque_obj_0", "use_pickle": True}}}
    member = "data/constants/model_constants_config.json"
    changed_file = with_member(
        small_file, tmp_path, member, json.dumps(config).encode()
    )
    with pytest.raises(ModelFileError, match="an object that is not a tensor"):
        archive.inspect(changed_file)


def test_other_schema_version_is_reported(small_file: Path, tmp_path: Path) -> None:
    """The error names the torch that wrote the file."""

    def older(program: dict[str, Any]) -> None:
        program["schema_version"] = {"major": 7, "minor": 3}
        program["torch_version"] = "2.5.1"

    with pytest.raises(
        ModelFileError, match=r"torch 2\.5\.1 in version 7\.3 .* version 8"
    ):
        archive.inspect(changed(small_file, tmp_path, older))


def test_earlier_archive_layout_is_loaded(
    small: torch.export.ExportedProgram, tmp_path: Path
) -> None:
    """Files with serialized_exported_program.json load, too."""
    from torch._export.serde.schema import SCHEMA_VERSION
    from torch._export.serde.serialize import serialize

    found, file = serialize(small), tmp_path / "earlier.pt2"
    with zipfile.ZipFile(file, "w") as written:
        written.writestr("version", ".".join(map(str, SCHEMA_VERSION)))
        written.writestr("serialized_exported_program.json", found.exported_program)
        written.writestr("serialized_state_dict.pt", found.state_dict)
        written.writestr("serialized_constants.pt", found.constants)
        written.writestr("serialized_example_inputs.pt", found.example_inputs)
    loaded, x = frontends.load(file), torch.randn(3, 4)
    assert isinstance(loaded, frontends.ExportedModule)
    torch.testing.assert_close(
        loaded(x, torch.zeros(4))[0],
        small.module()(x, {"bias": torch.zeros(4)})["whole"],
    )


def test_wrong_suffix_is_reported(small_file: Path, tmp_path: Path) -> None:
    """The error for a file with the suffix of the other format names the right suffix."""
    script = tmp_path / "script.pt2"
    torch.jit.script(torch.nn.Linear(2, 2)).save(script)
    with pytest.raises(
        ModelFileError, match="is not an exported program but TorchScript"
    ):
        frontends.load(script)
    renamed = tmp_path / "program.pt"
    renamed.write_bytes(small_file.read_bytes())
    with pytest.raises(
        ModelFileError, match="is not a TorchScript file but a program of torch"
    ):
        torchscript.load(renamed)


def test_submodules_cannot_be_selected(small_file: Path) -> None:
    """`module` is for TorchScript."""
    with pytest.raises(ModelFileError, match="no submodule or method 'layers'"):
        frontends.load(small_file, "layers")


def test_only_programs_have_preloaded_modules() -> None:
    assert frontends.preloaded(["a.pt", Path("b.pt")]) == ()
    assert len(frontends.preloaded(["a.pt", Path("b.pt2")])) == 1


@pytest.mark.slow
def test_modules_that_load_programs_are_preloaded() -> None:
    """The modules that torch imports for its first program are imported before the fork."""
    (name,) = frontends.preloaded([Path("b.pt2")])
    code = (
        f"import importlib, sys; importlib.import_module({name!r}); before = set(sys.modules);"
        "import io, torch; file = io.BytesIO();"
        "program = torch.export.export(torch.nn.ReLU(), (torch.ones(2),));"
        "torch.export.save(program, file); file.seek(0); torch.export.load(file);"
        "late = {'torch._export.serde.serialize', 'torch.export.pt2_archive._package'} - before;"
        "print(sorted(late))"
    )
    done = python(code)
    assert done.stdout.strip() == "[]"


class Named(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, str]:
        return x * 2, "doubled"


def test_string_output_is_refused_with_a_fix(tmp_path: Path) -> None:
    """torch saves such a program, and cannot load it."""
    file = tmp_path / "named.pt2"
    torch.export.save(torch.export.export(Named(), (torch.ones(2),)), file)
    with pytest.raises(ModelFileError, match="cannot be loaded") as caught:
        frontends.load(file)
    assert (
        caught.value.fix
        == "return tensors, numbers and None only, and export the model again"
    )
