"""Workers as child processes of the master: elastic pools on one machine, without containers.

They inherit the master's environment except for its name, so they reach the same servers. A worker that dies is
restarted at once. If several workers of a pool end one after the other right after their start, the next start waits,
for twice as long each time, and users are informed (`troubles`). A worker counts as up once it has lived for a moment.
A worker that should leave gets SIGTERM and finishes its current work; when the master ends, all leave.

Registered extractors need their entry point to be installed here, and the models of registered trainers their package:
images are for Kubernetes.
"""

from __future__ import annotations

import logging
import math
import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from essp_common.errors import Unavailable
from essp_common.runtime import ids
from essp_common.runtime.conditions import Subject
from essp_common.runtime.cores import cpu_count
from essp_common.runtime.process import process_name
from essp_common.runtime.troubles import Kind
from essp_engine.registrations import ExtractorRow, TrainerRow
from essp_master.pools.commands import command_of
from essp_master.pools.port import PoolSize, TrainingKey

log = logging.getLogger(__name__)

_LEAVE_S = 45.0
"""How long a child may take to leave: longer than a worker's `drain_s`."""


_UP_S = 5.0
"""A worker that has lived this long is up."""
_EARLY_S = 20.0
"""A worker that ends earlier than this could not do its work..."""
_LOOP = 2
"""...and this many in a row are not an accident."""
_LONGEST_WAIT_S = 60.0
_MOST_DOUBLINGS = 6
"""Limits the exponent: the longest wait is reached before, and an unbounded power would overflow a float."""


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    started_s: float


@dataclass
class _Pool:
    arguments: tuple[str, ...]
    replicas: int
    registered: bool = False
    workers: list[_Worker] = field(default_factory=list)
    early: int = 0
    """How many in a row have ended right after their start."""
    exit_code: int = 0
    """Exit code of the last one."""
    next_s: float = -math.inf
    """When the next worker may be started."""

    def ended(self, worker: _Worker, now_s: float) -> float:
        """A worker has ended by itself. Returns how many seconds the next start must wait."""
        self.workers.remove(worker)
        self.early = self.early + 1 if now_s - worker.started_s < _EARLY_S else 0
        self.exit_code = worker.process.returncode
        wait_s = min(2.0 ** min(self.early - _LOOP, _MOST_DOUBLINGS), _LONGEST_WAIT_S) if self.early >= _LOOP else 0.0
        self.next_s = now_s + wait_s
        return wait_s

    def settle(self, now_s: float) -> None:
        """Forget early ends once all requested workers have lived longer than that."""
        if len(self.workers) == self.replicas and all(now_s - w.started_s >= _EARLY_S for w in self.workers):
            self.early = 0


class ProcessDriver:
    """Implements `essp_master.pools.port.PoolDriver`. Thread-safe."""

    def __init__(
        self, pools: Mapping[str, int], program: Sequence[str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`pools`: pool -> initial number of workers. `program`: the command that starts a worker, without its
        arguments (`decoder`, `extractor run --feature=flow`)."""
        self._program = tuple(program)
        own = {name: value for name, value in os.environ.items() if name != "ESSP_WORKER"}
        self._environment = {**own, "ESSP_SUPERVISED": "true"}
        self._lock = threading.RLock()
        self._clock = clock
        self._cores = cpu_count()
        self._leaving: list[tuple[str, subprocess.Popen[bytes], float]] = []
        """Pool, process, and since when it has been leaving."""
        self._pools = {name: _Pool(command_of(name), replicas) for name, replicas in pools.items()}

    def start(self, changed: Callable[[], None]) -> None:
        """Do nothing: `repair` checks the children."""

    def sizes(self) -> Mapping[str, PoolSize]:
        """Return the sizes of the existing pools."""
        with self._lock:
            now_s = self._clock()
            return {
                name: PoolSize(
                    pool.replicas,
                    sum(_is_up(w, now_s) for w in pool.workers),
                    cores=self._cores,
                    registered=pool.registered,
                )
                for name, pool in self._pools.items()
            }

    def scale(self, pool: str, replicas: int, spare: Sequence[str]) -> None:
        """Set the number of workers; those named in `spare` leave first."""
        with self._lock:
            found = self._pools.get(pool)
            if found is None:
                found = self._pools[pool] = _Pool(command_of(pool), 0)
            found.replicas = replicas
            order = {name.rpartition(".")[0]: place for place, name in enumerate(spare)}
            while len(found.workers) > replicas:
                worker = min(found.workers, key=lambda w: order.get(_name(w.process), len(order)))
                found.workers.remove(worker)
                worker.process.terminate()
                self._leaving.append((pool, worker.process, self._clock()))
        self.repair()

    def repair(self) -> list[str]:
        """Start what is missing."""
        done = []
        with self._lock:
            self._leaving = [each for each in self._leaving if not _has_ended(each[1])]
            now_s = self._clock()
            saving = {
                name for name, _, since_s in self._leaving if ids.is_training(name) and now_s < since_s + _LEAVE_S
            }
            for name, pool in self._pools.items():
                for worker in [worker for worker in pool.workers if _has_ended(worker.process)]:
                    wait_s = pool.ended(worker, now_s)
                    if ids.is_training(name) and worker.process.returncode == 0:
                        pool.replicas = pool.early = 0  # it is done
                        continue
                    done.append(_ended(name, worker, now_s, wait_s))
                # The next process of a training starts from the checkpoint that the previous one is still saving.
                while name not in saving and len(pool.workers) < pool.replicas and now_s >= pool.next_s:
                    pool.workers.append(_Worker(self._start(pool.arguments), now_s))
                pool.settle(now_s)
        return done

    def trainings(self) -> Mapping[TrainingKey, int]:
        """Return an empty mapping: training runs of an earlier master ended with it."""
        return {}

    def failed(self) -> Set[TrainingKey]:
        """Return an empty set: a process that fails is restarted."""
        return frozenset()

    def done(self) -> Set[TrainingKey]:
        """Return the training runs whose process has ended with exit code 0."""
        with self._lock:
            ended = [name for name, pool in self._pools.items() if ids.is_training(name) and not pool.replicas]
            return {ids.training_of(name) for name in ended}

    def tell(self, pool: str, sentence: str) -> None:
        """Do nothing: the log has it."""

    def troubles(self) -> Mapping[Subject, str]:
        """Return the pools whose workers end right after their start."""
        with self._lock:
            return {
                (Kind.CRASHING, name): f"the last {pool.early} workers ended within {_EARLY_S:.0f} s of their start, "
                f"the last with exit code {pool.exit_code}; see why in their log, which is the master's"
                for name, pool in self._pools.items()
                if pool.early >= _LOOP
            }

    def add_extractor(self, row: ExtractorRow) -> None:
        """Start a pool for the feature."""
        name = ids.extractor_pool([row.name])
        with self._lock:
            if name not in self._pools:
                self._pools[name] = _Pool(command_of(name), row.min, registered=True)
        self.repair()

    def remove(self, pool: str) -> None:
        """Make all workers of a pool leave."""
        with self._lock:
            if pool in self._pools:
                self.scale(pool, 0, ())
                del self._pools[pool]

    def train(self, job: str, trainer: str, ranks: int, row: TrainerRow | None) -> None:
        """Run one process, which starts its ranks itself. If the number changes, it saves, ends and is started
        again."""
        name = ids.trainer_pool(job, trainer)
        arguments = command_of(name, ranks)
        with self._lock:
            if name in self._pools and (not ranks or self._pools[name].arguments != arguments):
                self.remove(name)
            if ranks and name not in self._pools:
                self._pools[name] = _Pool(arguments, 1)
                if row is not None:
                    log.warning(
                        "trainer %s of job %s runs as a process of this machine, with what is installed here: image, "
                        "resources and environment of the registered trainer %s are for Kubernetes (ESSP_POOLS)",
                        trainer,
                        job,
                        row.name,
                    )
        self.repair()

    def close(self) -> None:
        """Make all workers leave; kill those that have not left in time."""
        with self._lock:
            workers = [worker.process for pool in self._pools.values() for worker in pool.workers]
            workers += [worker for _, worker, _ in self._leaving]
            self._pools.clear()
        for worker in workers:
            worker.terminate()
        until_s = self._clock() + _LEAVE_S  # for all of them together
        for worker in workers:
            try:
                worker.wait(max(0.0, until_s - self._clock()))
            except subprocess.TimeoutExpired:
                log.warning("worker %s does not leave; it is killed", _name(worker))
                worker.kill()
                worker.wait()
            _has_ended(worker)

    def _start(self, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        # The pipe closes with this process, however it ends, and its workers leave then.
        try:
            return subprocess.Popen([*self._program, *arguments], stdin=subprocess.PIPE, env=self._environment)
        except OSError as error:  # out of memory, processes or files
            raise Unavailable(f"no worker `{' '.join(arguments)}` can be started: {error}") from error


def _is_up(worker: _Worker, now_s: float) -> bool:
    return worker.process.poll() is None and now_s - worker.started_s >= _UP_S


def _ended(pool: str, worker: _Worker, now_s: float, wait_s: float) -> str:
    """Return one sentence for users."""
    lived_s = now_s - worker.started_s
    early = f", as it ended within {lived_s:.0f} s of its start" if wait_s else ""
    soon = f" in {wait_s:.0f} s" if wait_s else ""
    ended = f"worker {_name(worker.process)} of {pool} ended with {worker.process.returncode}"
    return f"{ended}; another is started{soon}{early}"


def _has_ended(worker: subprocess.Popen[bytes]) -> bool:
    """Whether a worker is gone; if so, close its end of the pipe."""
    if worker.poll() is None:
        return False
    if worker.stdin is not None:
        worker.stdin.close()
    return True


def _name(worker: subprocess.Popen[bytes]) -> str:
    """Return the beginning of the worker's name (`essp_common.runtime.process.worker_name`)."""
    return process_name(worker.pid)
