"""Times the runtime's copies from the host to the GPU, by the number of copying threads.

    python -m benchmarks.staging

Prints medians and maxima of 50 copies, each awaited, in milliseconds. COPYING in the runtime's
executors.py is based on them.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path

import torch

RUNTIME = Path(__file__).parent.parent / "builder" / "templates" / "runtime"
SIZES = {"one image": 602_112, "8 images": 4_816_896, "32 images": 19_267_584}
"""Bytes of float32 images of 224 by 224."""
WARM_UP, COPIES = 10, 50


def measured(size: int, threads: int) -> tuple[float, float]:
    """Return the median and maximum time of COPIES copies of `size` bytes."""
    from trt_build_runtime.memory import Staging, Storage

    torch.set_num_threads(threads)
    source, staging = torch.rand(size // 4), Staging()
    target = Storage(torch.device("cuda")).view((size // 4,), torch.float32)
    times = []
    for _ in range(WARM_UP + COPIES):
        torch.cuda.synchronize()
        started = time.perf_counter()
        staging.upload(target, source)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - started) * 1e3)
    return statistics.median(times[WARM_UP:]), max(times[WARM_UP:])


def main() -> None:
    """Print a line for each size and number of threads."""
    sys.path.insert(0, str(RUNTIME))
    if not torch.cuda.is_available():
        sys.exit("torch sees no GPU")
    cores = os.cpu_count() or 1
    for name, size in SIZES.items():
        for threads in sorted({1, 2, 4, 8, cores // 2, cores} - {0}):
            median, slowest = measured(size, threads)
            print(
                f"{name:10} {size:10,} bytes  {threads:3} threads  median {median:7.3f}  worst"
                f" {slowest:7.3f}"
            )


if __name__ == "__main__":
    main()
