"""Run a plan on this machine's GPU, through Polygraphy's runner."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from builder.engine import flavor
from builder.engine.build import polygraphy_silenced
from builder.engine.flavor import trt
from builder.engine.network import MESSAGES
from builder.errors import EngineError, EnvironmentProblem


class Engine:
    """A deserialized plan that is called with tensors; a context manager, because it holds GPU
    memory.

    Raises EnvironmentProblem if no GPU responds, EngineError if TensorRT refuses the plan.
    """

    def __init__(self, plan: bytes) -> None:
        from polygraphy.backend.trt import EngineFromBytes, TrtRunner

        if not flavor.has_gpu():
            raise EnvironmentProblem(
                "a plan requires a GPU; no CUDA device found",
                fix="see `trt-build doctor`",
            )
        MESSAGES.clear()
        with polygraphy_silenced():
            try:
                self.engine = EngineFromBytes(plan)()
                self._runner = TrtRunner(self.engine)
                self._runner.activate()
            except Exception as refusal:
                raise EngineError(
                    f"TensorRT refused the plan: {'; '.join(MESSAGES[-3:]) or refusal}"
                ) from refusal
        names = [
            self.engine.get_tensor_name(index)
            for index in range(self.engine.num_io_tensors)
        ]
        inputs = {
            name
            for name in names
            if self.engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT
        }
        self.inputs = [name for name in names if name in inputs]
        self.outputs = [name for name in names if name not in inputs]
        self._one_byte = torch.empty(1, dtype=torch.uint8, device="cuda")

    def __call__(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """Run the plan on tensors in the engine's input order, on any device. Returns the outputs
        on the CPU, in the engine's output order.

        int64 is converted to int32 if the engine requires it. The first optimization profile that
        includes the shapes is used. Raises EngineError if no profile does, or the run fails.
        """
        return [tensor.clone() for tensor in self._run(tensors, None, to_host=True)]

    def infer(
        self, tensors: Sequence[torch.Tensor], profile: int | None = None
    ) -> list[torch.Tensor]:
        """Run the plan without copies. Outputs are CUDA tensors, which the next run overwrites.

        CUDA tensors with the engine's dtypes are read in place. With `profile`, only that
        optimization profile is used.
        """
        return self._run(tensors, profile, to_host=False)

    def _run(
        self, tensors: Sequence[torch.Tensor], profile: int | None, *, to_host: bool
    ) -> list[torch.Tensor]:
        feed = {
            name: self._ready(name, tensor)
            for name, tensor in zip(self.inputs, tensors, strict=True)
        }
        profiles: Sequence[int] = range(self.engine.num_optimization_profiles)
        if profile is not None:
            profiles = [profile]
        self._choose_profile(feed, profiles)
        with polygraphy_silenced():
            try:
                results = self._runner.infer(
                    feed, check_inputs=False, copy_outputs_to_host=to_host
                )
            except Exception as failure:
                raise EngineError(
                    f"the engine failed: {'; '.join(MESSAGES[-3:]) or failure}"
                ) from failure
        return [torch.as_tensor(results[name]) for name in self.outputs]

    def _ready(self, name: str, tensor: torch.Tensor) -> Any:
        """The tensor on the GPU in the engine's dtype. An empty tensor has no address, and TensorRT
        does not accept null.
        """
        from polygraphy.cuda import DeviceView
        from polygraphy.datatype import DataType

        dtype = DataType.from_dtype(self.engine.get_tensor_dtype(name))
        if not tensor.numel():
            return DeviceView(self._one_byte.data_ptr(), tuple(tensor.shape), dtype)
        return tensor.to(
            device="cuda", dtype=DataType.to_dtype(dtype, "torch")
        ).contiguous()

    def profiles_for(self, tensors: Sequence[torch.Tensor]) -> list[int]:
        """Every optimization profile that includes the shapes of the tensors, which are in the
        engine's input order.
        """
        tensor_by_name = dict(zip(self.inputs, tensors, strict=True))
        return [
            index
            for index in range(self.engine.num_optimization_profiles)
            if all(
                self._fits(name, index, tensor.shape)
                for name, tensor in tensor_by_name.items()
            )
        ]

    def _choose_profile(self, feed: dict[str, Any], allowed: Iterable[int]) -> None:
        for index in allowed:
            fits = all(
                self._fits(name, index, tensor.shape) for name, tensor in feed.items()
            )
            if fits:
                if index != self._runner.context.active_optimization_profile:
                    self._runner.set_profile(index)
                return
        shapes = {name: tuple(tensor.shape) for name, tensor in feed.items()}
        raise EngineError(
            f"no optimization profile of {list(allowed)} holds the shapes {shapes}"
        )

    def _fits(self, name: str, profile: int, shape: Any) -> bool:
        least, _, most = self.engine.get_tensor_profile_shape(name, profile)
        return len(least) == len(shape) and all(
            low <= size <= high
            for low, size, high in zip(least, shape, most, strict=True)
        )

    def close(self) -> None:
        """Free the GPU memory."""
        self._runner.deactivate()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
