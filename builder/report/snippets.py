"""Complete client code for one model."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from typing import Any

from builder.triton import dtypes

MOST_VALUES = 64
"""The most values that a curl body contains literally."""


def of(name: str, record: Mapping[str, Any]) -> dict[str, str]:
    """Return `python` and `curl` code for a request with zeros at the smallest size of the first
    profile. Empty if the model is not published.
    """
    if not record:
        return {}
    batched = bool((record.get("batching") or {}).get("max_batch_size"))
    stateful = bool(record.get("state"))
    tensors = [
        (
            tensor["name"],
            dtypes.by_name(tensor["served_dtype"]),
            _shape(tensor, record, batched),
        )
        for tensor in record["inputs"]
    ]
    outputs = [tensor["name"] for tensor in record["outputs"]]
    return {
        "python": _python(name, tensors, outputs, stateful),
        "curl": _curl(name, tensors, stateful),
    }


def _shape(
    tensor: Mapping[str, Any], record: Mapping[str, Any], batched: bool
) -> list[int]:
    """Return the shape that a client sends: Triton has no tensor without axes."""
    profiles = record.get("profiles") or [{}]
    least = (profiles[0].get(tensor["name"]) or {}).get("min")
    shape = list(least or (max(axis, 1) for axis in tensor["shape"]))
    if len(shape) == (1 if batched else 0):
        return [*shape, 1]
    return shape


def _python(name: str, tensors: Any, outputs: list[str], stateful: bool) -> str:
    lines = ["import numpy as np", "from tritonclient import http", ""]
    if any(dtype.name == "bfloat16" for _, dtype, _ in tensors):
        lines[0] = "import ml_dtypes\nimport numpy as np"
    lines += ['client = http.InferenceServerClient("localhost:8000")', "inputs = []"]
    for tensor, dtype, shape in tensors:
        kind = (
            "ml_dtypes.bfloat16"
            if dtype.name == "bfloat16"
            else f"np.{dtype.numpy.name}"
        )
        if kind == "np.bool":
            kind = "np.bool_"
        lines += [
            f"array = np.zeros({shape}, {kind})",
            f"inputs.append(http.InferInput({tensor!r}, array.shape, {dtype.wire!r}))",
            "inputs[-1].set_data_from_numpy(array)",
        ]
    extra = (
        ", sequence_id=1, sequence_start=True, sequence_end=True" if stateful else ""
    )
    lines += [f"answer = client.infer({name!r}, inputs{extra})"]
    lines += [f"print({output!r}, answer.as_numpy({output!r}))" for output in outputs]
    return "\n".join([*lines, "client.close()"])


def _curl(name: str, tensors: Any, stateful: bool) -> str:
    """Return the curl code. It sends zeros as JSON. JSON has no 16-bit floats: models with them get
    a metadata request.
    """
    url = f"localhost:8000/v2/models/{name}"
    if any(dtype.wire in ("FP16", "BF16") for _, dtype, _ in tensors):
        return f"curl {shlex.quote(url)}  # JSON requests cannot hold 16-bit floats"
    inputs = []
    count = 0
    for tensor, dtype, shape in tensors:
        zero = False if dtype.wire == "BOOL" else 0
        length = math.prod(shape)
        count += length
        data = f"[{zero}] * {length}"
        inputs.append(
            {"name": tensor, "datatype": dtype.wire, "shape": shape, "data": data}
        )
    body: dict[str, Any] = {"inputs": inputs}
    if stateful:
        body["parameters"] = {
            "sequence_id": 1,
            "sequence_start": True,
            "sequence_end": True,
        }
    target = shlex.quote(f"{url}/infer")
    if count <= MOST_VALUES:
        for tensor_data in inputs:
            zero = False if tensor_data["datatype"] == "BOOL" else 0
            tensor_data["data"] = [zero] * math.prod(tensor_data["shape"])
        return f"curl {target} \\\n  -d {shlex.quote(json.dumps(body))}"
    program = f"import json; print(json.dumps({_with_expressions(body)}))"
    return f"python3 -c {shlex.quote(program)} |\n  curl {target} -d @-"


def _with_expressions(body: Mapping[str, Any]) -> str:
    """Return the body as Python source, in which the text of each `data` is an expression."""
    inputs = ", ".join(_input_source(tensor) for tensor in body["inputs"])
    more = "".join(
        f", {key!r}: {value!r}" for key, value in body.items() if key != "inputs"
    )
    return "{'inputs': [" + inputs + "]" + more + "}"


def _input_source(tensor: Mapping[str, Any]) -> str:
    items = []
    for key, value in tensor.items():
        source = value if key == "data" else repr(value)
        items.append(f"{key!r}: {source}")
    return "{" + ", ".join(items) + "}"
