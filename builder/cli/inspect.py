"""`trt-build inspect`: print the layers of a network, the facts of a plan, or a repository."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder import engine, manifest, partition, pipeline, store, torchscript
from builder.cli import options
from builder.cli.command import command
from builder.cli.terminal import Terminal
from builder.errors import UsageError
from builder.report import size

if TYPE_CHECKING:
    from builder.manifest import ModelSpec

CONFIG = "config.pbtxt"
PLAN_FACTS = "plan.json"
SIDECAR = "trt-build.json"


@command(
    "inspect",
    "trt-build inspect models/net.pt",
    "trt-build inspect model_repository",
)
@click.argument("target", type=options.PATH)
@options.inputs
@options.sample
@options.precision
@options.flavor
@options.plugins
@options.path("--graph", metavar="SVG", help="Draw the segments of a model file.")
@options.confinement
def inspect_command(terminal: Terminal, /, target: Path, **settings: Any) -> None:
    """Describe TARGET.

    For a model file, print the layers of its TensorRT network. For a model.plan, print its facts.
    For a model of a repository, print its inputs, outputs and provenance. For a repository, print
    its models.
    """
    from builder import manifest

    if not target.exists():
        raise manifest.missing_path(target)
    kind = next(kind for matches, kind in KINDS if matches(target))
    if kind is _network:
        kind(terminal, target, settings)
        return
    if settings["graph"]:
        raise UsageError(
            f"--graph draws a model file, and {target} is published",
            fix="name the model file",
        )

    with store.shaped(target):
        kind(terminal, target, settings)


def _network(terminal: Terminal, target: Path, settings: dict[str, Any]) -> None:
    from builder.cli import isolated
    from builder.report import records

    flavor = settings.pop("flavor")
    plugins = settings.pop("plugins")
    picture: Path | None = settings.pop("graph")
    if picture and picture.suffix.lower() != ".svg":
        raise UsageError(
            f"{picture} is not an SVG file", fix="use a name that ends with .svg"
        )
    isolate = settings.pop("isolate")
    inputs = options.parsed(settings.pop("inputs"))
    (spec,) = _single(manifest.load(target, inputs=inputs, **settings), target)
    read = partial(network_here, spec, flavor, plugins, picture is not None)
    data = isolated.run_one(read, isolate, limits=spec.limits)
    if picture is None:
        terminal.result(data, lambda: _show_network(terminal, data))
        return
    records.write_text(picture, data["svg"])
    drawn = {"picture": picture, "summary": data["summary"]}
    terminal.result(drawn, lambda: terminal.line(f"{picture}: {data['summary']}"))


def network_here(
    spec: ModelSpec, flavor: str, plugins: Sequence[str], draws: bool, report: Any
) -> dict[str, Any]:
    """The model's network as JSON data, built in this process; with `draws`, the SVG of its
    segments. Raises the errors of the model.
    """
    engine.flavor.select(flavor)
    torchscript.plugins.load(plugins)
    source = pipeline.stages.lower(pipeline.stages.load(spec))
    spec, lowered, _ = pipeline.state.batch_first(
        spec, source.graph, source.outputs, ()
    )
    if draws:
        return _drawn(lowered, spec, source.outputs)
    network = pipeline.fallback.to_network(lowered, spec, source.outputs).network
    return {
        "name": spec.name,
        "inputs": [_tensor(network.get_input(i)) for i in range(network.num_inputs)],
        "outputs": [_tensor(network.get_output(i)) for i in range(network.num_outputs)],
        "layers": [
            _layer(network.get_layer(index)) for index in range(network.num_layers)
        ],
    }


def _drawn(lowered: Any, spec: ModelSpec, names: Sequence[str]) -> dict[str, Any]:
    """The SVG of the model's segments. A model without torch segments is one segment."""
    lowered = lowered.named(names)
    parts = partition.split(
        lowered,
        spec.inputs,
        spec.profiles,
        spec.fallback,
        in_torch=pipeline.fallback.kept_nodes(lowered),
    )
    return {"svg": partition.svg(parts), "summary": parts.summary()}


def _single(specs: list[Any], target: Path) -> list[Any]:
    if len(specs) != 1:
        raise UsageError(
            f"{target} holds {len(specs)} models",
            fix=f"use one of {', '.join(str(spec.path) for spec in specs)}",
        )
    return specs


def _tensor(tensor: Any) -> dict[str, Any]:
    try:
        shape = list(tensor.shape)
    except ValueError:  # TensorRT: an unknown rank has a negative length
        shape = []
    return {
        "name": tensor.name,
        "dtype": str(tensor.dtype).rpartition(".")[2],
        "shape": shape,
    }


def _layer(layer: Any) -> dict[str, Any]:
    read = [layer.get_input(i) for i in range(layer.num_inputs)]
    return {
        "name": layer.name,
        "type": str(layer.type).rpartition(".")[2],
        "inputs": [tensor.name for tensor in read if tensor is not None],
        "outputs": [_tensor(layer.get_output(i)) for i in range(layer.num_outputs)],
    }


def _show_network(terminal: Terminal, data: dict[str, Any]) -> None:
    for side in ("inputs", "outputs"):
        for tensor in data[side]:
            terminal.line(f"{side[:-1]}  {_signature(tensor)}")
    rows = [
        [index, layer["type"], layer["name"], ", ".join(map(_shape, layer["outputs"]))]
        for index, layer in enumerate(data["layers"])
    ]
    terminal.table(("#", "type", "layer", "outputs"), rows, numbers=("#",))


def _shape(tensor: dict[str, Any]) -> str:
    return f"{tensor['dtype']}{tensor['shape']}"


def _signature(tensor: dict[str, Any]) -> str:
    return f"{tensor['name']}  {_shape(tensor)}"


def _plan(terminal: Terminal, target: Path, settings: dict[str, Any]) -> None:
    facts = target.with_name(PLAN_FACTS)
    if not facts.is_file():
        raise UsageError(
            f"{target} has no {PLAN_FACTS} beside it",
            fix="write both with trt-build repo",
        )
    data = _json(facts)
    terminal.result(data, lambda: _show_facts(terminal, data))


def _json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"not JSON: {error}", where=str(path)) from error
    if not isinstance(data, dict):
        raise UsageError("not a JSON object", where=str(path))
    return data


def _show_facts(terminal: Terminal, data: dict[str, Any]) -> None:
    for key, value in data.items():
        if key in ("inputs", "outputs") and isinstance(value, list):
            for tensor in value:
                terminal.line(f"{key[:-1]:22}{_signature(tensor)}")
        elif key == "state":
            for state in value:
                terminal.line(f"{'state':22}{_state(state)}")
        elif key == "bytes":
            terminal.line(f"{'size':22}{size(value)}")
        elif not isinstance(value, dict) and str(value) not in UNSAID:
            text = ", ".join(map(str, value)) if isinstance(value, list) else value
            terminal.line(f"{key:22}{text}")


def _state(state: dict[str, Any]) -> str:
    start = "zeros"
    if state["initial"] != "zeros":
        start = f"the file {state['initial']}"
    return f"{state['input']} <- {state['output']}  {_shape(state)}, from {start}"


def _model(terminal: Terminal, target: Path, settings: dict[str, Any]) -> None:
    sidecar = target / SIDECAR
    data: dict[str, Any] = (
        _json(sidecar) if sidecar.is_file() else {"name": target.name}
    )
    data["config"] = (target / CONFIG).read_text(encoding="utf-8")
    terminal.result(data, lambda: _show_model(terminal, data))


def _show_model(terminal: Terminal, data: dict[str, Any]) -> None:
    _show_facts(
        terminal,
        {key: data[key] for key in data if key not in ("config", "format", "profiles")},
    )
    for key, value in data.get("source", {}).items():
        if str(value) not in UNSAID:
            terminal.line(f"{f'source {key}':22}{value}")
    for key, value in data.get("versions", {}).items():
        terminal.line(f"{f'built with {key}':22}{value}")
    terminal.line(f"\n{CONFIG}", bold=True)
    terminal.line(data["config"].rstrip())


def _repository(terminal: Terminal, target: Path, settings: dict[str, Any]) -> None:
    rows = [
        _summary(folder)
        for folder in sorted(target.iterdir())
        if (folder / CONFIG).is_file()
    ]
    terminal.result(
        {"repository": target, "models": rows}, lambda: _show_repository(terminal, rows)
    )


def _summary(folder: Path) -> dict[str, Any]:
    record = {}
    if (folder / SIDECAR).is_file():
        record = _json(folder / SIDECAR)
    current = folder / str(record.get("version", 1))
    return {
        "name": folder.name,
        "serve_as": record.get("serve_as", "unknown"),
        "precision": record.get("precision", ""),
        "max_batch_size": record.get("batching", {}).get("max_batch_size", ""),
        "plan_bytes": sum(plan.stat().st_size for plan in current.glob("*.plan")),
        "goldens": len(list(folder.glob("goldens/*.npz"))),
        "states": len(record.get("state", ())),
    }


def _show_repository(terminal: Terminal, rows: list[dict[str, Any]]) -> None:
    columns = ("model", "served as", "precision", "batch", "plan", "goldens")
    cells = []
    for row in rows:
        state = ", keeps state" if row["states"] else ""
        cells.append(
            [
                row["name"],
                row["serve_as"] + state,
                row["precision"],
                row["max_batch_size"],
                size(row["plan_bytes"]),
                row["goldens"],
            ]
        )
    terminal.table(columns, cells, numbers=columns[3:])


def _holds_models(target: Path) -> bool:
    return target.is_dir() and any(
        (child / CONFIG).is_file() for child in target.iterdir()
    )


UNSAID = ("None", "False", "[]")
"""Facts that are omitted if they have these values."""

KINDS: tuple[tuple[Any, Any], ...] = (
    (lambda target: target.suffix == ".plan", _plan),
    (lambda target: (target / CONFIG).is_file(), _model),
    (_holds_models, _repository),
    (lambda target: True, _network),
)
