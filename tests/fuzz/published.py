"""python -m tests.fuzz.published [--seed N] [--stride N] [--seconds S] [--models N] [--out FILE]

Publishes random programs with `trt-build repo`, serves them, and compares the responses with torch
on inputs that are no goldens. Each model is a line of the JSON Lines file, with the verdict equal,
wrong, failed (the request) or absent (not published or not loaded). The exit code is 1 if one is
wrong or failed. Run one process for a few cores, with another --seed and the same --stride.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from tritonclient import http

from builder.errors import ServerError
from builder.repository import ModelResult, build_repository
from builder.serving import FREE_PORTS, Server, serve
from tests.fuzz import checking
from tests.fuzz.programs import KINDS, Program, program

NAMES = ("x", "y", "ids")
MANIFEST: dict[str, Any] = {
    "inputs": [
        {"name": "x", "dtype": "float32", "shape": ["n", 4]},
        {"name": "y", "dtype": "float32", "shape": ["n", 4]},
        {"name": "ids", "dtype": "int64", "shape": ["n"]},
    ],
    "dims": {"n": {"min": 1, "opt": 4, "max": 8}},
    "batching": {"enabled": False},
    "build": {"optimization_level": 0},
}


@dataclass(frozen=True)
class Subject:
    """A program that torch runs, its module, and inputs with torch's outputs."""

    program: Program
    module: Any
    cases: list[checking._Case]

    @property
    def name(self) -> str:
        return f"{self.program.kind}_{self.program.seed}"


@dataclass(frozen=True)
class Row:
    """The result of one model; `layout` and `plan_executed` are those of its report."""

    name: str
    verdict: str
    reason: str
    layout: str
    plan_executed: bool


def subjects(seed: int, stride: int) -> Iterator[Subject]:
    """Programs of all kinds that torch saves as a TorchScript file and runs."""
    kinds = [kind for kind in KINDS if kind != "export"]
    while True:
        for kind in kinds:
            candidate = program(kind, seed)
            with torch.no_grad():
                try:
                    module = checking._module(candidate.source(), f"{kind} {seed}")
                    cases = list(checking._cases(module))
                except Exception:  # torch raises many types
                    continue
            outputs = [tensor for case in cases for tensor in case.plain]
            if not any(map(checking._too_large, outputs)):
                yield Subject(candidate, module, cases)
        seed += stride


def rows(group: list[Subject], folder: Path) -> Iterator[Row]:
    """Publish the programs, serve them, and compare their responses."""
    for subject in group:
        _write(subject, folder / "models")
    repository = folder / "repository"
    results = build_repository(folder / "models", repository)
    by_name = {result.name: result for result in results}
    try:
        with serve(repository, **FREE_PORTS) as server:
            for subject in group:
                yield _row(subject, by_name[subject.name], server)
    except ServerError as error:
        for subject in group:
            yield _as_row(by_name[subject.name], "absent", str(error))


def _write(subject: Subject, folder: Path) -> None:
    """Write the file, and a manifest whose goldens have the inputs of the first case."""
    folder.mkdir(parents=True, exist_ok=True)
    subject.module.save(str(folder / f"{subject.name}.pt"))
    first = map(torch.Tensor.numpy, subject.cases[0].inputs)
    np.savez(folder / f"{subject.name}.npz", **dict(zip(NAMES, first, strict=True)))
    manifest = {**MANIFEST, "goldens": f"{subject.name}.npz"}
    (folder / f"{subject.name}.yaml").write_text(yaml.safe_dump(manifest))


def _row(subject: Subject, result: ModelResult, server: Server) -> Row:
    if not result.ok:
        return _as_row(result, "absent", str(result.error))
    try:
        with http.InferenceServerClient(server.http_url) as client:
            for case in subject.cases:
                _compare(subject, case, _response(client, subject.name, case))
    except AssertionError as error:
        return _as_row(result, "wrong", str(error))
    except http.InferenceServerException as error:
        return _as_row(result, "failed", str(error))
    return _as_row(result, "equal", "")


def _as_row(result: ModelResult, verdict: str, reason: str) -> Row:
    return Row(result.name, verdict, reason, result.layout, bool(result.plan_executed))


def _response(client: Any, name: str, case: checking._Case) -> list[torch.Tensor]:
    """The outputs in the order of the config. A plan of TensorRT 8.6 takes and gives int32."""
    metadata = client.get_model_metadata(name)
    types = {tensor["name"]: tensor["datatype"] for tensor in metadata["inputs"]}
    inputs = []
    for input_name, tensor in zip(NAMES, case.inputs, strict=True):
        if input_name in types:
            narrow = tensor.int() if types[input_name] == "INT32" else tensor
            infer_input = http.InferInput(
                input_name, list(tensor.shape), types[input_name]
            )
            inputs.append(infer_input.set_data_from_numpy(narrow.numpy()))
    response = client.infer(name, inputs)
    outputs = client.get_model_config(name)["output"]
    arrays = (response.as_numpy(output["name"]) for output in outputs)
    return [torch.from_numpy(np.array(array)) for array in arrays]


def _compare(
    subject: Subject, case: checking._Case, outputs: list[torch.Tensor]
) -> None:
    """Raise AssertionError unless the outputs are torch's: plain, optimized, or of Python."""
    if any(t.is_floating_point() and t.isnan().any() for t in case.plain):
        return
    problem: AssertionError | None = None
    for expected in (
        lambda: case.plain,
        lambda: case.optimized,
        lambda: checking._in_python(subject.program.source())(case),
    ):
        targets = expected()
        received = [
            output.reshape(target.shape).to(target.dtype)
            for output, target in zip(outputs, targets, strict=True)
        ]
        try:
            return checking._compare(
                "endpoint", received, targets, checking.ENGINE_SLACK
            )
        except AssertionError as error:
            problem = problem or error
    assert problem is not None
    raise problem


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stride", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--models", type=int, default=6, help="models of one server")
    parser.add_argument("--out", type=Path, default=Path("published.jsonl"))
    options = parser.parse_args(arguments)
    end = time.monotonic() + options.seconds
    found = subjects(options.seed, options.stride)
    is_bad = False
    while time.monotonic() < end:
        with tempfile.TemporaryDirectory() as folder:
            for row in rows(list(islice(found, options.models)), Path(folder)):
                is_bad |= row.verdict in ("wrong", "failed")
                with options.out.open("a") as file:
                    file.write(json.dumps(asdict(row)) + "\n")
    return int(is_bad)


if __name__ == "__main__":
    sys.exit(main())
