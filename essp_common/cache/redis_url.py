"""An option of Redis URLs that redis-py does not have: `password_file`, the file that contains the user's password.

    rediss://essp@host:6379/0?password_file=/etc/essp/redis/password

The file is read at each login, so a connection that is opened after a change uses the new password.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from redis.credentials import CredentialProvider
from redis.exceptions import AuthenticationError

from essp_common.errors import ConfigError
from essp_common.runtime.login import password_in

_PASSWORD_FILE = "password_file"


class _FilePassword(CredentialProvider):
    def __init__(self, user: str, path: str) -> None:
        self._user = user
        self._path = path

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Return user and password, or the password of the default user; called at each login."""
        try:
            password = password_in(self._path)
        except ConfigError as error:  # as if Redis had refused the login
            raise AuthenticationError(str(error)) from error
        return (self._user, password) if self._user else (password,)


class TwoPasswords(ValueError):
    """A URL with a password that also names a password file."""


def parted(url: str) -> tuple[str, dict[str, Any]]:
    """Return the URL for redis-py, and additional options. Raises `ValueError`."""
    parts = urlsplit(url)
    options = parse_qsl(parts.query, keep_blank_values=True)
    path = dict(options).get(_PASSWORD_FILE)
    if path is None:
        return url, {}
    if parts.password is not None:
        raise TwoPasswords(f"it has a password and a {_PASSWORD_FILE}")
    others = urlencode([option for option in options if option[0] != _PASSWORD_FILE])
    plain = parts._replace(netloc=parts.netloc.rpartition("@")[2], query=others)
    return plain.geturl(), {"credential_provider": _FilePassword(unquote(parts.username or ""), path)}
