"""The example models without fallback, served: correct at sizes that no golden has, over both
protocols.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from builder import build_repository, convert, manifest
from builder.parity import verify
from builder.parity.arrays import to_numpy
from builder.parity.inputs import draw, styles
from builder.pipeline.segment_goldens import check_reference
from builder.serving import FREE_PORTS, serve
from builder.torchscript import load
from builder.triton import Golden
from tests.examples.test_export import EXAMPLES, export

SIZES = {
    "residual_cnn": [
        {"batch": 5, "height": 88, "width": 56},
        {"batch": 2, "height": 41, "width": 97},
    ],
    "silero_vad": [{"streams": 7}, {"streams": 11}],
    "transformer_encoder": [{"batch": 3, "length": 23}, {"batch": 6, "length": 9}],
    "two_tower": [{"batch": 13}, {"batch": 29}],
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(tmp_path_factory.mktemp("live") / "models")


def golden(spec: manifest.ModelSpec, names: list[str], number: int) -> Golden:
    """The original module's outputs at one of SIZES."""
    module = load(spec.path, spec.module)
    tensors = draw(
        spec.inputs, SIZES[spec.name][number], next(iter(styles(spec))), seed=number
    )
    with torch.no_grad():
        output = module(*tensors)
    outputs = output if isinstance(output, tuple) else (output,)
    inputs = {
        str(i.name): to_numpy(t) for i, t in zip(spec.inputs, tensors, strict=True)
    }
    return Golden(
        f"mine-{number}",
        inputs,
        {n: to_numpy(t) for n, t in zip(names, outputs, strict=True)},
    )


@pytest.mark.live
@pytest.mark.slow
def test_examples_pass_at_sizes_not_in_goldens(models: Path, tmp_path: Path) -> None:
    results = build_repository(models, tmp_path / "repository")
    assert all(result.ok and not result.segments for result in results), [
        str(r.error) for r in results
    ]
    # see test_live_stream
    specs = [spec for spec in manifest.load(models) if not spec.server_state]
    extra = {}
    for spec in specs:
        outputs = _output_names(tmp_path / "repository" / spec.name)
        extra[spec.name] = [golden(spec, outputs, number) for number in range(2)]
    with serve(tmp_path / "repository", **FREE_PORTS) as server:
        parities = verify(
            tmp_path / "repository",
            server.http_url,
            server.grpc_url,
            repeat=1,
            extra=extra,
        )
    assert all(parity.passed for parity in parities)
    requested = {(p.name, r.golden, r.protocol) for p in parities for r in p.results}
    assert {
        (n, f"mine-{k}", protocol)
        for n in extra
        for k in range(2)
        for protocol in ("http", "grpc")
    } <= requested


def _output_names(folder: Path) -> list[str]:
    return [
        io["name"]
        for io in json.loads((folder / "trt-build.json").read_text())["outputs"]
    ]


@pytest.mark.slow
def test_references_pass_at_sizes_not_in_goldens(models: Path) -> None:
    for spec in manifest.load(models):
        module = load(spec.path, spec.module)
        conversion = convert(
            module, spec.inputs, profiles=spec.profiles, output_names=spec.outputs
        )
        check_reference(
            conversion,
            [golden(spec, list(conversion.outputs), number) for number in range(2)],
            spec,
        )


def test_sizes_are_within_manifest_ranges(tmp_path: Path) -> None:
    for name in SIZES:
        shutil.copy(EXAMPLES / "models" / f"{name}.yaml", tmp_path)
        (tmp_path / f"{name}.pt").touch()
        (tmp_path / f"{name}.npz").touch()
    for spec in manifest.load(tmp_path):
        for sizes in SIZES[spec.name]:
            assert sizes.keys() == spec.profiles[0].keys()
            assert all(
                spec.profiles[0][axis][0] <= n <= spec.profiles[0][axis][2]
                for axis, n in sizes.items()
            )
