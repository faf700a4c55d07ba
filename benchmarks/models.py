"""Variants of a published model for benchmarks/serving.py: with its own timings, without
computation, and with other settings.

A variant is a copy of the model's folder under another name, so one server serves all of them with
one plan.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from builder.store import published
from builder.torchscript import sha256
from builder.triton.config import config_text, parse_config
from builder.triton.instances import SHARED_INSTANCES

TIMED = """\
import importlib.util, json, time
from pathlib import Path

spec = importlib.util.spec_from_file_location("trt_build_model", Path(__file__).with_name("published.py"))
published = importlib.util.module_from_spec(spec)
spec.loader.exec_module(published)


class TritonPythonModel(published.TritonPythonModel):
    def initialize(self, args):
        super().initialize(args)
        self.times, self.requested = {"calls": 0, "execute": 0, "run": 0}, False
        self.inner, self.executor.run = self.executor.run, self.timed_run

    def timed_run(self, tensors):
        started = time.perf_counter_ns()
        outputs = self.inner(tensors)
        self.times["run"] += time.perf_counter_ns() - started
        return outputs

    def execute(self, requests):
        started = time.perf_counter_ns()
        responses = super().execute(requests)
        self.times["execute"] += time.perf_counter_ns() - started
        self.times["calls"] += 1
        if self.requested:
            self.times, self.requested = {"calls": 0, "execute": 0, "run": 0}, False
        return responses

    def _describe_if_requested(self, request):
        if published.DESCRIBE in request.parameters():
            self.parameters["times"] = json.dumps(self.times)
            self.requested = True
        super()._describe_if_requested(request)
"""
"""The published runtime, which also reports the number of its calls since the last query, and their
total nanoseconds.
"""

FLOOR = """\
import json

import torch
import triton_python_backend_utils as pb_utils
from torch.utils.dlpack import to_dlpack


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.input = config["input"][0]["name"]
        self.outputs = [(o["name"], o["data_type"], [int(n) for n in o["dims"]]) for o in config["output"]]
        self.device, self.made = "cuda:" + args["model_instance_device_id"], {}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        given = pb_utils.get_input_tensor_by_name(request, self.input)
        key = given.shape()[0], given.is_cpu()
        if key not in self.made:
            self.made[key] = [self.zeros(*key, *output[1:]) for output in self.outputs]
        named = zip(self.outputs, self.made[key])
        tensors = [pb_utils.Tensor.from_dlpack(output[0], to_dlpack(value)) for output, value in named]
        return pb_utils.InferenceResponse(output_tensors=tensors)

    def zeros(self, batch, on_cpu, data_type, dims):
        dtype = torch.from_numpy(__import__("numpy").zeros(0, pb_utils.triton_string_to_numpy(data_type))).dtype
        return torch.zeros([batch, *dims], dtype=dtype, device="cpu" if on_cpu else self.device)
"""
"""A model without computation: tensors of the same sizes, on the same devices as the model's."""


def variant(
    model: Path,
    suffix: str,
    *,
    runtime: dict[str, Any] | None = None,
    instances: int = 1,
) -> str:
    """Copy the model in its repository with these runtime settings. The copy measures its own
    times. Returns its name.
    """
    folder = copied(model, f"{model.name}.{suffix}", instances)
    (folder / "1" / "model.py").rename(folder / "1" / "published.py")
    (folder / "1" / "model.py").write_text(TIMED)
    facts = json.loads((folder / "1" / "plan.json").read_text())
    facts["runtime"] = {**facts.get("runtime", {}), **(runtime or {})}
    (folder / "1" / "plan.json").write_text(json.dumps(facts))
    _record_files(folder)
    return folder.name


def _record_files(folder: Path) -> None:
    """Write the digests of changed files to trt-build.json, which the runtime checks."""
    record = published.read(folder / published.SIDECAR)
    names = [*record["files"], "1/published.py"]
    files = {name: sha256(folder / name) for name in names}
    published.write(folder, {**record, "files": files})


def floor(model: Path) -> str:
    """Write a model with the same tensors and no computation. Returns its name."""
    folder = copied(model, f"{model.name}.floor", 1)
    shutil.rmtree(folder / "1")
    (folder / "1").mkdir()
    (folder / "trt-build.json").unlink()
    (folder / "1" / "model.py").write_text(FLOOR)
    return folder.name


def copied(model: Path, name: str, instances: int, *, shares: bool = False) -> Path:
    """Copy the model without dynamic batching, which would join several requests into one call.

    With `shares`, the instances run in one process and share the engine.
    """
    folder = model.parent / name
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(model, folder)
    message = parse_config((folder / "config.pbtxt").read_text(), name)
    message.name = name
    message.ClearField("dynamic_batching")
    message.ClearField("model_warmup")
    for group in message.instance_group:
        group.count = 1 if shares else instances
    if shares:
        message.parameters[SHARED_INSTANCES].string_value = str(instances)
    (folder / "config.pbtxt").write_text(config_text(message))
    return folder
