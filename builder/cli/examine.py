"""What `trt-build check` finds of one model: the phases of a build, but for the build."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from builder import unforeseen
from builder.cli.command import describe
from builder.cli.terminal import Progress
from builder.errors import EnvironmentProblem, ParityError, UnsupportedOperators


@dataclass(frozen=True)
class Asked:
    """What was asked of a model: the order as `repo` would have it."""

    order: Any
    paranoid: bool


def examine(spec: Any, asked: Asked, progress: Progress) -> dict[str, Any]:
    """What is found of one model; `error` tells where it ended."""
    report: dict[str, Any] = {
        "name": spec.name,
        "file": str(spec.path),
        "error": None,
        "config": None,
        "_spec": spec,
    }
    try:
        for phase in (_options, _read, _lower, _reduce, _state, _convert, _compare, _config):
            progress(spec.name, phase.__name__.strip("_"))
            phase(report, report["_spec"], asked)
    except (EnvironmentProblem, BrokenPipeError):
        raise
    except Exception as error:
        report["error"] = describe(unforeseen.ours(error))
        if isinstance(error, UnsupportedOperators):
            report["operators"]["unsupported"] = [vars(operator) for operator in error.operators]
    for key in [key for key in report if key.startswith("_")]:
        del report[key]  # objects that the phases hand on
    return report


def _options(report: dict[str, Any], spec: Any, asked: Asked) -> None:
    """Refuse what `repo` would refuse of the builder's options, the manifest's own among them."""
    from builder.engine import config
    from builder.repository import orders

    report["_options"] = orders.options_of(asked.order)
    config.check(report["_options"])


def _read(report: dict[str, Any], spec: Any, asked: Asked) -> None:
    from builder.repository import reading

    report["_module"] = reading.load(spec)


def _lower(report: dict[str, Any], spec: Any, asked: Asked) -> None:
    from builder.repository import reading

    examples = _examples(spec) if asked.paranoid else None
    lowered = reading.lower(report["_module"], spec, paranoid=examples)
    report["_lowered"] = lowered
    report["passes"] = len(lowered.trace)
    report["operators"] = {"used": dict(sorted(used(lowered.graph).items())), "unsupported": []}


def _reduce(report: dict[str, Any], spec: Any, asked: Asked) -> None:
    """8 bits by calibration, and endpoints in float16, where the manifest asks for them."""
    from builder.repository import reduced

    if not reduced.wanted(spec):
        return
    goldens = _recorded(report, spec, spec.outputs or report["_lowered"].outputs)
    fewer = reduced.reduced(spec, report["_lowered"], goldens)
    report["_spec"], report["_lowered"], report["_reduced"] = (
        fewer.spec,
        fewer.lowered,
        fewer.warnings,
    )
    report["quantised"] = reduced.as_data(fewer.quantised)


def _state(report: dict[str, Any], spec: Any, asked: Asked) -> None:
    """Whether the module gives its state back as it takes it; from here on the model has the batch
    first in it.
    """
    from builder.repository import stateful

    if not spec.state:
        return
    names = spec.outputs or report["_lowered"].outputs
    stateful.check(spec, names)
    goldens = _recorded(report, spec, names)
    shapes = {tensor.name: list(tensor.shape) for tensor in spec.inputs}
    report["state"] = [
        {
            "input": s.input,
            "output": s.output,
            "shape": shapes[s.input],
            "kept": spec.sequences.mode,
        }
        for s in spec.state
    ]
    report["_spec"], report["_lowered"], report["_goldens"] = stateful.batch_first(
        spec, report["_lowered"], names, goldens
    )


def _examples(spec: Any) -> tuple[Any, ...]:
    """The inputs of the first golden: values that the module is known to take."""
    from builder.parity import inputs

    sizes = inputs.sizes_of(spec.profiles[0])["opt"]
    return tuple(inputs.draw(spec.inputs, sizes, next(inputs.styles(spec)), seed=0))


def used(block: Any) -> Counter[str]:
    """How often each operator stands in the graph, inner blocks included."""
    found: Counter[str] = Counter()
    for node in block.nodes():
        if node.kind().startswith("aten::"):
            found[node.kind()] += 1
        for inner in node.blocks():
            found += used(inner)
    return found


def _convert(report: dict[str, Any], spec: Any, asked: Asked) -> None:
    """One engine, or the pieces that the model is cut into."""
    from builder.repository import cut, patterns

    names = spec.outputs or report["_lowered"].outputs
    with _the_modules_own_words_first(report, spec, names):
        found = cut.convert_or_cut(report["_lowered"], spec, names)
    if isinstance(found, cut.Pieces):
        _recorded(report, spec, names)
    warnings = [*report.get("_reduced", ()), *patterns.unmatched(spec, found), *found.warnings]
    report["_found"], report["warnings"] = found, warnings
    if not isinstance(found, cut.Pieces):
        report["layers"] = found.network.num_layers
        return
    report["layers"] = sum(c.network.num_layers for c in found.conversions if c)
    report["operators"]["unsupported"] = [vars(operator) for operator in found.partition.refused]
    parts = found.partition
    segments = [
        {
            "runs_in": part.kind,
            "nodes": part.nodes,
            "flops": part.flops,
            "crossing_bytes": part.crossing_bytes,
            "inputs": part.inputs,
            "outputs": part.outputs,
        }
        for part in parts.segments
    ]
    report["fallback"] = {"summary": parts.summary(), "segments": segments}


@contextmanager
def _the_modules_own_words_first(
    report: dict[str, Any], spec: Any, names: Sequence[str]
) -> Iterator[None]:
    """Where the network cannot be written the module itself may not take such inputs, and says why:
    `repo` would have asked it before.
    """
    try:
        yield
    except EnvironmentProblem:
        raise
    except Exception:
        _recorded(report, spec, names)
        raise


def _recorded(report: dict[str, Any], spec: Any, names: Sequence[str]) -> Any:
    """The goldens, recorded once. Raises ModelFileError where the module does not take the inputs
    of its manifest.
    """
    from builder import parity

    if "_goldens" not in report:
        report["_goldens"] = parity.record(report["_module"], spec, names)
    return report["_goldens"]


def _compare(report: dict[str, Any], spec: Any, asked: Asked) -> None:
    """With --paranoid: the lowered graph, and every network evaluated on the CPU, against the
    original module.
    """
    from builder.repository import cut, hops

    found = report["_found"]
    in_pieces = isinstance(found, cut.Pieces)
    if not (asked.paranoid or in_pieces):
        return
    goldens = _recorded(report, spec, found.partition.outputs if in_pieces else found.outputs)
    if in_pieces:
        report["_hops"] = hops.record_hops(found.partition, goldens, spec)
    if not asked.paranoid:
        return
    for golden in goldens:
        _check_lowered(report["_lowered"], golden, spec)
    pairs = (
        zip(found.conversions, report["_hops"], strict=True) if in_pieces else [(found, goldens)]
    )
    for conversion, recorded in pairs:
        if conversion is not None:
            hops.check_reference(conversion, recorded, spec)


def _check_lowered(lowered: Any, golden: Any, spec: Any) -> None:
    from builder import parity
    from builder.parity.arrays import to_numpy, to_torch
    from builder.repository import hops

    answers = lowered.run(*(to_torch(array) for array in golden.inputs.values()))
    answer = {name: to_numpy(tensor) for name, tensor in zip(golden.outputs, answers, strict=True)}
    comparison = parity.compare(
        answer, golden, spec.tolerance, precision=hops.torch_precision(spec)
    )
    if not comparison.passed:
        message = (
            f"golden {golden.name}: the lowered graph differs from the module:"
            f" {'; '.join(comparison.problems)}"
        )
        raise ParityError(
            message,
            fix="this is a defect of a pass: please report it; `trt-build lower --trace` helps",
        )


def _config(report: dict[str, Any], spec: Any, asked: Asked) -> None:
    """The configs that would be written: the model's, and where it is an ensemble those of its
    steps.
    """
    from builder import triton
    from builder.repository import cut, layouts, single
    from builder.triton import ensemble

    found, order = report["_found"], asked.order
    if isinstance(found, cut.Pieces):
        plans = tuple(
            None if c is None else _unbuilt(c, report["_options"]) for c in found.conversions
        )
        pieces = layouts.Cut(spec, found, plans, report["_goldens"], tuple(report["_hops"]))
        artifact, reason = layouts.artifact(pieces, order.layout, order.serve_as, order.torch_steps)
        report["fallback"] |= {
            "layout": "ensemble" if hasattr(artifact, "steps") else "fused",
            "reason": reason,
        }
    else:
        goldens = report.get("_goldens", ()) if spec.state or spec.io != "module" else ()
        artifact = single.artifact(
            spec, found, _unbuilt(found, report["_options"]), goldens, order.serve_as
        )
    if isinstance(artifact, triton.EnsembleArtifact):
        steps = {step.spec.name: triton.config(step) for step in artifact.steps}
        report["config"] = _text(ensemble.config(artifact, steps))
        report["steps"] = {name: _text(message) for name, message in steps.items()}
    else:
        report["config"] = _text(triton.config(artifact))
    report["warnings"] += triton.lost_batches(artifact)


def _unbuilt(conversion: Any, chosen: Any) -> Any:
    """A plan as far as a config needs it."""
    from builder import engine
    from builder.engine.build import plan_facts

    return engine.Plan(b"not built", plan_facts(conversion, chosen, b"", 0.0))


def _text(message: Any) -> str:
    from builder import triton

    for unknown in ("plan_sha256", "lowered_sha256"):
        message.parameters.pop(f"trt_build.{unknown}", None)
    return str(triton.config_text(message))
