"""moto's S3 server on the loopback, with a record of its write requests."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

SECRET = {
    "AWS_ACCESS_KEY_ID": "KEYIDOFTHETESTS",
    "AWS_SECRET_ACCESS_KEY": "secret-of-the-tests",
}


class Server:
    """An S3 server with the bucket `models`. `writes` has the PUT and DELETE requests on objects,
    as ("PUT", "bucket/key"), in the order in which they succeeded.
    """

    def __init__(self) -> None:
        from moto.server import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        self.writes: list[tuple[str, str]] = []
        self.refused = ""  # part of the key of writes that fail
        self.moto = DomainDispatcherApplication(create_backend_app)
        self.server = make_server("127.0.0.1", 0, self._answer, threaded=True)
        self.url = f"http://127.0.0.1:{self.server.port}"

    def _answer(self, environ: dict[str, Any], start: Any) -> Any:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"].strip("/")
        if method == "PUT" and self.refused and self.refused in path:
            start("403 Forbidden", [("Content-Type", "application/xml")])
            return [
                b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
            ]
        if method in ("PUT", "DELETE"):
            self.writes.append((method, path))
        return self.moto(environ, start)


@contextlib.contextmanager
def serving() -> Iterator[Server]:
    """Run the server until the end of the block."""
    import logging

    from moto.moto_api._internal.models import moto_api_backend

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    s3_server = Server()
    moto_api_backend.reset()  # moto keeps its buckets in this process
    thread = threading.Thread(target=s3_server.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield s3_server
    finally:
        s3_server.server.shutdown()
        s3_server.server.server_close()
        thread.join()
