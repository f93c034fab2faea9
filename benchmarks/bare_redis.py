"""A client of Redis that does as little as possible: what bytes cost through a socket, whoever asks for them."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from essp_common.errors import Unavailable


class BareRedis:
    """SET and GET with as little as possible around them."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname, parts.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def set(self, key: str, value: bytes | bytearray | memoryview) -> None:
        """Send the value, wait for OK."""
        head = f"*3\r\n$3\r\nSET\r\n${len(key)}\r\n{key}\r\n${len(value)}\r\n".encode()
        self._socket.sendall(head)
        self._socket.sendall(value)
        self._socket.sendall(b"\r\n")
        self._line()

    def get(self, key: str) -> bytearray:
        """Ask for the value, receive it in place."""
        self.ask(key)
        size = self._size()
        value = bytearray(size + 2)
        self._fill(memoryview(value))
        return value

    def ask(self, key: str) -> None:
        """Send for a value, which `receive` waits for."""
        self._socket.sendall(f"*2\r\n$3\r\nGET\r\n${len(key)}\r\n{key}\r\n".encode())

    def receive(self, into: bytearray) -> memoryview:
        """The value that was asked for, in memory that is there already."""
        size = self._size()
        view = memoryview(into)[: size + 2]
        self._fill(view)
        return view[:size]

    def close(self) -> None:
        """Leave."""
        self._socket.close()

    def _size(self) -> int:
        return int(self._line()[1:])

    def _fill(self, view: memoryview) -> None:
        while view:
            view = view[self._received(self._socket.recv_into(view)) :]

    def _line(self) -> bytes:
        """An answer's first line, byte by byte, so that nothing of the value is taken."""
        line = bytearray()
        while not line.endswith(b"\r\n"):
            byte = self._socket.recv(1)
            self._received(len(byte))
            line += byte
        return bytes(line[:-2])

    def _received(self, count: int) -> int:
        if not count:
            raise Unavailable("Redis closed the connection")
        return count
