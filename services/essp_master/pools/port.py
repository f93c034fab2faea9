"""The port of pool drivers, which start and stop workers.

Drivers: `processes.py` (child processes of the master, for one machine), `kubernetes.py` (Deployments of a namespace),
`observe_only.py` (nothing: it only recommends, where something else starts workers, as docker compose does).

A pool is named as in heartbeats: `decoder`, `extractor.<feature>`, `trainer.<job>.<trainer>` (its workers are ranks).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Protocol

from essp_common.errors import PermanentError, Unavailable
from essp_common.runtime.conditions import Subject
from essp_engine.registrations import ExtractorRow, TrainerRow

TrainingKey = tuple[str, str]
"""Job and trainer."""


class PlatformRefuses(PermanentError):
    """The platform answers: that it does not do this for the master, for want of a right or of a quota."""


class CannotNow(Unavailable):
    """The platform answers: that it cannot do this one thing at present, as where a webhook of Kubernetes fails."""


@dataclass(frozen=True, slots=True)
class PoolSize:
    """How large a pool is."""

    replicas: int
    """Workers asked for."""
    ready: int
    """Workers that run, as far as the driver knows."""
    min: int = 1
    """The bounds that the pool was made with; what people set later goes before."""
    max: int = 64
    cores: int | None = None
    """Cores that its workers share; None: each worker gets its own."""
    registered: bool = False
    """It was made of a registration, by this master or one before it."""
    held_up: str = ""
    """What keeps workers that were asked for from coming up, as the platform says it; empty: nothing that is known."""


class PoolDriver(Protocol):
    """Starts and stops workers. All methods are idempotent, and raise `Unavailable` if the platform does not answer."""

    def start(self, changed: Callable[[], None]) -> None:
        """Begin to watch, where the platform allows it. `changed` is called, by another thread, after each change that
        the master did not make."""

    def sizes(self) -> Mapping[str, PoolSize]:
        """The pools there are."""

    def scale(self, pool: str, replicas: int, spare: Sequence[str]) -> None:
        """Have so many workers in a pool. `spare`: names of workers in the order in which they should leave; a worker
        that leaves finishes what it has in hand."""

    def repair(self) -> list[str]:
        """Start what is missing; a sentence for each repair."""

    def add_extractor(self, row: ExtractorRow) -> None:
        """Have a pool `extractor.<feature>` with the row's image and resources; changes one that differs."""

    def remove(self, pool: str) -> None:
        """End a pool; its workers finish what they have in hand."""

    def train(self, job: str, trainer: str, ranks: int, row: TrainerRow | None) -> None:
        """Have one training run on so many ranks; a running one saves, ends and resumes on them. 0: none."""

    def trainings(self) -> Mapping[TrainingKey, int]:
        """Ranks of the trainings that it has already when a master begins; those of masters before it, too."""

    def failed(self) -> Set[TrainingKey]:
        """Trainings that have failed and are tried again only when somebody says so."""

    def done(self) -> Set[TrainingKey]:
        """Trainings whose workers have all ended well: nothing is started again until somebody says so."""

    def tell(self, pool: str, sentence: str) -> None:
        """Say what was done to a pool, and why, where the platform shows such things. Never fails: the log has it."""

    def troubles(self) -> Mapping[Subject, str]:
        """Pools whose workers do not stay up, as far as it has seen; it waits for nothing."""

    def close(self) -> None:
        """Close; workers that are child processes end."""
