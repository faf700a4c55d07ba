"""The key of a plan: every part that can change what TensorRT builds, collected after conversion.

docs/store.md gives the reason for each part, and for each omission.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from builder.conversion import CONVERTERS, EVALUATORS, Conversion, key_of_node
from builder.engine import BuildOptions, INetworkDefinition, caches, refit
from builder.graph_types import Graph
from builder.lowering import ir, weights_digest
from builder.store import sources
from builder.store.canonical import digest, normalized
from builder.store.request import machine
from builder.versions import package_version

DERIVED = ("network",)
"""Parts that depend on others: they are reported as a reason only if nothing else changed."""

ALWAYS = (
    "builder.conversion.convert",
    "builder.conversion.walker",
    "builder.conversion.operators",
    "builder.conversion.network",
    "builder.engine.build",
)
"""Code that affects every plan, in addition to the converters of its operators."""


def parts(conversion: Conversion, options: BuildOptions) -> dict[str, Any]:
    """The parts of the key as JSON data. Their digest is the key."""
    graph = conversion.lowered.graph
    here = machine()
    if options.hardware_compatible and here["gpu"]:
        here["gpu"] = {
            "level": options.hardware_compatible,
            **_shared(options.hardware_compatible, here["gpu"]),
        }
    key_parts: dict[str, Any] = normalized(
        {
            "graph": hashlib.sha256(conversion.lowered.text.encode()).hexdigest(),
            "weights": weights_digest(graph),
            "network": network_digest(conversion.network),
            "inputs": [dataclasses.asdict(spec) for spec in conversion.inputs],
            "outputs": list(conversion.outputs),
            "profiles": [dict(profile) for profile in conversion.profiles],
            "precision": conversion.precision,
            "options": option_parts(options),
            **here,
            "polygraphy": package_version("polygraphy"),
            "converters": converter_versions(graph),
            "core": {module: sources.version(module) for module in ALWAYS},
        }
    )
    return key_parts


def _shared(level: str, gpu: Mapping[str, str]) -> dict[str, str]:
    """The facts of a GPU that a plan of this compatibility level depends on. Such a plan is for all
    GPUs since Ampere, or for one architecture.
    """
    if level == "ampere_plus":
        return {}
    return {"architecture": gpu["architecture"]}


def structure(parts: Mapping[str, Any], network: INetworkDefinition) -> str:
    """A hash that is equal for networks that only differ in weights, 64 hexadecimal digits.

    The graph's text is excluded, because it has the values of small weights. The network has all
    relevant facts.
    """
    weightless = {**parts, "graph": "", "weights": ""}
    return digest({**weightless, "structure": refit.structure(network)})


def option_parts(options: BuildOptions) -> dict[str, Any]:
    """The build options that are set.

    The timing cache is included by content, and only if tactics must come from it. Otherwise it
    only saves measurements: a plan is equally valid whichever tactic was faster.
    """
    fields = options.set()
    fields.pop("timing_cache", None)
    if options.error_on_timing_cache_miss:
        fields["timing_cache"] = caches.digest(
            caches.timing_cache(options.timing_cache)
        )
    return fields


def network_digest(network: INetworkDefinition) -> str:
    """SHA-256 over each layer's name, type, precision and output dtypes: the effect of the
    precision policy on the graph.
    """
    checksum = hashlib.sha256()
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        outputs = [layer.get_output(number) for number in range(layer.num_outputs)]
        described = [(tensor.name, tensor.dtype.name) for tensor in outputs]
        # set in weakly typed networks; strongly typed ones have casts
        precision = str(getattr(layer, "precision", None))
        checksum.update(
            repr((layer.name, layer.type.name, precision, described)).encode()
        )
    return checksum.hexdigest()


def converter_versions(graph: Graph) -> dict[str, str]:
    """The version of the converter and the evaluator of each kind of node in the graph, by the
    node's key.
    """
    kinds = sorted({key_of_node(node) for node in ir.walk(graph)})
    versions = {kind: "+".join(_versions(kind)) for kind in kinds}
    return {kind: version for kind, version in versions.items() if version}


def _versions(kind: str) -> Iterator[str]:
    for build in (
        CONVERTERS[kind].build if kind in CONVERTERS else None,
        EVALUATORS.get(kind),
    ):
        if build is not None:
            module = build.__module__
            if module.startswith("builder."):
                yield sources.version(module)
            else:
                yield sources.version_of_plugin(module)
