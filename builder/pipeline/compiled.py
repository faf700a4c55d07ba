"""`compile`: a module that runs the built model and has the interface of the original."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from builder import engine, parity
from builder.conversion import named_inputs
from builder.engine import BuildOptions, flavor
from builder.errors import EngineError, LoweringError, TrtBuildError, UsageError
from builder.frontends import ExportedModule
from builder.lowering import evaluating
from builder.manifest import Fallback, ModelSpec, TensorSpec, Tolerance, merged_profile
from builder.parity import call_module, to_numpy, to_torch, widened
from builder.pipeline import ladder, run, stages
from builder.pipeline.execution import Runner
from builder.pipeline.order import Order
from builder.progress import silent
from builder.triton import Golden, ModelArtifact

log = logging.getLogger(__name__)

Tensors = dict[str, torch.Tensor]


def compile(
    module: torch.nn.Module | torch.export.ExportedProgram,
    inputs: Sequence[TensorSpec] | None = None,
    *,
    precision: str = "fp32",
    constants: Mapping[str, Any] | None = None,
    max_lengths: Mapping[str, int] | None = None,
    fallback: Fallback | None = None,
    tolerance: Tolerance | None = None,
    unroll_limit: int = 64,
    goldens: Path | str | None = None,
    options: BuildOptions | None = None,
) -> CompiledModule:
    """Return an equivalent module.

    On a GPU, TensorRT runs the supported segments and torch the rest. Without a GPU, torch runs the
    lowered graph. Call it with the arguments of the original; it returns the same structure.

    `inputs` has one TensorSpec for each input, in order. An exported program has its own specs, and
    `inputs` may narrow their ranges. Tuples count as their elements, and an Optional argument is
    passed if a spec has its name. `constants` are the values of arguments that are not tensors.
    `max_lengths` are the largest lengths of lists that the module returns, by name (`output`). The
    module is scripted if it is not a ScriptModule, read in evaluation mode and not changed. Before
    it is returned, the new module is compared with the original, within the tolerance, on random
    inputs that fit the specs and on those of the .npz file `goldens`.
    Raises UsageError, LoweringError and ParityError for a module that cannot be compiled.
    """
    script = _readable(module)
    specs = _specs(script, inputs)
    spec = ModelSpec(
        "module",
        Path("module"),
        tuple(specs),
        profiles=(merged_profile(specs),),
        precision=precision,
        fallback=fallback or Fallback(),
        tolerance=tolerance or Tolerance(),
        unroll_limit=unroll_limit,
        goldens=Path(goldens) if goldens else None,
        constants=dict(constants or {}),
        max_lengths=dict(max_lengths or {}),
    )
    return _compiled(script, spec, options or BuildOptions())


def _specs(
    script: torch.jit.ScriptModule | ExportedModule, inputs: Sequence[TensorSpec] | None
) -> Sequence[TensorSpec]:
    if isinstance(script, ExportedModule):
        return script.axes.chosen(inputs)
    if inputs is None:
        raise UsageError("compile requires `inputs`: one TensorSpec for each input")
    return inputs


def _compiled(
    script: torch.jit.ScriptModule | ExportedModule,
    spec: ModelSpec,
    options: BuildOptions,
) -> CompiledModule:
    """The module, compared with the original. Logs its warnings."""
    order = Order(spec, Path("module"), layout="fused", options=options)
    run.select_environment(order)
    recorded = _recorded(spec, script)
    runner, warnings = _runner(recorded, order)
    for warning in warnings:
        log.warning("%s", warning)
    return CompiledModule(script, recorded, runner, warnings)


def _recorded(
    spec: ModelSpec, script: torch.jit.ScriptModule | ExportedModule
) -> stages.Recorded:
    """The lowered module with its goldens; its inputs get the graph's names."""
    try:
        lowered = ladder.lower(stages.Loaded(spec, script))
        spec = replace(spec, inputs=named_inputs(spec.inputs, lowered.graph))
        return stages.record(replace(lowered, spec=spec))
    except TrtBuildError as error:
        raise _without_manifest(error) from error


def _runner(recorded: stages.Recorded, order: Order) -> tuple[Runner, tuple[str, ...]]:
    """What runs the checked module, and the warnings: engines on a GPU, if they give the goldens,
    else torch.
    """
    on_gpu = _runs_plans()
    compile = _build(order.options) if on_gpu else None
    checked = run.check_recorded(recorded, order, run.Clock("module", silent), compile)
    artifact = checked.artifact
    assert isinstance(artifact, ModelArtifact)
    runner = Runner(artifact, engines=on_gpu)
    warnings = tuple(map(_for_compile, checked.warnings))
    problem: str | None = "no CUDA device found"
    if on_gpu:
        problem = _problem(runner, recorded.goldens, artifact.spec)
    if problem is None:
        return runner, warnings
    warning = f"torch runs the whole module: {problem}"
    return Runner(artifact), (*warnings, warning)


class CompiledModule(torch.nn.Module):
    """A module that TensorRT or torch runs, with the interface of the original.

    It is for inference: it has no parameters and no gradients. `answered_by` is "plan",
    "plan+torch" or "torch". `warnings` name the operators that stay in torch, with the reasons.
    """

    def __init__(
        self,
        original: torch.jit.ScriptModule | ExportedModule,
        recorded: stages.Recorded,
        runner: Runner,
        warnings: tuple[str, ...],
    ) -> None:
        super().__init__()
        spec, graph = recorded.lowered.spec, recorded.lowered.graph
        self.warnings = warnings
        self.answered_by = _kind(runner)
        self._runner = runner
        self._specs, self._profiles = spec.inputs, spec.profiles
        self._names, self._results = graph.inputs, graph.results
        self._outputs = recorded.lowered.outputs
        self._lists = tuple(graph.too_long)
        self._constants = dict(spec.constants)
        self._program = original if isinstance(original, ExportedModule) else None
        self._result: Any = None
        """The type of forward's result if a part of it may be None."""
        if isinstance(original, ExportedModule):
            self._arguments = []
            self._leaves, self._structure = original.result
            return
        schema = original._c._get_method("forward").schema
        self._arguments = _arguments(schema)
        if graph.flags:
            self._result = schema.returns[0].type
        else:
            self._leaves, self._structure = _structure(original, recorded)

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        """The outputs of the original module, on the device of the first input.

        Raises TypeError for arguments that do not match the original's signature, and UsageError
        for tensors that do not fit the specs: another dtype or rank, or a size out of range.
        """
        if self._program is not None:
            inputs = self._program.flat(arguments, keywords)
        else:
            inputs = self._flat(self._bound(arguments, keywords))
        self._check(inputs)
        device = inputs[0].device if inputs else torch.device("cpu")
        values = {
            str(spec.name): tensor.detach().cpu()
            for spec, tensor in zip(self._specs, inputs, strict=True)
        }
        with torch.no_grad():
            outputs = self._runner(values)
        paths_and_names = zip(self._results, self._outputs, strict=True)
        # pairs, because several results may have the same path
        results = [
            (path, outputs[name].to(device))
            for path, name in paths_and_names
            if name in outputs
        ]
        if self._result is not None:
            return parity.rebuilt(self._result, dict(results), lists=self._lists)
        tensors = (tensor for _, tensor in results)
        leaves = [
            leaf if leaf is None else _in_form_of(leaf, next(tensors))
            for leaf in self._leaves
        ]
        return pytree.tree_unflatten(leaves, self._structure)

    def _bound(
        self, arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The arguments by name, with the constants and defaults."""
        names = [name for name, _ in self._arguments]
        unknown = [name for name in keywords if name not in names[len(arguments) :]]
        if unknown or len(arguments) > len(names):
            raise TypeError(f"forward takes ({', '.join(names)}), each at most once")
        values = {**dict(zip(names, arguments, strict=False)), **keywords}
        for name, default in self._arguments:
            known = self._constants.get(name, default)
            if name not in values and known is _REQUIRED:
                raise TypeError(f"forward requires the argument {name!r}")
            values.setdefault(name, known)
        return {name: values[name] for name in names}

    def _flat(self, values: Mapping[str, Any]) -> list[torch.Tensor]:
        """The tensors in the order of the specs."""
        tensors = dict(
            pair for name, value in values.items() for pair in self._parts(name, value)
        )
        if set(tensors) != set(self._names):
            raise UsageError(
                f"the module was compiled for the inputs {', '.join(self._names)}; this call has"
                f" {', '.join(tensors) or 'none'}",
                fix="compile it with a spec for each tensor of this call",
            )
        return [tensors[name] for name in self._names]

    def _parts(self, name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors of an argument, named as lowering names them."""
        if isinstance(value, torch.Tensor):
            yield name, value
        elif isinstance(value, Mapping):
            for key, part in value.items():
                yield from self._parts(f"{name}.{key}", part)
        elif isinstance(value, tuple) and hasattr(value, "_fields"):
            for key, part in zip(value._fields, value, strict=True):
                yield from self._parts(f"{name}.{key}", part)
        elif isinstance(value, list | tuple) and any(map(_holds_tensors, value)):
            for index, part in enumerate(value):
                yield from self._parts(f"{name}_{index}", part)
        elif name in self._names:
            yield name, torch.tensor(value, dtype=self._dtype(name))
        elif value is not None or self._constant(name) is not None:
            self._check_constant(name, value)

    def _dtype(self, name: str) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self._specs[self._names.index(name)].dtype)
        return dtype

    def _constant(self, name: str) -> Any:
        return self._constants.get(name, dict(self._arguments).get(name))

    def _check_constant(self, name: str, value: Any) -> None:
        known = self._constant(name)
        if known != value:
            raise UsageError(
                f"the module was compiled for {name}={known!r}, this call has {value!r}",
                fix="compile it again with that value in `constants`, or make it a tensor input",
            )

    def _check(self, tensors: Sequence[torch.Tensor]) -> None:
        """Raise UsageError if a tensor does not fit its spec in any profile."""
        for spec, tensor in zip(self._specs, tensors, strict=True):
            same_dtype = str(tensor.dtype) == f"torch.{spec.dtype}"
            if not same_dtype or tensor.dim() != len(spec.shape):
                raise UsageError(
                    f"input {spec.name} is {tensor.dtype} of rank {tensor.dim()}; the module was"
                    f" compiled for torch.{spec.dtype} of {len(spec.shape)}"
                )
        sizes: dict[str, int] = {}
        for spec, tensor in zip(self._specs, tensors, strict=True):
            for axis, size in zip(spec.shape, tensor.shape, strict=True):
                expected = axis
                if not isinstance(axis, int):
                    expected = sizes.setdefault(axis, size)
                if expected != size:
                    raise UsageError(
                        f"input {spec.name}: axis {axis} is {size}, not {expected}"
                    )
        if not any(_includes(profile, sizes) for profile in self._profiles):
            listed = ", ".join(f"{name}={size}" for name, size in sizes.items())
            raise UsageError(
                f"no profile includes the sizes {listed}",
                fix="compile the module with wider ranges in `dims`",
            )


def _without_manifest(error: TrtBuildError) -> TrtBuildError:
    """The error in words for a caller of `compile`, who has no manifest."""
    error.fix = _for_compile(error.fix) if error.fix else None
    error.where = None if error.where == "module" else error.where
    return error


def _for_compile(text: str) -> str:
    """The text with arguments of `compile` for keys of a manifest."""
    for written, argument in _ARGUMENTS:
        text = text.replace(written, argument)
    return text


_ARGUMENTS = (
    (" (manifest: goldens: FILE.npz)", ' (goldens="FILE.npz")'),
    (" (manifest: goldens)", " (goldens)"),
    (
        "correct the shapes, dims and dtypes in the manifest",
        "correct the shapes and dtypes of `inputs`",
    ),
    (
        "write its largest length in the manifest: max_lengths: ",
        "pass its largest length: max_lengths=",
    ),
    (" in the manifest", ""),
)
"""Parts of errors and warnings about manifests, and their wording for a call of `compile`."""
_REQUIRED = object()


def _readable(
    module: torch.nn.Module | torch.export.ExportedProgram,
) -> torch.jit.ScriptModule | ExportedModule:
    if isinstance(module, torch.export.ExportedProgram):
        return ExportedModule(module)
    if isinstance(module, torch.jit.ScriptModule):
        return module
    try:
        scripted: torch.jit.ScriptModule = torch.jit.script(module)
    except Exception as error:
        raise LoweringError(
            f"torch.jit.script does not compile the module: {error}",
            fix="pass torch.jit.trace(module, example_inputs)",
        ) from error
    return scripted


def _runs_plans() -> bool:
    """Whether CUDA finds a device."""
    return flavor.has_gpu()


def _build(options: BuildOptions) -> stages.Compile:
    def build(conversion: Any, label: str) -> engine.Plan:
        return engine.build(conversion, options)

    return build


def _problem(runner: Runner, goldens: Sequence[Golden], spec: ModelSpec) -> str | None:
    """The problem of the plans' outputs, or None."""
    for golden in goldens:
        inputs = {name: to_torch(array) for name, array in golden.inputs.items()}
        try:
            outputs = {
                name: to_numpy(tensor) for name, tensor in runner(inputs).items()
            }
        except EngineError as failure:
            return failure.message
        comparison = parity.compare(
            widened(outputs, golden), golden, spec.tolerance, precision=spec.precision
        )
        if not comparison.passed:
            return f"golden {golden.name}: {'; '.join(comparison.problems)}"
    return None


def _structure(original: Any, recorded: stages.Recorded) -> tuple[list[Any], Any]:
    """The structure of the original's result, and its leaves. A leaf of None is None."""
    spec = recorded.lowered.spec
    golden = recorded.goldens[0]
    tensors = [to_torch(array) for array in golden.inputs.values()]
    with evaluating(original), torch.no_grad():
        outputs = call_module(original, spec.inputs, tensors, spec.constants)
    leaves, structure = pytree.tree_flatten(outputs)
    if sum(leaf is not None for leaf in leaves) != len(recorded.lowered.outputs):
        raise UsageError(
            f"the module returns {len(leaves)} values, and {len(recorded.lowered.outputs)} outputs"
            " were compiled",
            fix="return tensors, in tuples, lists and dictionaries",
        )
    return leaves, structure


def _in_form_of(leaf: Any, tensor: torch.Tensor) -> Any:
    """A leaf in the original's form: a tensor, or a number."""
    if isinstance(leaf, torch.Tensor):
        return tensor
    return type(leaf)(tensor.item())


def _arguments(schema: Any) -> list[tuple[str, Any]]:
    """The name and the default value of each argument of forward."""
    return [
        (
            argument.name,
            argument.default_value if argument.has_default_value() else _REQUIRED,
        )
        for argument in schema.arguments[1:]
    ]


def _kind(runner: Runner) -> str:
    artifact = runner.artifact
    if not runner.engines:
        return "torch"
    if not artifact.segments:
        return "plan" if artifact.plan else "torch"
    plans = [_has_plan(files) for files in artifact.segments]
    if all(plans):
        return "plan"
    return "plan+torch" if any(plans) else "torch"


def _has_plan(files: Any) -> bool:
    inner = [side_file for block in getattr(files, "blocks", ()) for side_file in block]
    inner += getattr(files, "parts", ())
    return bool(getattr(files, "plan", None)) or any(map(_has_plan, inner))


def _holds_tensors(value: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value))


def _includes(profile: Mapping[str, Any], sizes: Mapping[str, int]) -> bool:
    for name, size in sizes.items():
        least, _, most = profile[name]
        if not least <= size <= most:
            return False
    return True
