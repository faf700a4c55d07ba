"""One small conversion."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from builder.conversion import convert
from builder.manifest.spec import TensorSpec


def small(scale: float = 1.0, **settings: Any) -> Any:
    """A linear layer and a ReLU; `scale` changes only the weights."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 40), torch.nn.ReLU())
    with torch.no_grad():
        module[0].weight *= scale
    spec = TensorSpec(
        "float32",
        ("batch", 4),
        dims={"batch": settings.pop("batch", (1, 2, 8))},
        name="x",
    )
    return convert(torch.jit.script(module.eval()), [spec], **settings)


@pytest.fixture
def conversion() -> Any:
    return small()
