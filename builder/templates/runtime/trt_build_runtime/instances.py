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
    once no GPU memory of the requests is needed. Their tensors on the CPU stay valid as long as
    the requests are referenced.
    """

    def __init__(self, requests: list[Any]) -> None:
        """Raises NoSenders."""
        self.requests = requests
        self.is_read = threading.Event()
        try:
            self.senders = [request.get_response_sender() for request in requests]
        except Exception as error:
            raise NoSenders(
                "this server accepts responses only from `execute` (Triton 24.10 and"
                " later accept them from threads), so the model runs one request at a"
                f" time: {error}"
            ) from error

    def send(self, responses: list[Any]) -> None:
        """Send the responses. Triton has copied them when this returns."""
        final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        for sender, response in zip(self.senders, responses):
            if response.has_error():  # it would be lost if the end came by itself
                self._try("an error", sender.send, response, flags=final)
                continue
            self._try("a response", sender.send, response)
            # By itself: a response that does not fit into shared memory counts as sent, and the
            # client of a request that is never complete waits forever.
            self._try("the end of a response", sender.send, flags=final)

    def _try(self, sent: str, send: Any, *arguments: Any, **options: Any) -> None:
        try:
            send(*arguments, **options)
        except Exception as error:
            pb_utils.Logger.log_error(f"trt-build: {sent} was not sent: {error}")


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
                self._answer(model, batch)
            except Exception as error:  # the thread is needed for the next requests
                pb_utils.Logger.log_error(
                    f"trt-build: a batch was not answered: {error}"
                )
            finally:
                self.free.release()
            # An idle thread must keep no request: a response sender keeps the model loaded, and a
            # tensor the client's region mapped.
            del batch

    def _answer(self, model: Any, batch: Batch) -> None:
        try:
            responses = model.respond(batch.requests, batch.is_read.set)
        except BaseException as error:  # SystemExit of a custom operator, too
            failure = model.failure(RuntimeError(f"{type(error).__name__}: {error}"))
            responses = [failure for _ in batch.requests]
        finally:
            batch.is_read.set()  # also if reading failed
        batch.send(responses)
