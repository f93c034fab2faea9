"""Moves large values to and from Redis with few copies: none when sending, one when receiving.

redis-py's serializer for hiredis copies a large value several times (5 ms instead of 0.5 for 2 MB), and hiredis copies
each answer twice more than necessary. With a Python timeout, each socket call costs an additional `poll`; a kernel
timeout costs nothing. TLS connections keep Python's.
"""

from __future__ import annotations

import socket
import struct
from typing import Any, NamedTuple, cast

import numpy as np
from redis._parsers import _HiredisParser
from redis.connection import AbstractConnection, Connection, SSLConnection
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import InvalidResponse
from redis.exceptions import TimeoutError as NoAnswer

from essp_common.cache.redis_refusals import DEMOTED

_LARGE_BYTES = 1 << 15
_LARGEST_BYTES = 1 << 29
"""Redis' own limit for one string: an answer that announces more is not from Redis."""
_BULK = ord("$")
_END = b"\r\n"


class Labelled(NamedTuple):
    """A value in two parts, sent as one."""

    label: bytes
    value: memoryview


class Serializer:
    """Converts a command to the pieces that a socket sends (redis-py: a command packer)."""

    def pack(self, *words: Any) -> list[bytes | memoryview]:
        """Return a command in RESP. The first word may consist of two (`SCRIPT LOAD`)."""
        first = words[0] if isinstance(words[0], bytes) else str(words[0]).encode()
        words = (*first.split(), *words[1:])
        sent: list[bytes | memoryview] = []
        text = b"*%d\r\n" % len(words)
        for word in words:
            if isinstance(word, Labelled):
                sent += [b"%b$%d\r\n%b" % (text, len(word.label) + len(word.value), word.label), word.value]
                text = b"\r\n"
            else:
                data = word if isinstance(word, bytes) else str(word).encode()
                text = b"%b$%d\r\n%b\r\n" % (text, len(data), data)
        return [*sent, text]


class Parser(_HiredisParser):
    """hiredis, except that a large value, alone in its answer, is received directly into its own memory."""

    def read_response(self, *args: Any, **options: Any) -> Any:
        """Return the next answer."""
        sock: Any = self._sock
        reader = self._reader
        if sock is None or reader is None or reader.has_data():
            return super().read_response(*args, **options)
        count = _received(sock, self._buffer)
        end = self._buffer.find(_END, 0, count) if self._buffer[0] == _BULK else -1
        digits = self._buffer[1:end] if end > 0 else b""
        size = int(digits) if digits.isdigit() else 0
        if size > _LARGEST_BYTES:
            raise InvalidResponse(f"an answer of {size} bytes")
        if size < _LARGE_BYTES:
            reader.feed(cast(Any, self._buffer), 0, count)
            return super().read_response(*args, **options)
        value = memoryview(cast(Any, np.empty(size + 2, np.uint8)))  # with the line end that follows it
        begun = count - end - 2
        value[:begun] = memoryview(self._buffer)[end + 2 : count]
        left = value[begun:]
        while left:
            left = left[_received(sock, left) :]
        if value[-2:] != _END:
            raise InvalidResponse(f"an answer that is longer than the {size} bytes that it promises")
        return value[:-2].toreadonly()


class _Following(AbstractConnection):
    """Reconnects after an answer that the server is a replica now: its name may point to the new primary, while an
    existing connection would stay with the old server for as long as that runs."""

    _leaves = False

    def has_more(self) -> bool:
        """Whether more data has arrived with the last answer that was read."""
        reader = self._parser._reader
        return reader is not None and reader.has_data()

    def has_unasked(self) -> bool:
        """Whether unrequested data, or the end, has arrived: the next answer would belong to another command."""
        return self.has_more() or self._is_readable()

    def _is_readable(self) -> bool:
        raise NotImplementedError

    def read_response(self, *arguments: Any, **options: Any) -> Any:
        """Return the next answer."""
        try:
            return super().read_response(*arguments, **options)
        except DEMOTED:
            self._leaves = True
            raise

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        """Send to the server that the name points to now."""
        if self._leaves:
            self._leaves = False
            self.disconnect()  # type: ignore[no-untyped-call]
        super().send_packed_command(command, check_health)  # type: ignore[no-untyped-call]


class PlainConnection(_Following, Connection):
    """A connection without TLS that copies large values little, and leaves timeouts to the kernel."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, **_WIRE)  # type: ignore[no-untyped-call]

    def _connect(self) -> socket.socket:
        connected: socket.socket = super()._connect()  # type: ignore[no-untyped-call]
        seconds = float(self.socket_timeout or 0.0)
        timeout = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            connected.setsockopt(socket.SOL_SOCKET, option, timeout)
        connected.settimeout(None)
        return connected

    def _is_readable(self) -> bool:
        sock: Any = self._sock
        if sock is None:
            return False
        try:
            sock.recv_into(_PEEKED, 1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:  # the connection is lost
            return True
        return True

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        """Send as redis-py does, except that a kernel timeout is raised as a timeout."""
        try:
            super().send_packed_command(command, check_health)
        except ConnectionLost as error:
            if isinstance(error.__context__, BlockingIOError):
                raise NoAnswer("timed out while sending") from error
            raise


class TlsConnection(_Following, SSLConnection):
    """The same over TLS."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, **_WIRE)

    def _is_readable(self) -> bool:
        # Data of TLS itself, such as session tickets, is not an answer; no one in between can insert one.
        sock: Any = self._sock
        return sock is not None and sock.pending() > 0


_PEEKED = bytearray(1)
_WIRE: dict[str, Any] = {"command_packer": Serializer(), "parser_class": Parser}


def _received(sock: socket.socket, into: bytearray | memoryview) -> int:
    """Receive into a buffer. Returns the number of bytes. Raises `TimeoutError` and `ConnectionLost`."""
    try:
        count = sock.recv_into(into)
    except BlockingIOError as error:
        raise TimeoutError("timed out") from error  # as a socket with a Python timeout raises
    if not count:
        raise ConnectionLost("Connection closed by server.")
    return count
