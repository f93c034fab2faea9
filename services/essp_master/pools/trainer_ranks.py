"""Divides ranks among the trainers of running jobs, again after each of their epochs.

A paused job gives its ranks to running ones: its trainers have saved, and resume with it. While no job runs, a paused
job keeps them.

A new master begins with the ranks that trainers have, so that it moves none at first; it ends the trainers of jobs
that are over. A training whose workers have ended although it has more to do is started again: the job got more epochs
after it was over, or was stopped and restarted while no master observed it.

Trainers whose training or job is over save and end by themselves, and what they leave, such as a Kubernetes Job with
its log, stays to be looked at. So they are taken away only when the driver says that they have ended, or after a while
if they do not. Their ranks are free at once.

A training that has failed, and is not retried automatically, gives its ranks back. It stays as it is, so that users
can see why; when they let it try again, it gets its share.

To change its number of ranks, a trainer saves a checkpoint, ends, and resumes from it. Ranks are GPUs, or processes
without GPUs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence, Set
from datetime import datetime

from essp_common.runtime import ids
from essp_engine.registrations import TrainerRow, row_for
from essp_master.pools.gpus import SCALING, TrainerForecast, allocate
from essp_master.pools.port import PoolDriver, TrainingKey
from essp_master.status.pool_demand import PoolDemand, TrainerDemand

_STARVED = 0.3
"""A trainer that waits for more than this share of its time could not use more ranks."""
_LEAVES_S = 60.0
"""How long trainers that have nothing more to do may take to end."""
Told = tuple[str, str]
"""The pool of a training, and a sentence about it for users."""


class TrainerRanks:
    """Divides the ranks. Not thread-safe: the reconciler's thread calls it."""

    def __init__(self, driver: PoolDriver, ranks: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`ranks`: the total number of ranks."""
        self._driver = driver
        self._ranks = ranks
        self._clock = clock
        self._shares: dict[TrainingKey, int] = {}
        self._seen: dict[TrainingKey, int] = {}
        self._adopted = False
        """Whether the training runs of earlier masters have been adopted."""
        self._out: set[TrainingKey] = set()
        """Training runs that have failed and released their ranks."""
        self._leaving: dict[TrainingKey, float] = {}
        """Training runs that are over, and when to end those whose workers have not ended by then."""
        self._begun: dict[str, datetime] = {}
        """When each job was last started."""

    @property
    def shares(self) -> dict[TrainingKey, int]:
        """The ranks of each training."""
        return dict(self._shares)

    def step(self, jobs: Sequence[PoolDemand], registered: Mapping[str, TrainerRow]) -> list[Told]:
        """Give each trainer of the jobs its share of ranks. Returns what has changed. `registered`: trainers by
        name."""
        known = {(job.job, trainer.name) for job in jobs for trainer in job.trainers}
        unfinished = {(job.job, trainer.name) for job in jobs for trainer in job.trainers if not trainer.final}
        jobs = [job for job in jobs if job.running] or jobs
        wanted = {
            (job.job, trainer.name): (job, trainer) for job in jobs for trainer in job.trainers if not trainer.final
        }
        failed = self._driver.failed()
        found = {key: demand for key, demand in wanted.items() if key not in failed}
        epochs = {key: len(trainer.losses) for key, (_, trainer) in found.items()}
        rows = {key: row_for(trainer.model, registered) for key, (_, trainer) in wanted.items()}
        begun = {job.job: job.created for job, _ in wanted.values()}
        adopted = self._adopt(rows, begun, failed, known, unfinished)
        # End what is over before dividing: it frees ranks.
        self._end_former(begun)
        self._end_leaving(wanted.keys(), failed)
        self._end_done(wanted.keys())
        self._end_failed(known, failed)
        if epochs == self._seen:
            return adopted
        trainers = [self._forecast(key, job, trainer, rows[key]) for key, (job, trainer) in found.items()]
        names = {_name(key): key for key in found}
        shares = allocate(trainers, self._ranks, {_name(k): self._shares.get(k, 0) for k in found})
        done = self._move({names[name]: share for name, share in shares.items()}, rows, failed, unfinished)
        self._seen = epochs  # set last, so that a failed step is repeated
        return adopted + done

    def _adopt(
        self,
        rows: Mapping[TrainingKey, TrainerRow | None],
        begun: dict[str, datetime],
        failed: Set[TrainingKey],
        known: Set[TrainingKey],
        unfinished: Set[TrainingKey],
    ) -> list[Told]:
        """Once: adopt what earlier masters have started, and end training runs that should have no ranks. `known`: of
        all jobs. `unfinished`: those of them that are not done."""
        if self._adopted:
            return []
        present, done = self._driver.trainings(), self._driver.done()
        self._out = {key for key in failed if key in rows}
        for key, ranks in present.items():
            if key in rows and key not in self._out:
                self._driver.train(*key, ranks, rows[key])
            elif key not in rows:
                self._end(key, unfinished)
        self._shares = {key: ranks for key, ranks in present.items() if key in rows and key not in self._out}
        self._begun = begun
        self._adopted = True
        return [
            (ids.trainer_pool(*key), f"{'has no turn now' if key in known else 'is of no job any more'}; it ends")
            for key in sorted(present.keys() - rows.keys() - failed - done)
        ]

    def _end(self, key: TrainingKey, unfinished: Set[TrainingKey]) -> None:
        """End a training that should have no ranks: now if it has more to do, else when its workers have ended."""
        if key in unfinished:
            self._driver.train(*key, 0, None)
        else:
            self._leaving[key] = self._clock() + _LEAVES_S

    def _end_leaving(self, wanted: Set[TrainingKey], failed: Set[TrainingKey]) -> None:
        """Remove training runs that are over and whose workers have ended, or should have by now, or that are wanted
        again."""
        over = self._driver.done() | failed | wanted if self._leaving else frozenset()
        for key, until_s in tuple(self._leaving.items()):
            if key in over or self._clock() >= until_s:
                self._driver.train(*key, 0, None)
                del self._leaving[key]

    def _end_former(self, begun: dict[str, datetime]) -> None:
        """End the trainers of earlier runs: a job may have been stopped and restarted between two steps."""
        for key in [*self._shares, *self._out]:
            if key[0] in begun and self._begun.get(key[0]) != begun[key[0]]:
                self._driver.train(*key, 0, None)
                self._shares.pop(key, None)
                self._out.discard(key)
                self._seen = {}
        self._begun = begun

    def _end_done(self, wanted: Set[TrainingKey]) -> None:
        """Remove training runs that have ended but are still wanted, so that they are started again."""
        for key in self._driver.done() & wanted & self._shares.keys():
            self._driver.train(*key, 0, None)
            del self._shares[key]
            self._seen = {}

    def _end_failed(self, known: Set[TrainingKey], failed: Set[TrainingKey]) -> None:
        """Remove failed training runs whose jobs are over, and forget those that are being retried."""
        for key in self._out - known:
            self._driver.train(*key, 0, None)
        self._out &= known & failed

    def _move(
        self,
        shares: Mapping[TrainingKey, int],
        rows: Mapping[TrainingKey, TrainerRow | None],
        failed: Set[TrainingKey],
        unfinished: Set[TrainingKey],
    ) -> list[Told]:
        done = []
        for key in sorted(self._shares.keys() - shares.keys()):
            if key in failed and key in rows:
                self._out.add(key)
                free = f"has failed; its {self._shares[key]} ranks are free for others"
                done.append((ids.trainer_pool(*key), free))
            else:
                self._end(key, unfinished)
        # smallest shares first: free ranks before assigning them
        for key, share in sorted(shares.items(), key=lambda item: item[1]):
            before = self._shares.get(key, 0)
            if share != before:
                self._driver.train(*key, share, rows[key])
                done.append((ids.trainer_pool(*key), f"{before} -> {share} ranks of {self._ranks}"))
        self._shares = dict(shares)
        return done

    def _forecast(
        self, key: TrainingKey, job: PoolDemand, trainer: TrainerDemand, row: TrainerRow | None
    ) -> TrainerForecast:
        present = max(1, self._shares.get(key, 1))
        speed = (trainer.clips_per_s or 1.0) / max(job.epoch_clips, 1) / present**SCALING
        return TrainerForecast(
            name=_name(key),
            losses=trainer.losses,
            epochs_per_s=speed,
            max=min(self._ranks, row.max_ranks if row else self._ranks),
            starved=(trainer.data_wait_ratio or 0.0) > _STARVED,
        )


def _name(key: TrainingKey) -> str:
    return ".".join(key)
