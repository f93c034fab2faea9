"""The objects of one kind in the cluster, without a request for each read: one list, then a watch from there.

The API server sends each change as it happens. A watch ends from time to time, at the server's will or with a broken
link, and resumes at the version of the last change, or of the last bookmark, which the server sends in quiet times so
that the version does not become too old. If it is still too old (410 Gone), all objects are listed again. While
the API does not answer, the informer retries after growing pauses, and `objects` raises instead of returning stale
data.
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kubernetes import watch
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from essp_common.errors import EsspError, Unavailable
from essp_common.runtime.threads import lasting
from essp_master.pools.port import CannotNow, PlatformRefuses

log = logging.getLogger(__name__)

TIMEOUT_S = (3.0, 10.0)
"""Timeouts to connect and to answer, for a request that is not a watch."""
_WATCH_S = 120
"""Longest duration of one watch."""
_SILENT_S = _WATCH_S + 15.0
"""If the server has not ended a watch by then, as it should have, the link is dead."""
_SYNC_S = 10.0
"""How long to wait for the first list."""
_GONE = 410
_jitter = random.Random()


class Informer:
    """The objects of one kind, by name. Thread-safe; runs a thread from `start` to `close`."""

    def __init__(
        self,
        kind: str,
        model: str | type,
        lists: Callable[..., Any],
        changed: Callable[[], None],
        pauses_s: tuple[float, float] = (1.0, 30.0),
    ) -> None:
        """`model`: the client's class of one object, or one of our own with `from_dict`. `lists`: the client's method
        that lists them, including the selector. `changed`: called after each change, in the informer's thread.
        `pauses_s`: the first and the longest pause between tries while the API does not answer."""
        self._kind = kind
        self._lists = lists
        self._changed = changed
        self._pauses_s = pauses_s
        self._watch = watch.Watch(model)
        self._objects: dict[str, Any] = {}
        self._version = ""
        self._error: EsspError | None = None
        self._synced = threading.Event()
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._thread = lasting("essp-watch", self._run, self._closing, of=kind)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._closing.set()
        while self._thread.is_alive():  # a watch that is stopped before it began continues, so repeat
            self._watch.stop()
            self._thread.join(0.05)

    def objects(self) -> Mapping[str, Any]:
        """Return the present objects by name. Raises the API's last error while they cannot be observed."""
        self._synced.wait(_SYNC_S)
        with self._lock:
            if self._error is not None:
                raise type(self._error)(str(self._error))  # a new instance: several threads must not raise the same one
            if not self._synced.is_set():
                raise Unavailable(f"{self._kind} have not been listed yet")
            return dict(self._objects)

    def _run(self) -> None:
        pause_s, longest_s = self._pauses_s
        failures = 0
        while not self._closing.is_set():
            began_s = time.monotonic()
            try:
                with answers():
                    if not self._version:
                        self._list()
                    self._follow()
                failures = 0
            except Expired:
                log.info("%s: the API server no longer has the missed changes; listing all objects again", self._kind)
                self._version = ""
            except EsspError as error:
                failures = 1 if time.monotonic() - began_s > self._pauses_s[0] else failures + 1
                if failures > 1:  # a single failure may be just a broken link
                    self._version = ""
                if failures > 1 or not self._synced.is_set():
                    self._fail(error)
            except Exception as error:
                log.exception("%s: unexpected error", self._kind)
                failures, self._version = failures + 1, ""
                self._fail(Unavailable(f"the answer of the Kubernetes API is not understood: {error!r}"))
            if not failures and time.monotonic() - began_s > self._pauses_s[0]:
                pause_s = self._pauses_s[0]
                continue
            # Pause also after a watch that ended well but early: do not query the server continuously.
            self._closing.wait(pause_s * _jitter.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, longest_s) if failures else self._pauses_s[0]

    def _list(self) -> None:
        found = self._lists(_request_timeout=TIMEOUT_S)
        with self._lock:
            self._objects = {item.metadata.name: item for item in found.items}
        self._version = found.metadata.resource_version
        self._answered()
        self._changed()

    def _follow(self) -> None:
        """Apply changes until the watch ends."""
        events = self._watch.stream(
            self._lists,
            resource_version=self._version,
            allow_watch_bookmarks=True,
            timeout_seconds=_WATCH_S,
            _request_timeout=(TIMEOUT_S[0], _SILENT_S),
        )
        for event in events:
            self._answered()
            if event["type"] != "BOOKMARK":
                self._note(event["type"], event["object"])
            self._version = self._watch.resource_version or self._version

    def _note(self, kind: str, body: Any) -> None:
        with self._lock:
            if kind == "DELETED":
                self._objects.pop(body.metadata.name, None)
            else:
                self._objects[body.metadata.name] = body
        self._changed()

    def _answered(self) -> None:
        with self._lock:
            if self._error is not None:
                log.info("%s: the Kubernetes API answers again", self._kind)
            self._error = None
        self._synced.set()

    def _fail(self, error: EsspError) -> None:
        with self._lock:
            self._error = error
        self._synced.set()
        if not self._closing.is_set():
            log.warning("%s: %s; trying again", self._kind, error)


class Exists(EsspError):
    """An object of that name already exists, or still does."""


class Expired(EsspError):
    """The API server no longer has the requested version."""


@contextmanager
def answers(missing_ok: bool = False) -> Iterator[None]:
    """Convert the client's errors within this block into ESSP's. `missing_ok`: the object may be gone, also if another
    one has its name by now."""
    try:
        yield
    except ApiException as error:
        if missing_ok and (error.status == 404 or _names_another(error)):
            return
        if error.status == _GONE:
            raise Expired(str(error.reason)) from error
        if error.status == 409 and "AlreadyExists" in f"{error.reason} {error.body}":
            raise Exists(f"Kubernetes has one already: {error.body}") from error
        if error.status in (403, 401):
            raise PlatformRefuses(f"Kubernetes refuses: {_said(error)} (the chart's Role, or a quota)") from error
        if error.status and error.status < 500 and error.status not in (409, 429):
            raise PlatformRefuses(f"Kubernetes refuses: {_said(error)}") from error
        raise CannotNow(f"Kubernetes answers {error.status} {error.reason}: {_said(error)}") from error
    except HTTPError as error:
        raise Unavailable(f"the Kubernetes API does not answer: {error}") from error


def _names_another(error: ApiException) -> bool:
    """Whether the request named another object's uid. The API server words this in several ways."""
    return error.status == 409 and "precondition" in _said(error).lower()


def _said(error: ApiException) -> str:
    """Return the API server's own message for an error, if it has one."""
    try:
        return str(json.loads(error.body or "")["message"])
    except (KeyError, TypeError, ValueError):
        return f"{error.status} {error.reason}"
