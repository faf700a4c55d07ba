"""Several instances of one model in one process. They share the engine and the CUDA context."""

# ruff: noqa: B905 (images up to 23.04 have Python 3.8, whose zip knows no strict)
from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import Any

import triton_python_backend_utils as pb_utils

from .errors import NoSenders


class Batch:
    """Requests that Triton passed in one call, and what sends their responses. `is_read` is set
    once the memory of the requests is not needed any more.
    """

    def __init__(self, requests: list[Any]) -> None:
        """Raises NoSenders."""
        self.requests = requests
        self.is_read = threading.Event()
        try:
            self.senders = [request.get_response_sender() for request in requests]
        except Exception as error:
            raise NoSenders(
                "this server accepts responses only from `execute` (Triton 24.10 and later accept"
                " them from threads), so the model answers one request at a time:"
                f" {error}"
            ) from error

    def send(self, responses: list[Any]) -> None:
        """Send the responses. Triton has copied them when this returns."""
        for sender, response in zip(self.senders, responses):
            try:
                sender.send(
                    response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
                )
            except Exception as error:
                pb_utils.Logger.log_error(
                    f"trt-build: a response was not sent: {error}"
                )


class Instances:
    """One thread for each of `models`, which have the methods `respond` and `failure`."""

    def __init__(self, models: list[Any]) -> None:
        self.batches: Any = SimpleQueue()
        self.free = threading.Semaphore(len(models) - 1)
        self.threads = [
            threading.Thread(target=self._serve, args=(model,), daemon=True)
            for model in models
        ]
        for thread in self.threads:
            thread.start()

    def submit(self, requests: list[Any]) -> None:
        """Let a free thread respond. Returns when another thread is free: Triton passes the next
        requests then. Until then they wait in Triton's queue, where they are joined to batches.
        Raises NoSenders.
        """
        batch = Batch(requests)
        self.batches.put(batch)
        batch.is_read.wait()
        self.free.acquire()

    def close(self) -> None:
        """Finish the requests and end the threads."""
        for _ in self.threads:
            self.batches.put(None)
        for thread in self.threads:
            thread.join()

    def _serve(self, model: Any) -> None:
        while True:
            batch = self.batches.get()
            if batch is None:
                return
            try:
                responses = model.respond(batch.requests, batch.is_read.set)
            except Exception as error:
                responses = [model.failure(error) for _ in batch.requests]
            batch.is_read.set()  # also if reading failed
            batch.send(responses)
            self.free.release()
