"""Writes the Python interface of a TensorRT that cannot be installed here as JSON, beside this
file.

    python tests/engine/api/extract.py tensorrt-cu13-bindings==11.4.0.106

The bindings wheel is public and small, but links to libnvinfer and its companions, which are large
and need a GPU. pybind11 builds every class, enumeration and signature text when the module is
imported, before a function of those libraries is called: so it is imported over empty stand-ins of
them (gcc makes those), in another process, and read. Run it again for a new TensorRT; the test
needs the JSON alone.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LIBRARIES = ("nvinfer", "nvinfer_plugin", "nvonnxparser", "nvparsers")
SYMBOLS = (
    "createInferBuilder_INTERNAL createInferRefitter_INTERNAL createInferRuntime_INTERNAL"
    " getBuilderPluginRegistry "
    "createNvOnnxParserRefitter_INTERNAL createNvOnnxParser_INTERNAL getNvOnnxParserVersion"
    " getPluginRegistry "
    "initLibNvInferPlugins getInferLibVersion getLogger "
    # 8.6's
    "_ZN11nvuffparser15createUffParserEv _ZN11nvuffparser8FieldMapC1EPKcPKvNS_9FieldTypeEi "
    "_ZN14nvcaffeparser117createCaffeParserEv _ZN14nvcaffeparser123shutdownProtobufLibraryEv"
).split()
_SIGNATURE = re.compile(r"^(?:\d+\. )?(\w+)\((.*)\) -> ([\w.\[\], |]+)$")


def main(requirement: str) -> None:
    """Download the wheel, import its module in a child, and write <version>.json."""
    version = requirement.rpartition("==")[2]
    major = version.split(".")[0]
    with tempfile.TemporaryDirectory() as folder:
        pip = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--dest",
            folder,
            requirement,
        ]
        subprocess.run(pip, check=True)
        zipfile.ZipFile(next(Path(folder).glob("*.whl"))).extractall(folder)
        source = Path(folder) / "stand_in.c"
        source.write_text("".join(f"void {name}(void) {{}}\n" for name in SYMBOLS))
        for library in LIBRARIES:
            name = f"lib{library}.so.{major}"
            command = [
                "gcc",
                "-shared",
                "-fPIC",
                "-o",
                f"{folder}/{name}",
                str(source),
                f"-Wl,-soname,{name}",
            ]
            subprocess.run(command, check=True)
        child = [
            sys.executable,
            __file__,
            "--read",
            str(next(Path(folder).rglob("tensorrt.so"))),
        ]
        process = subprocess.run(
            child,
            env={"LD_LIBRARY_PATH": folder},
            capture_output=True,
            text=True,
            check=True,
        )
    (HERE / f"{version}.json").write_text(process.stdout)


def read(path: str) -> dict[str, Any]:
    """The interface: {"classes": {name: {"bases", "members": {name: overloads}}}, "functions":
    {name: overloads}}.

    An overload is {"parameters": [[name, whether it has a default]], "returns": type}; what is no
    function has none.
    """
    spec = importlib.util.spec_from_file_location("tensorrt_bindings.tensorrt", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    public = {
        name: value for name, value in vars(module).items() if not name.startswith("_")
    }
    classes = {
        name: _class(value) for name, value in public.items() if isinstance(value, type)
    }
    functions = {
        name: _overloads(value)
        for name, value in public.items()
        if not isinstance(value, type)
    }
    return {
        "classes": dict(sorted(classes.items())),
        "functions": dict(sorted(functions.items())),
    }


def _class(kind: type) -> dict[str, Any]:
    bases = [
        base.__name__
        for base in kind.__bases__
        if base.__name__ not in ("object", "pybind11_object")
    ]
    inner = {
        name: value
        for name, value in vars(kind).items()
        if not name.startswith("__") or name == "__init__"
    }
    return {
        "bases": bases,
        "members": {name: _overloads(value) for name, value in sorted(inner.items())},
    }


def _overloads(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, property) or not callable(value):
        return []
    signatures = (_SIGNATURE.match(line) for line in (value.__doc__ or "").splitlines())
    return [
        {"parameters": _parameters(m[2]), "returns": m[3].rpartition(".")[2]}
        for m in signatures
        if m and m[2] != "*args, **kwargs"
    ]


def _parameters(text: str) -> list[list[Any]]:
    """`self: X, kernel: Y = None` as [["self", false], ["kernel", true]]; commas within brackets do
    not part.
    """
    parts, depth = [""], 0
    for character in text:
        depth += character in "[(<{"
        depth -= character in "])>}"
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [
        [part.split(":")[0].strip(), " = " in part] for part in parts if part.strip()
    ]


if __name__ == "__main__":
    if sys.argv[1] == "--read":
        print(json.dumps(read(sys.argv[2]), separators=(",", ":")))
    else:
        main(sys.argv[1])
