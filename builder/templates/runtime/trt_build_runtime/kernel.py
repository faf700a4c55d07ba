"""Landlock and seccomp, with which a process gives up rights for itself and all that it starts.

Landlock (Linux 5.13) restricts the file system and TCP, seccomp the system calls that Landlock does
not cover. Both need no privileges and cannot be undone. They are called through ctypes: the
Landlock libraries on PyPI are alpha or beta releases of a few months, and those for seccomp need
libseccomp, which pip cannot install.
"""

from __future__ import annotations

import ctypes
import errno
import glob
import os
import platform
import struct
from collections.abc import Sequence
from pathlib import Path

_CREATE_RULESET = 444
_ADD_RULE = 445
_RESTRICT_SELF = 446
_RULE_PATH_BENEATH = 1
_GET_VERSION = 1
_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_SECCOMP = 22
_SECCOMP_MODE_FILTER = 2

_WRITE_FILE = 1 << 1
_READ_FILE = 1 << 2
_TRUNCATE = 1 << 14
_IOCTL = 1 << 15
# remove and make entries of every kind; running is not restricted
_CHANGE_FOLDER = sum(1 << bit for bit in range(4, 13))
_REFER = 1 << 13
_BIND_TCP = 1 << 0
_CONNECT_TCP = 1 << 1
_ABSTRACT_SOCKETS = 1 << 0
_SIGNALS = 1 << 1

GPU_DEVICE = "/dev/nvidiactl"
DEVICES = (
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/tty",
    "/dev/nvidia*",
    "/dev/dri/*",
)

_ALLOW = 0x7FFF0000
_FAIL = 0x00050000
_AF_UNIX = 1
_X32 = 0x40000000  # calls of the x32 interface, which would pass by other numbers
_SECCOMP_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
# numbers on x86_64 and aarch64
_REFUSED_CALLS = {
    "socket": (41, 198),
    "io_uring_setup": (425, 425),  # its operations pass no seccomp filter
    "ptrace": (101, 117),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "mount": (165, 40),
    "unshare": (272, 97),
    "setns": (308, 268),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "keyctl": (250, 219),
    "open_by_handle_at": (304, 265),
}


def give_up_privileges() -> bool:
    """Forbid that programs started by this thread gain rights, which both mechanisms require.
    Returns whether that succeeded.
    """
    return bool(_libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0)


def landlock_version() -> int:
    """The version of Landlock's interface in this kernel; 0 if it is missing or turned off."""
    return max(
        0, int(_libc().syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _GET_VERSION))
    )


def seccomp_available() -> bool:
    """Whether this kernel supports filters of system calls, whose numbers are known here."""
    # a null filter: EFAULT if the kernel supports filters, EINVAL if it does not
    known = platform.machine() in _SECCOMP_ARCHITECTURES
    result = _libc().prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, None, 0, 0)
    return known and result != 0 and ctypes.get_errno() == errno.EFAULT


class _Ruleset(ctypes.Structure):
    _fields_ = [
        ("files", ctypes.c_uint64),
        ("net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    ]


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32)]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc


def restrict_files(
    writable: Sequence[Path],
    readable: Sequence[Path] | None,
    *,
    unread: Sequence[Path] = (),
    network: bool,
) -> bool:
    """Allow this thread to write only below `writable` and to devices, and to read only below these
    and `readable` (None: everywhere). Nothing of `unread` can be read; its paths are among
    `writable`. Without `network` no TCP port can be bound or connected. Returns whether the
    restrictions are in effect.
    """
    ruleset, size = _ruleset(reads=readable is not None, network=network)
    libc = _libc()
    descriptor = libc.syscall(
        _CREATE_RULESET, ctypes.byref(ruleset), ctypes.c_size_t(size), 0
    )
    if descriptor < 0:
        return False
    try:
        for path in (
            *writable,
            *(Path(device) for name in DEVICES for device in glob.glob(name)),
        ):
            allowed = ruleset.files & ~_READ_FILE if path in unread else ruleset.files
            _allow(libc, descriptor, path, allowed)
        for path in readable or ():
            _allow(libc, descriptor, path, _READ_FILE)
        return bool(libc.syscall(_RESTRICT_SELF, descriptor, 0) == 0)
    finally:
        os.close(descriptor)


def _ruleset(*, reads: bool, network: bool) -> tuple[_Ruleset, int]:
    """The rights that this kernel can restrict, and the size of the structure in bytes. With
    `reads` they include reading files, without `network` TCP ports.
    """
    version = landlock_version()
    rights = _WRITE_FILE | _CHANGE_FOLDER
    if version >= 2:
        rights |= _REFER
    if version >= 3:
        rights |= _TRUNCATE
    if version >= 5:
        rights |= _IOCTL
    if reads:
        rights |= _READ_FILE
    net = 0
    if version >= 4 and not network:
        net = _BIND_TCP | _CONNECT_TCP
    scoped = _ABSTRACT_SOCKETS | _SIGNALS if version >= 6 else 0
    # older kernels refuse a structure with fields that they do not know
    size = 8
    if version >= 4:
        size = 16
    if version >= 6:
        size = 24
    return _Ruleset(rights, net, scoped), size


def all_but(secret: Sequence[Path]) -> list[Path]:
    """Paths that contain every file of this machine except those below `secret`.

    Landlock has no rule that denies, so each folder beside the path to a secret is allowed by
    itself. Links are not followed, because they may lead to the secret. Empty without a secret, and
    if a folder on the path cannot be listed: nothing can be hidden then.
    """
    ancestors = {parent for path in secret for parent in path.parents}
    allowed = []
    for folder in ancestors:
        try:
            with os.scandir(folder) as entries:
                plain = [
                    Path(entry.path) for entry in entries if not entry.is_symlink()
                ]
        except PermissionError:
            return []
        allowed += [
            path for path in plain if path not in ancestors and path not in secret
        ]
    return allowed


def _allow(libc: ctypes.CDLL, ruleset: int, path: Path, rights: int) -> None:
    try:
        folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):  # gone, or closed to this user anyway
        return
    try:
        if not path.is_dir():  # the other rights are of folders only
            rights &= _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL
        rule = _PathBeneath(rights, folder)
        if (
            libc.syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, ctypes.byref(rule), 0)
            != 0
        ):
            raise OSError(ctypes.get_errno(), f"Landlock rejects the rule for {path}")
    finally:
        os.close(folder)


def refuse_calls(*, network: bool, local: bool) -> bool:
    """Let the refused system calls fail with EPERM, and every call of another architecture.
    `network` allows all sockets, `local` those of this machine.
    """
    if platform.machine() not in _SECCOMP_ARCHITECTURES:
        return False
    architecture, column = _SECCOMP_ARCHITECTURES[platform.machine()]
    refused = {name: numbers[column] for name, numbers in _REFUSED_CALLS.items()}
    socket = refused["socket"]
    if network or local:
        del refused["socket"]
    only_local = socket if local and not network else None
    program = _filter(architecture, list(refused.values()), only_local)
    code = _Program(len(program) // 8, program)
    return bool(
        _libc().prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(code), 0, 0)
        == 0
    )


def _filter(architecture: int, refused: Sequence[int], only_local: int | None) -> bytes:
    """A program of classic BPF, whose last two instructions allow and refuse. `only_local` is the
    number of socket() if only local sockets are allowed.
    """
    load = 0x20
    equal = 0x15
    at_least = 0x35
    action = 0x06
    special = 0 if only_local is None else 3
    allow = 3 + special + 1 + len(refused)
    refuse = allow + 1
    # struct seccomp_data: the call's number at 0, the architecture at 4, the arguments from 16 on
    lines = [(load, 0, 0, 4), (equal, 0, refuse - 2, architecture), (load, 0, 0, 0)]
    if only_local is not None:
        lines += [(equal, 0, 2, only_local), (load, 0, 0, 16)]
        lines += [(equal, allow - 6, refuse - 6, _AF_UNIX)]
    for kind, number in [(at_least, _X32), *((equal, number) for number in refused)]:
        lines.append((kind, refuse - len(lines) - 1, 0, number))
    lines += [(action, 0, 0, _ALLOW), (action, 0, 0, _FAIL | errno.EPERM)]
    return b"".join(struct.pack("HBBI", *line) for line in lines)
