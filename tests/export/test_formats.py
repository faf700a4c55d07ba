"""Files in the formats of earlier versions of torch load, or are refused with the version."""

from __future__ import annotations

import pytest
import torch

import builder
from builder import frontends
from builder.errors import ModelFileError
from tests.export import formats

OFTEN = ("2.6.0", "2.8.0")
"""Two earlier layouts: no folders, and all weights in one pickle."""
SELDOM = ("2.7.1", "2.9.1", "2.10.0", "2.11.0", "2.12.0")


@pytest.mark.parametrize(
    "version", [*OFTEN, *(pytest.param(one, marks=pytest.mark.slow) for one in SELDOM)]
)
def test_a_file_of_an_earlier_torch_answers_as_its_module(version: str) -> None:
    """Names and answers are those of the module, at the largest sizes of its dynamic axes."""
    loaded = frontends.load(formats.file_of(version))
    assert isinstance(loaded, frontends.ExportedModule)
    conversion = builder.convert(loaded.program)
    module = formats.Network().eval()
    x, y = torch.randn(formats.BATCH, formats.LENGTH, 4), torch.randn(3)
    outputs = builder.reference.run(conversion, [x, y])
    with torch.no_grad():
        wanted = module(x, y)
    assert conversion.outputs == tuple(wanted)
    torch.testing.assert_close(outputs, list(wanted.values()))


def test_a_format_that_torch_does_not_read_is_refused_with_both_versions() -> None:
    with pytest.raises(ModelFileError) as caught:
        frontends.load(formats.file_of("2.5.1"))
    assert "written by torch 2.5.1 in version 7.3" in str(caught.value)
    assert "reads version 8" in str(caught.value) and caught.value.fix
