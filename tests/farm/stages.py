"""The seconds of the stages of a build, without and with goldens from the store."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import yaml

from benchmarks.networks import NETWORKS, Network
from builder.engine import BuildOptions, parse_capabilities
from builder.repository import Settings, build_repository

CAPABILITIES = ("8.6", "8.9")


def stages(names: Sequence[str]) -> list[dict[str, Any]]:
    """The seconds of each stage of each benchmark network, built for one compute capability and
    then for another, which reads the goldens from the store.
    """
    rows = []
    for name in names:
        with tempfile.TemporaryDirectory(prefix="farm-stages-") as scratch:
            root = Path(scratch)
            write(root / "models", name, NETWORKS[name])
            rows += [_built(root, name, capability) for capability in CAPABILITIES]
    return rows


def write(folder: Path, name: str, network: Network) -> None:
    """The traced network and its manifest."""
    folder.mkdir()
    traced = torch.jit.trace(network.module(), network.sample(2), check_trace=False)
    traced.save(str(folder / f"{name}.pt"))
    spec = network.spec
    manifest = {
        "inputs": [{"name": spec.name, "dtype": spec.dtype, "shape": list(spec.shape)}],
        "dims": {axis: dict(zip(("min", "opt", "max"), span, strict=True))
                 for axis, span in spec.dims.items()},
        "outputs": ["y"],
    }  # fmt: skip
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(manifest))


def _built(root: Path, name: str, capability: str) -> dict[str, Any]:
    options = BuildOptions(compute_capabilities=parse_capabilities([capability]))
    settings = Settings(store=root / "store", share=True, options=options)
    began = time.monotonic()
    (result,) = build_repository(root / "models", root / capability, settings)
    if not result.ok:
        raise RuntimeError(f"{name}: {result.error}")
    wall = round(time.monotonic() - began, 1)
    goldens = [*(root / capability).glob("*/goldens/*.npz")]
    size = sum(path.stat().st_size for path in goldens)
    facts = {"network": name, "capability": capability, "wall": wall}
    return {**facts, "goldens_mib": round(size / (1 << 20), 1), **result.seconds}
