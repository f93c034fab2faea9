"""A module of ESSP that runs as a child process: how it starts, how the two ends communicate, and how it ends.

    parent    child = ChildProcess(module, ...)     python -m module CONNECTION [WORD...] [FILE...]
              child.channel                ◀─────▶  to_parent(CONNECTION)
              child.end()                           receives `EOFError`, and ends

A message is bytes, preceded by their length; the two ends define their meaning. A child that reads untrusted bytes
answers in JSON: with pickles, a compromised child could run code in its parent.

A child has a separate process group, since Ctrl-C is for the parent, which ends its children. It stays in its parent's
session, so that its niceness takes effect.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import wait
from queue import SimpleQueue
from threading import Thread
from typing import Any

from essp_common.errors import Unavailable
from essp_common.runtime.children import module_command

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_LENGTH = struct.Struct("<Q")
_SMALL_BYTES = 1 << 16
_PART_BYTES = 1 << 20
_MOST_BYTES = 1 << 32
"""Largest message: a compromised child may claim more, which its parent would allocate."""


class Channel:
    """One end of a connection between two processes. One thread may send while another one receives."""

    def __init__(self, descriptor: int) -> None:
        """`descriptor`: a stream socket, which this object closes."""
        self._socket = socket.socket(fileno=descriptor)
        self._socket.settimeout(None)  # independent of `socket.setdefaulttimeout`
        self._readable = select.poll()
        self._readable.register(self._socket, select.POLLIN)
        self._ahead = b""
        """Bytes read beyond the previous message: most messages take a single system call."""

    def send(self, message: bytes) -> None:
        """Send a message. Raises `OSError` if the other end is closed."""
        head = _LENGTH.pack(len(message))
        if len(message) <= _SMALL_BYTES:
            self._socket.sendall(head + message)
        else:  # not copied
            self._socket.sendall(head)
            self._socket.sendall(message)

    def receive(self, timeout_s: float | None = None) -> bytes:
        """Return the next message. Raises `EOFError` or `OSError` if the other end is closed or announces too large a
        message, and `TimeoutError` if the message is not complete in time; after an error, nothing more can be
        received."""
        ends_s = None if timeout_s is None else time.monotonic() + timeout_s
        received = self._ahead or self._some(_SMALL_BYTES, ends_s)
        while len(received) < _LENGTH.size:
            received += self._some(_SMALL_BYTES, ends_s)
        size = _LENGTH.unpack_from(received)[0]
        if size > _MOST_BYTES:
            raise OSError(f"a message of {size} bytes is too large")
        end = _LENGTH.size + size
        message, self._ahead = received[_LENGTH.size : end], received[end:]
        if (missing := end - len(received)) <= 0:
            return message
        parts = [message]
        while missing:
            parts.append(self._some(min(missing, _PART_BYTES), ends_s))
            missing -= len(parts[-1])
        return b"".join(parts)

    def poll(self, timeout_s: float = 0.0) -> bool:
        """Whether there is something to receive, or the other end is closed."""
        return bool(ready([self], timeout_s))

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._socket.fileno()

    def hang_up(self) -> None:
        """End the connection for both sides, even if a fork of either has it open. Idempotent."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close this end. Idempotent."""
        self._socket.close()

    def _some(self, most: int, ends_s: float | None) -> bytes:
        # Not with a socket timeout, which would also apply to sends, concurrent and later ones.
        if ends_s is not None:
            left_s = ends_s - time.monotonic()
            if left_s <= 0 or not self._readable.poll(left_s * 1000):
                raise TimeoutError("the message is not whole in time")
        part = self._socket.recv(most)
        if not part:
            raise EOFError("the other end is closed")
        return part


def ready(channels: Sequence[Channel], timeout_s: float | None = None) -> list[Channel]:
    """Return the channels that have something to receive, or whose other end is closed; empty on timeout."""
    return [each for each in channels if each._ahead] or wait(channels, timeout_s)  # type: ignore[return-value,arg-type]


class ChildProcess:
    """A child process, and this end of the connection with it."""

    def __init__(
        self,
        module: str,
        task: str,
        *words: object,
        files: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`task`: what the process does, for messages: "reads videos". `files`: descriptors that it inherits; their
        numbers are its last arguments. `environment`: replaces this process's environment.

        Raises `Unavailable` if the machine cannot start more processes.
        """
        self._parent = os.getpid()
        with ExitStack() as ours:
            try:
                mine, its = socket.socketpair()
                self.channel = Channel(mine.detach())
                ours.callback(self.channel.close)
                with its:
                    passed = [its.fileno(), *files]
                    self.process = subprocess.Popen(
                        module_command(module, passed[0], *words, *files),
                        stdin=subprocess.DEVNULL,
                        pass_fds=passed,
                        env=environment,
                        process_group=0,
                    )
            except OSError as error:
                raise Unavailable(f"the process that {task} cannot be started: {error.strerror}") from error
            ours.pop_all()

    def tell(self, message: bytes) -> None:
        """Send the child a message. If the child is gone, that shows when its answer is received."""
        with suppress(OSError):
            self.channel.send(message)

    def end(self, patience_s: float = 0.0) -> str:
        """Hang up, and kill the process if it has not ended by then. Returns how it ended, in words that follow "the
        process": "has ended with status 1".

        Idempotent. In a fork of the parent, this only closes the connection.
        """
        if self._parent != os.getpid():
            self.channel.close()
            return "is the child of another process"
        self.channel.hang_up()
        self.channel.close()
        try:
            self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
        return _fate(self.process.wait())


def answer_of(message: bytes) -> dict[str, Any]:
    """Parse the JSON object in a message. For anything else raises `OSError`, as for a child that is gone: a child that
    reads untrusted bytes may have been compromised."""
    try:
        answer = json.loads(message)
    except (ValueError, RecursionError) as error:
        raise OSError("the message is not JSON") from error
    if not isinstance(answer, dict):
        raise OSError("the message is not a JSON object")
    return answer


def one_thread(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment of a child that computes with one thread, since others run next to it."""
    return {**environment, **dict.fromkeys(_THREADS, "1")}


def to_parent(descriptor: str) -> Channel:
    """In a child: return the connection with its parent, which alone decides when the child is done.

    The child ignores SIGINT and SIGTERM, which may be sent to all processes of a terminal or of a container.
    """
    for ignored in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)
    return Channel(int(descriptor))


def requests(parent: Channel) -> SimpleQueue[bytes]:
    """In a child: return a queue of the parent's messages. The child ends at once when the parent hangs up or is gone,
    even during its work."""
    received: SimpleQueue[bytes] = SimpleQueue()
    Thread(target=_listen, args=(parent, received), name="essp-parent", daemon=True).start()
    return received


def _listen(parent: Channel, received: SimpleQueue[bytes]) -> None:
    try:
        while True:
            received.put(parent.receive())
    except (EOFError, OSError):
        os._exit(0)
    finally:
        os._exit(1)  # after an unexpected error: the parent then sees that this process is gone


def _fate(code: int) -> str:
    if code >= 0:
        return f"has ended with status {code}"
    known = [f" ({each.name})" for each in signal.Signals if each == -code]
    return f"was killed by signal {-code}{''.join(known)}"
