"""The errors of ESSP, and what each means for a retry.

    EsspError
    ├── TransientError      try again, after `retry_after_s`: a broker, a cache or a store did not answer
    │   ├── CacheFull       back-pressure, not a fault: consumers must catch up first
    │   └── Unavailable     a server cannot be reached
    │       ├── FlowUnavailable the bus or the frame cache, without which all work waits
    │       └── StorageFull     no room is left where objects are written
    ├── PermanentError      trying again gives the same answer: report it and continue with the rest
    │   ├── BadVideo        damaged, truncated, empty, not a video, over a limit (`kind` says which)
    │   ├── BadFrames       bytes in the cache that do not match their header
    │   ├── NotFound        no such object or job
    │   ├── Forbidden       it belongs to another team
    │   └── Conflict        the state does not allow it, or another process was first
    │       ├── Fenced      another process has taken over: this one must exit
    │       └── PreconditionFailed  the object was changed since the caller read it
    ├── CacheMiss           the bytes are gone; they can be recreated from their seed
    │   └── OtherRelease    they exist, but in the format of another release of ESSP
    └── ConfigError         the user must change something; the message says what

Client libraries' own errors are mapped at the edge of each adapter and chained, so code above an adapter never catches
a library's exception.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal


class EsspError(Exception):
    """Root of all errors that ESSP raises on purpose.

    For example:

        try:
            train(loader)
        except essp.EsspError as error:
            print(error.kind, error)
    """

    kind = "error"
    """The word under which failures are counted and listed; `failures.py` has the full list."""


class TransientError(EsspError):
    """Trying again may succeed."""

    kind = "unavailable"

    def __init__(self, message: str, retry_after_s: float = 0.2) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class CacheFull(TransientError):
    """The frame cache is full: consumers must acknowledge clips before more is stored."""

    kind = "cache_full"


class Unavailable(TransientError):
    """A server cannot be reached or does not answer in time."""


class FlowUnavailable(Unavailable):
    """The bus or the frame cache does not answer, or denies access. All work waits for it: no message is blamed, and
    each is retried until the server is back."""


class StorageFull(Unavailable):
    """No room is left where objects are written; writes work again once space is freed."""

    kind = "storage"


class PermanentError(EsspError):
    """Trying again gives the same answer.

    For example:

        except essp.PermanentError as error:
            report(error)  # and continue with the rest
    """


VideoFault = Literal[
    "damaged",
    "truncated",
    "empty",
    "not_video",
    "format",
    "encrypted",
    "vanished",
    "changed",
    "limit",
    "crashed",
    "timeout",
]
"""What is wrong with a video; each is a kind of failure in messages (`FailureKind`)."""


class BadVideo(PermanentError):
    """A video that cannot be decoded as its catalog row promises; `kind` gives the reason in one word.

    For example:

        except essp.BadVideo as error:
            print(error.kind, error)  # truncated the video ends before its frame 90
    """

    def __init__(self, message: str, kind: VideoFault = "damaged") -> None:
        super().__init__(message)
        self.kind: VideoFault = kind


class BadFrames(PermanentError):
    """Bytes that are not the frames their header promises."""

    kind = "damaged"


class NotFound(PermanentError):
    """No such object, job or key.

    For example:

        except essp.NotFound:
            build_the_catalog()
    """

    kind = "vanished"


class Forbidden(PermanentError):
    """It exists, but belongs to another team."""


class Conflict(PermanentError):
    """The present state does not allow it, or another process was first."""

    kind = "conflict"


class Fenced(Conflict):
    """Another master, or a trainer of a later run, has taken over. That one continues, and this one must exit."""

    def __init__(self, message: str, fence: int = 0) -> None:
        super().__init__(message)
        self.fence = fence
        """The fence of the other process; 0 if unknown."""


class PreconditionFailed(Conflict):
    """The object has changed since the caller saw it: read it again."""


class OutOfMemory(PermanentError):
    """The device has no room for a batch."""

    kind = "memory"


class DeviceLost(EsspError):
    """The GPU failed in this process, which can no longer use it; a new process may."""


class CacheMiss(EsspError):
    """The bytes of a clip or feature are no longer in the cache."""

    kind = "lost"


class OtherRelease(CacheMiss):
    """Another release of ESSP stored the bytes: workers of two releases are running. The bytes can be recreated, again
    and again until the older workers have left."""


ConfigCode = Literal[
    "conflict",
    "empty",
    "exists",
    "invalid",
    "missing",
    "not_found",
    "not_installed",
    "range",
    "refused",
    "taken",
    "type",
    "unknown",
    "unreadable",
    "unsupported",
]
"""What is wrong with a setting:

    missing         it is required, but not given
    type            it has the wrong type: a text instead of a number
    range           it is too small or too large, or there are too few or too many
    invalid         it has the right type, but is malformed or not allowed
    unknown         it names something that does not exist: a field, a class, a network, a column
    conflict        it contradicts another setting
    not_found       the file, folder or object that it names does not exist
    unreadable      what it names exists, but is damaged or of the wrong kind
    empty           what it names contains nothing usable
    exists          what would be written already exists
    taken           it belongs to another job, team or process
    refused         a server or the system refuses: credentials, rights, an address that is not allowed
    not_installed   a package or program is missing
    unsupported     it is valid, but this version, machine or mode cannot do it
"""


class ConfigError(EsspError):
    """Something the user must change: which field, and what to do about it.

    For example:

        except essp.ConfigError as error:
            sys.exit(str(error))  # batch_size: must be 1 or more, got 0

    `str(error)` is for people, and its wording may change. Programs read `field` and `code`. A document with several
    problems has one error for each in `parts`.
    """

    def __init__(
        self, problem: str, *, field: str = "", code: ConfigCode = "invalid", parts: Sequence[ConfigError] = ()
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        """What is wrong with the field and what to do, without the name of the field."""
        self.field = field
        """What to change: the field of a job (`trainers.rgb.batch_size`), the argument of a function, the option of a
        command, or the environment variable. Empty if the error is not about a single one."""
        self.code = code
        """The kind of problem; see `ConfigCode`."""
        self.parts = tuple(parts)
        """The separate problems of a document; empty if this error is a single problem."""

    def __str__(self) -> str:
        return f"{self.field}: {self.problem}" if self.field else self.problem

    @classmethod
    def at(cls, field: str, error: Exception) -> ConfigError:
        """Turn an error about what `field` names into an error of that field. Raise it `from` the original."""
        code: ConfigCode = "not_found" if isinstance(error, NotFound) else "unreadable"
        return ConfigError(str(error), field=field, code=error.code if isinstance(error, ConfigError) else code)

    @classmethod
    def together(cls, parts: Sequence[ConfigError], heading: str = "") -> ConfigError:
        """One or more errors as one: a line for each, below `heading` if it is given or if there are several."""
        if len(parts) == 1 and not heading:
            return parts[0]
        heading = heading or f"there are {len(parts)} problems:"
        return ConfigError("\n  ".join([heading, *map(str, parts)]), parts=parts)

    def within(self, place: str) -> ConfigError:
        """The same error about a field within `place`: `params.size` becomes `streams.rgb.params.size`."""
        if self.parts:
            heading = self.problem.partition("\n")[0]
            return ConfigError.together([part.within(place) for part in self.parts], heading)
        field = f"{place}.{self.field}" if self.field else place
        return ConfigError(self.problem, field=field, code=self.code)
