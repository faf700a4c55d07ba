"""A network compiled to a plan, through Polygraphy."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from builder.engine import flavour
from builder.engine.flavour import trt
from builder.engine.network import MESSAGES
from builder.errors import EngineError


@dataclass(frozen=True)
class BuildOptions:
    """What changes a plan besides the network: RTX's target `compute_capabilities` ((8, 9), ...; empty: all that it
    knows), the workspace limit in bytes, TensorRT's optimization level 0 to 5."""

    compute_capabilities: tuple[tuple[int, int], ...] = ()
    workspace_bytes: int | None = None
    optimization_level: int | None = None


@dataclass(frozen=True)
class Plan:
    """A serialized engine: `data`, and the `facts` that are written beside it as plan.json."""

    data: bytes
    facts: dict[str, Any] = field(default_factory=dict)


def build(conversion: Any, options: BuildOptions = BuildOptions()) -> Plan:
    """Compile a Conversion. Raises EngineError with TensorRT's own words where it refuses the network."""
    from polygraphy.backend.trt import EngineBytesFromNetwork

    started = time.monotonic()
    MESSAGES.clear()
    with quiet():
        try:
            data = EngineBytesFromNetwork(
                (conversion.builder, conversion.network), config=_config(conversion, options)
            )()
        except Exception as refusal:
            raise EngineError(_reason(refusal), fix="`trt-build inspect` shows the network's layers") from refusal
    facts = plan_facts(conversion, options, bytes(data), time.monotonic() - started)
    return Plan(bytes(data), facts)


def build_engine(conversion: Any, options: BuildOptions = BuildOptions()) -> bytes:
    """The bytes of a compiled plan of the Conversion; see build()."""
    return build(conversion, options).data


@contextmanager
def quiet() -> Any:
    """Polygraphy's own log shows errors only: ours carries what matters."""
    from polygraphy.logger import G_LOGGER

    with G_LOGGER.verbosity(G_LOGGER.CRITICAL):
        yield


def _reason(refusal: Exception) -> str:
    words = "; ".join(MESSAGES[-3:]) or str(refusal)
    return f"TensorRT could not build the network: {words}"


def _config(conversion: Any, options: BuildOptions) -> Any:
    """Polygraphy's CreateConfig of the flavour in use; TF32 only where the precision asks for it."""
    from polygraphy.backend.trt import CreateConfig, PostprocessConfig

    common = {
        "profiles": [_profile(conversion, profile) for profile in conversion.profiles],
        "builder_optimization_level": options.optimization_level,
        "memory_pool_limits": _pools(options),
    }
    if flavour.name() == "tensorrt-rtx":
        from polygraphy.backend.tensorrt_rtx import CreateConfigRTX

        capabilities: Sequence[tuple[int, int]] | None = options.compute_capabilities or None
        create = CreateConfigRTX(compute_capabilities=capabilities, **common)
    else:
        create = CreateConfig(**common)
    return PostprocessConfig(create, lambda builder, network, config: _set_tf32(config, conversion.precision == "tf32"))


def _set_tf32(config: Any, wanted: bool) -> None:
    """TF32 is on in a fresh config; float32 means float32 here unless the precision asks for it."""
    (config.set_flag if wanted else config.clear_flag)(trt.BuilderFlag.TF32)


def _pools(options: BuildOptions) -> dict[Any, int] | None:
    return {trt.MemoryPoolType.WORKSPACE: options.workspace_bytes} if options.workspace_bytes else None


def _profile(conversion: Any, profile: Any) -> Any:
    """Polygraphy's Profile with the concrete min, opt and max shape of every input."""
    from polygraphy.backend.trt import Profile

    result = Profile()
    for spec in conversion.inputs:
        result.add(spec.name, *(spec.at(profile, which) for which in range(3)))
    return result


def plan_facts(conversion: Any, options: BuildOptions, data: bytes, seconds: float) -> dict[str, Any]:
    """What plan.json says of a plan: what it was built with and for, its endpoints, and its hash."""
    network = conversion.network
    inputs = [network.get_input(i) for i in range(network.num_inputs)]
    outputs = [network.get_output(i) for i in range(network.num_outputs)]
    return {
        "flavour": flavour.name(),
        "tensorrt": trt.__version__,
        "compute_capabilities": [f"{major}.{minor}" for major, minor in options.compute_capabilities],
        "precision": conversion.precision,
        "inputs": [_endpoint(t) for t in inputs],
        "outputs": [_endpoint(t) for t in outputs],
        "profiles": [_shapes(conversion, profile) for profile in conversion.profiles],
        "layers": network.num_layers,
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "build_seconds": round(seconds, 3),
    }


def _shapes(conversion: Any, profile: Any) -> dict[str, list[list[int]]]:
    return {spec.name: [list(spec.at(profile, which)) for which in range(3)] for spec in conversion.inputs}


def _endpoint(tensor: Any) -> dict[str, Any]:
    return {"name": tensor.name, "dtype": tensor.dtype.name, "shape": list(tensor.shape)}
