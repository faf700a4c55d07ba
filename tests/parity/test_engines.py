"""Goldens on plans without a server: what is asked of which plan in which profile, with torch in
the GPU's place.
"""

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
from tests.triton.artifacts import Affine, artifact, scorer, tensor

PROFILES = ({"batch": (1, 1, 1)}, {"batch": (2, 4, 8)})
FACTS = {"flavour": "tensorrt-rtx", "tensorrt": "1.7.1.116"}


class ByTorch:
    """Opens a plan by loading the graph beside it; `asked` are the profiles, `opened` and `closed`
    count plans.
    """

    def __init__(self, narrow: bool = False) -> None:
        self.asked: list[tuple[int | None, int]] = []
        self.opened = self.closed = 0
        self.narrow = narrow

    def __call__(self, stack: ExitStack, model: Planned) -> Opened:
        self.opened += 1
        stack.callback(self._close)
        assert model.plan is not None
        module = torch.jit.load(str(model.plan.with_name("lowered.pt")))

        def run(tensors: Tensors, profile: int | None) -> Tensors:
            given = [tensors[name] for name in model.inputs]
            self.asked.append((profile, given[0].shape[0]))
            return dict(
                zip(model.outputs, map(self._typed, module(*given)), strict=True)
            )

        return Opened(run, "plan", "torch in its place")

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
    opener = ByTorch()
    (parity,) = verify_engines(repository, repeat=0, open_plan=opener)
    assert parity.passed, (parity.problems, [r.problems for r in parity.results])
    assert (parity.name, parity.answered_by) == ("scorer", "plan")
    assert {r.golden for r in parity.results} == {
        "p0-opt",
        "p1-opt",
        "p1-min",
        "p1-max",
        "p1-odd",
    }
    assert {r.protocol for r in parity.results} == {"engine"}
    assert set(opener.asked) == {(0, 1), (1, 4), (1, 2), (1, 8), (1, 5)}
    assert (opener.opened, opener.closed) == (1, 1)


def test_a_wrong_answer_fails_and_calls_are_timed(repository: Path) -> None:
    folder = repository / "scorer" / "goldens"
    golden = goldens.load_one(folder / "p1-max.npz")
    scores = np.array(golden.outputs["scores"])
    scores[7, 0] += 0.25
    goldens.save(
        [Golden(golden.name, golden.inputs, {**golden.outputs, "scores": scores})],
        folder,
    )
    opener = ByTorch()
    (parity,) = verify_engines(repository, ["scorer"], repeat=3, open_plan=opener)
    assert not parity.passed and {r.golden for r in parity.results if not r.passed} == {
        "p1-max"
    }
    assert all(r.median_ms is not None and r.p95_ms is not None for r in parity.results)
    assert len(opener.asked) == 4 * 5


def test_what_tensorrt_holds_narrower_is_widened_and_nothing_else_is(
    repository: Path,
) -> None:
    (parity,) = verify_engines(repository, repeat=0, open_plan=ByTorch(narrow=True))
    assert parity.passed, [r.problems for r in parity.results]

    class Half(ByTorch):
        def _typed(self, value: torch.Tensor) -> torch.Tensor:
            return value.half() if value.dtype == torch.float32 else value

    (parity,) = verify_engines(repository, repeat=0, open_plan=Half())
    assert "float16, not float32" in parity.results[0].problems[0]


def test_a_plan_that_is_refused_is_the_models_problem(repository: Path) -> None:
    def refuse(stack: ExitStack, model: Planned) -> Opened:
        raise EngineError("TensorRT refused the plan: of another GPU")

    (parity,) = verify_engines(repository, open_plan=refuse)
    assert (
        parity.problems == ("TensorRT refused the plan: of another GPU",)
        and not parity.passed
    )


def test_an_engine_that_fails_fails_its_golden_alone(repository: Path) -> None:
    class Failing(ByTorch):
        def __call__(self, stack: ExitStack, model: Planned) -> Opened:
            opened = super().__call__(stack, model)

            def sometimes(tensors: Tensors, profile: int | None) -> Tensors:
                if profile == 0:
                    raise EngineError("the engine failed: too small")
                return opened.run(tensors, profile)

            return Opened(sometimes, opened.kind, opened.why)

    (parity,) = verify_engines(repository, repeat=0, open_plan=Failing())
    assert [r.error for r in parity.results if not r.passed] == [
        "the engine failed: too small"
    ]


@pytest.fixture
def in_pieces(tmp_path: Path) -> Path:
    """A model whose middle stays in torch, as trt-build serves it in one process."""
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


def test_pieces_run_by_the_code_that_serves_them(in_pieces: Path) -> None:
    """Here without a GPU: the answers are right, and that no plan gave them is the model's
    problem.
    """
    (parity,) = verify_engines(in_pieces, repeat=1, open_plan=by_runtime)
    assert parity.results and all(result.passed for result in parity.results)
    if torch.cuda.is_available():
        assert parity.passed and parity.answered_by == "plan+torch"
    else:
        assert parity.answered_by == "torch" and not parity.passed
        assert (
            "no plan of it ran" in parity.problems[0]
            and "sees no GPU" in parity.problems[0]
        )


def test_an_unknown_model_is_usage(repository: Path) -> None:
    with pytest.raises(UsageError, match="'nobody'"):
        verify_engines(repository, ["nobody"], open_plan=ByTorch())
    with pytest.raises(UsageError, match="has a plan"):
        verify_engines(repository, ["unbuilt"], open_plan=ByTorch())


@pytest.mark.skipif(gpu.driver() is not None, reason="there is a GPU")
def test_without_a_gpu_it_is_an_environment_problem(repository: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="no CUDA device"):
        verify_engines(repository)
    result = CliRunner().invoke(
        main, ["verify", str(repository), "--engine", "--json"], catch_exceptions=False
    )
    assert result.exit_code == 4
    assert json.loads(result.stdout)["error"]["kind"] == "EnvironmentProblem"


def test_engine_and_server_together_are_usage(repository: Path) -> None:
    result = CliRunner().invoke(
        main, ["verify", str(repository), "--engine", "--serve"], catch_exceptions=False
    )
    assert result.exit_code == 2 and "--engine uses no server" in result.output


def test_a_plan_that_is_damaged_is_not_opened(repository: Path) -> None:
    (repository / "scorer" / "1" / "model.plan").write_bytes(b"not it")
    (parity,) = verify_engines(repository, repeat=0, open_plan=ByTorch())
    assert not parity.passed and not parity.results
    assert parity.problems == (
        "1/model.plan is damaged: it is not the file that was published",
    )


def test_a_merged_model_takes_the_plan_of_this_gpu(
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
        return ByTorch()(stack, model)

    monkeypatch.setattr(gpu, "current", device((9, 0)))
    (parity,) = verify_engines(repository, repeat=0, open_plan=opener)
    assert parity.passed and opened == ["model_sm90.plan"]
    monkeypatch.setattr(gpu, "current", device((12, 0)))
    with pytest.raises(EnvironmentProblem, match=r"no plan for 12\.0"):
        verify_engines(repository, repeat=0, open_plan=opener)
    # as `merge` names what has no one GPU
    (version / "model_sm80.plan").rename(version / "model_ampere_plus.plan")
    config.write_text(
        config.read_text().replace('"model.py"', '"model_ampere_plus.plan"')
    )
    (version / "plan.json").write_text(
        json.dumps({**facts, "plans": {"ampere_plus": FACTS, "9.0": FACTS}})
    )
    (parity,) = verify_engines(repository, repeat=0, open_plan=opener)
    assert parity.passed and opened[1:] == ["model_ampere_plus.plan"]
