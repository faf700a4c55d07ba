"""Serves one model of a trt-build repository in Triton's Python backend. On a GPU its TensorRT plan
runs, else torch on the CPU. A model in segments runs all of them in this process.

The model is described by the files beside this one (plan.json, model.plan, lowered.pt,
segment_<n>.plan, segment_<n>.pt) and by the config that Triton passes. trt-build need not be
installed. This file is the interface to Triton; the rest of the code is in the folder
trt_build_runtime beside it.

Every response has the parameters `trt_build.answered_by` ("plan", "torch", "plan+torch"),
`trt_build.device`, `trt_build.why`, and for segments `trt_build.segments` (what ran each). This
needs a server with response parameters (25.02 and later). On any server, a request with the
parameter `trt_build.describe` gets an error whose text ends in the same facts as JSON: an older
Python backend can return nothing else beside the outputs.
"""

# ruff: noqa: B905 (images up to 23.04 have Python 3.8, whose zip knows no strict)
from __future__ import annotations

import copy
import json
import os
import runpy
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton_python_backend_utils as pb_utils

# Triton appends it, behind what is installed
sys.path.insert(0, str(Path(__file__).resolve().parent))
try:
    from trt_build_runtime import blame, integrity, options
    from trt_build_runtime.confine import confine, has_gpu, is_stub
    from trt_build_runtime.defaults import Defaults, is_missing
    from trt_build_runtime.errors import Description, InvalidRequest, NoSenders
    from trt_build_runtime.executors import executor
    from trt_build_runtime.instances import Instances
    from trt_build_runtime.padding import Padding
    from trt_build_runtime.segments import SegmentsExecutor as SegmentsExecutor
    from trt_build_runtime.shapes import Profiles
    from trt_build_runtime.state import Memory
    from trt_build_runtime.tensors import from_torch, to_torch
finally:
    del sys.path[0]

DESCRIBE = "trt_build.describe"


class TritonPythonModel:
    """Triton's entry point: one object in each process. With shared instances, it has copies."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the plan, or the lowered module with the reason why the plan is not used."""
        folder = Path(args["model_repository"]) / args["model_version"]
        if not integrity.check(folder.parent, folder.name):
            pb_utils.Logger.log_warn(
                "trt-build: no trt-build.json: the files are not compared"
            )
        facts = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
        config = json.loads(args["model_config"])
        self.name = args["model_name"]
        self._configure(facts, config, folder.parent)
        for name in facts.get("libraries", ()):
            load_library(folder / "libraries" / name)
        confined = ", ".join(confine(folder.parent)) or "nothing"
        count = options.shared_instances(config)
        self.executor = executor(folder, facts, args, shares_memory=count > 1)
        self.parameters = _parameters(self.executor)
        pb_utils.Logger.log_info(
            f"trt-build: model {self.name!r}: {json.dumps(self.parameters)}, confined by {confined}"
            f", instances in this process: {count}"
        )
        self.instances: Any = None
        if count > 1:
            others = (
                executor(folder, facts, args, shares_memory=True)
                for _ in range(count - 1)
            )
            instances = [self, *map(self._copy, others)]
            for instance in instances:
                instance.executor.prepare()
            self.instances = Instances(instances)

    def _configure(
        self, facts: dict[str, Any], config: dict[str, Any], model: Path
    ) -> None:
        """Set the attributes from plan.json and the config. `model` is the model's folder."""
        self.batching = int(config.get("max_batch_size", 0)) > 0
        self.tensors = facts["serving"]
        self.profiles = Profiles(facts["serving"])
        self.axes = blame.Axes(self.tensors["inputs"])
        self.padding = Padding(self.tensors)
        self.defaults = Defaults(self.tensors["inputs"])
        self.optional = any("flag" in output for output in self.tensors["outputs"])
        self.memory = Memory(model, self.tensors, self.batching)
        self.mapped: Any = deque(maxlen=options.keep_mapped(facts))
        self.thread = 0
        self.sends_parameters = True
        self.devices: list[torch.device] = []

    def _copy(self, runs: Any) -> TritonPythonModel:
        """Another instance of this model in this process, with `runs` as its executor. Both share
        only objects that do not change.
        """
        other = copy.copy(self)
        other.executor = runs
        other.parameters = _parameters(runs)
        other.profiles = Profiles(self.tensors)
        other.axes = blame.Axes(self.tensors["inputs"])
        other.mapped = deque(maxlen=self.mapped.maxlen)
        return other

    def execute(self, requests: list[Any]) -> list[Any] | None:
        """Return one response for each request, or None if other threads send them."""
        if self.instances is None:
            return self.respond(requests)
        try:
            self.instances.submit(requests)
        except NoSenders as reason:
            pb_utils.Logger.log_warn(f"trt-build: model {self.name!r}: {reason}")
            self.instances.close()
            self.instances = None
            return self.respond(requests)
        return None

    def respond(
        self, requests: list[Any], after_reading: Callable[[], None] | None = None
    ) -> list[Any]:
        """One response for each request. Requests that fit together are run as one batch.

        `after_reading` is called once no GPU memory of the requests is needed: inputs on a GPU are
        copied before.
        """
        self._take_stream()
        self.after_reading = after_reading
        self.executor.returns_buffers = len(requests) == 1
        if len(requests) == 1:
            return [self._alone(requests[0])]
        return self._several(requests)

    def _alone(self, request: Any) -> Any:
        """The same as _several for one request, which is the usual call, in fewer steps."""
        try:
            self._describe_if_requested(request)
            tensors = self._inputs(request)
        except Exception as error:
            return self.failure(error)
        self._finish_reading()
        outputs: Any
        try:
            outputs = self._run(tensors)
        except Exception as error:
            outputs = error
        self.memory.keep(request, outputs)
        return self._respond(request, outputs)

    def _several(self, requests: list[Any]) -> list[Any]:
        responses: list[Any] = [None] * len(requests)
        groups: dict[Any, list[tuple[int, list[torch.Tensor]]]] = {}
        for index, request in enumerate(requests):
            try:
                self._describe_if_requested(request)
                tensors = self._inputs(request)
                if self.padding.used:
                    self._check(tensors)  # before the sizes are made equal
            except Exception as error:
                responses[index] = self.failure(error)
                continue
            key = self.padding.key(tensors) if self.batching else index
            groups.setdefault(key, []).append((index, tensors))
        self._finish_reading()
        for group in groups.values():
            for index, outputs in self._run_group(group):
                self.memory.keep(requests[index], outputs)
                responses[index] = self._respond(requests[index], outputs)
        return responses

    def _finish_reading(self) -> None:
        if self.after_reading is not None:
            self.after_reading()

    def finalize(self) -> None:
        """Release the engine before the process ends."""
        if self.instances is not None:
            self.instances.close()
        self.mapped.clear()
        self.executor = None
        if is_stub() and has_gpu():
            # On a GPU, Triton 24.10's stub may wait here forever: the thread that received the
            # server's memory pool misses its wake-up, and the main thread joins it. Then the
            # unloaded model stays in memory. The server has its answer already.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)

    def _take_stream(self) -> None:
        """Make the executor's stream the current one of this thread, once: an instance is always
        called from the same thread.
        """
        if self.thread != threading.get_ident():
            self.thread = threading.get_ident()
            if self.executor.stream is not None:
                torch.cuda.set_stream(self.executor.stream)

    def _run_group(
        self, group: list[tuple[int, list[torch.Tensor]]]
    ) -> list[tuple[int, Any]]:
        """The index of each request with its tensors or its exception. If a batch fails, each
        request is run alone, so that only the invalid one fails.
        """
        try:
            return self._run_together(group)
        except Exception as error:
            if len(group) == 1:
                return [(group[0][0], error)]
        return [outputs for member in group for outputs in self._run_group([member])]

    def _run_together(
        self, group: list[tuple[int, list[torch.Tensor]]]
    ) -> list[tuple[int, Any]]:
        if len(group) == 1:
            index, tensors = group[0]
            return [(index, self._run(tensors))]
        if self.optional:  # another decision for each request
            return [(index, self._run(tensors)) for index, tensors in group]
        sizes = [tensors[0].shape[0] for _, tensors in group]
        outputs = self._run(self.padding.joined([tensors for _, tensors in group]))
        for declared, output in zip(self.tensors["outputs"], outputs):
            if output.dim() == 0 or output.shape[0] != sum(sizes):
                raise RuntimeError(
                    f"output {declared['name']!r} has shape {list(output.shape)} for a batch of"
                    f" {sum(sizes)}"
                )
        rows = zip(*(output.split(sizes) for output in outputs))
        return [
            (index, self.padding.cropped(tensors, list(row)))
            for (index, tensors), row in zip(group, rows)
        ]

    def _check(self, tensors: list[torch.Tensor]) -> None:
        """Raise InvalidRequest for shapes that the model does not accept."""
        self.axes.check(tensors)
        self.profiles.check(tensors)

    def _run(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        self.axes.check(tensors)
        if not self.executor.checks:
            self.profiles.check(tensors)
        try:
            outputs: list[torch.Tensor] = self.executor.run(tensors)
        except (RuntimeError, IndexError) as error:
            limits: dict[int, int] = getattr(self.executor, "limits", dict)()
            reason = blame.blamed(error, self.tensors["inputs"], tensors, limits)
            raise reason from error
        return outputs

    def _describe_if_requested(self, request: Any) -> None:
        requested = getattr(request, "parameters", None)
        parameters = requested() if requested is not None else ""
        if DESCRIBE in parameters and json.loads(parameters).get(DESCRIBE):
            raise Description(json.dumps(self._facts()))

    def _inputs(self, request: Any) -> list[torch.Tensor]:
        states = self.memory.of(request)
        inputs = self.tensors["inputs"]
        tensors = [
            self._input(request, declared)
            if declared["name"] not in states
            else states[declared["name"]]
            for declared in inputs
        ]
        self.devices = [tensor.device for tensor in tensors if tensor is not None]
        return self.defaults.fill(tensors)

    def _facts(self) -> dict[str, str]:
        """What computed the outputs, and the devices of the last request's inputs."""
        on = "+".join(sorted({device.type for device in self.devices}))
        return {**self.parameters, "trt_build.inputs_on": on} if on else self.parameters

    def _input(self, request: Any, declared: dict[str, Any]) -> Any:
        """The tensor of a request; None for an optional input that it leaves out."""
        sent = pb_utils.get_input_tensor_by_name(request, declared["name"])
        if is_missing(sent, declared):
            return None
        tensor: torch.Tensor = to_torch(sent, declared)
        if not tensor.is_cuda:
            return tensor
        if self.mapped.maxlen:
            self.mapped.append(sent)
        if self.after_reading is None:
            return tensor
        copied = tensor.clone()
        torch.cuda.current_stream(tensor.device).synchronize()
        return copied

    def _respond(self, request: Any, outputs: Any) -> Any:
        if isinstance(outputs, Exception):
            return self.failure(outputs)
        try:
            requested = request.requested_output_names()
            pairs = zip(self.tensors["outputs"], outputs)
            tensors = [
                from_torch(declared["name"], tensor)
                for declared, tensor in pairs
                if tensor is not None and declared["name"] in requested
            ]
        except Exception as error:
            return self.failure(error)
        return self._response(tensors)

    def _response(self, tensors: list[Any]) -> Any:
        """The response, with parameters if the server's Python backend has them (25.02 and later).
        This is tried once, because pybind11 takes long to reject an argument.
        """
        if self.sends_parameters:
            try:
                return pb_utils.InferenceResponse(
                    output_tensors=tensors, parameters=self._facts()
                )
            except TypeError:
                self.sends_parameters = False
        return pb_utils.InferenceResponse(output_tensors=tensors)

    def failure(self, error: Exception) -> Any:
        """The response for a request that failed."""
        code = "INTERNAL"
        if isinstance(error, (InvalidRequest, Description)):
            code = "INVALID_ARG"
        text = f"model {self.name!r}: {error}"
        if code == "INTERNAL":
            pb_utils.Logger.log_error(f"trt-build: {text}")
        return pb_utils.InferenceResponse(
            error=pb_utils.TritonError(text, getattr(pb_utils.TritonError, code))
        )


def _parameters(executor: Any) -> dict[str, Any]:
    """The parameters that describe the executor."""
    parameters = {
        "trt_build.answered_by": executor.kind,
        "trt_build.device": executor.device,
        "trt_build.why": executor.why,
    }
    if hasattr(executor, "summary"):
        parameters["trt_build.segments"] = executor.summary
    return parameters


def load_library(path: Path) -> None:
    """Load custom operators: a shared library, or a Python file that registers them by
    torch.library.
    """
    if path.suffix == ".py":
        runpy.run_path(str(path), run_name=path.stem)
    else:
        torch.ops.load_library(str(path))
