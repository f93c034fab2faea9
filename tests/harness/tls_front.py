"""A front that ends TLS, and asks for a user and password as Kafka does, before a server that has neither.

It lets in by SASL/PLAIN, and knows SCRAM-SHA-512 as well, by which it refuses everybody. Whom it refuses finds the
answer and the end of the connection in one piece, as a broker sends it.

Also the authority and certificate it needs, made for the occasion.
"""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import socket
import ssl
import struct
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.harness.waiting import LONGEST_S

T = TypeVar("T")

_HANDSHAKE, _AUTHENTICATE = 17, 36
_UNSUPPORTED, _FAILED = 33, 58  # UNSUPPORTED_SASL_MECHANISM, SASL_AUTHENTICATION_FAILED
_MECHANISMS = (b"PLAIN", b"SCRAM-SHA-512")
_DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Identity:
    """An authority, and a certificate of 127.0.0.1 that it signed; files in PEM."""

    ca: Path
    cert: Path
    key: Path


def make_identity(folder: Path, expired: bool = False) -> Identity:
    """A new authority each time, which nobody else knows. `expired`: its certificate was good until an hour ago."""
    folder.mkdir(parents=True, exist_ok=True)
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca_name, name = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)]) for text in ("ca", "server"))
    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    ca = (
        _certificate(ca_name, ca_name, ca_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    host = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    cert = (
        _certificate(name, ca_name, key, -datetime.timedelta(hours=1) if expired else _DAY)
        .add_extension(x509.SubjectAlternativeName([host]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    identity = Identity(folder / "ca.pem", folder / "cert.pem", folder / "key.pem")
    pem = serialization.Encoding.PEM
    identity.ca.write_bytes(ca.public_bytes(pem))
    identity.cert.write_bytes(cert.public_bytes(pem))
    nobody = serialization.NoEncryption()
    identity.key.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, nobody))
    return identity


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, left: datetime.timedelta = _DAY
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + left)
    )


class TlsFront:
    """Listens with TLS on a port of its own and hands on what it hears to a port of this machine."""

    def __init__(
        self, identity: Identity | None, target: int, port: int = 0, login: tuple[str, str] | None = None
    ) -> None:
        """`identity`: None is a front without TLS. `login`: ask for this user and password first, as a Kafka broker
        does."""
        self._context: ssl.SSLContext | None = None
        if identity is not None:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(identity.cert, identity.key)
        self.target = target
        self._login = login
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tls-front")
        self._connections: set[asyncio.Task[None]] = set()
        self.port = port

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self._context))
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def change_password(self, password: str) -> None:
        """From now on this one is wanted. Ends the connections of all who are logged in."""
        user, _ = self._login or ("", "")
        self._login = user, password
        self._call(self._hang_up())

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(LONGEST_S)

    async def _close(self) -> None:
        self._server.close()
        await self._hang_up()

    async def _hang_up(self) -> None:
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        try:
            if self._login is not None:
                await self._authenticate(reader, writer, far_reader, far_writer)
            pumps = [asyncio.ensure_future(_pump(*way)) for way in ((reader, far_writer), (far_reader, writer))]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # somebody left; cancelled: the front is closed
        finally:
            self._connections.discard(task)
            for end in (writer, far_writer):
                end.transport.abort()

    async def _authenticate(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        far_reader: asyncio.StreamReader,
        far_writer: asyncio.StreamWriter,
    ) -> None:
        """Up to the right password; what comes before (which versions there are) is for the broker."""
        while True:
            frame = await _frame(reader)
            api, _, correlation = struct.unpack_from(">hhi", frame)
            if api == _HANDSHAKE:  # version 1: whether it is one of the mechanisms, and these
                error = 0 if any(frame.endswith(name) for name in _MECHANISMS) else _UNSUPPORTED
                names = b"".join(struct.pack(">h", len(name)) + name for name in _MECHANISMS)
                answer = _framed(struct.pack(">ihi", correlation, error, len(_MECHANISMS)) + names)
            elif api == _AUTHENTICATE:  # version 2: error, no message, no bytes, no end of the session, no tags
                right = "\0{}\0{}".format(*self._login or ()).encode() in frame
                error = 0 if right else _FAILED
                answer = _framed(struct.pack(">ibhbbqb", correlation, 0, error, 0, 1, 0, 0))
            else:
                far_writer.write(_framed(frame))
                error, answer = 0, _framed(await _frame(far_reader))
            if error:
                await _say_goodbye(writer, answer)
                return
            writer.write(answer)
            if api == _AUTHENTICATE:
                return


async def _say_goodbye(writer: asyncio.StreamWriter, answer: bytes) -> None:
    """The answer waits for the end of the connection and goes with it (`TCP_CORK`, where the system has it)."""
    if hasattr(socket, "TCP_CORK"):
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
    writer.write(answer)
    writer.close()
    await writer.wait_closed()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    size = struct.unpack(">i", await reader.readexactly(4))[0]
    return await reader.readexactly(size)


def _framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
