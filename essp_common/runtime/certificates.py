"""Certificates that are refused: what to do about it, which the libraries that connect do not say, or not at all."""

from __future__ import annotations

import socket
import ssl


def advised(said: str) -> str:
    """What a library says of a connection; where a certificate is the reason, with what to do about it."""
    if "certificate has expired" in said:
        return f"{said}; renew the certificate of the server, and see that the clocks are right"
    if "certificate verify failed" in said:
        return f"{said}; name the authority that signed it, and the server as its certificate does"
    return said


def refusal(host: str, port: int, context: ssl.SSLContext, timeout_s: float) -> str | None:
    """Why the certificate of this server is refused; None: it is not, or the server cannot be asked for it."""
    try:
        with socket.create_connection((host, port), timeout_s) as connection:
            context.wrap_socket(connection, server_hostname=host).close()
    except ssl.SSLCertVerificationError as error:
        return advised(f"{host}:{port}: certificate verify failed: {error.verify_message}")
    except OSError:
        return None
    return None
