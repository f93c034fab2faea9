"""Elects the leader among several masters with a Kubernetes Lease.

Only the leader runs jobs. It renews its lease every few seconds. If it cannot, its process ends: another master will
take over, and a half-alive process is worse than a restarted one. The lease alone could briefly allow two leaders
(because of clocks or paused processes). So every write also carries the fence of the job's run, and writes with a lower
fence are ignored.

A standby forwards requests to the leader (`api/standby.py`).
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from kubernetes import client
from kubernetes.leaderelection import electionconfig
from kubernetes.leaderelection.leaderelection import LeaderElection
from kubernetes.leaderelection.resourcelock.leaselock import LeaseLock
from urllib3.exceptions import HTTPError

from essp_common.runtime.threads import guarded

log = logging.getLogger(__name__)

LEASE_S = 15
RENEW_S = 10
RETRY_S = 2
EXIT_LOST = 1
_SEPARATOR = "#"
"""Follows the URL in the identity of a lease holder."""


class _Lock(LeaseLock):
    """A LeaseLock whose requests time out before the lease expires."""

    def __init__(self, api: client.ApiClient, name: str, namespace: str, identity: str, timeout_s: float) -> None:
        super().__init__(name, namespace, identity)
        self.api_instance: Any = client.CoordinationV1Api(api)
        for method in ("read_namespaced_lease", "create_namespaced_lease", "replace_namespaced_lease"):
            writes = {} if method.startswith("read") else {"field_manager": "essp-master"}
            limited = partial(getattr(self.api_instance, method), _request_timeout=timeout_s, **writes)
            setattr(self.api_instance, method, limited)
        self.held_by = ""
        """The leader at the last read."""

    def give_up(self) -> None:
        """Free the lease at once; nothing renews it any more. Raises the client's exceptions."""
        lease = self.api_instance.read_namespaced_lease(self.name, self.namespace)
        if lease.spec.holder_identity == self.identity:
            lease.spec.holder_identity = None
            self.api_instance.replace_namespaced_lease(name=self.name, namespace=self.namespace, body=lease)

    def get(self, name: str, namespace: str) -> tuple[bool, Any]:
        found, record = super().get(name, namespace)
        if found:
            self.held_by = record.holder_identity or ""
        return found, record


class Candidacy(LeaderElection):
    """The library's election, with loops that can be ended and a monotonic clock.

    The library's own loops sleep between tries and never end while no master leads. It also measures time by the wall
    clock: a clock set forward would take the lease from a living leader, and one set back would leave all masters
    without a leader.

    An API that does not answer, or whose answer cannot be understood, is a failed try. It must not end the election
    thread: a leader would continue without a lease, and a standby would never lead.
    """

    def __init__(self, config: electionconfig.Config, closed: threading.Event) -> None:
        super().__init__(config)
        self._closed = closed
        self._changed_s = 0.0
        """When the lease was last seen to change."""

    def try_acquire_or_renew(self) -> bool:
        seen = self.observed_record
        # The library expects that moment on the wall clock: convert its age with the current wall-clock time.
        self.observed_time_milliseconds = int(1000 * (time.time() - (time.monotonic() - self._changed_s)))
        try:
            return bool(super().try_acquire_or_renew())
        except HTTPError as error:
            log.info("the lease cannot be read: %s", error)
        except Exception:  # such as from a proxy that answers instead of the API
            log.exception("the answer of the Kubernetes API about the lease is not understood")
        finally:
            if self.observed_record is not seen:
                self._changed_s = time.monotonic()
        return False

    def acquire(self) -> bool:
        while not self.try_acquire_or_renew():
            if self._closed.wait(self.election_config.retry_period):
                return False
        return True

    def renew_loop(self, leading_failed: threading.Event | None = None) -> None:
        renewed_s = time.monotonic()
        while time.monotonic() - renewed_s < self.election_config.renew_deadline:
            if self.try_acquire_or_renew():
                renewed_s = time.monotonic()
            if self._closed.wait(self.election_config.retry_period):
                return


class Election:
    """Takes part in the election after `start`; `wait` and `leads` report whether this process has won it."""

    def __init__(
        self,
        api: client.ApiClient,
        namespace: str,
        name: str,
        url: str,
        lost: Callable[[], None] = lambda: os._exit(EXIT_LOST),
        times_s: tuple[int, int, int] = (LEASE_S, RENEW_S, RETRY_S),
    ) -> None:
        """`url`: this master's API. `lost`: called when the lease is lost; by default the process ends. `times_s`:
        duration of a lease, deadline for its renewal, and the wait between tries.

        Several masters may have the same URL, if a load balancer is in front of them. So a holder is identified by the
        URL and a random suffix that is unique to its process.
        """
        self._lock = _Lock(api, name, namespace, f"{url}{_SEPARATOR}{secrets.token_hex(4)}", times_s[1] / 2)
        self._url = url
        self._lost = lost
        self._times_s = times_s
        self._won = threading.Event()
        self._closed = threading.Event()
        self._thread = guarded("essp-election", lambda: self.candidacy().run(), self._on_lost)

    def start(self) -> None:
        """Start taking part."""
        self._thread.start()

    @property
    def leads(self) -> bool:
        """Whether this process is the leader."""
        return self._won.is_set()

    @property
    def leader(self) -> str:
        """The leader's URL, as far as it is known; empty if there is no leader."""
        return self._url if self.leads else self._lock.held_by.partition(_SEPARATOR)[0]

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait to become the leader."""
        return self._won.wait(timeout_s)

    def wait_to_lead(self, draining: threading.Event, poll_s: float = 0.5) -> bool:
        """Take part, and wait until this process leads (returns True) or is draining (returns False)."""
        self.start()
        logged = ""
        while not draining.is_set():
            if self.wait(poll_s):
                return True
            if self.leader != logged:
                logged = self.leader
                log.info("standby: %s leads", logged or "no master")
        return False

    def resign(self) -> None:
        """Give up the lease so that the next leader can start at once. For a leader that is about to end."""
        if not self.leads:
            return
        self.close()
        try:
            self._lock.give_up()
        except Exception as error:  # noqa: BLE001  whatever the error is, this process is about to end
            log.warning("the lease could not be given up, others wait until it runs out: %r", error)

    def close(self) -> None:
        """Leave the election; the lease stays until it expires. Idempotent."""
        self._closed.set()
        if self._thread.ident is not None:
            self._thread.join()

    def candidacy(self) -> Candidacy:
        """Return one candidacy, from the first try until the lease is lost."""
        lease_s, renew_s, retry_s = self._times_s
        config = electionconfig.Config(
            self._lock,
            lease_duration=lease_s,
            renew_deadline=renew_s,
            retry_period=retry_s,
            onstarted_leading=self._on_won,
            onstopped_leading=self._on_lost,
        )
        return Candidacy(config, self._closed)

    def _on_won(self) -> None:
        log.info("this master leads")
        self._won.set()

    def _on_lost(self) -> None:
        if self._closed.is_set():
            return
        log.error("the lease was not renewed within %d s: this master does not lead any more", self._times_s[1])
        self._lost()
