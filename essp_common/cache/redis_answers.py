"""What a server may answer to each command of the frame cache. Anything else is no answer to it.

A proxy that sends an answer twice or late, or a server that is no Redis, puts other answers where the asked for ones
should be. From then on each command of that connection gets the answer of another one. So each answer is looked at,
here and nowhere else, before it is used: one that cannot be the asked for one is a `WrongAnswer`, and its connection
is closed (`redis_connections.py`). Values of the cache prove by themselves whose they are (`seal.py`).
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
"""Makes of an answer what the caller uses. Raises `WrongAnswer` where it is none to what was asked."""

_SHOWN = 40


class WrongAnswer(RedisError):
    """What came is no answer to what was asked."""

    def __init__(self, answer: object, expected: str) -> None:
        shown = bytes(answer[:_SHOWN]) if isinstance(answer, bytes | memoryview) else answer
        super().__init__(f"it answered {str(shown)[:_SHOWN]!r} where {expected} was due")


def stored(answer: Any) -> None:
    """Of a command that stores something."""
    if answer not in (b"OK", "OK", True) or (isinstance(answer, int) and answer is not True):
        raise WrongAnswer(answer, "OK")


def count(answer: Any) -> int:
    """Of a command that says how many."""
    if not isinstance(answer, int) or isinstance(answer, bool) or answer < 0:
        raise WrongAnswer(answer, "a number")
    return answer


def text(answer: Any) -> bytes:
    """Bytes that are always there, if need be none."""
    if not isinstance(answer, bytes | memoryview):
        raise WrongAnswer(answer, "a string")
    return bytes(answer)


def maybe(answer: Any) -> bytes | memoryview | None:
    """Bytes of a key that may be gone."""
    if answer is not None and not isinstance(answer, bytes | memoryview):
        raise WrongAnswer(answer, "a value")
    return answer


def page(answer: Any, prefix: bytes) -> tuple[int, list[bytes]]:
    """A cursor, and keys that begin so: others would be those of another SCAN."""
    match answer:
        case (int(cursor), list(keys)) if all(isinstance(key, bytes) and key.startswith(prefix) for key in keys):
            return cursor, keys
    raise WrongAnswer(answer, "a list of keys")


def fields(*names: str) -> Check[dict[str, Any]]:
    """Lines of INFO, of which these are there and are numbers or words."""

    def check(answer: Any) -> dict[str, Any]:
        if not isinstance(answer, dict) or any(name not in answer for name in names):
            raise WrongAnswer(answer, f"INFO with {', '.join(names)}")
        return answer

    return check


class _Understood:
    """redis-py takes apart what it is answered, and fails in many ways where that is something else."""

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, _ANSWERS):
            raise WrongAnswer(f"{type(error).__name__}: {error}", "an answer that redis-py understands") from error


_ANSWERS = (RedisError, RedisClusterException, Unsound, EsspError, OSError)
_understood = _Understood()


def understood() -> _Understood:
    """A block in which redis-py reads an answer: what it does not understand is a `WrongAnswer`."""
    return _understood  # has no state: making one for each command would take as long as the rest here
