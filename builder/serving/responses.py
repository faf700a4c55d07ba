"""Responses of a server that may be any program: another one may have taken the port."""

from __future__ import annotations

import urllib.request
from http.client import HTTPException


def read(request: str | urllib.request.Request, timeout: float) -> bytes:
    """Return the body of the response to a GET of an address, or to a request, within `timeout`
    seconds.

    Raises OSError: HTTPError for an HTTP status other than 200 to 299, and ConnectionError for a
    response that is not HTTP.
    """
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            body: bytes = response.read()
            return body
    except HTTPException as error:
        raise ConnectionError(
            f"the response is not from an HTTP server: {error!r}"
        ) from error
