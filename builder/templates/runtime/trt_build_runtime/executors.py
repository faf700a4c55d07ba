"""What runs the model: the plan on a GPU, segments, or torch; and the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import triton_python_backend_utils as pb_utils

from .by_torch import TorchExecutor
from .engine import MODULES, Engine
from .errors import NoPlan
from .options import graphs
from .output_transfer import HostOutputs, outputs_for_triton
from .segments import SegmentsExecutor

COPYING = 4
"""Threads of a process whose plan runs: they only copy from the host. On a host of 16 cores, 4.8 MB
took 0.33 ms with 4 threads, 0.26 with 8, and 0.56 with 1. With torch's default of a thread for each
core they took 40 ms, because all wait for the slowest.
"""


class PlanExecutor:
    """The plan of a whole model on one GPU. It has its own stream, which is the current one while
    it runs.
    """

    kind = "plan"
    why = "a GPU that can run the plan"
    returns_buffers = False
    checks = True
    """Shapes outside every profile are refused by the engine."""

    def __init__(
        self, folder: Path, facts: dict[str, Any], device: str, shares_memory: bool
    ) -> None:
        self.device = device
        torch.cuda.set_device(device)
        torch.set_num_threads(min(COPYING, torch.get_num_threads()))
        self.stream = torch.cuda.Stream(device)
        self.engine = Engine(
            folder / "model.plan",
            facts["flavor"],
            facts["serving"],
            device,
            self.stream,
            graphs(facts),
            shares_memory,
        )
        self.stays = bool(facts.get("step_of"))
        self.host_outputs = HostOutputs()

    def prepare(self) -> None:
        """Reserve the memory of the first profile now, not in the first request."""
        self.engine.prepare()

    def run(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Run on tensors of any device; see outputs_for_triton for the outputs."""
        stays = self.stays or any(tensor.is_cuda for tensor in tensors)
        return outputs_for_triton(
            self.engine.run(tensors),
            self.stream,
            stays,
            self.returns_buffers,
            self.host_outputs,
        )


def executor(
    folder: Path, facts: dict[str, Any], args: dict[str, str], *, shares_memory: bool
) -> Any:
    """What runs the model of `folder` here: an object with `run`, `kind`, `device`, `why` and
    `stream`. With `shares_memory`, several instances run in this process.
    """
    if "segments" in facts:
        return SegmentsExecutor(folder, facts, args, shares_memory)
    try:
        device = _gpu_for(folder, facts, args)
        return PlanExecutor(folder, facts, device, shares_memory)
    except Exception as error:
        why = str(error) or type(error).__name__
        if not isinstance(error, NoPlan):
            pb_utils.Logger.log_warn(
                f"trt-build: model {args['model_name']!r}: the plan cannot run here: {why}"
            )
        return TorchExecutor(folder / "lowered.pt", why)


def _gpu_for(folder: Path, facts: dict[str, Any], args: dict[str, str]) -> str:
    """The device that runs the plan. Raises NoPlan, with the reason, if there is none."""
    plan = folder / "model.plan"
    if not plan.exists() or not plan.stat().st_size:
        raise NoPlan("no plan was built")
    if not torch.cuda.is_available():
        raise NoPlan("torch finds no GPU")
    if args["model_instance_kind"] == "CPU":
        raise NoPlan("the instance is of KIND_CPU")
    if facts.get("flavor") not in MODULES:
        raise NoPlan(f"plan.json has an unknown flavor ({facts.get('flavor')!r})")
    return f"cuda:{args['model_instance_device_id']}"
