"""Which operators a TorchScript file may name: those without side effects outside tensors. The
check reads the source in the archive and loads nothing, because loading runs code of the file.
trt-build runs it before it loads a model, and the runtime before it loads a published graph. This
module imports only the standard library.
"""

from __future__ import annotations

import ast
import keyword
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

NAMESPACES = frozenset(
    {
        "aten",
        "prim",
        "prims",
        "quantized",
        "_quantized",
        "quantization",
        "sparse",
        "rngprims",
    }
    | {"mkldnn", "mkldnn_prepacked", "mkl", "onednn"}
)
"""Namespaces of torch whose operators compute with tensors, numbers and text."""

REFUSED_NAMESPACES = frozenset(
    {
        "c10d",
        "_c10d_functional",
        "_c10d_functional_autograd",
        "_dtensor",
        "symm_mem",
        "rpc",
    }
    | {
        "inductor",
        "inductor_prims",
        "static_runtime",
        "_native",
        "_test",
        "onnx",
        "export",
    }
    | {
        "profiler",
        "debugprims",
        "debug_mode_ops",
        "_nnapi",
        "backendutils",
        "profiling",
    }
    | {"dist_rpc", "dist_c10d", "aoti", "cuda"}
)
"""Namespaces of torch with files, network, raw memory or settings of the process. No custom library
makes them safe.
"""

CLASS_NAMESPACES = frozenset({"quantized", "rnn", "sparse", "mkldnn", "xnnpack"})
"""Namespaces of torch's own classes (`torch.classes`) that contain packed weights."""

PROFILER_SCOPES = frozenset(
    {
        "_record_function_enter_new",
        "_record_function_exit",
        "_call_end_callbacks_on_jit_fut",
    }
)
"""The operators of `profiler` that are allowed. `torch.profiler.record_function` marks a scope with
them; torch saves all its methods with a model that uses it.
"""

_SCOPE_CLASS = "__torch__.torch.classes.profiler._RecordFunction"

REFUSED = {
    "from_file": "it maps a file into memory and can overwrite it",
    "save": "it writes a file",
    "rpc_async": "it calls other machines",
    "rpc_remote": "it calls other machines",
    "rpc_sync": "it calls other machines",
    "PythonOp": "it calls Python",
    "IgnoredPythonOp": "it calls Python",
}
"""Operators of NAMESPACES that do more than compute, with the reason. No other one names a file,
host or process (a test checks this over all schemas of torch).
"""

_NAMES = "|".join(REFUSED)
_NAMED = re.compile(rf"\.\s*(?:{_NAMES})\b")
# A message of torchvision, in each model that calls its operators, has these words. As code they
# are a syntax error for torch's parser too, because a name follows a name.
_OPS = re.compile(r"(?<![\w.])ops\s*\.(?! This can happen\b)")
# torch takes Python's keywords as names of fields, which Python's parser does not
_KEYWORDS = "|".join(keyword.kwlist)
_FIELD_USE = re.compile(rf"\.({_KEYWORDS})\b")
_FIELD = re.compile(rf"^(\s+)({_KEYWORDS})( : \S)", re.MULTILINE)


class UnsafeArchive(Exception):
    """The file names an operator that is not allowed. The message has its name, line and reason."""


@dataclass(frozen=True)
class Finding:
    """One operator that is refused: its name, the line (from 1) of the archive's member, and the
    reason.
    """

    operator: str
    member: str
    line: int
    source: str
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.member}:{self.line}: {self.operator}: {self.reason} ({self.source})"
        )


def reason(namespace: str, name: str, custom: bool = False) -> str | None:
    """The reason why the operator `namespace::name` is refused, or None. `custom` allows namespaces
    that torch does not have: those of custom libraries.
    """
    if namespace == "profiler" and name in PROFILER_SCOPES:
        return None
    if namespace in REFUSED_NAMESPACES:
        return "its namespace has side effects outside tensors"
    if namespace in NAMESPACES:
        return REFUSED.get(name)
    if custom:
        return None
    return "its namespace is unknown, and no library that brings it is given"


def check(path: Path | str, custom: bool = False) -> None:
    """Raise UnsafeArchive if the archive names an operator that is refused. Also raises
    zipfile.BadZipFile and OSError if it cannot be read.
    """
    refused = findings(path, custom)
    if refused:
        raise UnsafeArchive(
            f"{Path(path).name} is refused: " + "; ".join(map(str, refused[:5]))
        )


def findings(path: Path | str, custom: bool = False) -> list[Finding]:
    """Every refused operator that the archive's source names, and source that cannot be read."""
    refused: list[Finding] = []
    with zipfile.ZipFile(path) as archive:
        members = [info.filename for info in archive.infolist()]
        # torch finds members without regard to case, and of two takes one that we may not read
        folded = {name.casefold() for name in members}
        if len(folded) != len(members):
            refused.append(
                Finding("archive", str(path), 0, "", "two members have one name")
            )
        for name in members:
            if is_code(name):
                refused += source_findings(name, archive.read(name), custom)
    return refused


def is_code(member: str) -> bool:
    """Whether torch reads the archive's member as source code."""
    parts = member.casefold().split("/")
    return parts[-1].endswith(".py") and parts[1:2] != ["extra"]


def source_findings(member: str, code: bytes, custom: bool = False) -> list[Finding]:
    """The findings of one member of source code."""
    text = code.decode("utf-8", "backslashreplace")
    readable = _FIELD.sub(r"\1\2_\3", _FIELD_USE.sub(r".\1_", text))
    try:
        tree = ast.parse(readable)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 0
        why = f"it is not code that torch.jit.save writes: {error}"
        return [Finding("source", member, line, "", why)]
    reader = _Reader(member, readable.splitlines(), custom)
    try:
        reader.visit(tree)
    except RecursionError:
        return [Finding("source", member, 0, "", "it is nested too deeply to be read")]
    if not reader.findings and reader.names != _mentions(text):
        # where Python sees a comment or a string, torch's own parser may see code
        why = "it mentions a refused operator where Python's parser sees no code"
        return [Finding("source", member, 0, "", why)]
    return reader.findings


def _mentions(text: str) -> tuple[int, int]:
    return len(_NAMED.findall(text)), len(_OPS.findall(text))


class _Reader(ast.NodeVisitor):
    """Finds refused operators in every form that TorchScript has for naming one."""

    def __init__(self, member: str, lines: list[str], custom: bool) -> None:
        self.member = member
        self.lines = lines
        self.custom = custom
        self.findings: list[Finding] = []
        self.refused_count = self.ops_count = 0
        self.owners: list[set[str]] = []
        self.self_is_own = False

    @property
    def names(self) -> tuple[int, int]:
        return self.refused_count, self.ops_count

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Remember the fields and methods that the class declares."""
        fields = {
            statement.target.id
            for statement in node.body
            if isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
        }
        methods = {
            statement.name
            for statement in node.body
            if isinstance(statement, ast.FunctionDef)
        }
        self.owners.append(fields | methods)
        self.generic_visit(node)
        self.owners.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """In a method `self` is the module, unless the method assigns another value to it."""
        before = self.self_is_own
        first = None
        if node.args.args:
            first = node.args.args[0]
        stored = (
            name.id == "self" and not isinstance(name.ctx, ast.Load)
            for name in ast.walk(node)
            if isinstance(name, ast.Name)
        )
        self.self_is_own = (
            bool(self.owners)
            and first is not None
            and first.arg == "self"
            and ast.unparse(first.annotation or ast.Constant("")).startswith(
                "__torch__."
            )
            and not any(stored)
        )
        self.generic_visit(node)
        self.self_is_own = before

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """`ops.NAMESPACE.NAME`, `torch.NAME`, `value.NAME`, and classes of `torch.classes`."""
        owner = ""
        if isinstance(node.value, (ast.Name, ast.Attribute)):
            owner = ast.unparse(node.value)
        if node.attr in REFUSED:
            self.refused_count += 1
            is_own_attribute = (
                owner == "self" and self.self_is_own and node.attr in self.owners[-1]
            )
            if not is_own_attribute:
                self._add(node, self._operator(owner, node.attr), REFUSED[node.attr])
        if owner == "ops.profiler" and node.attr in PROFILER_SCOPES:
            self.ops_count += 1
            return
        if f"{owner}.{node.attr}" == _SCOPE_CLASS:
            return
        if owner == _SCOPE_CLASS:
            self._add(node, _SCOPE_CLASS, "it is used as more than a type")
        if owner == "ops":
            self.ops_count += 1
            self._namespace(node, node.attr)
        elif owner.endswith("torch.classes"):
            self._class_namespace(node, node.attr)
        if owner != "ops":
            self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        """`ops` alone: a value that would hide the namespace."""
        if node.id == "ops" and isinstance(node.ctx, ast.Load):
            self._add(node, "ops", "it is used as a value")

    def visit_Call(self, node: ast.Call) -> None:
        """`getattr(value, "NAME")` is `value.NAME`."""
        if isinstance(node.func, ast.Name) and node.func.id == "getattr":
            self._getattr(node)
        self.generic_visit(node)

    def _getattr(self, node: ast.Call) -> None:
        name = None
        if len(node.args) == 2:
            name = node.args[1]
        text = ""
        if name is not None:
            text = ast.get_source_segment("\n".join(self.lines), name) or "\\"
        if (
            not isinstance(name, ast.Constant)
            or not isinstance(name.value, str)
            or "\\" in text
        ):
            self._add(node, "getattr", "its attribute is not written out")
        elif name.value in REFUSED:
            self._add(node, f"aten::{name.value}", REFUSED[name.value])

    def _namespace(self, node: ast.Attribute, namespace: str) -> None:
        why = reason(namespace, "", self.custom)
        if why:
            segment = self._source(node)
            match = re.search(rf"ops\.{re.escape(namespace)}\.(\w+)", segment)
            name = match.group(1) if match else "?"
            self._add(node, f"{namespace}::{name}", why)

    def _class_namespace(self, node: ast.Attribute, namespace: str) -> None:
        if namespace not in CLASS_NAMESPACES and (
            namespace in REFUSED_NAMESPACES | NAMESPACES or not self.custom
        ):
            self._add(
                node, f"torch.classes.{namespace}", "it does not only hold weights"
            )

    @staticmethod
    def _operator(owner: str, name: str) -> str:
        parts = owner.split(".")
        if parts[0] == "ops" and len(parts) == 2:
            return f"{parts[1]}::{name}"
        return f"aten::{name}"

    def _source(self, node: ast.expr) -> str:
        number = node.lineno
        if number <= len(self.lines):
            return self.lines[number - 1].strip()
        return ""

    def _add(self, node: ast.expr, operator: str, why: str) -> None:
        source = self._source(node)[:160]
        self.findings.append(Finding(operator, self.member, node.lineno, source, why))


def graph_findings(graph: object, custom: bool = False) -> Iterator[str]:
    """The refused operators of a loaded torch graph, `namespace::name: reason`, including inner
    blocks.
    """
    for node in graph.nodes():
        namespace, _, name = node.kind().partition("::")
        why = None
        if namespace != "prim" or name in REFUSED:
            why = reason(namespace, name, custom)
        if why:
            yield f"{node.kind()}: {why}"
        for block in node.blocks():
            yield from graph_findings(block, custom)
