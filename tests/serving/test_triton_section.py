"""The manifest's `triton:` section on real servers: queue policies, priorities, the response cache,
the rate limiter, and several hundred generated sections.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import json_format
from google.protobuf.message import Message
from tritonclient import grpc as triton_grpc
from tritonclient import http as triton_http
from tritonclient.grpc import model_config_pb2 as pb
from tritonclient.utils import InferenceServerException

from builder.manifest.spec import Versions
from builder.parity.clients import GrpcClient
from builder.serving import FREE_PORTS, PLAIN, Server, control, features, serve
from builder.triton import history, publish
from builder.triton.artifact import ModelArtifact
from tests.triton.artifacts import Affine, Raise, artifact, pair, reseal, tensor

pytestmark = [pytest.mark.live, pytest.mark.slow]

SECONDS = 1.0
"""The time that the slow model takes."""


def net(name: str, offset: int = 1, keep: int = 0, **section: Any) -> ModelArtifact:
    inputs = (tensor("x", "float32", "batch", 2),)
    model_artifact = artifact(
        Raise(offset),
        inputs,
        ("y",),
        name=name,
        serve_as="python",
        triton=section,
    )
    return replace(
        model_artifact, spec=replace(model_artifact.spec, versions=Versions(keep=keep))
    )


def slow(repository: Path, name: str, **section: Any) -> None:
    """Publish a model that computes for SECONDS, one request at a time."""
    model = net(name, **section)
    folder = publish(replace(model, profiles=({"batch": (1, 2, 2)},)), repository)
    program = folder / "1/model.py"
    text, begin = (
        program.read_text(),
        "def execute(self, requests: list[Any]) -> list[Any] | None:\n",
    )
    assert begin in text
    program.write_text(
        text.replace(begin, f"{begin}        __import__('time').sleep({SECONDS})\n")
    )
    reseal(folder)


class Request(threading.Thread):
    """One request of two rows, the largest batch of the slow model, with its result."""

    def __init__(
        self, server: Server, model: str, kind: str = "grpc", **options: Any
    ) -> None:
        super().__init__()
        self.server, self.model, self.kind, self.options = server, model, kind, options
        self.answer: float | None = None
        self.error = ""
        self.ended = 0.0
        self.start()

    def run(self) -> None:
        module = {"grpc": triton_grpc, "http": triton_http}[self.kind]
        url = {"grpc": self.server.grpc_url, "http": self.server.http_url}[self.kind]
        tensor = module.InferInput("x", [2, 2], "FP32")
        tensor.set_data_from_numpy(np.zeros((2, 2), "float32"))
        with closing(module.InferenceServerClient(url)) as client:
            try:
                result = client.infer(self.model, [tensor], **self.options)
                self.answer = float(result.as_numpy("y")[0, 0])
            except InferenceServerException as error:
                self.error = f"{error.status()} {error.message()}"
        self.ended = time.monotonic()


def join_all(requests: list[Request]) -> list[Request]:
    for request in requests:
        request.join()
    return requests


QUEUE = {
    "dynamic_batching": {
        "priority_levels": 2,
        "default_priority_level": 2,
        "default_queue_policy": {"max_queue_size": 3, "timeout_action": "REJECT"},
        "priority_queue_policy": {
            1: {"max_queue_size": 8},
            2: {
                "max_queue_size": 3,
                "timeout_action": "REJECT",
                "default_timeout_microseconds": int(2.5 * SECONDS * 1e6),
            },
        },
    }
}


def test_overload_is_rejected_with_the_configured_error(tmp_path: Path) -> None:
    slow(tmp_path, "slow", **QUEUE)
    with serve(tmp_path, **FREE_PORTS) as server:
        first = Request(server, "slow")
        time.sleep(SECONDS / 4)
        regular = [Request(server, "slow", kind) for kind in ("http", "grpc") * 6]
        time.sleep(SECONDS / 4)
        urgent = [Request(server, "slow", priority=1) for _ in range(3)]
        join_all([first, *regular, *urgent])
    rejected = [one.error for one in regular if one.error]
    full = [error for error in rejected if "Exceeds maximum queue size" in error]
    assert len(full) >= 8, rejected
    assert {error[:3] for error in full} == {"503", "Sta"}
    assert any(error.startswith("StatusCode.UNAVAILABLE") for error in full)
    late = [error for error in rejected if "Request timeout expired" in error]
    assert late and len(late) + len(full) == len(rejected), "urgent requests come first"
    answered = [one for one in (first, *regular, *urgent) if not one.error]
    assert {one.answer for one in answered} == {1.0}
    assert not any(one.error for one in urgent)
    regular_ends = [one.ended for one in regular if not one.error]
    assert (
        sum(one.ended < min(regular_ends, default=time.monotonic()) for one in urgent)
        >= 2
    )


def cache_hits(server: Server, name: str) -> int:
    with closing(triton_http.InferenceServerClient(server.http_url)) as client:
        statistics = client.get_inference_statistics(name)["model_stats"]
    return sum(int(one["inference_stats"]["cache_hit"]["count"]) for one in statistics)


def test_cached_responses_belong_to_the_served_version(
    tmp_path: Path,
) -> None:
    served, cache = tmp_path / "served", {"response_cache": {"enable": True}}
    publish(net("net", 1, keep=1, **cache), served)
    publish(net("net", 5, keep=1, **cache), tmp_path / "new")
    assert features.outdated(served) == []
    mode: dict[str, Any] = {"explicit": True, "models": ["*"], "response_cache": 8}
    with serve(served, **FREE_PORTS, **mode) as server:
        answers = [
            one.answer for _ in range(3) for one in join_all([Request(server, "net")])
        ]
        assert answers == [1.0] * 3 and cache_hits(server, "net") == 2
        history.promote(tmp_path / "new/net", served)
        control.update(server.http_url, served / "net", drain=0)
        answers = [
            one.answer for _ in range(2) for one in join_all([Request(server, "net")])
        ]
        assert answers == [5.0] * 2 and cache_hits(server, "net") == 1
    with serve(served, **FREE_PORTS) as server:  # without a response cache
        join_all([Request(server, "net")])
        join_all([Request(server, "net")])
        assert cache_hits(server, "net") == 0


def test_cache_is_stale_after_replacement_without_a_new_version(
    tmp_path: Path,
) -> None:
    """A manifest with a response cache therefore needs `versions`."""
    served, cache = tmp_path / "served", {"response_cache": {"enable": True}}
    publish(net("net", 1, **cache), served)
    assert features.outdated(served) == ["net"]
    mode: dict[str, Any] = {"explicit": True, "models": ["*"], "response_cache": 8}
    with serve(served, **FREE_PORTS, **mode) as server:
        join_all([Request(server, "net")])
        publish(net("net", 5, **cache), served)
        control.update(server.http_url, served / "net", drain=0)
        (response,) = join_all([Request(server, "net")])
    assert response.answer == 1.0


@pytest.mark.parametrize("limited", [True, False])
def test_instances_wait_for_rate_limiter_resources(
    tmp_path: Path, limited: bool
) -> None:
    """Two models need the same resource, so only one of them runs at a time."""
    limiter = {
        "rate_limiter": {"resources": [{"name": "R", "global": True, "count": 1}]}
    }
    group = {"kind": "KIND_CPU", "count": 1, **(limiter if limited else {})}
    for name in ("one", "other"):
        slow(tmp_path, name, instance_group=[group])
    with serve(tmp_path, **FREE_PORTS) as server:
        join_all([Request(server, name) for name in ("one", "other")])
        begun = time.monotonic()
        both = join_all([Request(server, name) for name in ("one", "other")])
        took = time.monotonic() - begun
    assert {one.answer for one in both} == {1.0}
    assert (took > 1.9 * SECONDS) == limited


SECTIONS, PARTS = 300, 6
ENSEMBLES = 30
"""One section of an ensemble follows this number of sections."""
TRIVIAL = """
import triton_python_backend_utils as utils

class TritonPythonModel:
    def execute(self, requests):
        tensors = [utils.get_input_tensor_by_name(request, "x") for request in requests]
        return [utils.InferenceResponse([utils.Tensor("y", x.as_numpy() * 2 + 1)]) for x in tensors]
"""


def random_policy(draw: random.Random) -> dict[str, Any]:
    fields = {
        "timeout_action": draw.choice(["REJECT", "DELAY"]),
        "default_timeout_microseconds": draw.choice([0, 60_000_000]),
        "allow_timeout_override": draw.random() < 0.5,
        "max_queue_size": draw.choice([0, 1, 100]),
    }
    return random_subset(draw, fields)


def random_subset(draw: random.Random, fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if draw.random() < 0.6}


def random_batching(draw: random.Random) -> dict[str, Any]:
    if draw.random() < 0.2:
        return {
            "preserve_ordering": True,
            "default_queue_policy": {"max_queue_size": 9},
        }
    found = random_subset(draw, {"default_queue_policy": random_policy(draw)})
    if levels := draw.choice([0, 2, 5]):
        found |= {
            "priority_levels": levels,
            "default_priority_level": draw.randint(1, levels),
        }
        found["priority_queue_policy"] = {draw.randint(1, levels): random_policy(draw)}
    return found


def random_group(draw: random.Random, number: int) -> dict[str, Any]:
    is_global = draw.random() < 0.5  # the same for all models with this resource
    resources = [{"name": f"R{number}{is_global}", "global": is_global, "count": 1}]
    limiter = random_subset(
        draw, {"resources": resources, "priority": draw.randint(1, 3)}
    )
    fields = {
        "name": f"g{number}",
        "count": draw.randint(1, 2),
        "rate_limiter": limiter,
    }
    return {"kind": "KIND_CPU", **random_subset(draw, fields)}


def random_section(seed: int) -> dict[str, Any]:
    """A section with fields of every kind that a server without a GPU accepts."""
    draw = random.Random(seed)
    pinned = {"enable": draw.random() < 0.5}
    fields = {
        "version_policy": draw.choice(
            [
                {"all": {}},
                {"latest": {"num_versions": 3}},
                {"specific": {"versions": [1]}},
            ]
        ),
        "response_cache": {"enable": draw.random() < 0.5},
        "metric_tags": {f"tag{draw.randint(1, 3)}": draw.choice(["a", "a b", ""])},
        "parameters": {"mine": {"string_value": draw.choice(["", "x", "é"])}},
        "optimization": random_subset(
            draw,
            {
                "priority": draw.choice(["PRIORITY_MAX", "PRIORITY_MIN"]),
                "input_pinned_memory": pinned,
                "output_pinned_memory": pinned,
                "gather_kernel_buffer_threshold": 4,
                "eager_batching": True,
                "graph": {"level": 1},
            },
        ),
        "dynamic_batching": random_batching(draw),
        "instance_group": [
            random_group(draw, number) for number in range(draw.randint(1, 2))
        ],
    }
    return random_subset(draw, fields)


@pytest.fixture(scope="module")
def sections(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    """A server with response cache and rate limiter, and a repository with all sections."""
    repository = tmp_path_factory.mktemp("sections")
    inputs = (tensor("x", "float32", "batch", 2),)
    model_artifact = artifact(Affine(), inputs, ("y",), serve_as="python")
    for seed in range(SECTIONS):
        spec = replace(
            model_artifact.spec, name=f"net{seed}", triton=random_section(seed)
        )
        folder = publish(replace(model_artifact, spec=spec), repository)
        (folder / "1/model.py").write_text(TRIVIAL)  # loads ten times as fast
        if seed % ENSEMBLES == 0:
            publish(
                pair(1, name=f"pair{seed}", triton=random_section(seed)), repository
            )
    mode: dict[str, Any] = {"explicit": True, "models": ["net0"], "response_cache": 8}
    with serve(repository, **FREE_PORTS, **mode) as server:
        yield server, repository


@contextmanager
def connected(server: Server) -> Iterator[tuple[control.Control, GrpcClient]]:
    with (
        control.connected(server.http_url, PLAIN, 60, server.grpc_url) as api,
        closing(GrpcClient(server.grpc_url, 30)) as client,
    ):
        yield api, client


@pytest.mark.parametrize("part", range(PARTS))
def test_every_generated_section_is_served(
    sections: tuple[Server, Path], part: int
) -> None:
    server, repository = sections
    x = np.ones((2, 2), "float32")
    with connected(server) as (api, client):
        for seed in range(part, SECTIONS, PARTS):
            name = f"net{seed}"
            api.load(repository / name)
            assert (client.infer(name, {"x": x}).outputs["y"] == 3).all()
            expected = json_format.ParseDict(random_section(seed), pb.ModelConfig())
            assert _contains_fields(expected, client.config(name)), (
                expected,
                client.config(name),
            )
            api.unload([name])


def test_sections_of_ensembles_are_served(
    sections: tuple[Server, Path],
) -> None:
    server, repository = sections
    x = np.ones((2, 2), "float32")
    with connected(server) as (api, client):
        for seed in range(0, SECTIONS, ENSEMBLES):
            folder = repository / f"pair{seed}"
            api.load(folder)
            assert (client.infer(folder.name, {"x": x}).outputs["y"] == x).all()
            api.unload(
                [
                    folder.name,
                    *(path.name for path in repository.glob(f"{folder.name}.*")),
                ]
            )


def _contains_fields(expected: Any, found: Any) -> bool:
    """Whether the server's config has all fields of the section. The server adds defaults."""
    if not isinstance(expected, Message):
        return bool(expected == found)
    if isinstance(expected, pb.ModelOptimizationPolicy.PinnedMemoryBuffer):
        return bool(expected == found)  # false is not among the fields below
    names = {field.name for field, _ in found.ListFields()}
    return all(
        field.name in names and _contains_value(value, getattr(found, field.name))
        for field, value in expected.ListFields()
    )


def _contains_value(expected: Any, found: Any) -> bool:
    if (
        isinstance(expected, Message)
        or not hasattr(expected, "__len__")
        or isinstance(expected, str)
    ):
        return _contains_fields(expected, found)
    if hasattr(expected, "keys"):
        return all(
            key in found and _contains_fields(expected[key], found[key])
            for key in expected
        )
    return len(expected) == len(found) and all(map(_contains_fields, expected, found))
