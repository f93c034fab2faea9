"""Confinement of processes that read untrusted bytes: an environment without secrets, and no means to change a file or
the memory of another process.

A crafted video that compromises a process learns what the process knows. So a child starts with only the few variables
that a Python process needs (`environment`). Variables with credentials for object stores are sent over its pipe, and
only if its stores need them (`of_stores`): the child sets them itself, so `/proc/PID/environ` never shows them. A child
needs no passwords of the broker and of Redis, nor tokens, and gets none.

`confine` asks the kernel (Landlock, Linux 5.13) for more: no file can be written, created or removed, no program run,
and no other process traced, nor its memory read. Without Landlock, only this is missing. A child can still read what
its user may read: files, and what `/proc` shows about other processes. A client of an object store may have to run a
program that prints its credentials (AWS `credential_process`), so programs are allowed in that case.
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
"""For every client that uses the web. A proxy's address may contain a password."""
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
    "hf": ("hf_", "huggingface_"),
}
"""Prefixes of the variables that the client of a store reads, by URL scheme."""
_OURS = "essp_"

_CREATE_RULESET, _RESTRICT_SELF = 444, 446
"""Numbers of Landlock's system calls, the same on all architectures but Alpha."""
_PR_SET_NO_NEW_PRIVS = 38
_TELL_VERSION = 1
_EXECUTE = 1 << 0
_RIGHTS = ((1, _EXECUTE | 1 << 1 | 0b1_1111_1111 << 4), (3, 1 << 14))
"""The rights that are given up, by the version of Landlock that knows them: to run, write, remove and create files,
which leaves reading; and to truncate."""


def environment() -> dict[str, str]:
    """Return the variables of this process that a child needs; they contain no secrets."""
    return {name: value for name, value in os.environ.items() if name in _NAMES or name.startswith(_BEGINNINGS)}


def of_stores(roots: Iterable[str]) -> dict[str, str]:
    """Return the variables that clients of these object stores read. For a file system that only fsspec knows, all
    variables except ESSP's own."""
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
    """Permanently give up, for this process, the rights that reading does not need. Does nothing if the kernel has no
    support.

    `programs`: keep the right to run programs.
    """
    if sys.platform != "linux" or platform.machine() == "alpha":
        return
    library = ctypes.CDLL(None, use_errno=True)
    call, none = library.syscall, ctypes.c_long(0)
    version = call(ctypes.c_long(_CREATE_RULESET), none, none, ctypes.c_long(_TELL_VERSION))
    rights = sum(bits for since, bits in _RIGHTS if version >= since)
    # handles these rights, and grants none of them back
    packed = struct.pack("=Q", rights & ~_EXECUTE if programs else rights)
    ruleset = call(ctypes.c_long(_CREATE_RULESET), packed, ctypes.c_long(len(packed)), none)
    if ruleset < 0:
        return
    try:
        library.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        call(ctypes.c_long(_RESTRICT_SELF), ctypes.c_long(ruleset), none)
    finally:
        os.close(ruleset)
