"""Chooses free ports and reports a port that is in use, before a server is started."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Mapping

from builder.errors import EnvironmentProblem, UsageError

LAST = 65535


def resolve(address: str, requested: Mapping[str, int]) -> dict[str, int]:
    """The port of each flag; 0 is replaced by a free one.

    Raises UsageError for an invalid port number. Raises EnvironmentProblem for a port in use, with
    the port and the flag that changes it.
    """
    for flag, port in requested.items():
        if not 0 <= port <= LAST:
            raise UsageError(
                f"{flag} {port}: a port is a number from 1 to {LAST}",
                fix="use 0 for a free port",
            )
    _refuse_equal(requested)
    with contextlib.ExitStack() as stack:
        # All are open at the same time, so that no two get the same free port.
        sockets = {
            flag: stack.enter_context(_bound(address, port, flag))
            for flag, port in requested.items()
        }
        return {flag: int(bound.getsockname()[1]) for flag, bound in sockets.items()}


def _refuse_equal(requested: Mapping[str, int]) -> None:
    flags: dict[int, str] = {}
    for flag, port in requested.items():
        other = flags.setdefault(port, flag)
        if port and other != flag:
            raise UsageError(
                f"{other} and {flag} are both {port}", fix=f"choose another {flag}"
            )


def _bound(address: str, port: int, flag: str) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    # As the server does: a port in TIME_WAIT is free.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
        listener.listen(1)
    except OSError as error:
        listener.close()
        raise _refused(error, address, port, flag) from error
    return listener


def _refused(error: OSError, address: str, port: int, flag: str) -> EnvironmentProblem:
    if error.errno == errno.EADDRINUSE:
        return EnvironmentProblem(
            f"port {port} on {address} is in use",
            fix=f"choose another port with {flag} (0: a free one)",
        )
    foreign = error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror)
    fix = (
        "use an --address of this machine"
        if foreign
        else f"choose another port with {flag}"
    )
    return EnvironmentProblem(
        f"cannot listen on {address}:{port}: {error.strerror}", fix=fix
    )
