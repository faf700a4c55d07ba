"""CUDA graphs by the driver's own library, which every machine with a working GPU has.
torch.cuda.CUDAGraph is not used: while it captures, it routes torch's allocator into a separate
pool, and continues after a failed capture. Captures here allocate nothing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from typing import Any

THREAD_LOCAL = 1
"""Of CUstreamCaptureMode: operations that are unsafe to capture fail in this thread; other threads
are not affected.
"""


class CannotCapture(Exception):
    """The reason why there is no graph. The stream is as it was before."""


class Graph:
    """Work that was captured from a stream and can be launched again."""

    def __init__(self, executable: Any) -> None:
        self.executable = executable
        self.enqueue = driver().cuGraphLaunch

    def launch(self, stream: int) -> None:
        """Enqueue the graph. Raises RuntimeError if the driver refuses."""
        code = self.enqueue(self.executable, stream)
        if code:
            raise RuntimeError(
                f"the driver could not launch a CUDA graph: error {code}"
            )

    def close(self) -> None:
        """Release the graph. Work of it that still runs on the GPU continues."""
        driver().cuGraphExecDestroy(self.executable)


def capture(stream: int, enqueue: Callable[[], bool]) -> Graph:
    """Capture what `enqueue` adds to the stream (not the default one), without running it. Raises
    CannotCapture.
    """
    cuda = driver()
    graph = ctypes.c_void_p()
    executable = ctypes.c_void_p()
    _check("cuStreamBeginCapture", cuda.cuStreamBeginCapture_v2(stream, THREAD_LOCAL))
    try:
        enqueued = enqueue()
    finally:  # also ends a capture that something in `enqueue` made invalid
        ended = cuda.cuStreamEndCapture(stream, ctypes.byref(graph))
    try:
        _check("cuStreamEndCapture", ended)
        if not enqueued:
            raise CannotCapture("TensorRT refused to be captured")
        _check(
            "cuGraphInstantiate",
            cuda.cuGraphInstantiateWithFlags(ctypes.byref(executable), graph, 0),
        )
    finally:
        if graph:
            cuda.cuGraphDestroy(graph)
    return Graph(executable)


def _check(call: str, code: int) -> None:
    if code:
        raise CannotCapture(f"{call} gave error {code}")


@lru_cache(maxsize=1)
def driver() -> Any:
    """libcuda, whose functions return 0 or the number of an error."""
    cuda = ctypes.CDLL("libcuda.so.1")
    handle = ctypes.c_void_p
    pointer = ctypes.POINTER(ctypes.c_void_p)
    cuda.cuStreamBeginCapture_v2.argtypes = (handle, ctypes.c_int)
    cuda.cuStreamEndCapture.argtypes = (handle, pointer)
    cuda.cuGraphInstantiateWithFlags.argtypes = (pointer, handle, ctypes.c_ulonglong)
    cuda.cuGraphLaunch.argtypes = (handle, handle)
    cuda.cuGraphExecDestroy.argtypes = (handle,)
    cuda.cuGraphDestroy.argtypes = (handle,)
    return cuda
