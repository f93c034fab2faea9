"""The errors of ESSP, and what each means for a retry.

    EsspError
    ├── TransientError      try again, after `retry_after_s`: a broker, a cache or a store did not answer
    │   ├── CacheFull       back-pressure, not a fault: consumers have to catch up first
    │   └── Unavailable     a server cannot be reached
    │       ├── FlowUnavailable the bus or the frame cache, without which no work goes on
    │       └── StorageFull     no room is left where objects are written
    ├── PermanentError      trying again gives the same answer: report it and go on with the rest
    │   ├── BadVideo        damaged, truncated, empty, not a video, over a limit (`kind` says which)
    │   ├── BadFrames       bytes in the cache that are not what their header says
    │   ├── NotFound        no such object or job
    │   ├── Forbidden       it is another team's
    │   └── Conflict        the state does not allow it, or another process was first
    │       ├── Fenced      another process has taken over: this one has to leave
    │       └── PreconditionFailed  what was to be changed is not as the caller saw it
    ├── CacheMiss           the bytes are gone; they can be made again from their seed
    │   └── OtherRelease    they are there, as another release of ESSP stores them
    └── ConfigError         the user has to change something; the message says what

Client libraries' own errors are mapped at the edge of each adapter and chained, so that nothing above an
adapter catches a library's exception.
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
    """The word under which failures are counted and listed; `failures.py` has them all."""


class TransientError(EsspError):
    """Trying again may succeed."""

    kind = "unavailable"

    def __init__(self, message: str, retry_after_s: float = 0.2) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class CacheFull(TransientError):
    """The frame cache has no room: consumers must ack before more is stored."""

    kind = "cache_full"


class Unavailable(TransientError):
    """A server cannot be reached or does not answer in time."""


class FlowUnavailable(Unavailable):
    """The bus or the frame cache does not answer, or refuses a right. No work goes on without it, and none is at fault:
    whatever waits for it is tried again for as long as that lasts."""


class StorageFull(Unavailable):
    """No room is left where objects are written: a write works again once some is freed."""

    kind = "storage"


class PermanentError(EsspError):
    """Trying again gives the same answer.

    For example:

        except essp.PermanentError as error:
            report(error)  # and go on with the rest
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
"""What is the matter with a video; each is a kind of failure on the wire (`FailureKind`)."""


class BadVideo(PermanentError):
    """A video that cannot be decoded as its catalog row promises; `kind` says why, in a word.

    For example:

        except essp.BadVideo as error:
            print(error.kind, error)  # truncated the video ends before its frame 90
    """

    def __init__(self, message: str, kind: VideoFault = "damaged") -> None:
        super().__init__(message)
        self.kind: str = kind


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
    """It is there, and not for who asks: it is another team's."""


class Conflict(PermanentError):
    """The present state does not allow it, or another process was first."""

    kind = "conflict"


class Fenced(Conflict):
    """Another master, or a trainer of a later run, has taken over: that one continues, and this one has to leave."""

    def __init__(self, message: str, fence: int = 0) -> None:
        super().__init__(message)
        self.fence = fence
        """The fence of the other one; 0: not known."""


class PreconditionFailed(Conflict):
    """What was to be changed is not, or no longer, as the caller saw it: read it again."""


class OutOfMemory(PermanentError):
    """The device has no room for a batch."""

    kind = "memory"


class DeviceLost(EsspError):
    """The GPU failed under this process, which cannot use it any more; a new process may."""


class CacheMiss(EsspError):
    """The bytes of a clip or feature are no longer in the cache."""

    kind = "lost"


class OtherRelease(CacheMiss):
    """Another release of ESSP stored the bytes: workers of two releases are at work. They can be made again, as often
    as it takes until the older workers have left."""


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

    missing         it is required, and not given
    type            it is of another type than it has to be: a text in place of a number
    range           it is too small or too large, or there are too few or too many
    invalid         it is of the right type, and malformed or not allowed
    unknown         it names something that does not exist: a field, a class, a network, a column
    conflict        it contradicts another setting
    not_found       the file, folder or object that it names is not there
    unreadable      what it names is there, and damaged or not what it has to be
    empty           what it names holds nothing that can be used
    exists          what would be written is there already
    taken           it belongs to another job, team or process
    refused         a server or the system refuses: credentials, rights, an address that is not allowed
    not_installed   a package or program is missing
    unsupported     it is sound, and this version, machine or mode cannot do it
"""


class ConfigError(EsspError):
    """Something the user has to change: which field, and what to do about it.

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
        """What is wrong with the field, and what to do, without the name of the field."""
        self.field = field
        """What to change: the field of a job (`trainers.rgb.batch_size`), the argument of a function, the option of a
        command, or the environment variable; empty: the error is about no single one."""
        self.code = code
        """What kind of problem it is; see `ConfigCode`."""
        self.parts = tuple(parts)
        """The single problems of a document; empty: this error is a single one."""

    def __str__(self) -> str:
        return f"{self.field}: {self.problem}" if self.field else self.problem

    @classmethod
    def at(cls, field: str, error: Exception) -> ConfigError:
        """An error met at what `field` names, as an error of that field. Raise it `from` the other one."""
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
        field = f"{place}.{self.field}" if self.field else place
        return ConfigError(self.problem, field=field, code=self.code)
