"""Files that earlier versions of torch wrote load, or are refused with the version."""

from __future__ import annotations

import pytest
import torch

import builder
from builder import frontends
from builder.errors import ModelFileError
from tests.export import formats

WITHOUT_BRANCHES = f"{formats.UNREAD}-without-branches"
OFTEN = (WITHOUT_BRANCHES, "2.7.1", "2.8.0")
"""Two earlier layouts: no folders, and all weights in one pickle."""
SELDOM = ("2.9.1", "2.10.0", "2.11.0", "2.12.0")


@pytest.mark.parametrize(
    "version", [*OFTEN, *(pytest.param(one, marks=pytest.mark.slow) for one in SELDOM)]
)
def test_file_of_earlier_torch_has_the_outputs_of_its_module(version: str) -> None:
    """Names and outputs equal those of the module, at the largest sizes of its dynamic axes."""
    loaded = frontends.load(formats.file_of(version))
    assert isinstance(loaded, frontends.ExportedModule)
    conversion = builder.convert(loaded.program)
    module = formats.Network(branches=version != WITHOUT_BRANCHES).eval()
    x, y = torch.randn(formats.BATCH, formats.LENGTH, 4), torch.randn(3)
    for addend in (y.abs(), -y.abs()):  # both branches
        outputs = builder.reference.run(conversion, [x, addend])
        with torch.no_grad():
            wanted = module(x, addend)
        assert conversion.outputs == tuple(wanted)
        half = wanted.pop("half")
        torch.testing.assert_close(outputs[:-1], list(wanted.values()))
        torch.testing.assert_close(outputs[-1], half, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ("2.5.1", "was written by torch 2.5.1+cu124 in version 7.3 of its format"),
        (
            formats.UNREAD,
            "written by torch 2.6.0+cu124, cannot be loaded: the installed torch cannot"
            " read its call of torch.ops.higher_order.cond",
        ),
    ],
)
def test_unreadable_version_is_refused(version: str, reason: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        frontends.load(formats.file_of(version))
    assert reason in str(caught.value)
    assert caught.value.fix == "export the program again with a newer torch"
