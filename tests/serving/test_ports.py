"""Free ports are all different. A port in use is reported with its flag."""

from __future__ import annotations

import socket

import pytest

from builder.errors import EnvironmentProblem, UsageError
from builder.serving.ports import resolve


def test_port_zero_gives_different_free_ports() -> None:
    ports = resolve(
        "127.0.0.1", {"--http-port": 0, "--grpc-port": 0, "--metrics-port": 0}
    )
    assert len(set(ports.values())) == 3 and all(ports.values())


def test_port_in_use_is_reported_with_its_flag() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(
            EnvironmentProblem, match=f"port {port} on 127.0.0.1 is in use"
        ) as caught:
            resolve("127.0.0.1", {"--http-port": 0, "--grpc-port": port})
    assert "--grpc-port" in (caught.value.fix or "")


def test_equal_ports_are_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(
        UsageError, match=f"--http-port and --grpc-port are both {port}"
    ):
        resolve("127.0.0.1", {"--http-port": port, "--grpc-port": port})


def test_address_of_another_host_is_an_environment_problem() -> None:
    with pytest.raises(EnvironmentProblem, match="cannot listen"):
        resolve("192.0.2.1", {"--http-port": 0})
