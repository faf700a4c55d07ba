"""TLS, client certificates and tokens: gRPC to tritonserver, HTTP through a TLS proxy."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from builder.cli import main
from builder.errors import UsageError
from builder.serving import Access, Server, find
from builder.serving.access import parsed
from builder.serving.server import start

TOKEN = "a token of the tests"


def make_certificate(folder: Path, name: str, issuer: str | None) -> None:
    """Write a key and a certificate for localhost, signed by `issuer` or self-signed."""
    words = [
        "openssl",
        "req",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
    ]
    words += [
        "-nodes",
        "-keyout",
        f"{name}.key",
        "-subj",
        f"/CN={name}",
        "-x509",
        "-days",
        "2",
    ]
    words += ["-out", f"{name}.pem"]
    if issuer:
        words += ["-CA", f"{issuer}.pem", "-CAkey", f"{issuer}.key"]
        words += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
        words += ["-addext", "basicConstraints=critical,CA:FALSE"]
    subprocess.run(words, cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    folder = tmp_path_factory.mktemp("keys")
    make_certificate(folder, "ca", None)
    make_certificate(folder, "other", None)
    for name in ("server", "client"):
        make_certificate(folder, name, "ca")
    return folder


@dataclass
class Proxy:
    """Terminates TLS before `upstream` (host:port); requires a client certificate and the token."""

    keys: Path
    upstream: str
    refused: int = 0

    def __post_init__(self) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(self.keys / "server.pem", self.keys / "server.key")
        self.context.load_verify_locations(self.keys / "ca.pem")
        self.context.verify_mode = ssl.CERT_REQUIRED
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://localhost:{self.listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                accepted = self.listening.accept()[0]
                threading.Thread(
                    target=self._serve, args=(accepted,), daemon=True
                ).start()

    def _serve(self, accepted: socket.socket) -> None:
        with contextlib.suppress(OSError, ssl.SSLError):
            client = self.context.wrap_socket(accepted, server_side=True)
            head = client.recv(1 << 16)
            if f"authorization: bearer {TOKEN}".encode() not in head.lower():
                self.refused += 1
                client.sendall(
                    b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"
                )
                return client.close()
            host, _, port = self.upstream.rpartition(":")
            server = socket.create_connection((host, int(port)))
            server.sendall(head)
            threading.Thread(target=_copy, args=(server, client), daemon=True).start()
            _copy(client, server)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError, ssl.SSLError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.close()


@pytest.fixture(scope="module")
def server(valid_repository: Path, keys: Path) -> Iterator[Server]:
    """A server with mutual TLS over gRPC and plain HTTP for the proxy."""
    flags = [
        "--model-control-mode=none",
        "--grpc-use-ssl=true",
        "--grpc-use-ssl-mutual=true",
        f"--grpc-server-cert={keys / 'server.pem'}",
        f"--grpc-server-key={keys / 'server.key'}",
        f"--grpc-root-cert={keys / 'ca.pem'}",
    ]
    free = dict.fromkeys(("--http-port", "--grpc-port", "--metrics-port"), 0)
    address = "127.0.0.1"
    with start(
        valid_repository,
        port=free,
        address=address,
        options=flags,
        log_path=None,
        installation=find(),
    ) as running:
        running.wait_ready(120)
        yield running


def run(command: str, repository: Path, *words: object) -> Result:
    return CliRunner().invoke(main, [command, str(repository), *map(str, words)])


@pytest.mark.live
@pytest.mark.slow
def test_verify_health_and_bench_reach_a_server_over_mutual_tls(
    valid_repository: Path, keys: Path, server: Server, tmp_path: Path
) -> None:
    proxy = Proxy(keys, server.http_url)
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    grpc = [
        "--grpc-url",
        f"grpcs://{server.grpc_url.replace('127.0.0.1', 'localhost')}",
    ]
    ca = ["--tls-ca", keys / "ca.pem"]
    own = ["--tls-cert", keys / "client.pem", "--tls-key", keys / "client.key"]
    both = ["--url", proxy.url, *grpc, *ca, *own, "--token-file", tmp_path / "token"]
    result = run("verify", valid_repository, *both, "--repeat", 0)
    assert result.exit_code == 0, result.output
    assert run("health", valid_repository, *both).exit_code == 0
    load = [
        "--protocol",
        "http",
        "--protocol",
        "grpc",
        "--concurrency",
        1,
        "--seconds",
        1,
    ]
    benched = run("bench", valid_repository, *both, *load)
    assert benched.exit_code == 0, benched.output
    # without the client's certificate, with another authority, without the token
    quick = ("--timeout", 5)
    assert run("health", valid_repository, *grpc, *ca, *quick).exit_code == 4
    other = ["--tls-ca", keys / "other.pem"]
    assert run("health", valid_repository, *grpc, *other, *own, *quick).exit_code == 4
    unknown = run("health", valid_repository, "--url", proxy.url, *other, *own, *quick)
    assert unknown.exit_code == 4 and "CERTIFICATE_VERIFY_FAILED" in unknown.output
    for command in (
        "health",
        "verify",
        "push",
        "doctor",
    ):  # TLS is expected at this address
        plain = run(
            command, valid_repository, "--url", proxy.url.replace("https", "http")
        )
        assert plain.exit_code == 4 and "no Triton server responds" in plain.output, (
            plain.output
        )
    refused = run("health", valid_repository, "--url", proxy.url, *ca, *own, *quick)
    assert refused.exit_code == 4 and proxy.refused


def test_scheme_of_an_address_selects_tls() -> None:
    assert parsed("localhost:8000") == ("localhost:8000", False)
    assert parsed("http://localhost:8000/") == ("localhost:8000", False)
    assert parsed("https://host/triton") == ("host/triton", True)
    assert parsed("grpcs://host:8001") == ("host:8001", True)
    with pytest.raises(UsageError, match="not an address of an endpoint"):
        parsed("ftp://host:8001")


def test_invalid_tls_options_are_usage_errors(
    tmp_path: Path, valid_repository: Path
) -> None:
    with pytest.raises(UsageError, match="needs its key"):
        Access(certificate=tmp_path / "client.pem").check()
    http = ("--url", "https://localhost:1")
    token, text = tmp_path / "token", tmp_path / "text"

    def refusal(*words: object) -> str:
        result = run("health", valid_repository, "--url", "localhost:1", *words)
        assert result.exit_code == 2, result.output
        return result.output

    assert "is not a file" in refusal(*http, "--tls-ca", tmp_path / "none")
    text.write_text("no certificate")
    for url in (http, ("--grpc-url", "grpcs://localhost:1")):
        assert "has no certificates in PEM" in refusal(*url, "--tls-ca", text)
    assert "NAME=VALUE" in refusal("--header", "no-value")
    token.touch()
    assert "is empty" in refusal("--token-file", token)
    token.write_text("one\ntwo\n")
    assert "more than a token" in refusal("--token-file", token)


def test_unusable_client_key_is_a_usage_error(
    tmp_path: Path, keys: Path, valid_repository: Path
) -> None:
    """The check makes no connection and does not prompt for a passphrase."""
    locked = tmp_path / "locked.key"
    words = ["openssl", "pkey", "-aes256", "-passout", "pass:secret", "-out", locked]
    subprocess.run(
        [*words, "-in", keys / "client.key"], check=True, capture_output=True
    )
    url, own = (
        ("--url", "localhost:1", "--grpc-url", "grpcs://localhost:1"),
        keys / "client.pem",
    )
    for key in (locked, keys / "other.key", own):
        result = run(
            "health", valid_repository, *url, "--tls-cert", own, "--tls-key", key
        )
        assert (
            result.exit_code == 2
            and "the client certificate cannot be used" in result.output
        )
