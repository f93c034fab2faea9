"""The credentials of a process.

A password in a file is read at each login. So a new one takes effect with the next login, such as with a mounted
Kubernetes Secret; a password in the environment or in a URL is fixed when the process starts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from essp_common.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Login:
    """The credentials of a process; `repr` hides the password."""

    user: str = ""
    password: str = field(default="", repr=False)


NOBODY = Login()
"""For servers without authentication."""


def password_in(path: str) -> str:
    """Read the password in a file. Raises `ConfigError`."""
    return secret_in(path, "password_file")


def secret_in(path: str, setting: str) -> str:
    """Read the file of this setting, without trailing line breaks. Raises `ConfigError`."""
    try:
        secret = Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"{path} cannot be read: {reason}", field=setting, code="unreadable") from error
    if not secret:
        raise ConfigError(f"{path} is empty; write the secret into it", field=setting, code="empty")
    return secret
