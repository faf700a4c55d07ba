"""Finds the first node of a lowered graph whose value differs in the network."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

from builder import lowering, parity, partition

if TYPE_CHECKING:
    import torch

    from builder.conversion import Conversion
    from builder.lowering import LoweredGraph
    from builder.parity import OutputComparison

CONVERTER = "converter"
PASS = "pass"


@dataclass(frozen=True)
class Culprit:
    """The node where a difference begins: its `value` and `operator`, and the `location` in the
    model's source. `by` is CONVERTER or PASS, and `function` names it.

    `torch_dtypes` and `network_dtypes` are those of its tensor inputs and then of its value; the
    latter are empty for a pass. `share` is the error as a share of the tolerance. `alone` is
    whether the node differs on equal inputs; False if it only propagates the error of its inputs.
    `agreed` counts the preceding values that agree. `network_exact` and `torch_exact` are the
    errors of the network and of torch compared with the node in float64, on the network's inputs,
    as shares of the tolerance. The side with the large error is incorrect. None if torch cannot run
    the node in float64.
    """

    value: str
    operator: str
    location: str
    by: str
    function: str
    problem: str
    share: float | None
    torch_dtypes: tuple[str, ...]
    network_dtypes: tuple[str, ...] = ()
    alone: bool = True
    agreed: int = 0
    network_exact: float | None = None
    torch_exact: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """JSON-able; an infinite share is null."""
        shares = {
            name: getattr(self, name)
            for name in ("share", "network_exact", "torch_exact")
        }
        finite = {
            name: share if share is not None and isfinite(share) else None
            for name, share in shares.items()
        }
        return {**asdict(self), **finite}


@dataclass(frozen=True)
class Values:
    """The values of one conversion's graph by name, from torch (`truth`) and the network
    (`outputs`), including the graph's inputs. `compared` are those that both have.
    """

    conversion: Conversion
    truth: Mapping[str, torch.Tensor]
    outputs: Mapping[str, torch.Tensor]
    compared: Mapping[str, OutputComparison]


def values_of(conversion: Conversion, inputs: Sequence[torch.Tensor]) -> Values:
    """Run graph and network on the same inputs.

    Raises NetworkEvaluationError for inputs that do not fit.
    """
    names = (value.debugName() for value in conversion.lowered.graph.inputs())
    input_values = dict(zip(names, inputs, strict=True))
    truth, results = parity.graph_and_network(conversion, inputs)
    compared = {
        name: parity.compare_value(name, outputs, truth[name], conversion.precision)
        for name, outputs in results.items()
    }
    return Values(
        conversion, {**input_values, **truth}, {**input_values, **results}, compared
    )


def first_culprit(values: Values, outputs: Collection[int]) -> Culprit | None:
    """Return the node where the difference in these outputs (by index) begins.

    It is the first node that the outputs depend on whose value exceeds the tolerance of its dtype,
    both alone and in the network. Otherwise it is the first whose value exceeds it in the network,
    else the node with the largest error. None if no value can be compared.
    """
    lowered = values.conversion.lowered
    ends = enumerate(lowered.graph.outputs())
    behind = partition.values_behind(
        lowered, [value.debugName() for index, value in ends if index in outputs]
    )
    judged = [name for name in values.compared if name in behind]
    carried: tuple[str, int] | None = None
    for position, name in enumerate(judged):
        if values.compared[name].passed:
            continue
        if _alone_passes(values, name) is not True:
            return _culprit(values, _narrowed(values, name), name, position, alone=True)
        carried = carried or (name, position)
    if carried is None and judged:
        largest = max(judged, key=lambda name: values.compared[name].share or 0.0)
        carried = largest, len(judged)
    if carried is None:
        return None
    name, position = carried
    return _culprit(values, name, name, position, alone=False)


def _alone_passes(values: Values, name: str) -> bool | None:
    """Whether torch's node computes the network's value from the network's inputs; None if torch
    cannot run it on them.
    """
    precision = values.conversion.precision
    try:
        sub, inputs = _run_alone(values, name)
        (expected,) = sub.run(*inputs)
    except Exception:  # the network's values may have shapes that the operator rejects
        return None
    return parity.compare_value(name, values.outputs[name], expected, precision).passed


def _run_alone(values: Values, name: str) -> tuple[LoweredGraph, list[torch.Tensor]]:
    """Run the node of the value on its inputs from the network."""
    outputs = values.outputs
    truth = values.truth
    lowered = values.conversion.lowered
    sub, names = partition.subgraph(
        lowered, set(outputs) - siblings(lowered, name), [name]
    )
    return sub, [outputs[read].to(truth[read].dtype) for read in names]


def _exact(values: Values, name: str) -> tuple[float | None, float | None]:
    """The errors of the network and of torch compared with the node in float64, as shares of the
    tolerance.
    """
    import torch

    precision = values.conversion.precision
    try:
        sub, inputs = _run_alone(values, name)
        (single,) = sub.run(*inputs)
        double = [
            tensor.double() if tensor.is_floating_point() else tensor
            for tensor in inputs
        ]
        (exact,) = lowering.in_double(sub).run(*double)
    except Exception:  # not every operator supports float64, or the network's shapes
        return None, None
    if exact.dtype != torch.float64:
        return None, None
    network = parity.compare_value(
        name, values.outputs[name].double(), exact, precision
    )
    return network.share, parity.compare_value(
        name, single.double(), exact, precision
    ).share


def _narrowed(values: Values, name: str) -> str:
    """Return the first value that differs when each node is converted separately.

    Candidates are the values that affect only the value `name`, because the network has no separate
    tensor for them. Returns `name` if none differs.
    """
    from builder.diagnosis.reduction import node_differs

    lowered = values.conversion.lowered
    known = set(values.outputs) - siblings(lowered, name)
    hidden = partition.values_between(lowered, known, [name])
    if len(hidden) < 2:
        return name
    candidates = (candidate for candidate in hidden if candidate in values.truth)
    return next(
        (candidate for candidate in candidates if node_differs(values, candidate)), name
    )


def node_of(lowered: LoweredGraph, name: str) -> Any:
    """The top-level node that computes the value."""
    return next(
        node
        for node in lowered.graph.nodes()
        for value in node.outputs()
        if value.debugName() == name
    )


def siblings(lowered: LoweredGraph, name: str) -> set[str]:
    """All values of the node that computes this one."""
    return {value.debugName() for value in node_of(lowered, name).outputs()}


def _culprit(
    values: Values, name: str, visible_in: str, agreed: int, *, alone: bool
) -> Culprit:
    """Describe the node of the value `name`, whose error is visible in the value
    `visible_in`.
    """
    from builder.conversion import converted_by

    node = node_of(values.conversion.lowered, name)
    compared = values.compared[visible_in]
    read = [
        value.debugName()
        for value in node.inputs()
        if value.debugName() in values.truth
    ]
    truth = [values.truth[value_name] for value_name in (*read, name)]
    outputs = [values.outputs.get(value_name) for value_name in (*read, name)]
    return Culprit(
        name,
        node.kind(),
        lowering.source_location(node),
        CONVERTER,
        converted_by(node),
        compared.problem or "within the tolerance of its dtype",
        compared.share,
        tuple(map(_dtype, truth)),
        tuple(map(_dtype, outputs)),
        alone,
        agreed,
        *_exact(values, visible_in),
    )


def _dtype(tensor: torch.Tensor | None) -> str:
    """The dtype, such as `float32`; `folded` for a value without its own tensor in the network."""
    if tensor is None:
        return "folded"
    return str(tensor.dtype).removeprefix("torch.")
