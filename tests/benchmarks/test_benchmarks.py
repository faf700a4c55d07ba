"""Parts of the benchmarks that run without a GPU: jobs, rows, the command line, the networks and
both frontends.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch

from benchmarks import engine, fleet, layers, page, pipelines, profiles_page, records
from benchmarks.networks import NETWORKS
from builder.engine import capabilities


def _run_jobs(
    folder: Path, jobs: list[str], gpus: list[str], deadline: float = 60.0
) -> tuple[int, list[list[str]]]:
    (folder / "jobs.txt").write_text(" ".join(jobs))
    died = fleet.run(
        "tests.benchmarks.worker", [str(folder)], gpus, time.time() + deadline
    )
    done = folder / "done.txt"
    return died, [
        line.split() for line in done.read_text().splitlines()
    ] if done.exists() else []


def test_jobs_run_once_on_both_gpus(tmp_path: Path) -> None:
    jobs = [f"job{i}" for i in range(12)]
    died, done = _run_jobs(tmp_path, jobs, ["GPU-a", "GPU-b"])
    assert died == 0
    assert sorted(name for name, _ in done) == sorted(jobs)
    assert {gpu for _, gpu in done} == {"GPU-a", "GPU-b"}


def test_crash_fails_only_its_job(tmp_path: Path) -> None:
    died, done = _run_jobs(tmp_path, ["one", "crash", "two", "three"], ["GPU-a"])
    assert died == 1
    assert [name for name, _ in done] == ["one", "two", "three"]


def test_no_job_starts_after_the_deadline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert list(fleet.claimed([("unet", "fp16")], tmp_path, time.time() - 1)) == []
    assert "out of budget before unet fp16" in capsys.readouterr().out


def test_newest_row_of_a_key_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    path = tmp_path / "rows.jsonl"
    one, two = (
        {"gpu": "H100", "network": "unet", "batch": 1},
        {"gpu": "H100", "network": "unet", "batch": 8},
    )
    for row in ({**one, "v": 1}, {**two, "v": 2}, {**one, "v": 3}):
        records.append(path, [row])
    assert [row["v"] for row in records.newest(records.read(path))] == [3, 2]
    assert (tmp_path / "out/rows.jsonl").read_text() == path.read_text()


def test_each_experiment_has_its_own_timing_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the measurements of another experiment the first build would be a warm build."""

    def cache(
        *words: str,
        gpu: str = "H100",
        version: str = "8.6.0",
        network: str = "unet",
        precision: str = "fp16",
    ) -> Path:
        monkeypatch.setattr(engine, "_host", lambda: {"gpu": gpu, "tensorrt": version})
        return engine.timing_cache(
            network, precision, engine.parse(["--timing", "/t", *words])
        )

    level, constant = ("--builder-optimization-level", "5"), ("--set", "a.b=1")
    others = [
        cache(),
        cache(gpu="H200"),
        cache(version="10.3.0"),
        cache(network="lstm"),
        cache(precision="tf32"),
        cache(*level),
        cache(*constant),
        cache("--set", "a.b=-1"),
        cache(*level, *constant),
    ]
    assert len(set(others)) == len(others) and {path.parent for path in others} == {
        Path("/t")
    }
    assert cache(*level, *constant) == others[-1]


def test_rows_of_other_gpus_and_settings_are_not_reused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = {"gpu": "H100", "tensorrt": "8.6.0", "torch": "2.11", "settings": ""}
    row = {
        **host,
        "network": "unet",
        "precision": "fp16",
        "batch": 1,
        "method": records.METHOD,
    }
    monkeypatch.setattr(records, "ENGINES", tmp_path / "engine.jsonl")
    for other in (
        {"gpu": "H200"},
        {"method": 1},
        {"settings": "builder_optimization_level=5"},
        {"batch": 8},
    ):
        records.append(records.ENGINES, [{**row, **other}])
    assert not engine._is_recorded(host, "unet", "fp16", 1)
    records.append(records.ENGINES, [row])
    assert engine._is_recorded(host, "unet", "fp16", 1)


def test_only_existing_constants_can_be_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from builder.conversion.converters import sequences

    monkeypatch.setattr(sequences, "MOST_UNROLLED_STEPS", sequences.MOST_UNROLLED_STEPS)
    engine.change("builder.conversion.converters.sequences.MOST_UNROLLED_STEPS=99")
    assert sequences.MOST_UNROLLED_STEPS == 99
    with pytest.raises(SystemExit):
        engine.change("builder.conversion.converters.sequences.NO_SUCH=1")


def test_fp16_is_measured_first_for_every_network() -> None:
    assert engine.PRECISIONS[0] == "fp16"
    experiments = {"chain_4000", "bert_base_384_folded", "vit_b_folded"}
    assert set(engine.ORDER) == set(NETWORKS) - experiments


@pytest.mark.parametrize("name", ["mobilenet_v3", "unet", "lstm"])
def test_network_has_no_more_layers_than_onnx_parser(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    own = layers.count(layers.ours(name, "fp32").network).total()
    assert (
        own <= layers.count(layers.theirs(pipelines.export(tmp_path, name))[1]).total()
    )


def test_mobilenet_has_the_published_parameter_count() -> None:
    module = NETWORKS["mobilenet_v3"].module()
    # Howard et al. 2019, table 3
    assert abs(sum(p.numel() for p in module.parameters()) - 5.4e6) < 0.1e6
    assert module(torch.randn(1, 3, 224, 224)).shape == (1, 1000)


def test_stored_rows_are_complete() -> None:
    for row in records.read(records.ENGINES):
        assert {
            "gpu",
            "tensorrt",
            "torch",
            "date",
            "network",
            "precision",
            "batch",
        } <= row.keys(), json.dumps(row)
        # TensorRT built no engine of the ONNX parser's network, and the row has the reason
        if "onnx" in row.get("failed", {}):
            assert row["failed"]["onnx"] and "ours_by_onnx" not in row
            continue
        assert row["ours_by_onnx"] == pytest.approx(
            row["milliseconds"]["ours"] / row["milliseconds"]["onnx"]
        )


def test_performance_page_is_current() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs/performance.md").read_text(
        "utf-8"
    )
    assert text == page.text(), "run: python docs/generate.py performance"


def _row(batch: int, ratio: float, **more: object) -> records.Row:
    return {
        "gpu": "G",
        "tensorrt": "8.6.0",
        "torch": "2.11",
        "date": "2026-11-21",
        "network": "unet",
        "precision": "fp16",
        "batch": batch,
        "method": records.METHOD,
        "milliseconds": {"ours": ratio, "onnx": 1.0},
        "ours_by_onnx": ratio,
        "error": 1e-3,
        "ours": {"layers": 38, "cold_s": 40.0, "warm_s": 8.0},
        "onnx": {"layers": 38},
        **more,
    }


def test_page_has_mean_exceeded_limits_and_experiments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "ENGINES", tmp_path / "engine.jsonl")
    monkeypatch.setattr(records, "TORCH", tmp_path / "torch.jsonl")
    superseded, tried = _row(1, 9.0), _row(8, 0.5, settings="x=1")
    records.append(records.ENGINES, [superseded, _row(1, 1.25), _row(8, 0.8), tried])
    text = page.text()
    assert "| all | 2 | 1.000 |  | 1 |" in text  # the square root of 1.25 * 0.8
    assert "Above 1.03: unet fp16 batch 1 (1.250)." in text
    assert "| `x=1` | unet | fp16 | 8 | 0.500 | 0.800 |" in text
    assert "| 40.0 | 8.0 | 20% |" in text
    assert "9.000" not in text


def test_page_compares_engine_with_torch() -> None:
    torch_alone = {
        **_row(8, 0.8),
        "milliseconds": {"eager": 4.0, "torchscript": 3.0, "compile": 1.0},
    }
    text = "\n".join(
        page._torch([torch_alone], [_row(8, 0.8), _row(8, 0.4, settings="x=1")])
    )
    milliseconds = _row(8, 0.8)["milliseconds"]["ours"]
    assert (
        f"| unet | fp16 | 8 | 4.000 | 3.000 | 1.000 | {milliseconds:.3f} | {1 / milliseconds:.2f} |"
        in text
    )
    assert "| unet | fp16 | 8 | 4.000 | 3.000 | 1.000 |  |  |" in "\n".join(
        page._torch([torch_alone], [])
    )


def test_page_compares_static_profiles_with_alternatives() -> None:
    row = {
        "gpu": "G",
        "network": "unet",
        "precision": "fp16",
        "batch": 8,
        "date": "2026-11-24",
        "settings": "level 3",
        "milliseconds": {"one": 1.2, "static": 1.0, "onnx": 2.0, "eager": 8.0},
        "graphs": {"one": 1.0, "static": 0.8, "onnx": 1.6},
        "failed": {"torchscript": "no trace"},
    }
    compiled = {**row, "milliseconds": {"compile": 1.25, "compile, max-autotune": 0.5}}
    text = "\n".join(profiles_page.section([row], [compiled]))
    # plain calls: 1.0 / 1.25; CUDA graphs: 0.8 / 0.5
    assert "1.600; above 1.00: unet batch 8 (1.600)." in text
    assert (
        "static / ONNX with the same profiles, geometric mean of 1 rows: 0.500." in text
    )
    assert "| 1.600 | 0.500 | 0.800 | 0.500 | 1.600 |" in text
    assert "`unet` has no time of `torchscript` because of: no trace." in text
    one = {**row, "graphs": {"one": 1.0}}
    assert profiles_page.ratios(one, compiled) == {"compile": 1.0 / 0.5}
    without = "\n".join(profiles_page.section([row], []))
    assert "torch.compile, geometric" not in without
    assert "| 1.600 |  | 0.800 | 0.500 |  |" in without


def _served(**more: object) -> dict[str, object]:
    about = {
        "gpu": "H200",
        "network": "unet",
        "precision": "fp16",
        "batch": 8,
        "way": "cuda",
    }
    times = dict.fromkeys(
        ("engine", "compute_infer", "compute_input", "compute_output", "client"), 0.5
    )
    return {**about, **times, "overhead": 0.25, **more}


def test_page_has_serving_overhead_of_all_rows() -> None:
    new = _served(setting="plain", execute=0.4, run=0.3, floor=0.2, engine_graph=0.1)
    several = _served(
        setting="default", clients=4, instances=2, requests_s=3000.0, throughput=1.5
    )
    lines = "\n".join(page._serving([_served(), new, several])).splitlines()
    assert (
        "| H200 | unet | fp16 | 8 | cuda |  | 0.500 |  | 0.500 |  |  |  | 0.500 | 0.500 | 0.500 |"
        " 25% |" in lines
    )
    assert any(
        "| plain | 0.500 | 0.100 | 0.500 | 0.400 | 0.300 | 0.200 |" in line
        for line in lines
    )
    assert (
        "| H200 | unet | fp16 | 8 | cuda | default | 4 | 2 | 3000 | 2000 | 1.50 |"
        in lines
    )


def test_existing_serving_rows_are_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks import serving

    monkeypatch.setattr(records, "SERVING", tmp_path / "serving.jsonl")
    monkeypatch.setattr(
        records,
        "host",
        lambda: {"gpu": "H200", "torch": "2.11", "method": records.METHOD},
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    args = argparse.Namespace(again=False, precision="fp16", optimization_level=None)
    rows = list(
        serving.measurements("unet", ["default", "mapped"], [8, 32], several=False)
    )
    assert [(row["setting"], row["batch"], row["way"]) for row in rows[:3]] == [
        ("default", 8, "none"),
        ("default", 8, "system"),
        ("default", 8, "cuda"),
    ]
    assert len(rows) == 8 and not any(map(serving.measured_before(args), rows))
    common = {
        **records.host(),
        "tensorrt": serving.trt.__version__,
        "precision": "fp16",
        "settings": None,
    }
    records.append(records.SERVING, [{**common, **row} for row in rows])
    assert all(map(serving.measured_before(args), rows))
    several = list(serving.measurements("unet", ["default"], [8], several=True))
    assert not any(map(serving.measured_before(args), several))


def test_serving_round_has_times_of_client_server_and_runtime(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from benchmarks import serving

    requests = {"client": 3.0, "compute_infer": 2.0}
    times = {"execute": 8e6, "run": 4e6, "calls": 4}
    monkeypatch.setattr(serving.grpc, "InferenceServerClient", MagicMock())
    monkeypatch.setattr(serving, "GrpcClient", MagicMock())
    monkeypatch.setattr(serving, "tensors_of", lambda *_: {})
    monkeypatch.setattr(serving, "one_round", lambda *_: requests)
    monkeypatch.setattr(serving, "describe", lambda *_: {"times": json.dumps(times)})
    measured = serving.served("url", "net", "floor", MagicMock(), None)()
    assert measured == {**requests, "execute": 2.0, "run": 1.0, "floor": 2.0}


@pytest.mark.skipif(
    not capabilities.current().strongly_typed,
    reason="8.6 takes half where a flag lets it",
)
def test_float32_onnx_export_is_refused_for_fp16(tmp_path: Path) -> None:
    with pytest.raises(pipelines.Refused, match="the exported file is float32"):
        pipelines.onnx(
            tmp_path / "unread.onnx", NETWORKS["unet"], "fp16", None, tmp_path / "cache"
        )


def test_page_keeps_warm_build_of_earlier_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "ENGINES", tmp_path / "engine.jsonl")
    later = _row(1, 1.0, ours={"layers": 37, "cold_s": 50.0}, onnx_error=2e-3)
    records.append(records.ENGINES, [_row(1, 1.0), _row(1, 1.0, gpu="other"), later])
    text = page.text()
    assert "| unet | fp16 | 37 | 38 |  |  |  | 40.0 | 8.0 | 20%* |" in text
    assert "| 1.0e-03 | 2.0e-03 |" in text
