"""Tensors in shared memory: regions for one golden that are registered with the server and always
removed.

Server and client must be on one host (containers with one /dev/shm: `--ipc=host`). CUDA regions
stay on the GPU.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

from builder import engine, triton
from builder.errors import EnvironmentProblem, UsageError
from builder.triton import Golden, dtypes

CUDA_DEVICE = 0
"""Regions are on the first GPU that this process sees. Triton copies if the instance runs on
another one.
"""


@dataclass(frozen=True)
class Memory:
    """One kind of shared memory, through tritonclient's functions. `create` returns a handle."""

    create: Callable[[str, int], Any]
    write: Callable[[Any, Sequence[NDArray[Any]]], None]
    read: Callable[[Any, Any, Sequence[int]], NDArray[Any]]
    destroy: Callable[[Any], None]
    register: Callable[[Any, str, Any, int], None]
    unregister: Callable[[Any, str], None]


def _system() -> Memory:
    from tritonclient.utils import shared_memory as library

    return Memory(
        create=lambda name, size: library.create_shared_memory_region(
            name, f"/{name}", size, create_only=True
        ),
        write=library.set_shared_memory_region,
        read=library.get_contents_as_numpy,
        destroy=library.destroy_shared_memory_region,
        register=lambda client, name, handle, size: (
            client.register_system_shared_memory(name, f"/{name}", size)
        ),
        unregister=lambda client, name: client.unregister_system_shared_memory(name),
    )


def _cuda() -> Memory:
    try:
        from tritonclient.utils import cuda_shared_memory as library
    except (RuntimeError, ImportError) as missing:
        raise EnvironmentProblem(
            "CUDA shared memory needs the package cuda-bindings",
            fix="pip install cuda-bindings",
        ) from missing
    return Memory(
        create=lambda name, size: library.create_shared_memory_region(
            name, size, CUDA_DEVICE
        ),
        write=library.set_shared_memory_region,
        read=library.get_contents_as_numpy,
        destroy=library.destroy_shared_memory_region,
        register=lambda client, name, handle, size: client.register_cuda_shared_memory(
            name, library.get_raw_handle(handle), CUDA_DEVICE, size
        ),
        unregister=lambda client, name: client.unregister_cuda_shared_memory(name),
    )


RELEASE_SECONDS = 10.0
IN_USE = "currently in use"

KINDS: dict[str, Callable[[], Memory]] = {"system": _system, "cuda": _cuda}
BODY = "none"
"""Tensors are in the requests and responses."""


def check(kinds: Sequence[str]) -> None:
    """Raise UsageError for an unknown kind, EnvironmentProblem if this machine does not support
    it.
    """
    for kind in kinds:
        if kind != BODY and kind not in KINDS:
            raise UsageError(
                f"no shared memory is called {kind!r}",
                fix=f"use one of {', '.join((BODY, *KINDS))}",
            )
        if kind == "cuda" and not engine.flavor.has_gpu():
            raise EnvironmentProblem(
                "CUDA shared memory requires a GPU; no CUDA device found",
                fix="see `trt-build doctor`",
            )
        if kind != BODY:
            KINDS[kind]()


@dataclass(frozen=True)
class _Region:
    name: str
    handle: Any
    size: int


class Regions:
    """The tensors of one golden, each in its own region, with the inputs written.

    `client` is a tritonclient client. A context manager: on exit, also by an error or Ctrl-C, all
    regions are unregistered and removed. `again` creates another client, because the HTTP client
    waits forever for the connection of an interrupted request. Raises InferenceServerException if
    the server does not accept a region: it is on another host, or has no GPU.
    """

    def __init__(
        self,
        kind: str,
        client: Any,
        golden: Golden,
        again: Callable[[], Any] | None = None,
    ) -> None:
        self.kind = kind
        self._client = client
        self._golden = golden
        self._again = again
        self._memory = KINDS[kind]()
        self._inputs: dict[str, _Region] = {}
        self._outputs: dict[str, _Region] = {}

    def __enter__(self) -> Regions:
        self._stack = ExitStack()
        try:
            self._fill(self._stack)
        except BaseException as error:
            self._give_back(type(error))
            raise
        return self

    def _fill(self, stack: ExitStack) -> None:
        for name, array in self._golden.inputs.items():
            self._inputs[name] = region = self._open(stack, array)
            if array.size:
                self._memory.write(region.handle, [_bytes(array)])
        for name, array in self._golden.outputs.items():
            self._outputs[name] = self._open(stack, array)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._give_back(kind)

    def _give_back(self, kind: type[BaseException] | None) -> None:
        if self._again is None or kind is None or issubclass(kind, Exception):
            self._stack.close()
            return
        with closing(self._again()) as self._client:
            self._stack.close()

    def _open(self, stack: ExitStack, array: NDArray[Any]) -> _Region:
        name = f"trt-build-tensor-{os.getpid()}-{uuid.uuid4().hex}"
        size = max(array.nbytes, 1)
        handle = self._memory.create(name, size)
        stack.callback(self._memory.destroy, handle)
        # first, because an interrupt may come in between; unknown names do no harm
        stack.callback(self._withdraw, name)
        try:
            self._memory.register(self._client, name, handle, size)
        except InferenceServerException as error:
            raise _refused_region(error) from error
        return _Region(name, handle, array.nbytes)

    def _withdraw(self, name: str) -> None:
        """Unregister a region.

        Triton 24.09 to 24.11 refuse while a request uses the region, which ends shortly after its
        response. Later versions then unregister it automatically. A server that has stopped has no
        region.
        """
        until = time.monotonic() + RELEASE_SECONDS
        while time.monotonic() < until:
            try:
                return self._memory.unregister(self._client, name)
            except (InferenceServerException, OSError) as refusal:
                if IN_USE not in str(refusal):
                    return None
            time.sleep(0.01)
        return None

    def inputs(self, module: ModuleType) -> list[Any]:
        """InferInputs of `module` (tritonclient.http or .grpc) that name the regions."""
        return [
            self._input(module, name, region) for name, region in self._inputs.items()
        ]

    def _input(self, module: ModuleType, name: str, region: _Region) -> Any:
        array = self._golden.inputs[name]
        tensor = module.InferInput(name, list(array.shape), wire(array))
        tensor.set_shared_memory(region.name, region.size)
        return tensor

    def outputs(self, module: ModuleType) -> list[Any]:
        """InferRequestedOutputs that name the regions. Each region has the size of the golden's
        output.
        """
        return [
            self._output(module, name, region) for name, region in self._outputs.items()
        ]

    def _output(self, module: ModuleType, name: str, region: _Region) -> Any:
        requested = module.InferRequestedOutput(name)
        requested.set_shared_memory(region.name, max(region.size, 1))
        return requested

    def read(self, name: str, datatype: str, shape: Sequence[int]) -> NDArray[Any]:
        """A copy of the output that the server wrote, with the dtype and shape that it reports."""
        dtype = dtypes.by_wire(datatype).numpy
        count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        raw = self._memory.read(self._outputs[name].handle, np.uint8, [count])
        return np.frombuffer(raw.tobytes(), dtype).reshape(tuple(shape))


def _refused_region(error: InferenceServerException) -> InferenceServerException:
    """The error for a refused region. If a server flag controls regions, the message names it."""
    text = str(error)
    if "restricted" not in text and "allow-client-shm" not in text:
        return error
    return InferenceServerException(
        f"{text}: this server does not allow client shared memory; use `trt-build serve "
        "--allow-client-shm`"
    )


def wire(array: NDArray[Any]) -> str:
    """The array's element type as requests name it."""
    known = triton.dtypes.by_numpy(array.dtype)
    return known.wire if known else str(array.dtype)


def _bytes(array: NDArray[Any]) -> NDArray[Any]:
    return np.frombuffer(array.tobytes(), np.uint8)
