"""A Python that starts fast: asks a preloaded process for a fork that runs what Python would, and ends as that does.

It takes the arguments of Python, after the folder of the preloaded processes and the kind of the one to ask. The fork
has its streams, environment and folder, gets its signals, and ends with it. It imports only the standard library, since
starting fast is its purpose. `launcher.py` is the other side.
"""

import json
import os
import signal
import socket
import struct
import sys

_FORWARDED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_NUMBER = struct.Struct("i")


def main() -> int:
    """Its exit status. Ends by the signal that has ended the fork, if one has."""
    folder, kind, *arguments = sys.argv[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as preloaded:
        preloaded.connect(os.path.join(folder, kind))
        read, write = os.pipe()
        request = json.dumps(["", arguments, dict(os.environ), 0])
        signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
        socket.send_fds(preloaded, [request.encode()], [write, os.open(".", os.O_RDONLY), 0, 1, 2])
        os.close(write)
        pid = _number(read)
        for number in _FORWARDED:
            signal.signal(number, lambda number, _: os.kill(pid, number))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
        status = _number(read)
    if status < 0:
        if -status in _FORWARDED:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


def _number(pipe: int) -> int:
    return int(_NUMBER.unpack(os.read(pipe, _NUMBER.size))[0])


sys.exit(main())
