"""Triton's tensors as torch's and back, without a copy if DLPack supports the dtype."""

from __future__ import annotations

from typing import Any

import torch
import triton_python_backend_utils as pb_utils
from torch.utils.dlpack import from_dlpack, to_dlpack


def to_torch(tensor: Any, declared: dict[str, Any]) -> torch.Tensor:
    """By DLPack, without a copy. bool is copied by numpy, because DLPack supports it only from
    Triton 24.x on.
    """
    is_bool = declared["dtype"] == "bool"
    value = _bool(tensor) if is_bool else from_dlpack(tensor.to_dlpack())
    if declared["shape"]:
        return value
    return value.reshape(())


def _bool(tensor: Any) -> torch.Tensor:
    if tensor.is_cpu():
        value = torch.from_numpy(tensor.as_numpy())
    else:
        value = from_dlpack(tensor.to_dlpack())
    # older servers: a byte each
    if value.dtype == torch.bool:
        return value
    return value.view(torch.bool)


def from_torch(name: str, tensor: torch.Tensor) -> Any:
    """Triton's tensor of that name, which shares the memory of this one. That of a GPU is
    contiguous already (outputs_for_triton).
    """
    value = tensor.detach() if tensor.requires_grad else tensor
    value = _in_rows(value) if value.dim() else value.reshape(1)
    if value.dtype == torch.bool and not value.is_cuda:
        return pb_utils.Tensor(name, value.numpy())
    try:
        return pb_utils.Tensor.from_dlpack(name, to_dlpack(value))
    except Exception:
        if value.dtype != torch.bool:
            raise
        # a server whose DLPack has no bool
        return pb_utils.Tensor(name, value.cpu().numpy())


def _in_rows(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with contiguous elements. Triton also compares the strides of an empty tensor,
    which torch always treats as contiguous.
    """
    if tensor.numel():
        return tensor.contiguous()
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
