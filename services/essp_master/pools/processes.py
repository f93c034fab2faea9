"""Workers as child processes of the master: elastic pools on one machine, without containers.

They inherit the master's environment, so they reach the same servers. A worker that dies is started again; one that is
to leave gets SIGTERM and finishes what it has in hand; when the master ends, all leave. Registered extractors need
their entry point to be installed here: images are for Kubernetes.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from essp_common.errors import ConfigError
from essp_common.runtime import ids
from essp_master.pools.port import PoolSize
from essp_master.registrations import ExtractorRow, TrainerRow

log = logging.getLogger(__name__)

_LEAVE_S = 45.0
"""How long a child may take to leave: more than `drain_s` of a worker."""


@dataclass
class _Pool:
    arguments: tuple[str, ...]
    replicas: int
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)


class ProcessDriver:
    """Implements `essp_master.pools.port.PoolDriver`. Thread-safe."""

    def __init__(self, pools: Mapping[str, int], program: Sequence[str]) -> None:
        """`pools`: pool -> workers to begin with. `program`: the command that starts a worker, without its arguments
        (`decoder`, `extractor run --feature=flow`)."""
        self._program = tuple(program)
        self._environment = {**os.environ, "ESSP_SUPERVISED": "true"}
        self._lock = threading.RLock()
        self._leaving: list[subprocess.Popen[bytes]] = []
        self._pools = {name: _Pool(_command(name), replicas) for name, replicas in pools.items()}

    def start(self, changed: Callable[[], None]) -> None:
        """Nothing: `repair` looks at the children."""

    def sizes(self) -> Mapping[str, PoolSize]:
        """The pools there are."""
        with self._lock:
            return {
                name: PoolSize(pool.replicas, sum(worker.poll() is None for worker in pool.workers))
                for name, pool in self._pools.items()
            }

    def scale(self, pool: str, replicas: int, spare: Sequence[str]) -> None:
        """Have so many workers; those named in `spare` leave first."""
        with self._lock:
            found = self._pools.get(pool)
            if found is None:
                found = self._pools[pool] = _Pool(_command(pool), 0)
            found.replicas = replicas
            order = {name: place for place, name in enumerate(spare)}
            while len(found.workers) > replicas:
                worker = min(found.workers, key=lambda w: order.get(_name(w), len(order)))
                found.workers.remove(worker)
                worker.terminate()
                self._leaving.append(worker)
        self.repair()

    def repair(self) -> list[str]:
        """Start what is missing."""
        done = []
        with self._lock:
            self._leaving = [worker for worker in self._leaving if not _has_ended(worker)]
            for name, pool in self._pools.items():
                for worker in [worker for worker in pool.workers if _has_ended(worker)]:
                    pool.workers.remove(worker)
                    if ids.is_training(name) and worker.returncode == 0:
                        pool.replicas = 0  # it is done
                        continue
                    done.append(f"worker {_name(worker)} of {name} ended with {worker.returncode}; another is started")
                while len(pool.workers) < pool.replicas:
                    pool.workers.append(self._start(pool.arguments))
        return done

    def add_extractor(self, row: ExtractorRow) -> None:
        """Start a pool for the feature."""
        name = ids.extractor_pool([row.name])
        with self._lock:
            if name not in self._pools:
                self.scale(name, row.min, ())

    def remove(self, pool: str) -> None:
        """Let all workers of a pool leave."""
        with self._lock:
            if pool in self._pools:
                self.scale(pool, 0, ())
                del self._pools[pool]

    def train(self, job: str, trainer: str, ranks: int, row: TrainerRow | None) -> None:
        """One process, which starts its ranks itself; with another number it saves, ends and is started again."""
        name = ids.trainer_pool(job, trainer)
        arguments = _command(name, ranks)
        with self._lock:
            if name in self._pools and self._pools[name].arguments != arguments:
                self.remove(name)
            if ranks:
                self._pools.setdefault(name, _Pool(arguments, 1))
        self.repair()

    def close(self) -> None:
        """Let all leave; kill those that have not left after a while."""
        with self._lock:
            workers = [worker for pool in self._pools.values() for worker in pool.workers] + self._leaving
            self._pools.clear()
        for worker in workers:
            worker.terminate()
        for worker in workers:
            try:
                worker.wait(_LEAVE_S)
            except subprocess.TimeoutExpired:
                log.warning("worker %s does not leave; it is killed", _name(worker))
                worker.kill()
                worker.wait()
            _has_ended(worker)

    def _start(self, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        # The pipe ends with this process, however it ends, and its workers leave then.
        return subprocess.Popen([*self._program, *arguments], stdin=subprocess.PIPE, env=self._environment)


def _has_ended(worker: subprocess.Popen[bytes]) -> bool:
    """Whether a worker is gone; if so, its end of the pipe is closed."""
    if worker.poll() is None:
        return False
    if worker.stdin is not None:
        worker.stdin.close()
    return True


def _name(worker: subprocess.Popen[bytes]) -> str:
    """As the worker calls itself (`essp_common.runtime.process.worker_name`)."""
    return f"{socket.gethostname()}-{worker.pid}"


def _command(pool: str, ranks: int = 1) -> tuple[str, ...]:
    """The arguments that start a worker of a pool."""
    if pool in (ids.DECODER, ids.AGGREGATOR, ids.PREDICTOR):
        return (pool,)
    if pool == ids.EXTRACTOR or ids.features_of(pool):
        return (ids.EXTRACTOR, "run", *(f"--feature={feature}" for feature in ids.features_of(pool)))
    try:
        job, trainer = ids.training_of(pool)
    except ValueError:
        pools = "decoder, extractor, extractor.FEATURE, aggregator, predictor"
        raise ConfigError(f"there is no pool {pool!r}; pools are {pools}") from None
    return (ids.TRAINER, f"--job={job}", f"--trainer={trainer}", f"--ranks={ranks}")
