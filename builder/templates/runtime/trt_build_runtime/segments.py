"""A model in segments, all of them in this process."""

# ruff: noqa: B905 (images up to 23.04 have Python 3.8, whose zip knows no strict)
from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import triton_python_backend_utils as pb_utils

from .by_torch import TorchExecutor
from .engine import Engine
from .errors import InvalidRequest
from .options import graphs, tf32
from .output_transfer import outputs_for_triton


class SegmentsExecutor:
    """Runs the segments of a model in order, in this process; on a GPU all on one stream."""

    checks = False

    def __init__(
        self,
        folder: Path,
        facts: dict[str, Any],
        args: dict[str, str],
        shares_memory: bool = False,
    ) -> None:
        self.folder = folder
        self.stays = bool(facts.get("step_of"))
        self.graphs = graphs(facts)
        self.device, self.why = _device(args)
        self.tf32 = tf32(facts)
        self.stream = _stream(self.device)
        self.shares_memory = shares_memory
        serving = facts["serving"]
        inputs = [tensor["name"] for tensor in serving["inputs"]]
        outputs = [tensor["name"] for tensor in serving["outputs"]]
        self.count = len(outputs)
        self.flagged = [
            number
            for number, tensor in enumerate(serving["outputs"])
            if "flag" in tensor
        ]
        outputs += [serving["outputs"][number]["flag"] for number in self.flagged]
        self.unknown = list(serving.get("unknown", {}))
        outputs += [serving["unknown"][name] for name in self.unknown]
        self.lists = list(serving.get("too_long", {}))
        outputs += [serving["too_long"][name] for name in self.lists]
        self.segments = Segments(self, "segment", facts["segments"], inputs, outputs)
        self.kind, self.summary = self._runners()

    def _runners(self) -> tuple[str, str]:
        """The kinds of all runners, such as `plan+torch`, and the runner of each segment."""
        executors = dict(self.segments.executed_by(""))
        kind = "+".join(sorted(set(executors.values())))
        return kind, " ".join(
            f"{segment}:{runner}" for segment, runner in executors.items()
        )

    def prepare(self) -> None:
        """Do nothing: the first request of each segment creates its execution context."""

    def by_torch(self, stem: str) -> TorchExecutor:
        """The graph of that name, run by torch on the device of all segments."""
        return TorchExecutor(
            self.folder / f"{stem}.pt", self.why, self.device, self.tf32
        )

    def runner(self, stem: str, segment: dict[str, Any]) -> Any:
        """The segment's plan if it has one that a GPU can run, else its graph by torch; a branch;
        or its parts.
        """
        if segment["kind"] == "branch":
            return Branch(self, stem, segment)
        if segment.get("parts"):
            inputs = [tensor["name"] for tensor in segment["inputs"]]
            outputs = [tensor["name"] for tensor in segment["outputs"]]
            return Segments(self, stem, segment["parts"], inputs, outputs)
        plan = self.folder / f"{stem}.plan"
        if self.stream is not None and plan.exists():
            try:
                return Engine(
                    plan,
                    segment["plan"]["flavor"],
                    segment,
                    self.device,
                    self.stream,
                    self.graphs,
                    self.shares_memory,
                )
            except Exception as error:
                self.why = (
                    f"{stem.replace('_', ' ')}: the plan cannot run here: {error}"
                )
                pb_utils.Logger.log_warn(f"trt-build: {self.why}")
        return self.by_torch(stem)

    def run(self, tensors: list[torch.Tensor]) -> list[Any]:
        """Run on tensors of any device. Returns CPU tensors, or see outputs_for_triton. An absent
        output is None.
        """
        if self.stream is None:
            return self._present(self.segments.run(tensors))
        outputs = self.segments.run([tensor.to(self.device) for tensor in tensors])
        stays = self.stays or any(tensor.is_cuda for tensor in tensors)
        # a segment may return an input
        return self._present(
            outputs_for_triton(outputs, self.stream, stays, returns_buffers=False)
        )

    def _present(self, results: list[torch.Tensor]) -> list[Any]:
        """The outputs without the flags, which decide which of them are None."""
        outputs: list[Any] = results[: self.count]
        first = self.count + len(self.flagged)
        for name, flag in zip(self.lists, results[first + len(self.unknown) :]):
            if bool(flag):
                raise InvalidRequest(
                    f"the list {name!r} has more tensors for these inputs than the model was built"
                    f" for: increase max_lengths: {{{name}: N}} in the manifest, and build it again"
                )
        for name, flag in zip(self.unknown, results[first:]):
            if bool(flag):
                raise RuntimeError(
                    f"output {name!r} is a tensor for these inputs, and None in every golden of the"
                    " build: add them as a golden, and build it again"
                )
        for number, flag in zip(self.flagged, results[self.count :]):
            if not bool(flag):
                outputs[number] = None
        return outputs


class Segments:
    """Segments in order. Tensors pass from one to the next without a copy, and are released after
    their last reader.
    """

    def __init__(
        self,
        owner: SegmentsExecutor,
        stem: str,
        segments: list[dict[str, Any]],
        inputs: list[str],
        outputs: list[str],
    ) -> None:
        self.owner = owner
        self.stem = stem
        self.segments = segments
        self.inputs = inputs
        self.outputs = outputs
        self.runners = [
            owner.runner(f"{stem}_{number}", segment)
            for number, segment in enumerate(segments)
        ]
        self.last_reader = {
            tensor["name"]: number
            for number, segment in enumerate(segments)
            for tensor in segment["inputs"]
        }
        self.replacements: dict[int, TorchExecutor] = {}

    def executed_by(self, path: str) -> Any:
        """The name of each segment with "plan" or "torch", at any depth."""
        for number, (segment, runner) in enumerate(zip(self.segments, self.runners)):
            if hasattr(runner, "executed_by"):
                yield from runner.executed_by(f"{path}{number}.")
            else:
                yield (
                    f"{path}{number}.{segment['kind']}",
                    "plan" if isinstance(runner, Engine) else "torch",
                )

    def run(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors `outputs` for the tensors `inputs`."""
        values = dict(zip(self.inputs, tensors))
        for number, (segment, runner) in enumerate(zip(self.segments, self.runners)):
            arguments = [values[tensor["name"]] for tensor in segment["inputs"]]
            if isinstance(runner, Engine) and runner.profiles.find(arguments) is None:
                runner = self._replacement(number)
            values.update(
                zip(
                    (tensor["name"] for tensor in segment["outputs"]),
                    runner.run(arguments),
                )
            )
            for name in [
                name
                for name in values
                if name not in self.outputs and self.last_reader.get(name, -1) <= number
            ]:
                del values[name]
        return [values[name] for name in self.outputs]

    def _replacement(self, number: int) -> TorchExecutor:
        """The graph, run by torch, of a segment whose plan does not accept the request's shapes."""
        if number not in self.replacements:
            self.replacements[number] = self.owner.by_torch(f"{self.stem}_{number}")
        return self.replacements[number]


class Branch:
    """One of two blocks, chosen by the data. The other one does not run."""

    def __init__(
        self, owner: SegmentsExecutor, stem: str, segment: dict[str, Any]
    ) -> None:
        inputs = [tensor["name"] for tensor in segment["inputs"]]
        outputs = [tensor["name"] for tensor in segment["outputs"]]
        self.reads = [inputs.index(tensor["name"]) for tensor in segment["condition"]]
        self.condition = owner.by_torch(f"{stem}_condition")
        named_blocks = zip(("yes", "no"), segment["blocks"])
        self.blocks = {
            name: Segments(owner, f"{stem}_{name}", block, inputs, outputs)
            for name, block in named_blocks
        }

    def executed_by(self, path: str) -> Any:
        """The same as in Segments, for both blocks."""
        for name, block in self.blocks.items():
            yield from block.executed_by(f"{path}{name}.")

    def run(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs of the chosen block."""
        decided = bool(self.condition.run([tensors[index] for index in self.reads])[0])
        return self.blocks["yes" if decided else "no"].run(tensors)


def _device(args: dict[str, str]) -> tuple[str, str]:
    """The device of all segments, and the reason."""
    if not torch.cuda.is_available():
        return "cpu", "torch finds no GPU"
    if args["model_instance_kind"] == "CPU":
        return "cpu", "the instance is of KIND_CPU"
    return f"cuda:{args['model_instance_device_id']}", "a GPU"


def _stream(device: str) -> torch.cuda.Stream | None:
    """A new stream of the GPU, which becomes the current device; None for the CPU."""
    if device == "cpu":
        return None
    torch.cuda.set_device(device)
    return torch.cuda.Stream(device)
