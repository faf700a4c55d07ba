"""Each command on real files, valid and invalid."""

from __future__ import annotations

import errno
import http.server
import importlib.metadata
import itertools
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy
import pytest
import torch
from click.testing import Result

from builder.cli.serve import ports
from builder.manifest import load
from builder.store import published as records
from tests.cli.conftest import MANIFEST, Small, TakesList, save, save_small, start

Run = Callable[..., Result]


def entry_names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_repo_reports_a_build(
    small: Path, tmp_path: Path, run_with_workers: Run
) -> None:
    result = run_with_workers("repo", small, "--out", tmp_path / "out", "--record")
    assert result.exit_code == 0, result.output
    assert "1 of 1 models" in result.stdout
    assert "small: build" in result.stderr and "small: finished: built" in result.stderr
    assert "(1 of 1)" in result.stderr and "next: trt-build verify" in result.stdout
    assert not (tmp_path / ".env").exists()
    assert "plan not executed: small: no plan of this TensorRT runs" in result.stdout
    assert (tmp_path / "out" / "small" / "config.pbtxt").is_file()
    (recorded,) = json.loads((tmp_path / "out.results" / "build.json").read_text())[
        "models"
    ]
    assert (
        recorded["ok"]
        and "build" in recorded["seconds"]
        and len(recorded["published"]) == 64
    )
    record = json.loads((tmp_path / "out" / "small" / "trt-build.json").read_text())[
        "result"
    ]
    (dtypes,) = record["dtypes"]
    assert sum(count for _, count in dtypes["runs"]) == record["layers"]
    nodes = [(one["before"], one["after"]) for one in record["lowering"]]
    assert nodes and all(a[1] == b[0] for a, b in itertools.pairwise(nodes))


class Doubled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.relu() + x.relu()  # a pass merges the two calls


def test_log_level_graph_writes_the_graph_after_each_pass(
    tmp_path: Path, run: Run
) -> None:
    (tmp_path / "models").mkdir()
    save(Doubled(), tmp_path / "models" / "doubled.pt")
    command = ("repo", tmp_path / "models", "--out", tmp_path / "out", "--log-level")
    result = run(*command, "graph")
    assert "rebuilt because" not in result.stderr
    assert "rebuilt because: --log-level graph\n" in run(*command, "graph").stderr
    files = sorted((tmp_path / "out.graphs" / "doubled").iterdir())
    assert result.exit_code == 0 and files[0].name == "00-start.txt" and len(files) > 1
    assert "graph(" in files[-1].read_text()


def test_repo_as_json_is_one_document(small: Path, tmp_path: Path, run: Run) -> None:
    data = json.loads(run("repo", small, "--out", tmp_path / "out", "--json").stdout)
    assert data["ok"]
    assert data["models"][0]["name"] == "small"
    assert data["models"][0]["plan_bytes"] > 0
    assert {"load", "lower", "build"} <= set(data["models"][0]["seconds"])


@pytest.mark.parametrize("given", ["input", "sample"])
def test_repo_accepts_inputs_instead_of_a_manifest(
    tmp_path: Path, run: Run, given: str
) -> None:
    file = save(Small(), tmp_path / "net.pt", None)
    if given == "input":
        words = ["--input", "x:float32:batch(1,2,8)x4"]
    else:
        numpy.savez(tmp_path / "s.npz", x=numpy.ones((2, 4), "float32"))
        words = ["--sample", str(tmp_path / "s.npz")]
    result = run("repo", file, "--out", tmp_path / "out", *words)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "out" / "net" / "1" / "model.plan").is_file()


def test_env_file_is_written_only_with_write_env(
    small: Path, tmp_path: Path, run: Run
) -> None:
    (tmp_path / ".env").write_text("TRITON_IMAGE=mine\n")
    assert run("repo", small, "--out", tmp_path / "out").exit_code == 0
    assert (tmp_path / ".env").read_text() == "TRITON_IMAGE=mine\n"
    assert run("repo", small, "--out", tmp_path / "out", "--write-env").exit_code == 0
    assert "MODEL_REPOSITORY=./out" in (tmp_path / ".env").read_text()


@pytest.mark.parametrize("command", ["repo", "check"])
def test_model_without_manifest_fails_without_stopping_others(
    small: Path, tmp_path: Path, run: Run, command: str
) -> None:
    save(Small(), small / "bare.pt", None)
    (small / "net.onnx").touch()
    (small / "UPPER.PT").touch()
    out = ["--out", tmp_path / "out"] if command == "repo" else []
    result = run(command, small, *out)
    assert result.exit_code == 2
    assert "bare.pt:1: the model has no manifest" in result.output
    assert "net.onnx: not read: trt-build reads .pt and .pt2 files" in result.stderr
    assert "UPPER.PT: not read: rename its suffix to .pt" in result.stderr
    assert "1 of 2 models" in result.stdout


def test_init_writes_every_missing_manifest_of_a_folder(small: Path, run: Run) -> None:
    class Masks(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(10, 4)

        def forward(
            self, ids: torch.Tensor, unused: torch.Tensor, scale: float = 2.0
        ) -> torch.Tensor:
            return self.table((ids + 1).clamp(0, 9)) * scale

    class TakesNames(torch.nn.Module):
        def forward(self, x: torch.Tensor, xs: list[str]) -> torch.Tensor:
            return x * len(xs)

    save(Masks(), small / "masks.pt", None)
    save(TakesNames(), small / "wants.pt", None)
    result = run("init", small)
    assert result.exit_code == 1
    assert "wants.pt: argument 'xs' of forward has the type List[str]" in result.stderr
    assert "1 of 2 missing manifests written" in result.stdout
    assert (small / "small.yaml").read_text() == MANIFEST, "what was there stays"
    text = (small / "masks.yaml").read_text()
    marked = [line for line in text.splitlines() if "  # ?" in line]
    assert (
        f"masks.yaml: 2 inputs, {len(marked)} lines to look at; not inputs: "
        in result.stdout
    )
    assert any("batch: {min" in line for line in marked), "ranges are guesses, too"
    assert "# not an input: scale: its default 2.0 is used" in text
    specs = {spec.name: spec for spec in load(small / "masks.pt")}
    assert specs["masks"].inputs[0].dtype == "int64"
    data = json.loads(run("init", small, "--force", "--json").stdout)
    assert [Path(one["manifest"]).name for one in data["manifests"]] == [
        "masks.yaml",
        "small.yaml",
    ]
    assert [Path(one["file"]).name for one in data["failed"]] == ["wants.pt"]


def test_init_suggests_submodules_that_could_be_built(tmp_path: Path, run: Run) -> None:
    class DictWrapper(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = Small()

        def forward(self, xs: dict[str, torch.Tensor]) -> torch.Tensor:
            return self.head(xs["a"])

    result = run("init", save(DictWrapper(), tmp_path / "net.pt", None))
    assert result.exit_code == 1 and "--module with one of head" in result.stderr


def test_all_manifest_mistakes_are_reported_and_nothing_is_written(
    small: Path, tmp_path: Path, run: Run
) -> None:
    (small / "small.yaml").write_text(
        "inputs:\n- name: x\n  dtype: float\n  shape: [bacth, 4]\ndims:\n  batch: {min: 4, opt: 2,"
        " max: 8}\ninstances: two\nprecison: fp16\n"
    )
    before = entry_names(tmp_path)
    result = run("repo", small, "--out", tmp_path / "out")
    assert result.exit_code == 2
    for line, words in [
        (3, "'float32'?"),
        (4, "'batch'?"),
        (6, "min 4"),
        (7, "whole number"),
        (8, "'precision'?"),
    ]:
        assert any(
            f"small.yaml:{line}:" in text and words in text
            for text in result.stderr.splitlines()
        )
    assert entry_names(tmp_path) == before


@pytest.mark.parametrize("command", ["repo", "check", "lower", "init", "inspect"])
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("checkpoint", "a checkpoint of torch.save"),
        ("truncated", "truncated or damaged"),
        ("empty", "is empty"),
    ],
)
def test_file_that_is_not_torchscript_is_refused(
    tmp_path: Path, run: Run, command: str, kind: str, words: str
) -> None:
    file = save(Small(), tmp_path / "net.pt")
    if kind == "checkpoint":
        torch.save(Small().state_dict(), file)
    else:
        file.write_bytes(file.read_bytes()[: 2000 if kind == "truncated" else 0])
    options = {"repo": ["--out", tmp_path / "out"], "init": ["--force"]}.get(
        command, []
    )
    before = entry_names(tmp_path)
    result = run(command, file, *options)
    assert result.exit_code == 1
    assert words in result.output
    assert "Traceback" not in result.output
    assert entry_names(tmp_path) == before


@pytest.mark.parametrize("command", ["repo", "check"])
def test_batch_sizes_lost_between_profiles_are_a_warning(
    small: Path, tmp_path: Path, run: Run, command: str
) -> None:
    class TwoAxes(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.relu()

    save(
        TwoAxes(),
        small / "long.pt",
        "inputs:\n- {name: x, dtype: float32, shape: [batch, length]}\noutputs: [y]\nprofiles:\n"
        "- {batch: {min: 1, opt: 4, max: 32}, length: {min: 1, opt: 4, max: 8}}\n"
        "- {batch: {min: 1, opt: 2, max: 8}, length: {min: 9, opt: 16, max: 64}}\n",
    )
    out = ["--out", tmp_path / "out", "--no-store"] if command == "repo" else []
    for _ in range(2):  # the second time `repo` leaves it unchanged
        result = run(command, small, *out)
        assert result.exit_code == 0
        (line,) = [text for text in result.output.splitlines() if "warning" in text]
        assert line.startswith(
            "long: warning: profiles p0 (batch 1 to 32) and p1 (batch 1 to 8) differ"
        )


def test_damaged_model_does_not_stop_the_others(
    small: Path, tmp_path: Path, run: Run
) -> None:
    (small / "broken.pt").write_bytes(b"PK\x03\x04 not much of a zip")
    (small / "broken.yaml").write_text(MANIFEST)
    result = run("repo", small, "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert entry_names(tmp_path / "out") == {"small"}
    assert "broken.pt is a truncated or damaged archive" in result.stderr
    assert "1 of 2 models" in result.stdout


@pytest.mark.parametrize("command", ["repo", "check"])
def test_list_argument_of_forward_is_refused(
    tmp_path: Path, run: Run, command: str
) -> None:
    file = save(TakesList(), tmp_path / "net.pt")
    options = {"repo": ["--out", tmp_path / "out"]}.get(command, [])
    result = run(command, file, *options)
    assert result.exit_code == 1
    assert "argument 'xs' of forward has the type List[Tensor]" in result.output
    assert not (tmp_path / "out").exists()


def test_record_of_a_later_version_is_reported(published: Path, run: Run) -> None:
    record = records.read(published / "small" / records.SIDECAR)
    records.write(published / "small", {**record, "format": 99, "inputs": {"x": "new"}})
    result = run("doctor", published)
    assert result.exit_code == 2 and "has format 99, and this version" in result.stderr


def test_missing_file_and_empty_folder_are_errors(tmp_path: Path, run: Run) -> None:
    save(Small(), tmp_path / "resnet.pt")
    result = run("repo", tmp_path / "resent.pt", "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "did you mean 'resnet.pt'?" in result.stderr
    (tmp_path / "none").mkdir()
    assert run("check", tmp_path / "none").exit_code == 2
    assert run("lower", tmp_path / "none.pt").exit_code == 2


def test_check_reports_operators_and_config_and_writes_nothing(
    small: Path, tmp_path: Path, run: Run
) -> None:
    before = entry_names(tmp_path) | entry_names(small)
    result = run("check", small, "--paranoid")
    assert result.exit_code == 0, result.output
    assert "max_batch_size: 8" not in result.stdout
    assert "1 of 1 models can be built" in result.stdout
    assert "max_batch_size: 8" in run("check", small, "--show-config").stdout
    assert entry_names(tmp_path) | entry_names(small) == before
    report = json.loads(run("check", small, "--json").stdout)["models"][0]
    assert sum(report["operators"]["used"].values()) > 0
    assert report["operators"]["unsupported"] == []
    assert report["layers"] > 0


def test_check_reports_unsupported_operators_and_fallback_segments(
    tmp_path: Path, run: Run
) -> None:
    class SingularValues(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.svdvals(x * 2)

    result = run("check", save(SingularValues(), tmp_path / "odd.pt"), "--json")
    assert result.exit_code == 0, "torch would serve it"
    report = json.loads(result.stdout)["models"][0]
    (operator,) = report["operators"]["unsupported"]
    assert operator["schema"].startswith("aten::linalg_svdvals")
    assert "test_commands.py" in operator["where"]
    assert report["fallback"]["segments"]


@pytest.mark.parametrize("command", ["check", "repo"])
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (("float32", "int64"), "must have the same dtype"),
        (("4]", "5]"), "shapes cannot be multiplied"),
        (("[y]", "[y, z]"), "names 2 outputs, the module returns 1"),
    ],
)
def test_manifest_that_does_not_fit_quotes_the_error_of_the_module(
    small: Path,
    tmp_path: Path,
    run: Run,
    command: str,
    wrong: tuple[str, str],
    words: str,
) -> None:
    """The error must not be a defect of a converter; converters fail on such inputs too."""
    (small / "small.yaml").write_text(MANIFEST.replace(*wrong))
    result = run(
        command, small, *(["--out", tmp_path / "out"] if command == "repo" else [])
    )
    assert result.exit_code in (1, 2)
    assert (
        words in result.output
        and "defect" not in result.output
        and "outputs (y, z)" not in result.output
    )


def test_init_writes_a_manifest_that_builds(tmp_path: Path, run: Run) -> None:
    file = save(Small(), tmp_path / "net.pt", None)
    result = run("init", file)
    assert result.exit_code == 0, result.output
    (spec,) = load(file)
    assert [(i.name, i.dtype, i.shape) for i in spec.inputs] == [
        ("x", "float32", ("batch", 4))
    ]
    assert run("repo", file, "--out", tmp_path / "out").exit_code == 0


def test_init_reads_shapes_from_a_traced_module(tmp_path: Path, run: Run) -> None:
    class MaskedIds(torch.nn.Module):
        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return ids.float() * mask

    sample = (torch.ones(2, 3, dtype=torch.int64), torch.ones(2, 1, dtype=torch.bool))
    torch.jit.trace(MaskedIds(), sample).save(str(tmp_path / "net.pt"))
    assert run("init", tmp_path / "net.pt").exit_code == 0
    (spec,) = load(tmp_path / "net.pt")
    assert [(i.name, i.dtype, i.shape) for i in spec.inputs] == [
        ("ids", "int64", ("batch", 3)),
        ("mask", "bool", ("batch", 1)),
    ]


def test_init_reads_shapes_from_the_layers_that_read_inputs(
    tmp_path: Path, run: Run
) -> None:
    class ImageAndIds(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.table = (
                torch.nn.Conv2d(6, 4, 3, groups=2),
                torch.nn.Embedding(10, 4),
            )
            self.norm = torch.nn.LayerNorm(12)

        def forward(
            self,
            image: torch.Tensor,
            ids: torch.Tensor,
            pixels: torch.Tensor,
            x: torch.Tensor,
        ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
            normalized = self.conv((pixels.float() - 127.0) / 255.0)
            return self.conv(image), self.table(ids), normalized, self.norm(x)

    assert run("init", save(ImageAndIds(), tmp_path / "net.pt", None)).exit_code == 0
    (spec,) = load(tmp_path / "net.pt")
    assert [(i.dtype, i.shape) for i in spec.inputs] == [
        ("float32", ("batch", 6, "height", "width")),
        ("int64", ("batch", "length")),
        ("float32", ("batch", 6, "height", "width")),
        ("float32", ("batch", 12)),
    ]
    lines = (tmp_path / "net.yaml").read_text().splitlines()
    assert sum("# ? as aten::" in line for line in lines) == 2


def test_init_reads_dtypes_from_indices_and_masks(tmp_path: Path, run: Run) -> None:
    class Messages(torch.nn.Module):
        def forward(
            self,
            x: torch.Tensor,
            edges: torch.Tensor,
            rows: torch.Tensor,
            kept: torch.Tensor,
        ) -> torch.Tensor:
            sent = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])
            return torch.where(kept, sent, x).gather(1, rows.unsqueeze(1))

    assert run("init", save(Messages(), tmp_path / "net.pt", None)).exit_code == 0
    (spec,) = load(tmp_path / "net.pt")
    assert [x.dtype for x in spec.inputs] == ["float32", "int64", "int64", "bool"]
    text = (tmp_path / "net.yaml").read_text()
    assert text.count("int64  # ? used as an index") == 2
    assert text.count("bool  # ? used as a mask") == 1


def test_init_makes_inputs_of_required_numbers(tmp_path: Path, run: Run) -> None:
    """A file name with a line break stays in the manifest's comment."""

    class Scaled(torch.nn.Module):
        def forward(
            self, x: torch.Tensor, power: int, scale: float, flip: bool, more: int = 0
        ) -> torch.Tensor:
            y = x**power * scale + more
            return -y if flip else y

    file = save(Scaled(), tmp_path / "net.pt", None)
    assert run("init", file).exit_code == 0
    (spec,) = load(file)
    assert [(i.name, i.dtype, i.shape) for i in spec.inputs[1:]] == [
        ("power", "int64", ()),
        ("scale", "float32", ()),
        ("flip", "bool", ()),
    ]
    assert run("check", file, "--no-build").exit_code == 0
    broken = file.rename(tmp_path / "net\nx: 1.pt")
    assert run("init", broken).exit_code == 0
    comment, *_ = broken.with_suffix(".yaml").read_text().splitlines()
    assert comment.startswith("# net\\nx: 1.pt: names")


NORMALIZED = {
    "1d": ([torch.nn.BatchNorm1d(6)], (6,)),
    "1d of a sequence": (
        [torch.nn.BatchNorm1d(6), torch.nn.Conv1d(6, 3, 1)],
        (6, "length"),
    ),
    "2d": ([torch.nn.BatchNorm2d(3), torch.nn.ReLU()], (3, "height", "width")),
    "after an activation": ([torch.nn.ReLU(), torch.nn.BatchNorm1d(6)], (6,)),
    "flattened": ([torch.nn.Flatten(), torch.nn.Linear(28, 3)], (28,)),
    "flattened later": (
        [torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.BatchNorm1d(28)],
        (28,),
    ),
}


@pytest.mark.parametrize(("layers", "shape"), NORMALIZED.values(), ids=NORMALIZED)
def test_init_reads_shapes_from_batch_normalization_and_behind_flatten(
    layers: list[torch.nn.Module],
    shape: tuple[int | str, ...],
    tmp_path: Path,
    run: Run,
) -> None:
    module = torch.nn.Sequential(*layers).eval()
    assert run("init", save(module, tmp_path / "net.pt", None)).exit_code == 0
    (spec,) = load(tmp_path / "net.pt")
    assert [tensor.shape for tensor in spec.inputs] == [("batch", *shape)]


def test_init_does_not_overwrite_a_manifest_without_force(
    small: Path, run: Run
) -> None:
    result = run("init", small / "small.pt")
    assert result.exit_code == 2
    assert "--force" in result.stderr
    assert (small / "small.yaml").read_text() == MANIFEST
    assert run("init", small / "small.pt", "--force").exit_code == 0
    assert entry_names(small) == {"small.pt", "small.yaml"}


def test_init_advises_check_only_for_a_manifest_beside_its_model(
    small: Path, tmp_path: Path, run: Run
) -> None:
    file = small / "small.pt"
    result = run("init", file, "--out", tmp_path / "small.yaml")
    assert "move it beside the model file" in result.stdout
    result = run("init", file, "--force")
    check = f"trt-build check {small / 'small.yaml'} checks whether it fits"
    assert check in result.stdout


def test_init_adds_no_second_manifest(small: Path, run: Run) -> None:
    manifest = (small / "small.yaml").rename(small / "small.yml")
    assert "small.yml already exists" in run("init", small / "small.pt").stderr
    for target in (small / "small.pt", small):
        manifest.write_text("")
        assert run("init", target, "--force").exit_code == 0
        assert manifest.read_text() and not (small / "small.yaml").exists()


def test_lower_prints_the_graph_and_the_passes(
    small: Path, tmp_path: Path, run: Run
) -> None:
    file = small / "small.pt"
    graph = run("lower", file).stdout
    assert graph.startswith("# x -> output\ngraph(")
    assert "aten::relu" in graph
    traced = run("lower", file, "--trace").stdout
    assert "flatten-inputs" in traced
    data = json.loads(run("lower", file, "--json", "--out", tmp_path / "seq").stdout)
    assert {"name", "nodes_before", "nodes_after", "seconds"} == set(data["passes"][0])
    assert (tmp_path / "seq" / "00-start.txt").is_file()
    lowered = torch.jit.load(str(tmp_path / "seq" / "lowered.pt"))
    x = torch.randn(2, 4)
    assert torch.equal(lowered(x)[0], torch.jit.load(str(file))(x))
    (tmp_path / "seq" / "12-notes.txt").write_text("by hand")
    words = ["--stop-after", "inline", "--out", tmp_path / "seq", "--json"]
    written = json.loads(run("lower", file, *words).stdout)["written"]
    names = {Path(path).name for path in written} | {"12-notes.txt"}
    assert {path.name for path in (tmp_path / "seq").iterdir()} == names


def test_full_disk_leaves_the_files_of_an_earlier_lower(
    small: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["lower", small / "small.pt", "--no-isolate", "--out", tmp_path / "seq"]
    assert run(*words).exit_code == 0
    before = {path: path.read_bytes() for path in (tmp_path / "seq").iterdir()}
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(os, "fsync", Mock(side_effect=full))
    result = run(*words)
    assert result.exit_code == 4 and "seq/00-start.txt" in result.stderr
    assert {path: path.read_bytes() for path in (tmp_path / "seq").iterdir()} == before


def test_lower_stops_at_the_given_pass_and_suggests_close_names(
    small: Path, run: Run
) -> None:
    stopped = json.loads(
        run("lower", small / "small.pt", "--stop-after", "inline", "--json").stdout
    )
    assert stopped["passes"][-1]["name"] == "inline"
    result = run("lower", small / "small.pt", "--show", "inlin")
    assert result.exit_code == 2
    assert "did you mean 'inline'?" in result.stderr


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(
            torch.matmul(self.query(x), x.transpose(-1, -2)) / 2.0, dim=-1
        )


def test_lower_shows_the_passes_of_a_precision(
    small: Path, tmp_path: Path, run: Run
) -> None:
    torch.jit.trace(Attention(), torch.randn(2, 3, 4)).save(tmp_path / "attention.pt")
    half = ("lower", tmp_path / "attention.pt", "--precision", "fp16")
    assert "aten::div" in run(*half, "--show", "scale-queries").stdout
    stopped = json.loads(run(*half, "--stop-after", "scale-queries", "--json").stdout)
    assert stopped["passes"][-1]["name"] == "scale-queries"
    assert (
        "scale-queries did not run"
        in run("lower", small / "small.pt", *half[2:], "--show", "scale-queries").stdout
    )
    early = json.loads(run(*half, "--stop-after", "inline", "--json").stdout)
    assert early["passes"][-1]["name"] == "inline"
    for name, precision in (("scale-queries", "fp16"), ("scale-scores", "fp32")):
        refused = run("lower", tmp_path / "attention.pt", "--show", name)
        assert (
            refused.exit_code == 2 and f"add --precision {precision}" in refused.stderr
        )


def test_inspect_prints_networks_plans_models_and_repositories(
    small: Path, published: Path, run: Run
) -> None:
    layers = json.loads(run("inspect", small, "--json").stdout)["layers"]
    assert "ACTIVATION" in [layer["type"] for layer in layers]
    assert "aten::relu" in run("inspect", small / "small.pt").stdout
    facts = json.loads(
        run("inspect", published / "small" / "1" / "model.plan", "--json").stdout
    )
    assert facts["outputs"][0]["name"] == "y"
    assert "max_batch_size: 8" in run("inspect", published / "small").stdout
    assert (
        json.loads(run("inspect", published, "--json").stdout)["models"][0]["goldens"]
        >= 3
    )
    assert "small" in run("inspect", published).stdout
    assert not {"None", "[]", "False"} & set(
        run("inspect", published / "small").stdout.split()
    )


def test_inspect_sums_plan_bytes_of_all_segments(tmp_path: Path, run: Run) -> None:
    class SingularValues(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.svdvals(x[:, :, None].relu() * 2).exp().sin().tanh()

    out = tmp_path / "out"
    assert (
        run("repo", save(SingularValues(), tmp_path / "odd.pt"), "--out", out).exit_code
        == 0
    )
    plans = list((out / "odd" / "1").glob("segment_*.plan"))
    (row,) = json.loads(run("inspect", out, "--json").stdout)["models"]
    assert plans and row["plan_bytes"] == sum(plan.stat().st_size for plan in plans)
    assert "torch, tensorrt" in run("inspect", out / "odd").stdout


def test_doctor_lists_found_and_missing_requirements(run: Run) -> None:
    result = run("doctor", "--json")
    data = json.loads(result.stdout)
    findings = {finding["what"]: finding for finding in data["findings"]}
    # PyPI's torch is 2.13.0 as a package and calls itself 2.13.0+cu130.
    assert findings["torch"]["found"] == importlib.metadata.version("torch")
    assert all(finding["found"] or finding["fix"] for finding in findings.values())
    assert all(finding["needed_for"] for finding in findings.values())
    assert result.exit_code == 0
    assert "needed for" in run("doctor").stdout


def test_doctor_exits_with_four_if_nothing_can_be_built(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from builder.engine import flavor

    monkeypatch.setattr(flavor, "installed", list)
    result = run("doctor")
    assert result.exit_code == 4
    assert "MISSING" in result.stdout


@pytest.mark.parametrize("below", ["", "deeper/out"])
def test_read_only_repository_is_reported_before_the_build(
    small: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, below: str
) -> None:
    """Root may write anywhere, so the test replaces os.access."""
    (tmp_path / "file").write_text("")
    blocked = run("repo", small, "--out", tmp_path / "file" / below)
    assert (blocked.exit_code, "load" in blocked.stderr) == (2, False)
    assert f"{tmp_path / 'file'} is not a folder" in blocked.stderr
    (tmp_path / "closed").mkdir()
    real = os.access
    monkeypatch.setattr(
        os,
        "access",
        lambda path, mode: Path(path) != tmp_path / "closed" and real(path, mode),
    )
    refused = run("repo", small, "--out", tmp_path / "closed" / (below or "out"))
    assert (refused.exit_code, "load" in refused.stderr) == (4, False)
    assert f"the folder {tmp_path / 'closed'} is not writable" in refused.stderr
    monkeypatch.undo()
    mount = run("repo", small, "--out", "/dev/shm")
    assert (mount.exit_code, "load" in mount.stderr) == (4, False)
    assert "/dev/shm is a mount of its own" in mount.stderr


@pytest.mark.parametrize(
    ("out", "code", "words"),
    [
        ("/proc/x/y", 4, "no folder can be created in /proc"),
        ("/", 2, "/ cannot be the repository"),
        ("x" * 300, 4, "use a shorter path"),
        ("x/" * 3000, 4, "use a shorter path"),
        ("a\0b", 2, "the path has a null character"),
    ],
)
def test_unusable_repository_is_reported_before_the_build(
    small: Path, run: Run, out: str, code: int, words: str
) -> None:
    refused = run("repo", small, "--out", out)
    assert (refused.exit_code, "load" in refused.stderr) == (code, False)
    assert words in refused.stderr


def test_dangling_link_is_reported(small: Path, tmp_path: Path, run: Run) -> None:
    """A dangling link is reported for --out before the build, and for MODELS."""
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    for link, target in (("dangling", "nowhere"), ("loop", "loop")):
        words = f"{tmp_path / link} is a link to {target}, which does not exist"
        for out in (tmp_path / link, tmp_path / link / "out"):
            result = run("repo", small, "--out", out)
            assert (
                result.exit_code,
                words in result.stderr,
                "load" in result.stderr,
            ) == (
                2,
                True,
                False,
            )
        result = run("check", tmp_path / link)
        assert (result.exit_code, words in result.stderr) == (2, True)
    os.mkfifo(tmp_path / "pipe.pt")
    assert "is neither a folder nor a file" in run("check", tmp_path / "pipe.pt").stderr


@pytest.mark.slow
def test_ctrl_c_during_a_build_leaves_no_partial_model(
    small: Path, tmp_path: Path
) -> None:
    """An interrupt at the start of a phase exits with 130. The repository is complete or absent."""
    for phase in ("convert", "build", "publish"):
        out = tmp_path / phase / "out"
        out.parent.mkdir()
        process = start("repo", small, "--out", out)
        assert process.stderr is not None
        for line in process.stderr:
            if line.strip() == f"small: {phase}":
                process.send_signal(signal.SIGINT)
                break
        _, rest = process.communicate(timeout=120)
        # 0: the build ended before the signal arrived
        assert process.returncode in (130, 0), rest
        expected_names = {"config.pbtxt", "1", "goldens", "trt-build.json"}
        assert {
            name for name in entry_names(out.parent) if name not in ("out", ".env")
        } == set()
        assert not out.exists() or entry_names(out / "small") >= expected_names
        if phase == "convert":
            assert process.returncode == 130
            assert "interrupted" in rest
            assert not out.exists()


def test_ports_count_from_the_first_unless_given() -> None:
    assert ports(None, None, None, None) == {
        "http_port": 8000,
        "grpc_port": 8001,
        "metrics_port": 8002,
    }
    assert ports(9000, None, 7, None) == {
        "http_port": 9000,
        "grpc_port": 7,
        "metrics_port": 9002,
    }
    assert ports(0, None, None, None) == {
        "http_port": 0,
        "grpc_port": 0,
        "metrics_port": 0,
    }


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("lower two", 2, "two has 2 models\n  fix:   use one of two/a.pt, two/b.pt"),
        ("lower alone.yaml", 2, "this manifest has no model file"),
        (
            "inspect reposit",
            2,
            "reposit does not exist\n  fix:   did you mean 'repository'",
        ),
        ("serve repository --poll-seconds 5", 2, "--poll-seconds is for --watch"),
        ("serve repository --port 0 --log-file empty", 4, "use another --log-file"),
        ("deploy kserve empty", 2, "empty contains no model"),
        ("deploy kserve repository --name A", 2, "--name 'A' is not valid"),
        ("doctor empty", 2, "empty contains no model"),
        ("doctor repository --only smal", 2, "no model 'smal' in repository"),
        ("report repository --since {}", 2, "that trt-build wrote: it has no 'format'"),
        ("report repository --since none", 2, "wrote: No such file or directory\n"),
        ("report repository --since future", 2, "its format is 99, and this version"),
        ("doctor repository --port 70000", 2, "70000 is not in the range"),
        ("doctor --only small", 2, "--only require a REPOSITORY"),
        ("serve repository --http-port 7 --grpc-port 7", 2, "--grpc-port are both 7"),
        ("sign empty --key none", 2, "empty contains no model"),
        ("inspect repository --graph a.svg", 2, "repository is published"),
        ("inspect models --graph a.png", 2, "use a name that ends with .svg"),
        ("check future --no-store", 2, "future is neither a model file nor a manifest"),
        ("init models", 0, "every model in models has a manifest"),
    ],
)
def test_misuse_has_a_clear_message(
    published: Path,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    code: int,
    words: str,
) -> None:
    monkeypatch.chdir(published.parent)
    save_small(published.parent)
    for folder in ("empty", "two"):
        Path(folder).mkdir()
    for file in ("two/a.pt", "two/b.pt", "alone.yaml"):
        Path(file).write_text("")
    Path("{}").write_text("{}")
    Path("future").write_text('{"format": 99, "models": []}')
    result = run(*command.split())
    assert (result.exit_code, words in result.output) == (code, True), result.output


def test_lower_takes_the_folder_or_the_manifest_of_one_model(
    small: Path, run: Run
) -> None:
    paths = (small, small / "small.yaml", small / "small.pt")
    graphs = {run("lower", path, "--no-isolate").stdout for path in paths}
    assert len(graphs) == 1 and "aten::linear" in graphs.pop()


def test_check_reports_a_store_that_cannot_be_used(small: Path, run: Run) -> None:
    store = small / "small.pt"
    result = run("check", small, "--no-isolate", "--store", store)
    assert f"small: warning: the store {store} could not be read" in result.stdout


@pytest.mark.parametrize(
    "command", ["serve", "history", "verify --url x:1", "health --url x:1"]
)
def test_missing_repository_is_a_usage_error(
    tmp_path: Path, run: Run, command: str
) -> None:
    result = run(*command.split(), tmp_path / "none")
    assert result.exit_code == 2
    assert f"the model repository {tmp_path / 'none'} does not exist" in result.stderr


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        (
            ["--port", "70000"],
            2,
            "'--port': 70000 is not in the range 0<=x<=65533",
        ),
        (["--port", "65535"], 2, "65535 is not in the range"),
        (["--port", "-1"], 2, "-1 is not in the range"),
        (
            ["--port", "0", "--address", "192.0.2.1"],
            4,
            "use an --address of this machine",
        ),
        (
            ["--port", "0", "--log-file", "/proc/none/log"],
            4,
            "the log cannot be written",
        ),
        (["--timeout", "0"], 2, "0.0 is not in the range x>0"),
    ],
)
def test_serve_refuses_invalid_options(
    published: Path, run: Run, given: list[str], code: int, words: str
) -> None:
    result = run("serve", published, *given)
    assert (result.exit_code, words in result.stderr) == (code, True), result.stderr


@pytest.mark.parametrize(
    "url",
    ["loc alhost:80", "localhost:80:80", "localhost:99999", "[::1", "http://", ":8000"],
)
@pytest.mark.parametrize("flag", ["--url", "--grpc-url"])
def test_invalid_address_is_a_usage_error(
    published: Path, run: Run, flag: str, url: str
) -> None:
    result = run("verify", published, flag, url)
    assert (
        result.exit_code,
        f"{url!r} is not an address of an endpoint" in result.stderr,
    ) == (
        2,
        True,
    ), result.stderr


def test_verify_without_url_exits_with_2_and_without_endpoint_with_4(
    published: Path, run: Run
) -> None:
    assert run("verify", published).exit_code == 2
    absent = ("--url", "127.0.0.1:1", "--grpc-url", "127.0.0.1:2")
    for command in ("verify", "health"):
        result = run(command, published, *absent)
        assert result.exit_code == 4
        assert "where: 127.0.0.1:1\n" in result.stderr


class Page(http.server.BaseHTTPRequestHandler):
    """Answers every request with status 200 and a page, as some dashboards do."""

    kind, text = "text/html", b"hello"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", self.kind)
        self.send_header("Content-Length", str(len(self.text)))
        self.end_headers()
        self.wfile.write(self.text)

    def log_message(self, *_: object) -> None:
        pass


class EmptyText(Page):
    """Answers as the metrics port of Triton does."""

    kind, text = "text/plain", b""


@pytest.fixture(params=[Page, EmptyText])
def other_server(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a server that is not Triton's HTTP endpoint."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), request.param) as server:
        serving = partial(server.serve_forever, poll_interval=0.01)
        threading.Thread(target=serving, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    "command", ["health", "verify", "doctor", "push", "bench --protocol http"]
)
def test_server_of_another_kind_is_reported(
    published: Path, run: Run, other_server: str, command: str
) -> None:
    result = run(*command.split(), published, "--url", other_server)
    assert result.exit_code == 4
    if command != "health":
        assert "the response is not from Triton: it is text/" in result.stderr


@pytest.mark.parametrize("command", ["verify", "health", "bench", "push"])
def test_missing_address_is_an_error_with_a_fix(
    published: Path, run: Run, command: str
) -> None:
    result = run(command, published, "--json")
    error = json.loads(result.stdout)["error"]
    assert result.exit_code == error["exit_code"] == 2
    assert "needs the address of" in error["message"]
    assert "pass --url HOST:PORT" in error["fix"]


def test_bench_reports_a_missing_grpc_address(published: Path, run: Run) -> None:
    result = run("bench", published, "--url", "127.0.0.1:1")
    assert result.exit_code == 2
    assert "pass --grpc-url HOST:PORT, --protocol http, or --serve" in result.stderr


@pytest.mark.parametrize(
    "command",
    [
        "inspect --graph",
        "lower --out",
        "lower --no-isolate --out",
        "init --out",
        "bisect --reduce",
    ],
)
def test_output_that_cannot_be_written_exits_with_4(
    small: Path, run: Run, command: str
) -> None:
    name, *options = command.split()
    result = run(name, small / "small.pt", *options, "/proc/none/x.svg")
    assert (result.exit_code, "/proc/none" in result.stderr) == (4, True)


@pytest.mark.parametrize(
    "command", ["push . --drain", "push . --timeout", "tune . --models . --rate"]
)
def test_option_with_nan_is_a_usage_error(run: Run, command: str) -> None:
    result = run(*command.split(), "nan")
    assert result.exit_code == 2
    assert "nan is not a finite number" in result.stderr


@pytest.mark.parametrize("command", ["init", "lower", "check", "bisect"])
def test_missing_model_file_is_a_usage_error(
    tmp_path: Path, run: Run, command: str
) -> None:
    (tmp_path / "net.pt").touch()
    result = run(command, tmp_path / "nett.pt")
    assert (result.exit_code, "did you mean 'net.pt'?" in result.stderr) == (2, True)


def test_ctrl_c_while_waiting_for_a_response_prints_one_line(published: Path) -> None:
    """Triton's HTTP client runs an event loop that prints a traceback by default."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"127.0.0.1:{silent.getsockname()[1]}"
        process = start("verify", published, "--url", url, "--quiet")
        connection, _ = silent.accept()
        with connection:
            connection.recv(1)
            process.send_signal(signal.SIGINT)
            _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (
        130,
        "interrupted; no partly written files remain\n",
    )


@pytest.mark.live
def test_verify_serves_and_exits_with_3_for_a_changed_golden(
    published: Path, run: Run
) -> None:
    result = run("verify", published, "--serve")
    assert result.exit_code == 0, result.output
    assert "p0-opt" not in result.stdout
    assert result.stdout.endswith("1 passed; 0 by a plan, 1 by torch: no GPU\n")
    assert "small: plan not executed, answered by torch" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "small: verify (1 of 1)" in result.stderr
    golden = published / "small" / "goldens" / "p0-opt.npz"
    with numpy.load(golden) as arrays:
        changed = {
            key: arrays[key] + (1 if key.startswith("output") else 0)
            for key in arrays.files
        }
    numpy.savez(golden, **changed)
    result = run("verify", published, "--serve", "--json")
    assert result.exit_code == 3
    data = json.loads(result.stdout)
    assert not data["passed"]
    failed = {r["golden"] for r in data["models"][0]["results"] if not r["passed"]}
    assert failed == {"p0-opt"}


@pytest.mark.live
@pytest.mark.parametrize(
    "stop", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_serve_runs_until_it_is_stopped(
    published: Path, run: Run, stop: signal.Signals
) -> None:
    process = start("serve", published, "--port", "0", "--json")
    assert process.stdout is not None
    record = json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")
    urls = "--url", record["http"], "--grpc-url", record["grpc"]
    result = run("verify", published, *urls, "--repeat", "0")
    assert result.exit_code == 0, result.output
    process.send_signal(stop)
    process.communicate(timeout=60)
    assert process.returncode == 0
    time.sleep(0.1)
    with pytest.raises(ProcessLookupError):
        os.kill(record["pid"], 0)


@pytest.mark.live
def test_port_in_use_exits_with_4(published: Path, run: Run) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        result = run(
            "serve", published, "--port", "0", "--http-port", held.getsockname()[1]
        )
    assert result.exit_code == 4
    assert "in use" in result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--explicit", "--address", "0.0.0.0"], "would let every client load models"),
        (["--explicit", "--watch"], "exclude each other"),
        (["--control-token-file", "token"], "is for --explicit"),
    ],
)
def test_serve_refuses_unsafe_model_control_options(
    tmp_path: Path, run: Run, words: list[str], message: str
) -> None:
    result = run("serve", tmp_path, *words)
    assert result.exit_code == 2 and message in result.output
