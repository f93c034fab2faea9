"""What Redis answers instead of carrying out a command, and what to do about it.

A refusal `passes` if it may end by itself, such as a failover; a permission, a password or a full disk needs someone to
fix it. Apart from cluster redirections, which redis-py follows, any error answer other than "no room" (`CacheFull`) is
a refusal: the call waits, and users must be informed. An answer that this module does not know is waited for only a
limited time, since it may never pass. `WRONGTYPE` is not a refusal: it concerns a single value.
"""

from __future__ import annotations

from typing import NamedTuple

from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthorizationError,
    ClusterDownError,
    MasterDownError,
    NoPermissionError,
    ReadOnlyError,
    RedisClusterException,
    ResponseError,
    TryAgainError,
)

from essp_common.runtime.certificates import advised

DEMOTED = (ReadOnlyError, MasterDownError)
"""Only a replica answers this."""
_OF_CLUSTERS = (AskError, ClusterDownError, TryAgainError)
_DENIALS = (AuthenticationError, AuthorizationError, NoPermissionError)
_DENIED_IN_SCRIPT = ("ACL failure in script", "The user executing the script can't")
"""Redis has no error code for it: the texts since 7.2, and before."""
_ACCESS = (
    "check user and password in the URL, and what the user may do: `essp setup --acls` shows what it has to; a new "
    "password is taken at once from the URL's password_file, from the URL itself at the next start"
)
_NO_REDIS = (
    "ESSP knows no such answer: see that ESSP_CACHE names a Redis or Valkey of version 7 or later, and check any "
    "proxy before it"
)
_PROMOTE = "let ESSP_CACHE name the primary, or make it one: redis-cli REPLICAOF NO ONE"


class Refusal(NamedTuple):
    """A refusal, in words that follow the name of the server."""

    words: str
    denied: bool = False
    """A password or a permission is missing."""
    writes: bool = False
    """All writes are refused together, but no reads."""
    passes: bool = True
    known: bool = True


_KNOWN = {
    "MISCONF": Refusal(
        ' refuses writes, since it cannot save to disk; a frame cache needs no snapshots: redis-cli CONFIG SET save ""',
        writes=True,
        passes=False,
    ),
    "read only replica": Refusal(f" refuses writes, since it is a replica; {_PROMOTE}", writes=True),
    "Link with MASTER is down": Refusal(f" is a replica that has lost its primary; {_PROMOTE}"),
    "NOREPLICAS": Refusal(
        " refuses writes, since it has too few replicas; start them, or: redis-cli CONFIG SET min-replicas-to-write 0",
        writes=True,
    ),
    "BUSY Redis": Refusal(" does nothing but a script of another program; end that: redis-cli SCRIPT KILL"),
    "max number of clients": Refusal(
        " takes no more connections; raise its limit: redis-cli CONFIG SET maxclients 10000, or see who holds them: "
        "redis-cli CLIENT LIST"
    ),
}
"""By a part of redis-py's text for the error, with or without Redis' error code."""


def refusal_of(error: Exception) -> Refusal | None:
    """Return the refusal in an error of redis-py; None if it is not one."""
    if (denial := _denial(error)) is not None:
        return Refusal(f": {denial}; {_ACCESS}", denied=True, passes=False)
    said = str(error)
    for part, refusal in _KNOWN.items():
        if part in said:
            return refusal
    answered = isinstance(error, ResponseError) and not isinstance(error, _OF_CLUSTERS)
    return unknown(said) if answered else None


def unknown(said: str) -> Refusal:
    """Return the refusal for an unknown answer."""
    return Refusal(f": {advised(said)}; {_NO_REDIS}", known=False)


def is_of_another_type(error: Exception) -> bool:
    """Whether the key holds something other than a string, which another program has stored."""
    return isinstance(error, ResponseError) and "WRONGTYPE" in str(error)


def _denial(error: Exception) -> Exception | None:
    """Return the error that says that a password or a permission is missing, if this is one."""
    cause = error.__cause__
    if isinstance(error, RedisClusterException) and isinstance(cause, Exception):  # no node could be asked
        return _denial(cause)
    return error if isinstance(error, _DENIALS) or str(error).startswith(_DENIED_IN_SCRIPT) else None
