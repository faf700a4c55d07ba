"""The GPUs of this machine, from the driver, without torch, TensorRT or a CUDA context.

The few calls use ctypes. cuda-bindings or nvidia-ml-py would be a further dependency of every host,
and NVML does not apply CUDA_VISIBLE_DEVICES.
"""

from __future__ import annotations

import ctypes
import uuid
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*


@dataclass(frozen=True)
class Device:
    """A GPU that this process may use: `capability` such as (9, 0), memory in bytes, and the `uuid`
    in CUDA_VISIBLE_DEVICES' format.
    """

    index: int
    name: str
    capability: tuple[int, int]
    memory: int
    uuid: str


@lru_cache(maxsize=1)
def driver() -> Any:
    """libcuda, initialized; None if it is missing or finds no device."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    count = ctypes.c_int(0)
    usable = (
        library.cuInit(0) == 0
        and library.cuDeviceGetCount(ctypes.byref(count)) == 0
        and count.value > 0
    )
    return library if usable else None


def devices() -> list[Device]:
    """Every GPU that is visible to this process, in CUDA's order; empty if there is none."""
    library = driver()
    if library is None:
        return []
    count = ctypes.c_int(0)
    library.cuDeviceGetCount(ctypes.byref(count))
    return [_device(library, index) for index in range(count.value)]


def current() -> Device | None:
    """The GPU that a build in this process uses: CUDA's first GPU."""
    return next(iter(devices()), None)


def driver_version() -> str | None:
    """The newest CUDA version that the driver supports, such as `13.0`."""
    version = ctypes.c_int(0)
    if driver() is None:
        return None
    if driver().cuDriverGetVersion(ctypes.byref(version)) != 0:
        return None
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def identity() -> dict[str, str] | None:
    """The GPU facts that a plan depends on: its name (tactics are timed on it), its architecture,
    and the driver's CUDA version.
    """
    device = current()
    if device is None:
        return None
    major, minor = device.capability
    return {
        "name": device.name,
        "architecture": f"sm_{major}{minor}",
        "cuda": driver_version() or "unknown",
    }


def free_memory() -> int | None:
    """The free memory of the current GPU in bytes, from NVML; None if NVML does not respond."""
    device = current()
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    handle, memory = ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()  # total, free, used
    if device is None or library.nvmlInit_v2() != 0:
        return None
    has_handle = (
        library.nvmlDeviceGetHandleByUUID(device.uuid.encode(), ctypes.byref(handle))
        == 0
    )
    if has_handle and library.nvmlDeviceGetMemoryInfo(handle, memory) == 0:
        return int(memory[1])
    return None


def _device(library: Any, index: int) -> Device:
    handle = ctypes.c_int()
    name = ctypes.create_string_buffer(256)
    size = ctypes.c_size_t()
    identifier = (ctypes.c_ubyte * 16)()
    library.cuDeviceGet(ctypes.byref(handle), index)
    library.cuDeviceGetName(name, len(name), handle)
    library.cuDeviceTotalMem_v2(ctypes.byref(size), handle)
    library.cuDeviceGetUuid(identifier, handle)
    major = _attribute(library, handle, _MAJOR)
    minor = _attribute(library, handle, _MINOR)
    return Device(
        index,
        name.value.decode("utf-8", "replace"),
        (major, minor),
        size.value,
        f"GPU-{uuid.UUID(bytes=bytes(identifier))}",
    )


def _attribute(library: Any, handle: ctypes.c_int, which: int) -> int:
    value = ctypes.c_int()
    library.cuDeviceGetAttribute(ctypes.byref(value), which, handle)
    return value.value
