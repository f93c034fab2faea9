"""For how long a broker has owed an answer: to published messages, to a joining member, to a reader.

Clients wait for brokers silently, some of them forever. These classes track what is owed, so that users can be
informed (`Bus.troubles`). Pure: time is passed in.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from essp_common.runtime.troubles import LASTS_S, Kind

JOIN_S = 20.0
"""How long a group may take to assign a member its share: longer than the session of a dead member, for which the
broker makes the others wait."""


class Acknowledgements:
    """Published messages that are not acknowledged yet. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, longest_s: float = LASTS_S) -> None:
        self._clock = clock
        self._longest_s = longest_s
        self._lock = threading.Lock()
        self._owed = 0
        self._since_s: float | None = None
        """When the broker last acknowledged something, with more to come; None if it owes nothing."""

    def published(self) -> None:
        """A message is on its way."""
        with self._lock:
            self._owed += 1
            if self._since_s is None:
                self._since_s = self._clock()

    def answered(self) -> None:
        """The broker has acknowledged or refused a message."""
        with self._lock:
            self._owed -= 1
            self._since_s = self._clock() if self._owed else None

    def given_up(self) -> None:
        """The client has given up a message, which is not an answer."""
        with self._lock:
            self._owed -= 1

    def troubles(self) -> dict[Kind, str]:
        """Report that nothing was acknowledged for a long time."""
        with self._lock:
            if self._since_s is None or (waited_s := self._clock() - self._since_s) < self._longest_s:
                return {}
            owed = f"{self._owed} messages" if self._owed else "what was published"
        return {
            Kind.BUS_STALLED: f"the broker has not acknowledged {owed} for {waited_s:.0f} s; check its log, "
            "its disk, and whether enough replicas are in sync; what is not acknowledged is published again"
        }


class Membership:
    """Whether the broker answers a member of a group. Used by its thread; `troubles` by any thread."""

    def __init__(
        self, group: str, clock: Callable[[], float] = time.monotonic, join_s: float = JOIN_S, silent_s: float = LASTS_S
    ) -> None:
        self._group = group
        self._clock = clock
        self._join_s = join_s
        self._silent_s = silent_s
        self._joining_s: float | None = None
        self._asked_s = self._heard_s = clock()
        self._refusal, self._silent = "", True

    def asks(self) -> None:
        """A request to the broker begins."""
        self._asked_s = self._clock()

    def heard(self) -> None:
        """The broker has answered."""
        self._heard_s = self._clock()
        self._refusal, self._silent = "", True

    def failed(self, why: str, silent: bool = True) -> None:
        """A request to the broker has failed. `silent`: there was no answer; otherwise `why` is the complete
        message."""
        self._refusal, self._silent = why, silent

    def joining(self, joining: bool) -> None:
        """Note whether the member is waiting for its share of the group's partitions."""
        if not joining:
            self._joining_s = None
        elif self._joining_s is None:
            self._joining_s = self._clock()

    def troubles(self) -> dict[Kind, str]:
        """Report that the broker does not answer, or does not let the member join."""
        now_s, since_s, why = self._clock(), self._joining_s, self._refusal
        if not why and now_s - self._asked_s >= self._join_s:
            why = "the client still waits"
        if why and now_s - self._heard_s >= self._silent_s:
            if not self._silent:
                return {Kind.BUS_SILENT: f"group {self._group} reads nothing: {why}"}
            return {
                Kind.BUS_SILENT: f"the broker has not answered group {self._group} for {now_s - self._heard_s:.0f} s "
                f"({why}); see that it runs and that the network lets it through"
            }
        if since_s is not None and now_s - since_s >= self._join_s:
            return {
                Kind.UNASSIGNED: f"the broker has not let this member join group {self._group} for "
                f"{now_s - since_s:.0f} s, so it has no partitions and gets no work; look at the log of the broker "
                "that coordinates the group, and restart it"
            }
        return {}
