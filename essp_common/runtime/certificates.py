"""Refused certificates: the reason and the remedy, which the connecting libraries do not report well."""

from __future__ import annotations

import socket
import ssl


def advised(said: str) -> str:
    """Return a library's message about a connection, with a remedy if a certificate is the reason."""
    if "certificate has expired" in said:
        return f"{said}; renew the certificate of the server, and see that the clocks are right"
    if "certificate verify failed" in said:
        return f"{said}; name the authority that signed it, and the server as its certificate does"
    return said


def refusal(host: str, port: int, context: ssl.SSLContext, timeout_s: float) -> str | None:
    """Return why the certificate of this server is refused; None if it is not, or if the server cannot be asked."""
    try:
        with socket.create_connection((host, port), timeout_s) as connection:
            context.wrap_socket(connection, server_hostname=host).close()
    except ssl.SSLCertVerificationError as error:
        return advised(f"{host}:{port}: certificate verify failed: {error.verify_message}")
    except OSError:
        return None
    return None
