"""The credentials of a process."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Login:
    """The credentials of a process; the password is not shown."""

    user: str = ""
    password: str = field(default="", repr=False)


NOBODY = Login()
"""For servers without authentication."""
