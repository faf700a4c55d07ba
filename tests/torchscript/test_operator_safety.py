"""A file names only operators without side effects outside tensors; others are refused before they
run.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

import builder
from builder import processes
from builder.errors import ModelFileError
from builder.templates.runtime.trt_build_runtime import by_torch, operator_safety
from builder.torchscript import inspect, load, operators, trial

VICTIM = "content that must stay"


class MapsWhenLoaded(torch.nn.Module):
    """Overwrites a file in `__setstate__`, which torch runs while it loads."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path
        self.seen = torch.zeros(1, dtype=torch.uint8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x

    @torch.jit.export
    def __getstate__(self) -> tuple[str, bool]:
        return self.path, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[str, bool]) -> None:
        self.path, self.training = state
        self.seen = torch.from_file(self.path, True, 4, dtype=torch.uint8)
        self.seen.fill_(65)


class MapsWhenRun(torch.nn.Module):
    """Its operator has constant inputs only, so constant folding evaluates it."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.from_file(self.path, True, 4, dtype=torch.uint8).fill_(66)


class Scoped(torch.nn.Module):
    """Marks a scope for torch's profiler."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.profiler.record_function("double"):
            return x * 2


class Saves(MapsWhenRun):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.save(x, self.path)
        return x


def hostile(kind: type[torch.nn.Module], path: str, file: Path) -> Path:
    torch.jit.script(kind(path)).save(str(file))
    return file


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim.py"
    path.write_text(VICTIM)
    return path


@pytest.mark.parametrize("kind", [MapsWhenLoaded, MapsWhenRun, Saves])
def test_file_writing_operator_is_refused_before_it_runs(
    kind: type[torch.nn.Module], victim: Path, tmp_path: Path
) -> None:
    file = hostile(kind, str(victim), tmp_path / "model.pt")
    victim.write_text(VICTIM)
    with pytest.raises(ModelFileError, match=r"aten::(from_file|save)") as caught:
        load(file)(torch.ones(4))
    assert victim.read_text() == VICTIM
    assert "code/__torch__" in str(caught.value)


def edited(
    file: Path, *changes: tuple[str, str], members: dict[str, bytes] | None = None
) -> Path:
    """The archive with its source changed."""
    with zipfile.ZipFile(file) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in content.items():
            for old, new in changes if name.endswith(".py") else ():
                assert old.encode() in data
                data = data.replace(old.encode(), new.encode())
            archive.writestr(name, data)
        for name, data in (members or {}).items():
            archive.writestr(name, data)
    return file


@pytest.mark.parametrize(
    "form",
    [
        "ops.aten.from_file(",
        'getattr(torch, "from_file")(',
        "getattr(ops.aten, 'from\\x5ffile')(",
        "torch.\n      from_file(",
        "(torch . from_file)(",
        "torch.autograd.from_file(",
    ],
)
def test_every_spelling_of_an_unsafe_operator_is_found(
    form: str, victim: Path, tmp_path: Path
) -> None:
    file = hostile(MapsWhenRun, str(victim), tmp_path / "model.pt")
    victim.write_text(VICTIM)
    edited(file, ("torch.from_file(", form))
    with pytest.raises(ModelFileError, match=r"is refused|side effects"):
        load(file)(torch.ones(4))
    assert victim.read_text() == VICTIM


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("ops.c10d.barrier_(x)", "c10d::barrier_"),
        ("ops.inductor.resize_storage_bytes_(x, 0)", "inductor::resize_storage_bytes_"),
        ("ops.profiler._record_function_enter(x)", "profiler::_record_function_enter"),
        (
            "ops.profiler._record_function_exit(ops.profiler.start(x))",
            "namespace has side effects",
        ),
        ("f = ops.profiler", "profiler::?"),
        ("__torch__.torch.classes.profiler.Other", "torch.classes.profiler"),
        (
            "__torch__.torch.classes.profiler._RecordFunction.__new__(x)",
            "more than a type",
        ),
        ("ops.mine.act(x)", "no library that brings it"),
        ("ops.prim.rpc_sync(x)", "prim::rpc_sync"),
        ("o = ops", "used as a value"),
        ("f = torch.save", "aten::save"),
        ("__torch__.torch.classes.c10d.ProcessGroup(x)", "torch.classes.c10d"),
        ("# torch.save(x)", "sees no code"),
        ("# ops. This can, ops.mine.act(x)", "sees no code"),
        ("ops. This can happen", "not code that torch.jit.save writes"),
        ("x = 'a' b", "not code that torch.jit.save writes"),
        ("self = x\n    self.save()", "aten::save"),
        ("other.save(x)", "aten::save"),
    ],
)
def test_unsafe_source_is_refused(code: str, words: str) -> None:
    findings = operator_safety.source_findings("code/a.py", method(code), custom=False)
    assert any(words in str(finding) for finding in findings), findings


@pytest.mark.parametrize(
    "code",
    [
        "torch.add(x, 1)",
        "ops.quantized.add(x, x, 1., 0)",
        "ops.prim.NumToTensor(1)",
        "self.save",
        "self.save(x)",
        'getattr(self, "0").forward(x)',
        "self.global",
        "__torch__.torch.classes.quantized.LinearPackedParamsBase",
        "self.from_file_name",
        'x = "Couldn\\\'t load custom C++ ops. This can happen if"',
    ],
)
def test_safe_source_is_accepted(code: str) -> None:
    assert (
        operator_safety.source_findings("code/a.py", method(code), custom=False) == []
    )


def method(code: str) -> bytes:
    return (
        "class Net(Module):\n  training : bool\n  global : __torch__.Head\n"
        "  def save(self: __torch__.Net, x: Tensor) -> Tensor:\n    return x\n"
        f"  def forward(self: __torch__.Net, x: Tensor) -> Tensor:\n    {code}\n    return x\n"
    ).encode()


def test_profiler_scopes_are_accepted_and_removed(tmp_path: Path) -> None:
    """They were refused as operators of an unsafe namespace."""
    file = tmp_path / "model.pt"
    torch.jit.script(Scoped()).save(str(file))
    module, x = load(file), torch.ones(2)
    (lowered,) = builder.lower(module).run(x)
    assert torch.equal(lowered, x * 2) and torch.equal(module(x), x * 2)
    kinds = {node.kind() for node in builder.lower(module).graph.nodes()}
    assert kinds - {"prim::Constant"} == {"aten::mul"}
    (served,) = by_torch.TorchExecutor(file, "no GPU").run([x])
    assert torch.equal(served, x * 2)


def test_custom_namespaces_need_a_library() -> None:
    custom = method("ops.mine.act(x)")
    assert operator_safety.source_findings("code/a.py", custom, custom=True) == []
    unsafe = method("ops.c10d.barrier_(x)")
    assert operator_safety.source_findings("code/a.py", unsafe, custom=True) != []


def test_members_with_equal_names_are_refused(file: Path) -> None:
    member = next(
        name for name in zipfile.ZipFile(file).namelist() if name.endswith(".py")
    )
    edited(file, members={member.upper(): b"x"})
    with pytest.raises(ModelFileError, match="two members have one name"):
        operators.check_source(file)


def test_all_operators_with_file_or_host_names_are_refused() -> None:
    """An operator names a file, host or command by text. The text arguments of these operators are
    a mode, a message, a key or the text to compute with.
    """
    texts = {
        f"{schema.name}({argument.name})"
        for schema in torch._C._jit_get_all_schemas()
        for argument in schema.arguments
        if "str" in str(argument.type)
        and operator_safety.reason(*schema.name.split("::", 1)) is None
    }
    unknown = {text for text in texts if text.split("(")[1][:-1] not in HARMLESS_TEXTS}
    assert unknown == set()


HARMLESS_TEXTS = frozenset(
    "UPLO a activation algorithm api_name approximate args assert_msg attr b binary_attr"
    " binary_post_op chars cls dict device_type driver el equation fillchar idx ind indexing"
    " inputs input interpolation item key l message mode msg name new norm old ord p pad_mode"
    " padding padding_side post_op_algorithm post_op_name reduce rounding_mode s self separator"
    " side string substr t to_add type unary_algorithm unary_attr unary_post_op"
    " unary_post_op_algorithm values".split()
)


def test_graphs_are_checked_after_loading(tmp_path: Path) -> None:
    file = hostile(MapsWhenLoaded, str(tmp_path / "new"), tmp_path / "model.pt")
    module = torch.jit.load(str(file))
    with pytest.raises(ModelFileError, match=r"__setstate__: aten::from_file"):
        operators.check_graphs(module, file)
    inner = torch.nn.Sequential(MapsWhenRun(str(tmp_path / "new")))
    with pytest.raises(ModelFileError, match=r"aten::from_file"):
        operators.check_graphs(torch.jit.script(inner), file)


def test_runtime_check_needs_only_the_standard_library() -> None:
    path = Path(operator_safety.__file__)
    code = (
        f"import sys; sys.path.insert(0, {str(path.parent)!r}); import operator_safety;"
        " print([n for n in sys.modules if n.split('.')[0] in ('torch', 'numpy', 'builder')])"
    )
    command = [sys.executable, "-I", "-c", code]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    assert process.stdout == "[]\n"


@pytest.mark.parametrize("kind", [MapsWhenLoaded, MapsWhenRun])
def test_runtime_refuses_unsafe_graph_before_loading(
    kind: type[torch.nn.Module], victim: Path, tmp_path: Path
) -> None:
    file = hostile(kind, str(victim), tmp_path / "lowered.pt")
    victim.write_text(VICTIM)
    with pytest.raises(operator_safety.UnsafeArchive, match="aten::from_file"):
        by_torch.TorchExecutor(file, "no GPU").run([torch.ones(4)])
    assert victim.read_text() == VICTIM


@pytest.mark.skipif(
    bool(processes.missing()), reason="this machine cannot confine a process"
)
def test_trial_load_cannot_write_files(victim: Path, tmp_path: Path) -> None:
    file = hostile(MapsWhenLoaded, str(victim), tmp_path / "model.pt")
    victim.write_text(VICTIM)
    with pytest.raises(ModelFileError, match="cannot be loaded"):
        trial.check_in_child(inspect(file))
    assert victim.read_text() == VICTIM
