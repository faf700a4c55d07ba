"""State with plans on a GPU: the engine returns it and the runtime keeps it."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.engine import BuildOptions
from builder.parity import verify
from builder.repository import build_repository
from builder.serving import FREE_PORTS, serve
from tests.parity.asserting import assert_passed
from tests.repository import stateful as models

pytestmark = [pytest.mark.gpu, pytest.mark.live, pytest.mark.slow]

QUICK = BuildOptions(optimization_level=0)
"""The tests check outputs, not speed."""


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_plans_match_the_module_in_a_loop(tmp_path: Path, precision: str) -> None:
    folder = models.write(tmp_path, "recognizer", "filter", "spectral")
    repository = tmp_path / "repository"
    results = build_repository(
        folder, repository, serve_as="python", precision=precision, options=QUICK
    )
    assert all(result.ok for result in results), [
        str(result.error) for result in results
    ]
    with serve(repository, **FREE_PORTS, client_shared_memory=True) as server:
        found = verify(
            repository, server.http_url, server.grpc_url, shared_memory=("none", "cuda")
        )
    for parity in found:
        assert_passed(parity)
        assert (
            parity.answered_by in ("plan", "plan+torch") and parity.device == "cuda:0"
        ), parity.why


def test_config_for_the_tensorrt_backend_has_the_states(tmp_path: Path) -> None:
    """The states in the config have the shapes of the engine's tensors, with the batch first."""
    import json

    from builder.triton.config import parse_config

    folder = models.write(tmp_path, "recognizer")
    (result,) = build_repository(
        folder, tmp_path / "repository", serve_as="tensorrt_plan", options=QUICK
    )
    assert result.ok and result.path is not None, result.error
    facts = json.loads((result.path / "1" / "plan.json").read_text())
    shapes = {
        tensor["name"]: tensor["shape"]
        for side in ("inputs", "outputs")
        for tensor in facts[side]
    }
    message = parse_config((result.path / "config.pbtxt").read_text(), "config.pbtxt")
    for state in message.sequence_batching.state:
        for name in (state.input_name, state.output_name):
            assert shapes[name][0] == -1 and shapes[name][1:] == list(state.dims)
