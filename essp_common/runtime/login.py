"""The credentials of a process.

A password that stands in a file is read at each login. So a new one counts from the next login on, as with a Secret of
Kubernetes that is mounted; what the environment or a URL says is known once and for all when a process starts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from essp_common.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Login:
    """The credentials of a process; the password is not shown."""

    user: str = ""
    password: str = field(default="", repr=False)


NOBODY = Login()
"""For servers without authentication."""


def password_in(path: str) -> str:
    """The password in a file. Raises `ConfigError`."""
    return secret_in(path, "password_file")


def secret_in(path: str, setting: str) -> str:
    """What the file of this setting holds, without line breaks after it. Raises `ConfigError`."""
    try:
        secret = Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"{path} cannot be read: {reason}", field=setting, code="unreadable") from error
    if not secret:
        raise ConfigError(f"{path} is empty; write the secret into it", field=setting, code="empty")
    return secret
