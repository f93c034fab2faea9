"""Valid answers to each command of the frame cache. Anything else is not an answer to it.

A proxy that sends an answer twice or late, or a server that is not Redis, returns other answers than the requested
ones. From then on, each command on that connection gets the answer of another one. So each answer is validated, only
here, before it is used: an impossible answer is a `WrongAnswer`, and its connection is closed (`redis_connections.py`).
Values of the cache prove by themselves which key they belong to (`seal.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from redis.exceptions import RedisClusterException, RedisError

from essp_common.cache.seal import Unsound
from essp_common.errors import EsspError

T = TypeVar("T")

Check = Callable[[Any], T]
"""Converts an answer to the caller's form. Raises `WrongAnswer` if it cannot be an answer to the command."""

_SHOWN = 40


class WrongAnswer(RedisError):
    """The received answer is not an answer to the command."""

    def __init__(self, answer: object, expected: str) -> None:
        shown = bytes(answer[:_SHOWN]) if isinstance(answer, bytes | memoryview) else answer
        super().__init__(f"it answered {str(shown)[:_SHOWN]!r} where {expected} was due")


def stored(answer: Any) -> None:
    """Check the answer of a command that stores something."""
    if answer not in (b"OK", "OK", True) or (isinstance(answer, int) and answer is not True):
        raise WrongAnswer(answer, "OK")


def count(answer: Any) -> int:
    """Check the answer of a command that returns a count."""
    if not isinstance(answer, int) or isinstance(answer, bool) or answer < 0:
        raise WrongAnswer(answer, "a number")
    return answer


def text(answer: Any) -> bytes:
    """Check bytes that always exist, possibly empty."""
    if not isinstance(answer, bytes | memoryview):
        raise WrongAnswer(answer, "a string")
    return bytes(answer)


def maybe(answer: Any) -> bytes | memoryview | None:
    """Check the bytes of a key that may be gone."""
    if answer is not None and not isinstance(answer, bytes | memoryview):
        raise WrongAnswer(answer, "a value")
    return answer


def page(answer: Any, prefix: bytes) -> tuple[int, list[bytes]]:
    """Check a cursor, and keys with this prefix: other keys would belong to another SCAN."""
    match answer:
        case (int(cursor), list(keys)) if all(isinstance(key, bytes) and key.startswith(prefix) for key in keys):
            return cursor, keys
    raise WrongAnswer(answer, "a list of keys")


def fields(*names: str) -> Check[dict[str, Any]]:
    """Check lines of INFO, which must contain these."""

    def check(answer: Any) -> dict[str, Any]:
        if not isinstance(answer, dict) or any(name not in answer for name in names):
            raise WrongAnswer(answer, f"INFO with {', '.join(names)}")
        return answer

    return check


class _Understood:
    """Converts redis-py's failures to parse an unexpected answer, which take many forms."""

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, _ANSWERS):
            raise WrongAnswer(f"{type(error).__name__}: {error}", "an answer that redis-py understands") from error


_ANSWERS = (RedisError, RedisClusterException, Unsound, EsspError, OSError)
_understood = _Understood()


def understood() -> _Understood:
    """Return a block in which redis-py parses an answer: if it fails to, that is a `WrongAnswer`."""
    return _understood  # stateless: creating one per command would take as long as the rest here
