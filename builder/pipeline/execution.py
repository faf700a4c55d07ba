"""Run an artifact from the bytes that will be published.

`check_artifact` runs it on every golden with the TorchScript files, as the runtime does without a
GPU. The networks that a GPU runs instead are compared by `stages.check_reference`.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from builder import lowering, parity, triton
from builder.errors import EngineError, ParityError
from builder.pipeline import segment_goldens

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from builder.engine import Engine
    from builder.parity import Comparison
    from builder.triton import (
        BranchFiles,
        EnsembleArtifact,
        ModelArtifact,
        SegmentFiles,
    )

    Tensors = dict[str, torch.Tensor]
    Files: TypeAlias = SegmentFiles | BranchFiles

TORCH_DEFECT = re.compile(r"Expected [\w ]+ but got None")
"""The error of a bug in the TorchScript interpreter of torch 2.13. Some scripted functions with
several loops raise it.
"""


@dataclass(frozen=True)
class LoadedFiles:
    """The TorchScript files and plans of an artifact, each loaded once and shared by its runners.
    The artifact must outlive this, because the keys are the ids of its bytes.
    """

    modules: dict[int, torch.jit.ScriptModule] = field(default_factory=dict)
    engines: dict[int, Engine] = field(default_factory=dict)

    def module(self, data: bytes) -> torch.jit.ScriptModule:
        import torch

        if id(data) not in self.modules:
            loaded = torch.jit.load(io.BytesIO(data), map_location="cpu")  # type: ignore[no-untyped-call]
            self.modules[id(data)] = loaded.eval()
        return self.modules[id(data)]

    def engine(self, plan: bytes) -> Engine:
        from builder.engine import Engine

        if id(plan) not in self.engines:
            self.engines[id(plan)] = Engine(plan)
        return self.engines[id(plan)]


def check_artifact(
    artifact: ModelArtifact | EnsembleArtifact, files: LoadedFiles | None = None
) -> dict[str, Any]:
    """Raise ParityError if an output differs from a golden: of the whole model, and of each step of
    an ensemble. Returns the number of comparisons, and their worst `absolute`, `relative` and
    `cosine` (None if no output has numbers).
    """
    parts = (
        artifact.steps if isinstance(artifact, triton.EnsembleArtifact) else (artifact,)
    )
    compared = [
        comparison for part in parts for comparison in _check_model(part, files)
    ]
    outputs = [output for comparison in compared for output in comparison.outputs]
    absolute = [output.absolute for output in outputs if output.absolute is not None]
    relative = [output.relative for output in outputs if output.relative is not None]
    shares = [output.share for output in outputs if output.share is not None]
    cosines = [output.cosine for output in outputs if output.cosine is not None]
    return {
        "answers": len(compared),
        "absolute": max(absolute, default=None),
        "relative": max(relative, default=None),
        "share": max(shares, default=None),
        "cosine": min(cosines, default=None),
    }


def _check_model(
    artifact: ModelArtifact, files: LoadedFiles | None
) -> list[Comparison]:
    """The comparison of each golden, all of which passed."""
    spec = artifact.spec
    run = Runner(artifact, files)
    compared: list[Comparison] = []
    for golden in artifact.goldens:
        output = run.evaluate(golden.inputs)
        for name, array in golden.outputs.items():
            if not array.ndim:  # Triton's PyTorch backend has no 0-d tensors
                output[name] = output[name].reshape(())
        precision = segment_goldens.torch_precision(spec)
        comparison = parity.compare(output, golden, spec.tolerance, precision=precision)
        if not comparison.passed:
            raise ParityError(
                f"golden {golden.name}: the files of {spec.name}, run by torch, differ from the"
                f" module: {'; '.join(comparison.problems)}",
                fix="this is a defect of trt-build: please report it with the model's graph"
                " (`trt-build lower`)",
            )
        compared.append(comparison)
    return compared


class Runner:
    """Runs the model of one artifact as the Python runtime does: with torch, and with `engines` by
    the plans, which need a GPU. `files` are those that other runners of the artifact have loaded.
    Tensors are on the CPU.
    """

    def __init__(
        self,
        artifact: ModelArtifact,
        files: LoadedFiles | None = None,
        *,
        engines: bool = False,
    ) -> None:
        self.artifact = artifact
        self.engines = engines
        self.files = LoadedFiles() if files is None else files

    def __call__(self, inputs: Tensors) -> Tensors:
        """The outputs by name. Raises EngineError where a plan does not take the inputs, and where
        a list is longer than declared.
        """
        artifact = self.artifact
        values = dict(inputs)
        hidden = (*artifact.flags.values(), *artifact.too_long.values())
        outputs = [*(tensor.name for tensor in artifact.outputs), *hidden]
        if artifact.segments:
            self._chain(artifact.segments, values)
        elif self.engines and artifact.plan:
            self._engine(artifact.plan, {}, values)
        else:
            self._execute(
                artifact.lowered,
                [tensor.name for tensor in artifact.inputs],
                outputs,
                values,
            )
        for name, flag in artifact.unknown.items():
            if bool(values[flag]):
                raise EngineError(
                    f"output {name!r} is a tensor for these inputs, and None in every golden",
                    fix="add these inputs as a golden (manifest: goldens: FILE.npz)",
                )
        results = {name: values[name] for name in outputs}
        return lowering.present(results, artifact.flags, artifact.too_long)

    def evaluate(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """The outputs by name, for arrays of a golden. Raises the errors of a call."""
        outputs = self({name: parity.to_torch(array) for name, array in inputs.items()})
        return {name: parity.to_numpy(tensor.cpu()) for name, tensor in outputs.items()}

    def _chain(self, files: Sequence[Files], values: Tensors) -> None:
        """Run the segments in sequence. Their outputs are added to `values`."""
        for segment in files:
            if isinstance(segment, triton.BranchFiles):
                self._branch(segment, values)
            elif segment.parts:
                self._chain(segment.parts, values)
            elif self.engines and segment.plan:
                self._engine(segment.plan, segment.dtypes, values)
            else:
                self._execute(segment.lowered, segment.inputs, segment.outputs, values)

    def _branch(self, files: BranchFiles, values: Tensors) -> None:
        condition = self._run(files.condition, [values[name] for name in files.reads])
        side = dict(values)
        self._chain(files.blocks[0] if bool(condition[0]) else files.blocks[1], side)
        values.update({name: side[name] for name in files.outputs})

    def _engine(self, plan: bytes, dtypes: Mapping[str, str], values: Tensors) -> None:
        """Run a plan. Its outputs are cast to the dtypes that the other segments expect."""
        import torch

        engine = self.files.engine(plan)
        outputs = engine(*(values[name] for name in engine.inputs))
        for name, output in zip(engine.outputs, outputs, strict=True):
            values[name] = (
                output.to(getattr(torch, dtypes[name])) if name in dtypes else output
            )

    def _execute(
        self,
        data: bytes,
        inputs: Sequence[str],
        outputs: Sequence[str],
        values: Tensors,
    ) -> None:
        results = self._run(data, [values[name] for name in inputs])
        values.update(zip(outputs, results, strict=True))

    def _run(
        self, data: bytes, tensors: Sequence[torch.Tensor]
    ) -> Sequence[torch.Tensor]:
        import torch

        module = self.files.module(data)
        if self.artifact.serve_as == "pytorch_libtorch":  # which has no 0-d tensors
            tensors = [
                tensor.reshape(1) if not tensor.dim() else tensor for tensor in tensors
            ]
        with torch.inference_mode(), torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            try:
                output = module(*tensors)
            except RuntimeError as error:
                defect = TORCH_DEFECT.search(str(error))
                if defect is None:
                    raise
                raise ParityError(
                    "TorchScript's interpreter fails on the lowered graph, which has no writes in"
                    f" place: {defect[0]}",
                    fix="this is a bug of PyTorch with several loops: use fewer loops, or loops "
                    "without `break`, to let TensorRT run the model",
                ) from error
        if isinstance(output, torch.Tensor):
            return [output]
        return list(output)
