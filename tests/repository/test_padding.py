"""`pad` in the manifest: requests of different lengths share a batch, and outputs do not change."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from tritonclient import grpc
from tritonclient.utils import InferenceServerException

from builder.errors import ManifestError
from builder.manifest import load
from builder.serving import Server
from builder.triton import read_config
from tests.repository.conftest import Built
from tests.serving import fakes

MANIFEST = """\
inputs:
  - {name: ids, dtype: int64, shape: [batch, length]}
  - {name: mask, dtype: bool, shape: [batch, length]}
dims:
  batch: {min: 1, opt: 4, max: 16}
  length: {min: 1, opt: 8, max: 24}
pad: {ids: 0, mask: false}
batching: {max_queue_delay_us: 200000}
"""


class Encoder(nn.Module):
    """Attention that ignores masked tokens, with an output per token and one per row."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(40, 16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        queries, keys, values = self.qkv(self.table(ids)).chunk(3, -1)
        scores = (queries @ keys.transpose(1, 2)).masked_fill(~mask[:, None], -1e4)
        tokens = self.out(scores.softmax(-1) @ values)
        kept = mask[:, :, None].to(tokens.dtype)
        return tokens, (tokens * kept).sum(1) / kept.sum(1).clamp(min=1.0)


class Average(Encoder):
    """A model whose output is the mean of all tokens, with padding."""

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        values = self.table(ids) * mask[:, :, None].to(torch.float32)
        return values, values.mean(1)


class Doubled(Encoder):
    """A model whose output is twice as long as its input, so the output cannot be cropped."""

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        values = self.table(ids) * mask[:, :, None].to(torch.float32)
        return values.repeat_interleave(2, 1), values.sum(1)


MODELS = {"encoder": Encoder, "average": Average, "doubled": Doubled}


def write(folder: Path) -> Path:
    torch.manual_seed(0)
    folder.mkdir()
    for name, network in MODELS.items():
        torch.jit.script(network().eval()).save(str(folder / f"{name}.pt"))
        (folder / f"{name}.yaml").write_text(MANIFEST)
    torch.jit.script(Encoder().eval()).save(str(folder / "same.pt"))
    same = MANIFEST.replace("{min: 1, opt: 8, max: 24}", "{min: 8, opt: 8, max: 8}")
    (folder / "same.yaml").write_text(same)
    return folder


def test_padding_is_used_where_the_goldens_confirm_it(built: Built) -> None:
    repository, results = built
    assert all(result.ok for result in results.values())
    unused = {
        name: next((text for text in result.warnings if "`pad`" in text), None)
        for name, result in results.items()
    }
    assert unused["encoder"] is None
    assert "padded along length from" in str(unused["average"])
    assert "'output_1'" in str(unused["average"])
    assert "output_0" in str(unused["doubled"])
    assert "every golden has the longest length" in str(unused["same"])
    for name in results:
        file = repository / name / "config.pbtxt"
        config = read_config(file)
        assert {tensor.allow_ragged_batch for tensor in config.input} == {
            name == "encoder"
        }
        facts = json.loads((repository / name / "1" / "plan.json").read_text())[
            "serving"
        ]
        assert ("padding" in facts) == (name == "encoder")
    facts = json.loads((repository / "encoder" / "1" / "plan.json").read_text())[
        "serving"
    ]
    assert facts["padding"]["crops"] == {"output_0": {"1": "length"}}


def requests(seed: int) -> list[tuple[Tensor, Tensor]]:
    """Requests of one to three rows and 1 to 24 tokens, some of them masked."""
    generator = torch.Generator().manual_seed(seed)
    pairs = []
    for length in (24, 1, 7, 7, 13, 2):
        rows = int(torch.randint(1, 4, (), generator=generator))
        ids = torch.randint(1, 40, (rows, length), generator=generator)
        mask = torch.rand(rows, length, generator=generator) > 0.3
        mask[:, 0] = True
        pairs.append((ids, mask))
    return pairs


def served(folder: Path, batch: int) -> tuple[Any, list[tuple[int, ...]]]:
    """The runtime of a published model, and a list of the shapes of the first input in its runs."""
    model, _ = fakes.runtime()
    runtime = model.TritonPythonModel()
    runtime.initialize(
        {
            "model_repository": str(folder),
            "model_version": "1",
            "model_name": folder.name,
            "model_config": json.dumps({"max_batch_size": batch}),
            "model_instance_kind": "CPU",
            "model_instance_device_id": "0",
        }
    )
    runs: list[tuple[int, ...]] = []
    run = runtime.executor.run

    def counted(tensors: list[Tensor]) -> list[Tensor]:
        runs.append(tuple(tensors[0].shape))
        return run(tensors)

    runtime.executor.run = counted
    return runtime, runs


def test_runtime_batches_requests_and_rejects_only_invalid_ones(built: Built) -> None:
    repository, _ = built
    runtime, batches = served(repository / "encoder", 16)
    module = torch.jit.load(str(repository.parent / "models" / "encoder.pt"))
    sent = requests(0)
    outputs = ["output_0", "output_1"]
    mismatched = fakes.Request(outputs, ids=sent[0][0], mask=sent[0][1][:, :5])
    long = fakes.Request(
        outputs, ids=torch.zeros(1, 25).long(), mask=torch.ones(1, 25).bool()
    )
    sent.append((torch.ones(2, 5).long(), torch.tensor([[True] * 5, [False] * 5])))
    requested = [fakes.Request(outputs, ids=ids, mask=mask) for ids, mask in sent]
    *results, refused, too_long = runtime.execute([*requested, mismatched, long])
    assert batches == [(sum(len(ids) for ids, _ in sent[:-1]), 24), (2, 5)]
    for (ids, mask), output in zip(sent, results, strict=True):
        for name, expected in zip(outputs, module(ids, mask), strict=True):
            assert output.tensors[name].shape == expected.shape
            torch.testing.assert_close(
                output.tensors[name], expected, rtol=1e-4, atol=1e-5
            )
    assert "axis 'length' must have one size" in refused.error
    assert "input 'ids' has shape [1, 25]" in too_long.error


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (
            "pad: {ids: 0, mask: false}",
            "pad: {ids: 0}",
            "input 'mask' has the padded axis",
        ),
        ("pad: {ids: 0,", "pad: {idz: 0, ids: 0,", "no input has the name 'idz'"),
        ("pad: {ids: 0,", "pad: {ids: 0.5,", "0.5 is not an integer"),
        ("pad: {ids: 0,", "pad: {ids: 1e30,", "beyond the range of int64"),
        ("dtype: int64", "dtype: long", "did you mean 'int64'"),
        (
            MANIFEST,
            MANIFEST.replace("int64", "float16").replace("ids: 0", "ids: 1e10"),
            "beyond the range of float16",
        ),
        ("mask: false}", "mask: 0}", "0 is not true or false"),
        ("max_queue_delay_us: 200000", "enabled: false", "'pad' needs batching"),
        (
            "mask: false}",
            "mask: false}\nstate: [{input: ids, output: y}]",
            "without state",
        ),
        ("[batch, length]", "[batch, 8]", "has no dynamic axis behind the first"),
    ],
    ids=lambda text: text[:20],
)
def test_invalid_pad_is_reported(
    tmp_path: Path, before: str, after: str, message: str
) -> None:
    (tmp_path / "net.pt").touch()
    text = MANIFEST.replace(before, after)
    (tmp_path / "net.yaml").write_text(text)
    with pytest.raises(ManifestError, match=message.replace("[", r"\[")):
        load(tmp_path)


@pytest.mark.live
@pytest.mark.slow
def test_server_batches_requests_of_different_lengths(
    built: Built, server: Server
) -> None:
    module = torch.jit.load(str(built[0].parent / "models" / "encoder.pt"))

    def infer_outputs(sent: tuple[Tensor, Tensor]) -> list[np.ndarray]:
        inputs = []
        for name, tensor, dtype in zip(
            ("ids", "mask"), sent, ("INT64", "BOOL"), strict=True
        ):
            inputs.append(grpc.InferInput(name, list(tensor.shape), dtype))
            inputs[-1].set_data_from_numpy(tensor.numpy())
        with grpc.InferenceServerClient(server.grpc_url) as client:
            response = client.infer("encoder", inputs)
        return [response.as_numpy(name) for name in ("output_0", "output_1")]

    sent = [one for seed in range(4) for one in requests(seed)]
    with ThreadPoolExecutor(len(sent)) as pool:
        found = list(pool.map(infer_outputs, sent))
    for (ids, mask), outputs in zip(sent, found, strict=True):
        for output, expected in zip(outputs, module(ids, mask), strict=True):
            np.testing.assert_allclose(
                output, expected.detach().numpy(), rtol=1e-4, atol=1e-5
            )
    with grpc.InferenceServerClient(server.grpc_url) as client:
        (counts,) = client.get_inference_statistics("encoder").model_stats
        assert counts.execution_count < len(sent) / 2
    with pytest.raises(InferenceServerException, match="must have one size"):
        infer_outputs((sent[0][0], sent[0][1][:, :5]))
