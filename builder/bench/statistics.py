"""Triton's statistics: requests, batches and the time in each part of a request."""

from __future__ import annotations

import contextlib
import functools
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from builder.serving import responses

COMPUTE = ("compute_input", "compute_infer", "compute_output")
PARTS = ("queue", *COMPUTE)
GPU_METRICS = {
    "nv_gpu_utilization": "utilization",
    "nv_gpu_memory_used_bytes": "memory_used_bytes",
}


@dataclass(frozen=True)
class Counts:
    """Totals of one model since the server loaded it: `seconds` by part, `batches` (executions by
    batch size), and their total time `batch_seconds`.
    """

    success: int = 0
    failed: int = 0
    executions: int = 0
    rows: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    batches: Mapping[int, int] = field(default_factory=dict)
    batch_seconds: Mapping[int, float] = field(default_factory=dict)

    def since(self, before: Counts) -> Counts:
        """The counts since `before`, with the batch sizes that were executed since."""
        change = self.combined(before, operator.sub)
        batches = sorted(change.batches.items())
        return replace(change, batches={size: n for size, n in batches if n})

    def combined(self, other: Counts, operation: Callable[[Any, Any], Any]) -> Counts:
        """`operation` of each number and that of `other`; parts and sizes that are missing are
        zero.
        """
        return Counts(
            *(
                _combined(number, getattr(other, name), operation)
                for name, number in vars(self).items()
            )
        )

    def as_dict(self) -> dict[str, Any]:
        """JSON-able: milliseconds for each successful request by part, and the rest."""
        requests = max(self.success, 1)
        return {
            "success": self.success,
            "failed": self.failed,
            "executions": self.executions,
            "rows": self.rows,
            "ms": {
                part: 1e3 * self.seconds.get(part, 0.0) / requests for part in PARTS
            },
            "batch_sizes": {str(size): count for size, count in self.batches.items()},
            "batch_ms": {
                str(size): 1e3 * self.batch_seconds.get(size, 0.0) / count
                for size, count in self.batches.items()
            },
        }


def counts(client: Any, model: str) -> Counts:
    """The model's counts, from tritonclient's HTTP or gRPC client.

    A model without requests has zeros. The sums include all versions that the server has loaded.
    """
    statistics = client.get_inference_statistics(model)
    if isinstance(statistics, dict):
        versions = statistics["model_stats"]
    else:
        versions = _as_dict(statistics)["model_stats"]
    return functools.reduce(
        lambda total, version: total.combined(version, operator.add),
        map(_counts_of_version, versions),
        Counts(),
    )


def _as_dict(message: Any) -> dict[str, Any]:
    from google.protobuf import json_format

    plain: dict[str, Any] = json_format.MessageToDict(
        message, preserving_proto_field_name=True
    )
    return plain


def _counts_of_version(statistics: Mapping[str, Any]) -> Counts:
    inference = statistics.get("inference_stats") or {}
    stats = {
        int(batch.get("batch_size", 0)): batch
        for batch in statistics.get("batch_stats") or ()
    }
    batches = {
        size: _number(batch, "compute_infer", "count") for size, batch in stats.items()
    }
    times = {
        size: sum(_number(batch, part, "ns") for part in COMPUTE)
        for size, batch in stats.items()
    }
    return Counts(
        int((inference.get("success") or {}).get("count", 0)),
        int((inference.get("fail") or {}).get("count", 0)),
        int(statistics.get("execution_count", 0)),
        int(statistics.get("inference_count", 0)),
        {part: int((inference.get(part) or {}).get("ns", 0)) / 1e9 for part in PARTS},
        batches,
        {size: nanoseconds / 1e9 for size, nanoseconds in times.items()},
    )


def _number(statistics: Mapping[str, Any], part: str, kind: str) -> int:
    return int((statistics.get(part) or {}).get(kind, 0))


def _combined(first: Any, second: Any, operation: Callable[[Any, Any], Any]) -> Any:
    if not isinstance(first, Mapping):
        return operation(first, second)
    return {
        key: operation(first.get(key, 0), second.get(key, 0))
        for key in {**first, **second}
    }


def gpu(metrics_url: str | None) -> dict[str, dict[str, float]]:
    """The utilization (0 to 1) and the memory in bytes of each GPU from Triton's metrics; {} if the
    server reports none.
    """
    if metrics_url is None:
        return {}
    text = ""
    address = f"http://{metrics_url}/metrics"
    with contextlib.suppress(OSError):
        text = responses.read(address, timeout=5).decode(errors="replace")
    values_by_gpu: dict[str, dict[str, float]] = {}
    for name, uuid, value in re.findall(
        r'^(\w+)\{gpu_uuid="([^"]+)"\} ([\d.eE+-]+)$', text, re.M
    ):
        if name in GPU_METRICS:
            values_by_gpu.setdefault(uuid, {})[GPU_METRICS[name]] = float(value)
    return values_by_gpu
