"""What a process gets that reads untrusted bytes: an environment without secrets, and no way to change a file or the
memory of another process.

A process that a crafted video has taken over knows what its process knows. So a child starts with the few variables
that a Python process needs (`environment`). Those with which clients of object stores log in go to it over its pipe,
and only if its stores need them (`of_stores`): it sets them itself, so `/proc/PID/environ` never shows them. Passwords
of the broker and of Redis, and tokens, are no business of a child, and it has none of them.

`confine` asks the kernel (Landlock, Linux 5.13) for more: no file can be written, made or removed, no program run, and
no other process be traced, nor its memory read. Where there is no Landlock, this is missing, and nothing else. What the
user of a child may read, it can still read: files, and what `/proc` shows of other processes. A client of an object
store may have to run a program that says its credentials (`credential_process` of AWS), so that is allowed there.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Iterable, Mapping

_NAMES = frozenset(
    {"HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "TEMP", "TMP", "TMPDIR", "TZ", "USER", "VIRTUAL_ENV"}
    | {"COVERAGE_PROCESS_START", "ESSP_FAILPOINT", "GLIBC_TUNABLES"}
)
_BEGINNINGS = ("LC_", "PYTHON", "LD_", "DYLD_", "MALLOC_", "ASAN_", "UBSAN_")
_WEB = ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "ssl_cert_", "requests_ca_bundle", "curl_ca_bundle")
"""Of every client that uses the web. A proxy's address may have a password."""
_CLIENTS: Mapping[str, tuple[str, ...]] = {
    "file": (),
    "s3": ("aws_", "boto_"),
    "gs": ("google_", "gcs", "gce_", "cloudsdk_", "storage_emulator_host"),
    "gcs": ("google_", "gcs", "gce_", "cloudsdk_", "storage_emulator_host"),
    "az": ("azure_", "identity_", "msi_"),
    "abfs": ("azure_", "identity_", "msi_"),
    "abfss": ("azure_", "identity_", "msi_"),
    "adl": ("azure_", "identity_", "msi_"),
    "hdfs": ("hadoop_", "java_", "arrow_", "libhdfs", "classpath", "krb5"),
    "webhdfs": ("hadoop_", "krb5"),
    "http": ("netrc",),
    "https": ("netrc",),
    "sftp": ("ssh_",),
}
"""How variables begin that the client of a store reads, by scheme of the URL."""
_OURS = "essp_"

_CREATE_RULESET, _RESTRICT_SELF = 444, 446
"""Numbers of Landlock's system calls, which are those of all architectures but Alpha."""
_PR_SET_NO_NEW_PRIVS = 38
_TELL_VERSION = 1
_EXECUTE = 1 << 0
_RIGHTS = ((1, _EXECUTE | 1 << 1 | 0b1_1111_1111 << 4), (3, 1 << 14))
"""The rights that are given up, by the version of Landlock that knows them: to run, to write, to remove and to make
files, which leaves reading; to truncate."""


def environment() -> dict[str, str]:
    """The variables of this process that a child needs, none of them secret."""
    return {name: value for name, value in os.environ.items() if name in _NAMES or name.startswith(_BEGINNINGS)}


def of_stores(roots: Iterable[str]) -> dict[str, str]:
    """The variables that clients of these object stores read. Of a file system that only fsspec knows, all that are
    not ESSP's own."""
    schemes = {root.partition(":")[0].lower() for root in roots} - {"file"}
    if not schemes:
        return {}
    if not schemes <= _CLIENTS.keys():
        return {name: value for name, value in os.environ.items() if not name.lower().startswith(_OURS)}
    begin = (*_WEB, "fsspec_", *(each for scheme in schemes for each in _CLIENTS[scheme]))
    return {name: value for name, value in os.environ.items() if name.lower().startswith(begin)}


def are_local(roots: Iterable[str]) -> bool:
    """Whether all of these object stores are folders of this machine."""
    return all(root.lower().startswith("file:") for root in roots)


def confine(programs: bool = False) -> None:
    """Give up, for this process and for ever, what reading does not need. Does nothing where the kernel cannot.

    `programs`: it may run programs all the same.
    """
    if sys.platform != "linux" or platform.machine() == "alpha":
        return
    library = ctypes.CDLL(None, use_errno=True)
    call, none = library.syscall, ctypes.c_long(0)
    version = call(ctypes.c_long(_CREATE_RULESET), none, none, ctypes.c_long(_TELL_VERSION))
    rights = sum(bits for since, bits in _RIGHTS if version >= since)
    packed = struct.pack("=Q", rights & ~_EXECUTE if programs else rights)  # and none of them is given again
    ruleset = call(ctypes.c_long(_CREATE_RULESET), packed, ctypes.c_long(len(packed)), none)
    if ruleset < 0:
        return
    try:
        library.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        call(ctypes.c_long(_RESTRICT_SELF), ctypes.c_long(ruleset), none)
    finally:
        os.close(ruleset)
