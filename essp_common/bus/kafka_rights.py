"""What the broker refuses this process for its password or its rights.

At the start of a process it is for whoever has started it to set that right: `ConfigError`. What has worked before was
taken away by somebody, perhaps by mistake, and may be given back: `Denied`. Then work waits, and `words` says what was
refused. No record is at fault.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from essp_common.bus.kafka_clients import Denied, mapped
from essp_common.errors import ConfigError
from essp_common.runtime.refusals import Refusals

_LOGIN = "log in"
ANYTHING = ""
"""What has begun with the first thing that worked."""


class Rights:
    """What the broker refuses, call by call. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._refusals = Refusals(clock)
        self._begun: set[str] = set()
        """What has worked once."""

    @contextmanager
    def needed(self, call: str, start: str = ANYTHING) -> Iterator[None]:
        """Within this block kafka-python's errors are ESSP's. Of a call that is denied before `start` has worked once,
        the user is told."""
        try:
            with mapped(call):
                yield
        except Denied as error:
            if error.call != call:  # of another call within, which has told of it
                raise
            self.denied(error)
            if start not in self._begun:
                raise ConfigError(str(error), code="refused") from error.__cause__
            raise

    @contextmanager
    def asked(self, call: str) -> Iterator[None]:
        """`needed`, for a call that was granted if it comes to an end."""
        with self.needed(call):
            yield
        self.granted(call)

    def granted(self, call: str) -> None:
        """The broker has done this call."""
        self.begun(ANYTHING)
        self._refusals.works(call)

    def begun(self, start: str) -> None:
        """From now on what is denied of this was taken away."""
        self._begun.add(start)

    def denied(self, error: Denied) -> None:
        """The broker has refused a call."""
        self._refusals.refused(error.call, str(error))

    def login(self, refused: BaseException | None) -> None:
        """A client has logged in, or what was wrong. It tries again; nothing else may tell of it."""
        if refused is None:
            self._refusals.works(_LOGIN)
        else:
            self.denied(Denied(_LOGIN, refused))

    @property
    def words(self) -> str:
        """What was refused last, and what to do; empty: nothing is."""
        return self._refusals.words
