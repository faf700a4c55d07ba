"""Creates the smallest TorchScript file that reproduces a difference, with its inputs and a
test.
"""

from __future__ import annotations

import io
import pprint
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder import lowering, parity, partition
from builder.diagnosis import nodes
from builder.errors import EnvironmentProblem, NetworkEvaluationError
from builder.manifest import TensorSpec, axis_ranges
from builder.unforeseen import file_system_errors

if TYPE_CHECKING:
    import torch

    from builder.diagnosis.nodes import Culprit, Values
    from builder.lowering import LoweredGraph
    from builder.pipeline import Order

    Fails = Callable[["Candidate"], bool]

TRIES = 60
"""The maximum number of candidate files that are lowered and compared."""
MODEL = "reduced.pt"
MANIFEST = "reduced.yaml"
INPUTS = "inputs.npz"
TEST = "test_reduced.py"


@dataclass(frozen=True)
class Reduction:
    """The files of one reduced model: its `folder`, the number of `nodes` that compute tensors, and
    the number of these in the whole graph.
    """

    folder: Path
    nodes: int
    of_nodes: int

    def as_dict(self) -> dict[str, Any]:
        """The result as JSON data."""
        files = [str(self.folder / name) for name in (MODEL, MANIFEST, INPUTS, TEST)]
        return {"files": files, "nodes": self.nodes, "of_nodes": self.of_nodes}


@dataclass(frozen=True)
class Candidate:
    """A part of a graph as a file, with inputs."""

    graph: LoweredGraph
    names: tuple[str, ...]
    inputs: tuple[torch.Tensor, ...]
    specs: tuple[TensorSpec, ...]
    data: bytes

    @property
    def nodes(self) -> int:
        """The number of nodes that compute tensors."""
        return partition.computing_nodes(self.graph)


def of_network(
    values: Values, culprit: Culprit, order: Order, folder: Path
) -> tuple[Reduction | None, str]:
    """Write the smallest part of a conversion's graph whose network differs.

    Returns its files, or why there are none. Raises EnvironmentProblem if they cannot be written.
    """
    precision = values.conversion.precision
    keep = tuple(order.spec.keep_fp32)
    search = _network_search(values, keep)
    smallest = search.smallest(culprit.value)
    if smallest is None:
        return None, search.note
    check = _NETWORK_TEST.format(precision=precision, keep_fp32=keep)
    return _write_files(smallest, culprit, order, folder, search, check, precision), ""


def node_differs(values: Values, value: str) -> bool:
    """Whether the node of this value differs when it is converted alone."""
    search = _network_search(values, ())
    known = set(values.truth) - nodes.siblings(values.conversion.lowered, value)
    return search.attempt(known, value) is not None


def _network_search(values: Values, keep_fp32: tuple[str, ...]) -> _Search:
    conversion = values.conversion
    specs = {
        value.debugName(): spec
        for value, spec in zip(
            conversion.lowered.graph.inputs(), conversion.inputs, strict=True
        )
    }

    def fails(candidate: Candidate) -> bool:
        return network_differs(
            candidate.data,
            candidate.inputs,
            candidate.specs,
            conversion.precision,
            keep_fp32,
        )

    return _Search(conversion.lowered, values.truth, specs, conversion.profiles, fails)


def of_pass(
    graph: LoweredGraph,
    value: str,
    inputs: Sequence[torch.Tensor],
    culprit: Culprit,
    order: Order,
    folder: Path,
) -> tuple[Reduction | None, str]:
    """Write the smallest part of the `graph` before a pass that lowering changes.

    `value` is the node's value in this graph. Returns and raises as of_network.
    """
    truth = graph.values(*(tensor.clone() for tensor in inputs))
    input_names = [value.debugName() for value in graph.graph.inputs()]
    truth |= dict(zip(input_names, inputs, strict=True))
    specs = dict(zip(input_names, order.spec.inputs, strict=True))

    def fails(candidate: Candidate) -> bool:
        return lowering_differs(candidate.data, candidate.inputs, candidate.specs)

    search = _Search(graph, truth, specs, order.spec.profiles, fails)
    smallest = search.smallest(value)
    if smallest is None:
        return None, search.note
    return _write_files(
        smallest, culprit, order, folder, search, _LOWERING_TEST, "fp32"
    ), ""


def network_differs(
    data: bytes,
    inputs: Sequence[torch.Tensor],
    specs: Sequence[TensorSpec],
    precision: str,
    keep_fp32: Sequence[str],
) -> bool:
    """Whether the network of a TorchScript file differs from torch on these inputs, or cannot be
    evaluated.
    """
    from builder import reference
    from builder.conversion import convert

    module = _loaded(data)
    conversion = convert(module, specs, precision=precision, keep_fp32=keep_fp32)
    try:
        outputs = reference.run(conversion, inputs)
    except NetworkEvaluationError:
        return True
    return _differ(outputs, _outputs_of(module, inputs), precision)


def lowering_differs(
    data: bytes, inputs: Sequence[torch.Tensor], specs: Sequence[TensorSpec]
) -> bool:
    """Whether the lowered graph of a TorchScript file differs from the file on these inputs."""
    module = _loaded(data)
    outputs = lowering.lower(module, specs=specs).run(
        *(tensor.clone() for tensor in inputs)
    )
    return _differ(outputs, _outputs_of(module, inputs), "fp32")


def _loaded(data: bytes) -> Any:
    import torch

    return torch.jit.load(io.BytesIO(data)).eval()  # type: ignore[no-untyped-call]


def _outputs_of(module: Any, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    import torch

    with torch.no_grad(), torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
        outputs = module(*(tensor.clone() for tensor in inputs))
    if isinstance(outputs, torch.Tensor):
        return [outputs]
    return list(outputs)


def _differ(
    outputs: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], precision: str
) -> bool:
    pairs = zip(outputs, expected, strict=True)
    return not all(
        parity.compare_value("value", *pair, precision).passed for pair in pairs
    )


@dataclass(eq=False)
class _Search:
    """Tries parts of a graph around one node: first the node alone, then more and more of the
    preceding nodes, then fewer of those again.
    """

    lowered: LoweredGraph
    truth: Mapping[str, torch.Tensor]
    specs: Mapping[str, TensorSpec]
    profiles: Sequence[Any]
    fails: Fails
    tries: int = 0
    note: str = ""

    def smallest(self, value: str) -> Candidate | None:
        """The smallest part that fails; None, with a `note`, if none of the tried parts does."""
        siblings = nodes.siblings(self.lowered, value)
        known = set(self.truth) - siblings
        while self.tries < TRIES:
            candidate = self.attempt(known, value)
            if candidate is not None:
                return self._without_needless(candidate, known, value)
            wider = known - set(self._read(known, value))
            if wider == known:
                break
            known = wider
        self.note = (
            f"no part of the graph with %{value} differs by itself ({self.tries} were tried):"
            " the model as it is shows it"
        )
        return None

    def _read(self, known: Collection[str], value: str) -> tuple[str, ...]:
        """The known values that a part reads, without the graph's inputs."""
        _, names = partition.subgraph(self.lowered, known, [value])
        return tuple(name for name in names if name not in self.specs)

    def _without_needless(
        self, candidate: Candidate, known: Collection[str], value: str
    ) -> Candidate:
        """Remove each preceding node that the difference does not need."""
        inner = partition.values_behind(self.lowered, [value]) & set(self.truth)
        siblings = nodes.siblings(self.lowered, value)
        order = [name for name in self.truth if name in inner - set(known) - siblings]
        inputs_known = set(known)
        for name in reversed(order):
            if self.tries >= TRIES:
                break
            smaller = self.attempt(inputs_known | {name}, value)
            if smaller is not None and smaller.nodes < candidate.nodes:
                candidate = smaller
                inputs_known = inputs_known | {name}
        return candidate

    def attempt(self, known: Collection[str], value: str) -> Candidate | None:
        """Try the part between known values and this one. Returns it if its file fails."""
        for candidate in self._candidates(known, value):
            self.tries += 1
            try:
                if self.fails(candidate):
                    return candidate
            except EnvironmentProblem:
                raise
            except Exception:  # an error other than the one to reproduce
                continue
        return None

    def _candidates(self, known: Collection[str], value: str) -> Iterator[Candidate]:
        """Yield candidates with static shapes, and also with the model's dynamic axes if it has
        some.
        """
        graph, names = partition.subgraph(self.lowered, known, [value])
        inputs = tuple(self.truth[name].detach().clone() for name in names)
        data = io.BytesIO()
        graph.save(data)
        static = tuple(
            TensorSpec(
                str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), name=name
            )
            for tensor, name in zip(inputs, graph.inputs, strict=True)
        )
        yield Candidate(graph, names, inputs, static, data.getvalue())
        if any(spec.dims for spec in self.specs.values()):
            dynamic = self._dynamic(names, graph.inputs)
            if dynamic is not None:
                yield Candidate(graph, names, inputs, dynamic, data.getvalue())

    def _dynamic(
        self, names: Sequence[str], called: Sequence[str]
    ) -> tuple[TensorSpec, ...] | None:
        input_names = [value.debugName() for value in self.lowered.graph.inputs()]
        specs = [self.specs[name] for name in input_names]
        shapes = partition.infer_shapes(self.lowered, specs, self.profiles)
        specs_or_none = [shapes.spec(*pair) for pair in zip(names, called, strict=True)]
        if any(entry is None for entry in specs_or_none):
            return None
        return tuple(entry[0] for entry in specs_or_none if entry is not None)


def _write_files(
    candidate: Candidate,
    culprit: Culprit,
    order: Order,
    folder: Path,
    search: _Search,
    check: str,
    precision: str,
) -> Reduction:
    """Write the files. Raises EnvironmentProblem."""
    target = folder / order.spec.name
    with file_system_errors("the reduced model cannot be written", target, "--reduce"):
        target.mkdir(parents=True, exist_ok=True)
        (target / MODEL).write_bytes(candidate.data)
        _write_inputs(target / INPUTS, candidate)
        (target / MANIFEST).write_text(
            _manifest(candidate, precision), encoding="utf-8"
        )
        (target / TEST).write_text(
            _test(candidate, culprit, order, check), encoding="utf-8"
        )
    return Reduction(target, candidate.nodes, partition.computing_nodes(search.lowered))


def _write_inputs(path: Path, candidate: Candidate) -> None:
    """Write the inputs. NumPy has no bfloat16: float32 represents the same numbers."""
    import numpy as np
    import torch

    arrays = {}
    for spec, tensor in zip(candidate.specs, candidate.inputs, strict=True):
        if tensor.dtype == torch.bfloat16:
            tensor = tensor.float()
        arrays[str(spec.name)] = tensor.numpy()
    np.savez(str(path), **arrays)


def _manifest(candidate: Candidate, precision: str) -> str:
    import yaml

    dims = {
        name: dict(zip(("min", "opt", "max"), span, strict=True))
        for name, span in axis_ranges(candidate.specs).items()
    }
    data: dict[str, Any] = {
        "inputs": [
            {"name": spec.name, "dtype": spec.dtype, "shape": list(spec.shape)}
            for spec in candidate.specs
        ]
    }
    if dims:
        data["dims"] = dims
    data["precision"] = precision
    if all(spec.dtype != "bfloat16" for spec in candidate.specs):
        data["goldens"] = INPUTS
    return yaml.safe_dump(data, sort_keys=False, default_flow_style=None)


def _test(candidate: Candidate, culprit: Culprit, order: Order, check: str) -> str:
    specs = []
    for spec in candidate.specs:
        dims = f", dims={dict(spec.dims)!r}" if spec.dims else ""
        specs.append(
            f"builder.TensorSpec({spec.dtype!r}, {spec.shape!r}{dims}, name={spec.name!r})"
        )
    return _TEST.format(
        operator=culprit.operator,
        source=" ".join(culprit.location.split())
        .replace("\\", "/")
        .replace('"""', "'''"),
        kind=culprit.by,
        function=culprit.function,
        specs="".join(f"    {spec},\n" for spec in specs),
        plugins=pprint.pformat([_resolved(plugin) for plugin in order.plugins]),
        check=check,
    )


def _resolved(plugin: str) -> str:
    """Resolve a file to its absolute path, and a module to its name."""
    if plugin.endswith(".py"):
        return str(Path(plugin).resolve())
    return plugin


_TEST = '''"""{operator} computes other numbers than torch.

Source: {source}
The {kind}: {function}

Written by `trt-build bisect --reduce`. It fails while the difference exists.
"""

from pathlib import Path

import builder
import numpy
import torch
from builder.parity import compare_value
from builder.torchscript import plugins

HERE = Path(__file__).parent
PLUGINS = {plugins}
SPECS = [
{specs}]


def load_inputs():
    arrays = numpy.load(HERE / "inputs.npz")
    return [torch.from_numpy(arrays[s.name]).to(getattr(torch, s.dtype)) for s in SPECS]


{check}'''

_NETWORK_TEST = """def test_the_network_computes_the_numbers_of_torch():
    plugins.load(PLUGINS)
    module, inputs = torch.jit.load(HERE / "reduced.pt").eval(), load_inputs()
    conversion = builder.convert(module, SPECS, precision={precision!r}, keep_fp32={keep_fp32!r})
    outputs = builder.reference.run(conversion, inputs)
    for output, expected in zip(outputs, module(*inputs), strict=True):
        assert compare_value("output", output, expected, {precision!r}).problem is None
"""

_LOWERING_TEST = """def test_lowering_keeps_the_numbers():
    plugins.load(PLUGINS)
    module, inputs = torch.jit.load(HERE / "reduced.pt").eval(), load_inputs()
    outputs = builder.lower(module, specs=SPECS).run(*inputs)
    for output, expected in zip(outputs, module(*inputs), strict=True):
        assert compare_value("output", output, expected, "fp32").problem is None
"""
