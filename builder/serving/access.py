"""Access to an endpoint: its address, TLS, and request headers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tritonclient import grpc as triton_grpc
from tritonclient import http as triton_http

from builder.errors import EnvironmentProblem, UsageError, summary

SECURE = ("https", "grpcs")
SCHEMES = ("http", "grpc", *SECURE)


class _HttpClient(triton_http.InferenceServerClient):  # type: ignore[misc]
    """Raises OSError, as for other failures of a connection, if the response is not HTTP or from
    another kind of server, or if the connection is closed before it.
    """

    def _get(self, request_uri: str, **options: Any) -> Any:
        may_be_empty = request_uri.endswith(("/ready", "/live"))
        return _requested(super()._get, request_uri, options, may_be_empty)

    def _post(self, request_uri: str, **options: Any) -> Any:
        return _requested(super()._post, request_uri, options, may_be_empty=True)


def _requested(
    send: Callable[..., Any],
    uri: str,
    options: Mapping[str, Any],
    may_be_empty: bool,
) -> Any:
    try:
        response = send(uri, **options)
    except HTTPException as error:
        raise ConnectionError(
            f"the response is not from an HTTP server: {error}"
        ) from error
    kind = str(response.get("content-type") or "")
    # tritonclient accepts any response with status 200. Triton's HTTP endpoint responds with text
    # only if it is empty. Its metrics port responds to every GET with an empty text.
    is_empty = response.get("content-length") == "0"
    is_text = kind.startswith("text/") and not (is_empty and may_be_empty)
    if response.status_code == 200 and is_text:
        raise ConnectionError(f"the response is not from Triton: it is {kind}")
    return response


def no_server(
    error: Exception, url: str, *, protocol: str = "http", address: str = "--url"
) -> EnvironmentProblem:
    """The error if no server responds at `url`. The fix says to correct `address`."""
    return EnvironmentProblem(
        f"no Triton server responds over {protocol}: {summary(error)}",
        where=url,
        fix=f"run trt-build serve, or correct {address}",
    )


@dataclass(frozen=True)
class Access:
    """The settings that all clients of an endpoint share.

    Addresses with the scheme https or grpcs use TLS, all others do not. `ca` is the file of CA
    certificates (PEM) that verify the server, None for the system's. `certificate` and `key` (PEM)
    are the client's own, for mutual TLS. `headers` are sent with each request.
    """

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Raise UsageError if a file is missing or has no certificates or key, or if only one of
        certificate and key is set.

        gRPC does not report invalid contents of its files.
        """
        if (self.certificate is None) != (self.key is None):
            raise UsageError(
                "a client certificate needs its key, and the key its certificate",
                fix="give both --tls-cert and --tls-key",
            )
        for file in filter(None, (self.ca, self.certificate, self.key)):
            if not file.is_file():
                raise UsageError(
                    f"{file} is not a file", fix="name a file with certificates in PEM"
                )
        if self.ca or self.certificate:
            import ssl

            self._context(ssl.create_default_context)

    def client(self, protocol: str, url: str) -> Any:
        """Return the client of this protocol ("grpc", else HTTP)."""
        if protocol == "grpc":
            return self.grpc(url)
        return self.http(url)

    def http(self, url: str, **options: Any) -> Any:
        """Return a tritonclient.http client. Raises UsageError for an invalid address."""
        address, secure = parsed(url)
        if secure:
            options |= {"ssl": True, "ssl_context_factory": self._gevent_context}
        return self._with_headers(_HttpClient(address, **options))

    def grpc(self, url: str) -> Any:
        """Return a tritonclient.grpc client. Raises UsageError for an invalid address."""
        return self._grpc(triton_grpc.InferenceServerClient, url)

    def http_aio(self, url: str, **options: Any) -> Any:
        """Return a tritonclient.http.aio client. Raises UsageError for an invalid address."""
        import tritonclient.http.aio as http

        address, secure = parsed(url)
        if secure:
            import ssl

            options |= {
                "ssl": True,
                "ssl_context": self._context(ssl.create_default_context),
            }
        return self._with_headers(http.InferenceServerClient(address, **options))

    def grpc_aio(self, url: str) -> Any:
        """Return a tritonclient.grpc.aio client. Raises UsageError for an invalid address."""
        from tritonclient.grpc import aio

        return self._grpc(aio.InferenceServerClient, url)

    def _grpc(self, client: Callable[..., Any], url: str) -> Any:
        address, secure = parsed(url)
        options: dict[str, Any] = {}
        if secure:
            options = {
                "ssl": True,
                "root_certificates": _text(self.ca),
                "private_key": _text(self.key),
                "certificate_chain": _text(self.certificate),
            }
        return self._with_headers(client(address, **options))

    def _gevent_context(self) -> Any:
        from gevent import ssl  # type: ignore[import-untyped]

        return self._context(ssl.create_default_context)

    def _context(self, make: Callable[..., Any]) -> Any:
        try:
            context = make(cafile=_text(self.ca))
        except OSError as error:
            raise UsageError(
                f"{self.ca} has no certificates in PEM: {error}", where="--tls-ca"
            ) from error
        if self.certificate is not None:
            try:
                # without a password, OpenSSL prompts for one on the terminal
                context.load_cert_chain(
                    _text(self.certificate), _text(self.key), password=""
                )
            except OSError as error:
                raise UsageError(
                    f"the client certificate cannot be used: {error}",
                    where=str(self.certificate),
                    fix="use a certificate in PEM, and its key without a passphrase",
                ) from error
        return context

    def _with_headers(self, client: Any) -> Any:
        if self.headers:
            client.register_plugin(functools.partial(_add_headers, dict(self.headers)))
        return client


PLAIN = Access()
"""Default access, without TLS and headers."""


def parsed(url: str) -> tuple[str, bool]:
    """Return the address for tritonclient (host:port, and a path if there is one), and whether TLS
    is used.

    Raises UsageError for an invalid address.
    """
    scheme, separator, address = url.rpartition("://")
    bare = address.rstrip("/")
    try:
        parts = urlsplit(f"//{bare}")
        known = (
            bool(parts.hostname) and parts.port != 0 and not any(map(str.isspace, bare))
        )
    except ValueError:  # unbalanced brackets, or a port that is not a number
        known = False
    if not known or (separator and scheme not in SCHEMES):
        raise UsageError(
            f"{url!r} is not an address of an endpoint",
            fix="write HOST:PORT, such as localhost:8000; begin with https:// or grpcs:// for TLS",
        )
    return bare, scheme in SECURE


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _add_headers(headers: Mapping[str, str], request: Any) -> None:
    """Add headers with lowercase names: gRPC requires them, and HTTP ignores case."""
    lowercase = {name.lower(): value for name, value in headers.items()}
    request.headers = {**(request.headers or {}), **lowercase}
