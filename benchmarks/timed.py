"""Times contenders alternately on one GPU with CUDA events, on a separate stream."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch

WARM_UP, ROUNDS, CALLS, ROUND_MS = 20, 15, 20, 10.0
"""Calls before the first measurement; measurements of each contender and input; the maximum calls
in one measurement; the maximum milliseconds of one measurement.
"""

Call = Callable[[], Any]
Make = Callable[[torch.Tensor], Call]
"""Creates a call on this input. If it raises, the contender is left out of the row."""


def medians(
    contenders: dict[str, Make], inputs: Sequence[torch.Tensor]
) -> tuple[dict[str, float], dict[str, str]]:
    """Return the median milliseconds of one call of each contender over all inputs, and why a
    contender has none.

    Each round has a different order. Otherwise a contender would always follow the same one, with
    its clocks and caches.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    failed: dict[str, str] = {}
    order = random.Random(0)
    torch.cuda.synchronize()
    with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream()):
        for x in inputs:
            left = {
                name: make for name, make in contenders.items() if name not in failed
            }
            calls = {
                name: call
                for name, make in left.items()
                if (call := _prepared(name, make, x, failed))
            }
            for _ in range(ROUNDS):
                for name in order.sample(list(calls), len(calls)):
                    times[name].append(milliseconds(*calls[name]))
    return {
        name: statistics.median(values)
        for name, values in times.items()
        if name not in failed
    }, failed


def _prepared(
    name: str, make: Make, x: torch.Tensor, failed: dict[str, str]
) -> tuple[Call, int] | None:
    """Return the warmed-up call, and the number of calls in one measurement."""
    try:
        call = make(x)
        milliseconds(call, 2)
        once = milliseconds(call, 1)
        milliseconds(call, max(2, min(WARM_UP, int(20 * ROUND_MS / once))))
    except Exception as refusal:
        failed[name] = (
            f"{type(refusal).__name__}:"
            f" {str(refusal).strip().splitlines()[0][:200] if str(refusal) else ''}"
        )
        return None
    return call, max(1, min(CALLS, int(ROUND_MS / once)))


def milliseconds(call: Call, count: int) -> float:
    """The mean GPU time in milliseconds of `count` consecutive calls."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    first.record()
    for _ in range(count):
        call()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / count


def eager(module: torch.nn.Module) -> Make:
    """Return the module itself."""
    return lambda x: lambda: module(x)


def torchscript(module: torch.nn.Module, example: torch.Tensor) -> Make:
    """Trace and freeze the module, as for TorchScript on a GPU."""

    def make(x: torch.Tensor) -> Call:
        if not compiled_once:
            compiled_once.append(
                torch.jit.freeze(torch.jit.trace(module, example, check_trace=False))
            )
        return lambda: compiled_once[0](x)

    compiled_once: list[Any] = []
    return make


def compiled(module: torch.nn.Module, mode: str | None = None) -> Make:
    """Return torch.compile with inductor, with kernels for each shape.

    Raises with the reason if there is no triton. `mode` is torch.compile's.
    """

    def make(x: torch.Tensor) -> Call:
        import triton

        assert triton
        if not compiled_once:
            compiled_once.append(torch.compile(module, dynamic=False, mode=mode))
        return lambda: compiled_once[0](x)

    compiled_once: list[Any] = []
    return make


def kernels(call: Call, count: int = 20) -> dict[str, list[float]]:
    """The number of runs of each GPU kernel in one call and its total milliseconds, the slowest
    first.

    If TensorRT's compiler Myelin merges a whole transformer into one layer, TensorRT's profiler
    does not report these kernels.
    """
    from torch.profiler import ProfilerActivity, profile

    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(count):
            call()
        torch.cuda.synchronize()
    by_kernel = {
        e.key: [e.count / count, e.self_device_time_total / count / 1000]
        for e in profiled.key_averages()
    }
    return dict(sorted(by_kernel.items(), key=lambda item: -item[1][1]))


class Engine:
    """A deserialized plan with one input and one output, with separate device buffers.

    It runs in the optimization profile `profile`.
    """

    def __init__(self, plan: bytes, profile: int = 0) -> None:
        from builder.engine.flavor import trt
        from builder.engine.network import logger

        self.runtime = trt.Runtime(logger())
        self.engine = self.runtime.deserialize_cuda_engine(plan)
        self.profile = profile
        self.context = self._context()
        names = [
            self.engine.get_tensor_name(i) for i in range(self.engine.num_io_tensors)
        ]
        modes = {
            name: self.engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT
            for name in names
        }
        self.input, self.output = (
            next(n for n in names if modes[n] == kind) for kind in (True, False)
        )

    def _context(self) -> Any:
        context = self.engine.create_execution_context()
        if self.profile:
            stream = torch.cuda.current_stream().cuda_stream
            assert context.set_optimization_profile_async(self.profile, stream)
            torch.cuda.synchronize()
        return context

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the plan's output, computed once."""
        self.bound(x)()
        torch.cuda.synchronize()
        return self.y

    def bound(self, x: torch.Tensor) -> Call:
        """Return a call on this input, which always writes to the same output."""
        self._bind(self.context, x)
        return self._run

    def graph(self, x: torch.Tensor) -> Call:
        """Return the same call as a CUDA graph."""
        run = self.bound(x)
        run()
        torch.cuda.synchronize()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            run()

        def replay(
            of: Engine = self,
        ) -> None:  # keeps the buffers and context of the graph alive
            captured.replay()

        return replay

    def layers(self, x: torch.Tensor, calls: int = 20) -> dict[str, float]:
        """Mean milliseconds of each layer of the engine from TensorRT's profiler, the slowest
        first.
        """
        profiler = _profiler()
        # a plan of 8.6 without PROFILE_SHARING_0806: a profile belongs to one context at a time
        self.context = None
        context = self._context()
        self._bind(context, x)
        self._launch(context)
        torch.cuda.synchronize()
        context.profiler = profiler
        for _ in range(calls):
            self._launch(context)
            torch.cuda.synchronize()
        del context
        self.context = self._context()
        slowest = sorted(profiler.total.items(), key=lambda item: -item[1])
        return {name: total / calls for name, total in slowest}

    def _bind(self, context: Any, x: torch.Tensor) -> None:
        from builder.conversion.dtypes import from_trt

        self.x = x.to(from_trt(self.engine.get_tensor_dtype(self.input))).contiguous()
        context.set_input_shape(self.input, tuple(x.shape))
        shape = tuple(context.get_tensor_shape(self.output))
        self.y = torch.empty(
            shape,
            dtype=from_trt(self.engine.get_tensor_dtype(self.output)),
            device="cuda",
        )
        context.set_tensor_address(self.input, self.x.data_ptr())
        context.set_tensor_address(self.output, self.y.data_ptr())

    def _run(self) -> None:
        self._launch(self.context)

    def _launch(self, context: Any) -> None:
        if not context.execute_async_v3(torch.cuda.current_stream().cuda_stream):
            raise RuntimeError("TensorRT refused to run the engine")


def _profiler() -> Any:
    """A trt.IProfiler that adds the time of each layer to `total`, in milliseconds."""
    from builder.engine.flavor import trt

    class Profiler(trt.IProfiler):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProfiler.__init__(self)
            self.total: dict[str, float] = {}

        def report_layer_time(self, name: str, spent: float) -> None:
            self.total[name] = self.total.get(name, 0.0) + spent

    return Profiler()
