"""Client processes (tests.chaos.asking) and their results since the last call."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

from builder.serving import Server
from tests.chaos.asking import Window

EACH = 4
"""Clients of a process. More would wait for its interpreter and not for the server."""
END_SECONDS = 90.0


class Clients:
    """Runs `count` clients in a `with` block, which wait `pause` seconds between their requests."""

    def __init__(self, server: Server, count: int, pause: float = 0.0) -> None:
        self.lock, self.window, self.died = threading.Lock(), Window(), 0
        self.processes = [
            self._start(server, min(EACH, count - first), first, pause)
            for first in range(0, count, EACH)
        ]
        self.readers = [
            threading.Thread(target=self._read, args=(process,))
            for process in self.processes
        ]

    @staticmethod
    def _start(
        server: Server, clients: int, seed: int, pause: float
    ) -> subprocess.Popen[str]:
        words = [
            server.http_url,
            server.grpc_url,
            f"--clients={clients}",
            f"--seed={seed}",
        ]
        return subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.asking", *words, f"--pause={pause}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Clients:
        for reader in self.readers:
            reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            if process.stdin is not None:
                process.stdin.close()
        for process in self.processes:
            try:
                self.died += process.wait(END_SECONDS) != 0
            except subprocess.TimeoutExpired:
                process.kill()
                self.died += 1
        for reader in self.readers:
            reader.join()

    def taken(self) -> Window:
        """Return the results of the clients since the last call."""
        with self.lock:
            window, self.window = self.window, Window()
        return window

    def _read(self, process: subprocess.Popen[str]) -> None:
        for line in process.stdout or ():
            window = Window.of(json.loads(line))
            with self.lock:
                self.window.add(window)
