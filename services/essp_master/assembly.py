"""A whole master process: the master, its API, the reconciler of its pools, and leader election."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from essp_common import topics
from essp_common.bus.port import Bus
from essp_common.errors import ConfigError
from essp_common.pb.v1.messages_pb2 import Control, PausedPools
from essp_common.runtime.process import run_all
from essp_common.runtime.service import Service
from essp_common.wiring import Adapters
from essp_engine.registrations import Declared, Registrations
from essp_master.api.app import create_app
from essp_master.api.guard import Guard, guarded
from essp_master.api.server import ApiServer
from essp_master.api.standby import Front, create_standby
from essp_master.config import MasterSettings
from essp_master.pools.observe_only import ObserveOnlyDriver
from essp_master.pools.pool_events import PoolEvents
from essp_master.pools.port import PoolDriver
from essp_master.pools.processes import ProcessDriver
from essp_master.pools.reconciler import Reconciler
from essp_master.pools.rule_book import PoolRuleBook
from essp_master.pools.rules import PoolRules
from essp_master.pools.trainer_ranks import TrainerRanks
from essp_master.pools.worker_registry import WorkerRegistry
from essp_master.service import Master, build
from essp_master.video_jobs.claims import Claims

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

    from essp_master.failover.leader import Election

_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class MasterProcess:
    """All parts of a master as one service. With several masters, it is a standby until it leads."""

    name = "master"

    def __init__(
        self, adapters: Adapters, settings: MasterSettings, worker: str, host: str, port: int, program: Sequence[str]
    ) -> None:
        """Listen at once. `program`: the command that starts a worker if pools are processes. Raises `ConfigError`."""
        self._program = program
        self._adapters = adapters
        self._settings = settings
        self._worker = worker
        self._front = Front(self._standby(lambda: "", ""))
        self._server = ApiServer(self._front, host, port, settings)
        self._parts: tuple[Service, ...] = ()
        self._draining = threading.Event()
        self._lock = threading.Lock()

    @property
    def port(self) -> int:
        """The port of the API."""
        return self._server.port

    def run(self) -> None:
        """Run until drained, or until a part fails."""
        run_all((self._server, _Part("leader", self._lead, self._drain_parts)))

    def drain(self) -> None:
        """Make all parts return."""
        self._drain_parts()
        self._server.drain()

    def _drain_parts(self) -> None:
        with self._lock:
            self._draining.set()
            for part in self._parts:
                part.drain()

    def _lead(self) -> None:
        """Work as the master once this process leads."""
        if not self._settings.lease:
            return self._work()
        election = self._candidate()
        try:
            if election.wait_to_lead(self._draining):
                self._work()
                election.resign()  # not after an error: its work may still be running
        finally:
            election.close()
        return None

    def _work(self) -> None:
        parts = self._assembled()
        with self._lock:
            if self._draining.is_set():
                return
            self._parts = parts
        run_all(parts)

    def _assembled(self) -> tuple[Service, ...]:
        settings, adapters = self._settings, self._adapters
        state = adapters.stores.under(settings.state) if settings.state else None
        tables = Registrations(state, settings.images) if state is not None else None
        declared = partial(_declared, tables, images_run=not (settings.pools == "processes" and settings.ranks))
        master: Master = build(adapters, settings, self._worker, recovers=True, declared=declared)
        claims = Claims()
        driver = open_driver(settings, master.worker_registry, self._program, claims)
        trainer_ranks = TrainerRanks(driver, settings.ranks) if settings.ranks else None
        master.conditions.add(driver.troubles)
        book = PoolRuleBook(
            PoolRules(state),
            tables.extractors if tables else dict,
            tables.trainers if tables and trainer_ranks else dict,
        )
        reconciler = Reconciler(
            driver,
            master.worker_registry,
            master.pool_demands,
            book,
            trainer_ranks,
            conditions=lambda: master.conditions.present,
            jobs_known=lambda: master.recovered and (claims.seen.is_set() or settings.video_jobs == "off"),
            tell_paused=partial(_tell_paused, adapters.bus),
            events=PoolEvents(state),
            attempt=master.defects.attempt,
        )
        master.conditions.add(book.troubles)
        self._front.app = create_app(master, settings, tables, reconciler, claims)
        if settings.video_jobs == "off":
            return master, reconciler
        return master, reconciler, _video_jobs(settings, master, claims, driver)

    def _standby(self, leader: Callable[[], str], url: str) -> Guard:
        """Return the app of a standby, behind the same guard as the leader's."""
        settings = self._settings
        app = create_standby(leader, url)
        return guarded(app, settings)

    def _candidate(self) -> Election:
        """Return this master's candidacy; until it wins, the process is a standby."""
        # Imported here: only deployments with several masters need the Kubernetes client.
        from essp_master.failover.leader import Election

        url = bracketed(self._settings.url) or f"http://{socket.gethostname()}:{self.port}"
        election = Election(kubernetes_api(), namespace_of(self._settings), self._settings.lease, url)
        self._front.app = self._standby(lambda: election.leader, url)
        return election


def _declared(tables: Registrations | None, images_run: bool) -> Declared:
    """Return the registrations. `images_run`: whether trainers run in the images of their rows, as far as this master
    knows; trainers that it does not start itself may."""
    return replace(tables.declared() if tables else Declared(), images_run=images_run)


def _video_jobs(settings: MasterSettings, master: Master, claims: Claims, driver: PoolDriver) -> Service:
    """Return the part that brings VideoJobs and jobs together."""
    # Imported here: only a master in a cluster needs the Kubernetes client.
    from essp_master.video_jobs.cluster import VideoJobApi
    from essp_master.video_jobs.controller import VideoJobs

    return VideoJobs(
        VideoJobApi(kubernetes_api(), namespace_of(settings)),
        master,
        claims,
        lambda: {job for job, _ in driver.trainings()},
        mirrors=settings.video_jobs == "all",
        release=settings.release,
        team=settings.video_jobs_team,
        release_s=settings.video_jobs_release_s,
    )


class _Part:
    """Two functions as a service."""

    def __init__(self, name: str, run: Callable[[], None], drain: Callable[[], None]) -> None:
        self.name = name
        self.run = run
        self.drain = drain


def open_driver(
    settings: MasterSettings, worker_registry: WorkerRegistry, program: Sequence[str], claims: Claims | None = None
) -> PoolDriver:
    """Return the driver that the settings ask for; it starts and stops workers. `claims`: the VideoJobs, which own the
    training runs of their jobs."""
    match settings.pools:
        case "processes":
            return ProcessDriver(settings.pool_sizes, program)
        case "kubernetes":
            from essp_master.pools.kubernetes import KubernetesDriver

            return KubernetesDriver(
                kubernetes_api(),
                namespace_of(settings),
                Path(settings.templates),
                settings.release,
                settings.owner,
                owner_of=(claims or Claims()).owner_of,
            )
        case _:
            return ObserveOnlyDriver(worker_registry)


def bracketed(url: str) -> str:
    """Return the URL with brackets around an IPv6 address; Kubernetes gives a pod's address without them."""
    scheme, _, rest = url.partition("://")
    host, _, port = rest.rpartition(":")
    return f"{scheme}://[{host}]:{port}" if ":" in host and not host.startswith("[") else url


def kubernetes_api() -> ApiClient:
    """Return a client of the cluster that this process runs in, or of the one in KUBECONFIG. Raises `ConfigError`."""
    from kubernetes import client, config

    try:
        config.load_incluster_config()
    except config.ConfigException:  # `load_config` would print that, between lines of JSON
        try:
            config.load_kube_config()
        except config.ConfigException as error:
            raise ConfigError(f"no Kubernetes cluster is configured: {error}", code="missing") from error
    return client.ApiClient()


def namespace_of(settings: MasterSettings) -> str:
    """Return the namespace to work in: the setting, else the pod's own, else `default`."""
    if settings.namespace:
        return settings.namespace
    return _NAMESPACE.read_text(encoding="utf-8").strip() if _NAMESPACE.exists() else "default"


def _tell_paused(bus: Bus, pools: Set[str]) -> None:
    """Tell all workers which pools are paused. Raises `Unavailable`."""
    message = Control(pools=PausedPools(names=sorted(pools)))
    bus.publish(topics.CONTROL, b"", message.SerializeToString())
    bus.flush()
