"""The port of pool drivers, which start and stop workers.

Drivers: `processes.py` (child processes of the master, for one machine), `kubernetes.py` (Deployments of a namespace),
`observe_only.py` (only recommends sizes, where something else starts workers, such as docker compose).

Pools are named as in heartbeats: `decoder`, `extractor.<feature>`, `trainer.<job>.<trainer>` (its workers are ranks).
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
    """The platform answers that it does not do this for the master, for lack of a permission or a quota."""


class CannotNow(Unavailable):
    """The platform answers that it cannot do this one thing at present, for example because a Kubernetes
    webhook fails."""


@dataclass(frozen=True, slots=True)
class PoolSize:
    """The size of a pool."""

    replicas: int
    """Requested workers."""
    ready: int
    """Running workers, as far as the driver knows."""
    min: int = 1
    """The bounds that the pool was created with; bounds that users set later take precedence."""
    max: int = 64
    cores: int | None = None
    """Cores that its workers share; None: each worker has its own."""
    registered: bool = False
    """Whether it was created for a registration, by this master or an earlier one."""
    held_up: str = ""
    """What keeps requested workers from coming up, according to the platform; empty if nothing is known."""


class PoolDriver(Protocol):
    """Starts and stops workers. All methods are idempotent, and raise `Unavailable` if the platform does not answer."""

    def start(self, changed: Callable[[], None]) -> None:
        """Start watching, if the platform allows it. `changed` is called, by another thread, after each change that the
        master did not make."""

    def sizes(self) -> Mapping[str, PoolSize]:
        """Return the sizes of the existing pools."""

    def scale(self, pool: str, replicas: int, spare: Sequence[str]) -> None:
        """Set the number of workers in a pool. `spare`: names of workers in the order in which they should leave; a
        leaving worker finishes its current work."""

    def repair(self) -> list[str]:
        """Start what is missing. Returns a sentence for each repair."""

    def add_extractor(self, row: ExtractorRow) -> None:
        """Ensure a pool `extractor.<feature>` with the row's image and resources; changes one that differs."""

    def remove(self, pool: str) -> None:
        """End a pool; its workers finish their current work."""

    def train(self, job: str, trainer: str, ranks: int, row: TrainerRow | None) -> None:
        """Ensure that one training runs on this many ranks; a running one saves, ends and resumes on them. 0: none."""

    def trainings(self) -> Mapping[TrainingKey, int]:
        """Return the ranks of the training runs that exist when a master begins, including those that earlier masters
        started."""

    def failed(self) -> Set[TrainingKey]:
        """Return the training runs that have failed and are not tried again until told to."""

    def done(self) -> Set[TrainingKey]:
        """Return the training runs whose workers have all ended successfully.

        They are not started again until told to.
        """

    def tell(self, pool: str, sentence: str) -> None:
        """Show what was done to a pool, and why, if the platform can. Never fails: the log has it anyway."""

    def troubles(self) -> Mapping[Subject, str]:
        """Return the pools whose workers do not stay up, as last observed. Does not block."""

    def close(self) -> None:
        """Close the driver; workers that are child processes end."""
