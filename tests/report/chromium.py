"""A headless Chromium that is controlled over its debugging pipe, without a driver or package."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
TIMEOUT = 120.0


def program() -> str | None:
    """The path of a Chromium, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Tab:
    """One tab. `events` has everything that Chromium reported: errors, messages, dialogs."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read, self._rest, self._number = write, read, b"", 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a command of the DevTools protocol. Raises AssertionError."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._receive()
            if reply.get("id") == self._number:
                assert "error" not in reply, reply["error"]
                result: dict[str, Any] = reply["result"]
                return result
            self.events.append(reply)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            data = os.read(self._read, 1 << 16)
            assert data, "Chromium ended"
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def open(self, file: Path, width: int = 1400, *, dark: bool = False) -> None:
        """Load a file in a window of this width, and wait until it is loaded."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=file.as_uri())
        self.wait_for("document.readyState + location.protocol === 'completefile:'")

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        reply = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in reply, reply
        return reply["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Wait until an expression is true: the effect of a key may come later. Raises
        AssertionError."""
        end = time.monotonic() + TIMEOUT
        while not self.run(condition):
            assert time.monotonic() < end, condition

    def press(self, key: str) -> None:
        """One key: "Tab", "Enter"."""
        codes = {"Tab": 9, "Enter": 13}
        reply = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
        text = {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **reply, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **reply)

    def picture(self, file: Path) -> None:
        """Write the whole page as PNG."""
        shot = self.call(
            "Page.captureScreenshot", format="png", captureBeyondViewport=True
        )
        file.write_bytes(base64.b64decode(shot["data"]))

    def printed(self) -> bytes:
        """The page as PDF."""
        return base64.b64decode(self.call("Page.printToPDF")["data"])

    def problems(self) -> list[Any]:
        """Errors, warnings, exceptions and dialogs."""
        messages = []
        for event in self.events:
            reply = event.get("params", {})
            kind = event.get("method")
            entry = kind == "Log.entryAdded" and reply["entry"]["level"] in (
                "error",
                "warning",
            )
            console = kind == "Runtime.consoleAPICalled" and reply["type"] in (
                "error",
                "warning",
            )
            thrown = kind in ("Runtime.exceptionThrown", "Page.javascriptDialogOpening")
            if entry or console or thrown:
                messages.append(reply)
        return messages


@contextmanager
def chromium(profile: Path) -> Iterator[Tab]:
    """A tab of a new Chromium with this profile folder. It has no network."""
    command_read, command_write = os.pipe()
    reply_read, reply_write = os.pipe()
    command = [
        str(program()),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        "--remote-debugging-pipe",
        f"--user-data-dir={profile}",
    ]
    # the protocol's pipes are descriptors 3 and 4
    shell = [
        "bash",
        "-c",
        f'exec "$@" 3<&{command_read} 4>&{reply_write}',
        "bash",
        *command,
    ]
    process = subprocess.Popen(
        shell,
        pass_fds=(command_read, reply_write),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(command_read)
    os.close(reply_write)
    try:
        yield Tab(command_write, reply_read)
    finally:
        process.kill()
        process.wait()
        os.close(command_write)
        os.close(reply_read)
