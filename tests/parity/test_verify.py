"""verify against a real server: correct outputs pass and every change fails."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tritonclient import grpc, http
from tritonclient.utils import InferenceServerException

from builder.engine import gpu
from builder.errors import EnvironmentProblem, UsageError
from builder.parity import ModelParity, compare, served, verify
from builder.parity.clients import GrpcClient, HttpClient
from builder.triton import Golden, goldens
from tests.parity.asserting import assert_passed
from tests.parity.conftest import Endpoint
from tests.triton.artifacts import Scorer

pytestmark = pytest.mark.live


def test_every_model_passes_every_golden_over_both_protocols(
    endpoint: Endpoint,
) -> None:
    results = verify(endpoint.repository, endpoint.http_url, endpoint.grpc_url)
    assert {r.name for r in results} == set(endpoint.artifacts)
    for parity in results:
        assert_passed(parity)
        assert {"http", "grpc"} <= {r.protocol for r in parity.results}
        count = len(endpoint.artifacts[parity.name].goldens)
        assert sum(r.protocol == "http" for r in parity.results) == count
        assert all(
            r.median_ms and r.p95_ms and r.median_ms <= r.p95_ms
            for r in parity.results
            if r.protocol == "http"
        )


def test_response_reports_that_torch_ran_the_model_and_why(endpoint: Endpoint) -> None:
    (parity,) = verify(endpoint.repository, endpoint.http_url, None, ["scorer"])
    assert (parity.platform, parity.answered_by, parity.device) == (
        "python",
        "torch",
        "cpu",
    )
    assert parity.why == "no plan was built"


def test_batched_models_get_concurrent_requests(endpoint: Endpoint) -> None:
    (scorer,) = verify(endpoint.repository, None, endpoint.grpc_url, ["scorer"])
    assert {r.golden for r in scorer.results if r.protocol == "grpc x16"} == {
        "p0-opt",
        "p0-row",
        "p0-min",
        "p0-max",
        "p0-odd",
    }
    (unbatched,) = verify(endpoint.repository, None, endpoint.grpc_url, ["unbatched"])
    assert {r.protocol for r in unbatched.results} == {"grpc"}


def test_golden_has_at_most_max_batch_size_rows(endpoint: Endpoint) -> None:
    """A profile allows eight rows of a short sequence, but max_batch_size is two."""
    (parity,) = verify(endpoint.repository, endpoint.http_url, None, ["masked"])
    assert_passed(parity)
    assert "p0-max" in {r.golden for r in parity.results}


def golden_of_unbatched(name: str, x: np.ndarray, y: np.ndarray) -> Golden:
    return Golden(
        name, {"x": x, "factor": np.array(2, np.float32)}, {"y": y, "sum": y.sum()}
    )


def test_extra_goldens_are_verified(endpoint: Endpoint) -> None:
    x = np.arange(18, dtype=np.float32).reshape(6, 3)
    extra = golden_of_unbatched("mine", x, x * 2 + 1)
    (parity,) = verify(
        endpoint.repository,
        endpoint.http_url,
        endpoint.grpc_url,
        ["unbatched"],
        extra={"unbatched": [extra]},
    )
    assert parity.passed and sum(r.golden == "mine" for r in parity.results) == 2


def test_result_is_serializable_as_json(endpoint: Endpoint) -> None:
    (parity,) = verify(endpoint.repository, endpoint.http_url, None, ["scorer"])
    plain = json.loads(json.dumps(parity.as_dict()))
    assert (
        plain["passed"] is True
        and plain["results"][0]["comparison"]["outputs"][0]["name"] == "scores"
    )


def change_values(folder: Path) -> None:
    golden = goldens.load_one(folder / "goldens" / "p0-opt.npz")
    scores = np.array(golden.outputs["scores"])
    scores[2, 1] += 0.25
    goldens.save(
        [Golden(golden.name, golden.inputs, {**golden.outputs, "scores": scores})],
        folder / "goldens",
    )


def rename_output(folder: Path) -> None:
    golden = goldens.load_one(folder / "goldens" / "p0-opt.npz")
    renamed = {"points": golden.outputs["scores"], "best": golden.outputs["best"]}
    goldens.save([Golden(golden.name, golden.inputs, renamed)], folder / "goldens")


def remove_output(folder: Path) -> None:
    golden = goldens.load_one(folder / "goldens" / "p0-opt.npz")
    goldens.save(
        [Golden(golden.name, golden.inputs, {"best": golden.outputs["best"]})],
        folder / "goldens",
    )


def change_dtype(folder: Path) -> None:
    golden = goldens.load_one(folder / "goldens" / "p0-opt.npz")
    best = golden.outputs["best"].astype(np.int32)
    goldens.save(
        [Golden(golden.name, golden.inputs, {**golden.outputs, "best": best})],
        folder / "goldens",
    )


@pytest.mark.parametrize(
    ("change_golden", "words"),
    [
        (change_values, "worst at [2, 1]"),
        (rename_output, "'scores' has its shape and dtype"),
        (remove_output, "output 'scores': is not the model's"),
        (change_dtype, "int64, not int32"),
    ],
)
def test_changed_golden_fails(
    endpoint: Endpoint,
    tmp_path: Path,
    change_golden: Callable[[Path], None],
    words: str,
) -> None:
    shutil.copytree(endpoint.repository / "scorer", tmp_path / "scorer")
    change_golden(tmp_path / "scorer")
    (parity,) = verify(tmp_path, endpoint.http_url, endpoint.grpc_url)
    failed = {r.golden for r in parity.results if not r.passed}
    assert not parity.passed and failed == {"p0-opt"}
    assert any(words in text for r in parity.results for text in r.problems)


def test_published_tolerance_overrides_the_default(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    shutil.copytree(endpoint.repository / "scorer", tmp_path / "scorer")
    change_values(tmp_path / "scorer")
    sidecar = json.loads((tmp_path / "scorer" / "trt-build.json").read_text())
    sidecar["tolerance"]["atol"] = 0.5
    (tmp_path / "scorer" / "trt-build.json").write_text(json.dumps(sidecar))
    (parity,) = verify(tmp_path, endpoint.http_url, None)
    assert parity.passed and parity.results[0].comparison is not None


@pytest.mark.parametrize(
    ("published", "read"),
    [({"y": "float16"}, {"y": "float16"}), ({"y": [1]}, {"y": "[1]"}), ([], {})],
)
def test_published_outputs_of_16_bits_are_read(published: Any, read: object) -> None:
    """A value that trt-build does not write has no effect."""
    sidecar = {"tolerance": {"rtol": None, "rounded": published}}
    model = served.PublishedModel("m", None, sidecar, ())
    assert model.tolerance.rounded == read
    arrays = {"y": np.ones(3, np.float32)}
    changed = {"y": arrays["y"] * np.float32(1 + 2**-10)}
    passed = compare(changed, arrays, model.tolerance).passed
    assert passed is (published == {"y": "float16"})


def problems_of(endpoint: Endpoint, folder: Path) -> tuple[str, ...]:
    parity: ModelParity
    (parity,) = verify(folder, endpoint.http_url, endpoint.grpc_url)
    assert not parity.passed
    return parity.problems


def test_config_that_differs_from_the_server_fails(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    shutil.copytree(endpoint.repository / "scorer", tmp_path / "scorer")
    config = tmp_path / "scorer" / "config.pbtxt"
    config.write_text(
        config.read_text().replace("max_batch_size: 8", "max_batch_size: 4")
    )
    assert "http: max_batch_size is 4 in config.pbtxt, the server has 8" in problems_of(
        endpoint, tmp_path
    )


def test_model_unknown_to_the_server_fails(endpoint: Endpoint, tmp_path: Path) -> None:
    shutil.copytree(endpoint.repository / "scorer", tmp_path / "unserved")
    assert any(
        "ready" in text or "unknown model" in text
        for text in problems_of(endpoint, tmp_path)
    )


def test_model_without_goldens_fails(endpoint: Endpoint, tmp_path: Path) -> None:
    shutil.copytree(endpoint.repository / "scorer", tmp_path / "scorer")
    shutil.rmtree(tmp_path / "scorer" / "goldens")
    assert problems_of(endpoint, tmp_path) == ("it has no goldens to verify",)


def damage(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(
        data[: len(data) // 2]
        + bytes([data[len(data) // 2] ^ 1])
        + data[len(data) // 2 + 1 :]
    )


def test_changed_published_file_fails_for_every_client(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    """Torch runs the model here, so only the hash shows that the plan is damaged."""
    shutil.copytree(endpoint.repository / "scorer", tmp_path / "scorer")
    damage(tmp_path / "scorer" / "1" / "lowered.pt")
    (parity,) = verify(tmp_path, endpoint.http_url, endpoint.grpc_url)
    assert parity.problems == (
        "1/lowered.pt is damaged: it is not the file that was published",
    )
    assert not parity.passed and all(result.passed for result in parity.results)
    (tmp_path / "scorer" / "1" / "lowered.pt").unlink()
    assert problems_of(endpoint, tmp_path) == ("1/lowered.pt is missing",)
    shutil.rmtree(tmp_path / "scorer" / "1")
    (parity,) = verify(tmp_path, endpoint.http_url, endpoint.grpc_url)
    assert parity.passed, "a copy of the goldens alone"


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("trt-build.json", "[]", "trt-build.json has no tolerance, precision"),
        (
            "trt-build.json",
            '{"tolerance": 1}',
            "trt-build.json has no tolerance, precision",
        ),
        (
            "goldens/p0-opt.npz",
            "PK\x03\x04 and no more",
            "goldens/p0-opt.npz is not an .npz of plain arrays",
        ),
        ("goldens/p0-opt.npz", "", "goldens/p0-opt.npz is not an .npz of plain arrays"),
    ],
)
def test_damaged_record_or_golden_fails_with_its_path(
    endpoint: Endpoint, tmp_path: Path, file: str, text: str, words: str
) -> None:
    shutil.copytree(endpoint.repository / "scorer", tmp_path / "scorer")
    (tmp_path / "scorer" / file).write_text(text)
    assert words in problems_of(endpoint, tmp_path)[0]


def test_folder_not_published_by_trt_build_fails(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    (tmp_path / "foreign" / "1").mkdir(parents=True)
    assert "not a model that trt-build published" in problems_of(endpoint, tmp_path)[0]


def test_unknown_model_and_empty_repository_are_usage_errors(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="'unknown'"):
        verify(endpoint.repository, endpoint.http_url, None, ["unknown"])
    with pytest.raises(UsageError, match="contains no model"):
        verify(tmp_path, endpoint.http_url, None)
    with pytest.raises(UsageError, match="address"):
        verify(endpoint.repository, None, None)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_unreachable_server_is_an_environment_problem(
    endpoint: Endpoint, protocol: str
) -> None:
    nowhere = "127.0.0.1:9"
    with pytest.raises(EnvironmentProblem, match=protocol):
        verify(
            endpoint.repository,
            *((nowhere, None) if protocol == "http" else (None, nowhere)),
            ["scorer"],
        )


def test_shape_outside_every_profile_is_refused_with_its_range(
    endpoint: Endpoint,
) -> None:
    """The runtime refuses the shape as an engine would, although torch accepts it."""
    client = HttpClient(endpoint.http_url, 10)
    try:
        with pytest.raises(
            InferenceServerException, match=r"\[9, 3\].*\[1, 3\] to \[8, 3\]"
        ):
            x, factor = np.zeros((9, 3), np.float32), np.ones(1, np.float32)
            client.infer("unbatched", {"x": x, "factor": factor})
        with pytest.raises(
            InferenceServerException, match=r"'x' has shape \[1, 65, 5\].*\[2, 64, 5\]"
        ):
            client.infer(
                "masked",
                {
                    "x": np.zeros((1, 65, 5), np.float32),
                    "valid": np.ones((1, 65), bool),
                },
            )
    finally:
        client.close()


def test_axes_with_the_same_name_must_have_equal_sizes(endpoint: Endpoint) -> None:
    for client in (
        HttpClient(endpoint.http_url, 10),
        GrpcClient(endpoint.grpc_url, 10),
    ):
        inputs = {"x": np.zeros((1, 8, 5), np.float32), "valid": np.ones((1, 9), bool)}
        with pytest.raises(InferenceServerException) as refused:
            client.infer("masked", inputs)
        client.close()
        assert refused.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")
        assert re.search(
            r"axis '\w+' must .*: input 'x' has 8 at axis 1, input 'valid' has 9",
            str(refused.value),
        )


def test_invalid_request_does_not_fail_the_rest_of_its_batch(
    endpoint: Endpoint,
) -> None:
    client = GrpcClient(endpoint.grpc_url, 30)
    module = Scorer().eval()
    x = torch.randn(40, 1, 3, generator=torch.Generator().manual_seed(1))

    def send(index: int) -> object:
        ids = 99 if index % 5 == 0 else index % 20
        try:
            return client.infer(
                "scorer", {"x": x[index].numpy(), "ids": np.array([[ids]])}
            ).outputs["scores"]
        except InferenceServerException as error:
            return error

    with ThreadPoolExecutor(20) as pool:
        outputs = list(pool.map(send, range(40)))
    client.close()
    for index, output in enumerate(outputs):
        if index % 5 == 0:
            assert isinstance(output, InferenceServerException)
            assert output.status() == "StatusCode.INVALID_ARGUMENT"
            assert "'ids' has 99 to 99" in str(output) and "TorchScript" not in str(
                output
            )
        else:
            expected = module(x[index], torch.tensor([index % 20]))[0].detach().numpy()
            np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)


def test_response_has_only_the_requested_outputs(endpoint: Endpoint) -> None:
    from tritonclient import http

    client = http.InferenceServerClient(endpoint.http_url)
    tensors = [
        http.InferInput("x", [1, 3], "FP32"),
        http.InferInput("ids", [1, 1], "INT64"),
    ]
    tensors[0].set_data_from_numpy(np.zeros((1, 3), np.float32))
    tensors[1].set_data_from_numpy(np.zeros((1, 1), np.int64))
    result = client.infer(
        "scorer", tensors, outputs=[http.InferRequestedOutput("best")]
    )
    client.close()
    assert [output["name"] for output in result.get_response()["outputs"]] == ["best"]


def test_every_dtype_is_transferred_unchanged(endpoint: Endpoint) -> None:
    golden = endpoint.artifacts["dtypes"].goldens[0]
    for client in (
        HttpClient(endpoint.http_url, 10),
        GrpcClient(endpoint.grpc_url, 10),
    ):
        output = client.infer("dtypes", golden.inputs)
        client.close()
        assert {n: a.dtype for n, a in output.outputs.items()} == {
            n: a.dtype for n, a in golden.outputs.items()
        }
        assert all(
            (output.outputs[name] == array).all()
            for name, array in golden.outputs.items()
        )


# Shared memory: the outputs are equal, and no region is left on the server or the host. These
# tests are in this file because they use the same server.


def region_files(pid: int = os.getpid()) -> list[Path]:
    return list(Path("/dev/shm").glob(f"trt-build-tensor-{pid}-*"))


def registered(endpoint: Endpoint, kind: str = "system") -> Any:
    client = http.InferenceServerClient(endpoint.http_url)
    status = getattr(client, f"get_{kind}_shared_memory_status")()
    client.close()
    return status


def test_every_golden_passes_through_system_shared_memory(
    endpoint: Endpoint,
) -> None:
    results = verify(
        endpoint.repository,
        endpoint.http_url,
        endpoint.grpc_url,
        shared_memory=["system"],
    )
    for parity in results:
        assert_passed(parity)
        assert {r.protocol for r in parity.results} == {"http system", "grpc system"}
        assert len(parity.results) == 2 * len(endpoint.artifacts[parity.name].goldens)
    assert registered(endpoint) == [] and not region_files()


def test_one_run_verifies_with_and_without_shared_memory(endpoint: Endpoint) -> None:
    (parity,) = verify(
        endpoint.repository,
        None,
        endpoint.grpc_url,
        ["scorer"],
        shared_memory=["none", "system"],
    )
    assert parity.passed
    assert {r.protocol for r in parity.results} == {"grpc", "grpc x16", "grpc system"}


def test_wrong_output_in_shared_memory_fails(endpoint: Endpoint) -> None:
    x = np.ones((2, 3), np.float32)
    wrong = golden_of_unbatched("wrong", x, x * 2 + 2)
    (parity,) = verify(
        endpoint.repository,
        endpoint.http_url,
        None,
        ["unbatched"],
        extra={"unbatched": [wrong]},
        shared_memory=["system"],
    )
    assert {r.golden for r in parity.results if not r.passed} == {"wrong"}
    assert (
        "3.0 instead of 4.0"
        in next(r for r in parity.results if not r.passed).problems[0]
    )


def test_output_larger_than_its_shared_memory_region_fails(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    shutil.copytree(endpoint.repository / "unbatched", tmp_path / "unbatched")
    folder = tmp_path / "unbatched" / "goldens"
    golden = goldens.load_one(folder / "p0-opt.npz")
    one_row = golden.outputs["y"][:1]
    goldens.save(
        [Golden(golden.name, golden.inputs, {**golden.outputs, "y": one_row})], folder
    )
    (parity,) = verify(
        tmp_path, endpoint.http_url, endpoint.grpc_url, shared_memory=["system"]
    )
    failed = [r for r in parity.results if not r.passed]
    assert [r.golden for r in failed] == ["p0-opt", "p0-opt"]
    assert all("shared memory size" in (r.error or "") for r in failed)
    assert registered(endpoint) == [] and not region_files()


def test_unknown_shared_memory_kind_is_a_usage_error(endpoint: Endpoint) -> None:
    with pytest.raises(UsageError, match="'posix'"):
        verify(endpoint.repository, endpoint.http_url, None, shared_memory=["posix"])


@pytest.mark.skipif(gpu.driver() is not None, reason="there is a GPU")
def test_cuda_shared_memory_without_gpu_is_an_environment_problem(
    endpoint: Endpoint,
) -> None:
    with pytest.raises(EnvironmentProblem, match="requires a GPU"):
        verify(endpoint.repository, endpoint.http_url, None, shared_memory=["cuda"])


@pytest.mark.parametrize(
    "protocol", ["grpc-url", pytest.param("url", marks=pytest.mark.slow)]
)
def test_ctrl_c_removes_the_shared_memory_regions(
    endpoint: Endpoint, protocol: str
) -> None:
    """The interrupt arrives while a golden is registered and a request runs."""
    words = [
        "verify",
        str(endpoint.repository),
        "--only",
        "scorer",
        "--shared-memory",
        "system",
        "--repeat",
        "100000",
    ]
    address = endpoint.http_url if protocol == "url" else endpoint.grpc_url
    program = "from builder.cli import main; main(prog_name='trt-build')"
    process = subprocess.Popen(
        [sys.executable, "-c", program, *words, f"--{protocol}", address],
        stderr=subprocess.PIPE,
        text=True,
    )
    client = grpc.InferenceServerClient(endpoint.grpc_url)
    try:
        until = time.monotonic() + 60
        while not client.get_system_shared_memory_status().regions:
            assert process.poll() is None and time.monotonic() < until
            time.sleep(0.05)
        assert region_files(process.pid)
        os.kill(process.pid, signal.SIGINT)
        _, printed = process.communicate(timeout=60)
        assert process.returncode == 130, printed
        assert (
            not client.get_system_shared_memory_status().regions
            and not region_files(process.pid)
        )
    finally:
        process.kill()
        client.close()
