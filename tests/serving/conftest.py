"""Repositories with one valid model, built once for all tests."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from builder.triton import publish
from tests.triton.artifacts import scorer


@pytest.fixture(scope="session")
def valid_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("serving") / "repository"
    publish(scorer(), repository)
    return repository


WITHOUT_TORCH = """
import numpy
import triton_python_backend_utils as utils

class TritonPythonModel:
    def execute(self, requests):
        return list(map(self.response, requests))

    def response(self, request):
        rows = len(utils.get_input_tensor_by_name(request, "x").as_numpy())
        outputs = {"scores": numpy.zeros((rows, 4), "f4"), "best": numpy.zeros(rows, "i8")}
        return utils.InferenceResponse([utils.Tensor(*item) for item in outputs.items()])
"""
"""Importing torch takes most of the time in which a server starts."""


@pytest.fixture
def zeros_repository(valid_repository: Path, tmp_path: Path) -> Path:
    """A copy whose model returns zeros, without torch. The test may change it."""
    repository = shutil.copytree(valid_repository, tmp_path / "repository")
    (repository / "scorer" / "1" / "model.py").write_text(WITHOUT_TORCH)
    return repository
