"""Goldens on plans without a server: plan and profile of each golden. Torch replaces the GPU."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from builder.cli import main
from builder.engine import gpu
from builder.errors import EngineError, EnvironmentProblem, UsageError
from builder.parity import verify_engines
from builder.parity.engines import Opened, Planned, Tensors, by_runtime
from builder.triton import Golden, goldens, publish
from tests.parity.asserting import TWO_PROFILES, assert_passed
from tests.triton.artifacts import Affine, artifact, scorer, tensor

PROFILES = ({"batch": (1, 1, 1)}, {"batch": (2, 4, 8)})
FACTS = {"flavor": "tensorrt-rtx", "tensorrt": "1.7.1.116"}


class TorchOpener:
    """Runs the lowered graph in place of the plan.

    `calls` has the profile and batch size of each call. `opened` and `closed` count plans.
    """

    def __init__(self, narrow: bool = False) -> None:
        self.calls: list[tuple[int | None, int]] = []
        self.opened = self.closed = 0
        self.narrow = narrow

    def __call__(self, stack: ExitStack, model: Planned) -> Opened:
        self.opened += 1
        stack.callback(self._close)
        assert model.plan is not None
        module = torch.jit.load(str(model.plan.with_name("lowered.pt")))

        def run(tensors: Tensors, profile: int | None) -> Tensors:
            ordered = [tensors[name] for name in model.inputs]
            self.calls.append((profile, ordered[0].shape[0]))
            return dict(
                zip(model.outputs, map(self._typed, module(*ordered)), strict=True)
            )

        return Opened(run, "plan", "torch replaces the engine")

    def _typed(self, value: torch.Tensor) -> torch.Tensor:
        return value.int() if self.narrow and value.dtype == torch.int64 else value

    def _close(self) -> None:
        self.closed += 1


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    out = tmp_path / "repository"
    publish(scorer(name="scorer", plan=b"plan", facts=FACTS, profiles=PROFILES), out)
    publish(
        artifact(
            Affine(), (tensor("x", "float32", "batch", 3),), ("y",), name="unbuilt"
        ),
        out,
    )
    return out


def test_each_golden_runs_in_the_profile_that_it_was_recorded_for(
    repository: Path,
) -> None:
    opener = TorchOpener()
    (parity,) = verify_engines(repository, repeat=0, open_plan=opener)
    assert_passed(parity)
    assert (parity.name, parity.answered_by) == ("scorer", "plan")
    assert {r.golden for r in parity.results} == TWO_PROFILES
    assert {r.protocol for r in parity.results} == {"engine"}
    assert set(opener.calls) == {(0, 1), (1, 4), (1, 2), (1, 8), (1, 5)}
    assert (opener.opened, opener.closed) == (1, 1)


def test_wrong_output_fails_and_calls_are_timed(repository: Path) -> None:
    folder = repository / "scorer" / "goldens"
    golden = goldens.load_one(folder / "p1-max.npz")
    scores = np.array(golden.outputs["scores"])
    scores[7, 0] += 0.25
    goldens.save(
        [Golden(golden.name, golden.inputs, {**golden.outputs, "scores": scores})],
        folder,
    )
    opener = TorchOpener()
    (parity,) = verify_engines(repository, ["scorer"], repeat=3, open_plan=opener)
    assert not parity.passed and {r.golden for r in parity.results if not r.passed} == {
        "p1-max"
    }
    assert all(r.median_ms is not None and r.p95_ms is not None for r in parity.results)
    assert len(opener.calls) == 4 * 5


def test_only_integers_narrowed_by_tensorrt_are_widened(
    repository: Path,
) -> None:
    (parity,) = verify_engines(repository, repeat=0, open_plan=TorchOpener(narrow=True))
    assert_passed(parity)

    class Half(TorchOpener):
        def _typed(self, value: torch.Tensor) -> torch.Tensor:
            return value.half() if value.dtype == torch.float32 else value

    (parity,) = verify_engines(repository, repeat=0, open_plan=Half())
    assert "float16, not float32" in parity.results[0].problems[0]


def test_refused_plan_is_a_problem_of_the_model(repository: Path) -> None:
    def refuse(stack: ExitStack, model: Planned) -> Opened:
        raise EngineError("TensorRT refused the plan: of another GPU")

    (parity,) = verify_engines(repository, open_plan=refuse)
    assert (
        parity.problems == ("TensorRT refused the plan: of another GPU",)
        and not parity.passed
    )


def test_failed_engine_call_fails_only_its_golden(repository: Path) -> None:
    class Failing(TorchOpener):
        def __call__(self, stack: ExitStack, model: Planned) -> Opened:
            opened = super().__call__(stack, model)

            def fail_in_profile_0(tensors: Tensors, profile: int | None) -> Tensors:
                if profile == 0:
                    raise EngineError("the engine failed: too small")
                return opened.run(tensors, profile)

            return Opened(fail_in_profile_0, opened.kind, opened.why)

    (parity,) = verify_engines(repository, repeat=0, open_plan=Failing())
    assert [r.error for r in parity.results if not r.passed] == [
        "the engine failed: too small"
    ]


@pytest.fixture
def partitioned(tmp_path: Path) -> Path:
    """A repository with a model in the fused layout whose middle segment runs in torch."""
    from builder.repository import build_repository

    class Sorted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.last = torch.nn.Linear(4, 16), torch.nn.Linear(16, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.tanh(self.first(x)).relu() * 2 + 1
            return torch.sigmoid(self.last(torch.special.erfcx(y))) * 2 + 1

    models = tmp_path / "models"
    models.mkdir()
    torch.jit.script(Sorted().eval()).save(str(models / "sorted.pt"))
    (models / "sorted.yaml").write_text(
        "inputs: [{name: x, dtype: float32, shape: [batch, 4]}]\ndims: {batch: {min: 1, opt: 2,"
        " max: 8}}\noutputs: [y]\nfallback: {ops: ['aten::special_erfcx', 'aten::tanh'],"
        " min_block_size: 1}\n"
    )
    (result,) = build_repository(
        models, tmp_path / "repository", layout="fused", isolate=False
    )
    assert result.ok and "tensorrt" in result.segments and "torch" in result.segments, (
        result
    )
    return tmp_path / "repository"


def test_segments_run_in_the_python_runtime(partitioned: Path) -> None:
    """Without a GPU the outputs are correct, but it is a problem that no plan ran."""
    (parity,) = verify_engines(partitioned, repeat=1, open_plan=by_runtime)
    assert parity.results and all(result.passed for result in parity.results)
    if torch.cuda.is_available():
        assert parity.passed and parity.answered_by == "plan+torch"
    else:
        assert parity.answered_by == "torch" and not parity.passed
        assert (
            "no plan of it ran" in parity.problems[0]
            and "finds no GPU" in parity.problems[0]
        )


def test_model_without_plan_or_unknown_model_is_a_usage_error(repository: Path) -> None:
    with pytest.raises(UsageError, match="'unknown'"):
        verify_engines(repository, ["unknown"], open_plan=TorchOpener())
    with pytest.raises(UsageError, match="has a plan"):
        verify_engines(repository, ["unbuilt"], open_plan=TorchOpener())


@pytest.mark.skipif(gpu.driver() is not None, reason="there is a GPU")
def test_missing_gpu_is_an_environment_problem(repository: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="no CUDA device"):
        verify_engines(repository)
    result = CliRunner().invoke(
        main, ["verify", str(repository), "--engine", "--json"], catch_exceptions=False
    )
    assert result.exit_code == 4
    assert json.loads(result.stdout)["error"]["kind"] == "EnvironmentProblem"


def test_engine_and_server_options_exclude_each_other(repository: Path) -> None:
    result = CliRunner().invoke(
        main, ["verify", str(repository), "--engine", "--serve"], catch_exceptions=False
    )
    assert result.exit_code == 2 and "--engine uses no server" in result.output


def test_damaged_plan_is_not_opened(repository: Path) -> None:
    (repository / "scorer" / "1" / "model.plan").write_bytes(b"not it")
    (parity,) = verify_engines(repository, repeat=0, open_plan=TorchOpener())
    assert not parity.passed and not parity.results
    assert parity.problems == (
        "1/model.plan is damaged: it is not the file that was published",
    )


def test_merged_model_uses_the_plan_of_the_gpu(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = repository / "scorer" / "1"
    for capability in ("80", "90"):
        shutil.copyfile(version / "model.plan", version / f"model_sm{capability}.plan")
    (version / "model.plan").unlink()
    config = repository / "scorer" / "config.pbtxt"
    named = (
        'cc_model_filenames { key: "8.0" value: "model_sm80.plan" }\n'
        'cc_model_filenames { key: "9.0" value: "model_sm90.plan" }\n'
    )
    config.write_text(config.read_text() + named)
    facts = json.loads((version / "plan.json").read_text())
    (version / "plan.json").write_text(
        json.dumps({**facts, "plans": {"8.0": FACTS, "9.0": FACTS}})
    )
    sidecar = repository / "scorer" / "trt-build.json"
    sidecar.write_text(json.dumps({**json.loads(sidecar.read_text()), "files": {}}))
    opened: list[str] = []

    def device(capability: tuple[int, int]) -> Callable[[], Any]:
        return lambda: gpu.Device(0, "GPU", capability, 1 << 36, "GPU-0")

    def opener(stack: ExitStack, model: Planned) -> Opened:
        assert model.plan is not None
        opened.append(model.plan.name)
        return TorchOpener()(stack, model)

    monkeypatch.setattr(gpu, "current", device((9, 0)))
    (parity,) = verify_engines(repository, repeat=0, open_plan=opener)
    assert parity.passed and opened == ["model_sm90.plan"]
    monkeypatch.setattr(gpu, "current", device((12, 0)))
    with pytest.raises(EnvironmentProblem, match=r"no plan for 12\.0"):
        verify_engines(repository, repeat=0, open_plan=opener)
    # the name that `merge` gives a plan for several GPUs
    (version / "model_sm80.plan").rename(version / "model_ampere_plus.plan")
    config.write_text(
        config.read_text().replace('"model.py"', '"model_ampere_plus.plan"')
    )
    (version / "plan.json").write_text(
        json.dumps({**facts, "plans": {"ampere_plus": FACTS, "9.0": FACTS}})
    )
    (parity,) = verify_engines(repository, repeat=0, open_plan=opener)
    assert parity.passed and opened[1:] == ["model_ampere_plus.plan"]
