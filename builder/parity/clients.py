"""One interface for Triton's HTTP and gRPC protocols."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    ExitStack,
    closing,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
from google.protobuf import json_format
from numpy.typing import NDArray
from tritonclient import grpc as triton_grpc
from tritonclient import http as triton_http
from tritonclient.grpc import model_config_pb2 as pb

from builder.errors import UsageError
from builder.parity.shared_memory import BODY, Regions, wire
from builder.serving import PLAIN, Access
from builder.triton import Golden

Arrays = Mapping[str, NDArray[Any]]
Parameters = Mapping[str, Any]


@dataclass(frozen=True)
class Response:
    """The outputs by name as received, and the response's parameters ({} on servers without
    them).
    """

    outputs: dict[str, NDArray[Any]]
    parameters: dict[str, Any]


@dataclass(frozen=True)
class SequencePosition:
    """The position of a request in its sequence; `id` is the correlation id."""

    id: int | str
    start: bool
    end: bool

    def options(self) -> dict[str, Any]:
        """The arguments of tritonclient's `infer`."""
        return {
            "sequence_id": self.id,
            "sequence_start": self.start,
            "sequence_end": self.end,
        }


class Client(ABC):
    """One protocol to one server. Every call finishes within its timeout, or raises
    InferenceServerException.
    """

    url: str
    """The server's address, HOST:PORT."""
    _library: ModuleType
    _client: Any
    _limits: Mapping[str, float] = {}
    """The arguments of each call that limit its time."""
    _connect: Callable[[], Any] | None = None
    """Opens another connection, if the first cannot be used after an interrupt."""

    def ready(self, model: str) -> bool:
        """Whether the server reports the model as ready."""
        return bool(self._client.is_model_ready(model, **self._limits))

    @abstractmethod
    def config(self, model: str) -> Any:
        """The model's ModelConfig from the server."""

    def infer(
        self,
        model: str,
        inputs: Arrays,
        parameters: Parameters | None = None,
        regions: Regions | None = None,
        position: SequencePosition | None = None,
    ) -> Response:
        """All outputs of the model for these inputs.

        With `regions`, the tensors of one golden are in shared memory. With `position`, the request
        has that position in a sequence.
        """
        options = _request(self._library, inputs, regions, position)
        result = self._client.infer(
            model, parameters=parameters, **self._limits, **options
        )
        return self._response(result, regions)

    @abstractmethod
    def _response(self, result: Any, regions: Regions | None) -> Response: ...

    def regions(
        self, kind: str, golden: Golden
    ) -> AbstractContextManager[Regions | None]:
        """The golden's tensors in shared memory of this kind ("none": in the requests), inside a
        `with` block.
        """
        if kind == BODY:
            return nullcontext()
        return Regions(kind, self._client, golden, self._connect)

    def close(self) -> None:
        """Close the connection, because a stopping server waits for open ones."""
        self._client.close()


class HttpClient(Client):
    """KServe v2 over HTTP."""

    _library = triton_http

    def __init__(self, url: str, timeout: float, access: Access = PLAIN) -> None:
        self.url = url
        self._connect = partial(
            access.http, url, connection_timeout=timeout, network_timeout=timeout
        )
        self._client = self._connect()

    def config(self, model: str) -> Any:
        return json_format.ParseDict(
            self._client.get_model_config(model), pb.ModelConfig()
        )

    def _response(self, result: Any, regions: Regions | None) -> Response:
        response = result.get_response()
        outputs = {
            output["name"]: _array(
                result, regions, output["name"], output["datatype"], output["shape"]
            )
            for output in response.get("outputs", ())
        }
        return Response(outputs, dict(response.get("parameters", {})))


class GrpcClient(Client):
    """KServe v2 over gRPC; may be used from several threads."""

    _library = triton_grpc

    def __init__(self, url: str, timeout: float, access: Access = PLAIN) -> None:
        self.url = url
        self._client = access.grpc(url)
        self._limits = {"client_timeout": timeout}

    def config(self, model: str) -> Any:
        return self._client.get_model_config(model, **self._limits).config

    def _response(self, result: Any, regions: Regions | None) -> Response:
        response = result.get_response()
        outputs = {
            output.name: _array(
                result, regions, output.name, output.datatype, output.shape
            )
            for output in response.outputs
        }
        settings = {
            key: getattr(value, value.WhichOneof("parameter_choice"))
            for key, value in response.parameters.items()
        }
        return Response(outputs, settings)


@contextmanager
def connected(
    command: str,
    http_url: str | None,
    grpc_url: str | None,
    timeout: float,
    access: Access = PLAIN,
    *,
    other_options: str = "",
) -> Iterator[dict[str, Client]]:
    """The clients of the protocols with an address, inside a `with` block. Raises UsageError
    without an address; it names the `command` and its `other_options` for an endpoint.
    """
    with ExitStack() as stack:
        clients = _open(http_url, grpc_url, timeout, access)
        for client in clients.values():
            stack.enter_context(closing(client))
        if not clients:
            raise missing_address(command, other_options)
        yield clients


def missing_address(command: str, other_options: str = "") -> UsageError:
    """The error of a `command` without the address of an endpoint or one of its `other_options`."""
    return UsageError(
        f"{command} needs the address of an endpoint",
        fix=f"pass --url HOST:PORT or --grpc-url HOST:PORT{other_options}",
    )


def _open(
    http_url: str | None, grpc_url: str | None, timeout: float, access: Access
) -> dict[str, Client]:
    """The clients of the protocols with an address. Raises UsageError for a malformed address."""
    clients: dict[str, Client] = {}
    if http_url:
        clients["http"] = HttpClient(http_url, timeout, access)
    if grpc_url:
        clients["grpc"] = GrpcClient(grpc_url, timeout, access)
    return clients


def describe(
    client: Client, model: str, inputs: Arrays, position: SequencePosition | None = None
) -> dict[str, Any]:
    """Facts of the Python runtime, from a request that it refuses with them as JSON; {} for any
    other backend.
    """
    from tritonclient.utils import InferenceServerException

    try:
        client.infer(model, inputs, {"trt_build.describe": True}, position=position)
    except InferenceServerException as refusal:
        text = refusal.message() or ""
        with suppress(ValueError):  # not JSON
            return dict(json.loads(text[text.index("{") :]))
    return {}


def _array(
    result: Any, regions: Regions | None, name: str, datatype: str, shape: Sequence[int]
) -> NDArray[Any]:
    """The output of a response, from shared memory if there is any."""
    if regions:
        return regions.read(name, datatype, shape)
    array: NDArray[Any] = result.as_numpy(name)
    return array


def _request(
    module: ModuleType,
    arrays: Arrays,
    regions: Regions | None,
    position: SequencePosition | None,
) -> dict[str, Any]:
    """Arguments of tritonclient's `infer`: the arrays or their shared memory regions, and the
    position in a sequence.
    """
    options: dict[str, Any] = {}
    if position:
        options = dict(position.options())
    if regions:
        return {
            **options,
            "inputs": regions.inputs(module),
            "outputs": regions.outputs(module),
        }
    return {
        **options,
        "inputs": [_input(module, name, array) for name, array in arrays.items()],
    }


def _input(module: ModuleType, name: str, array: NDArray[Any]) -> Any:
    tensor = module.InferInput(name, list(array.shape), wire(array))
    return tensor.set_data_from_numpy(np.ascontiguousarray(array))
