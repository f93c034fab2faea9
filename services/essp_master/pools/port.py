"""What a pool driver does: it starts and stops workers, wherever they run.

Drivers: `processes.py` (child processes of the master, for one machine), `kubernetes.py` (Deployments of a namespace),
`advice.py` (nothing: it only says what would be right, where something else starts workers, as docker compose does).

A pool is named as in heartbeats: `decoder`, `extractor.<feature>`, `trainer.<job>.<trainer>` (its workers are ranks).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from essp_master.registrations import ExtractorRow, TrainerRow


@dataclass(frozen=True, slots=True)
class PoolSize:
    """How large a pool is."""

    replicas: int
    """Workers asked for."""
    ready: int
    """Workers that run, as far as the driver can tell."""
    min: int = 1
    """The bounds that the pool was made with; what people set later goes before."""
    max: int = 64


class PoolDriver(Protocol):
    """Starts and stops workers. All raise `Unavailable` when what they drive does not answer. Doing a thing twice is
    harmless."""

    def start(self, changed: Callable[[], None]) -> None:
        """Begin to look, if it can be seen when something changes that the master did not do: `changed` is called then,
        by another thread."""

    def sizes(self) -> Mapping[str, PoolSize]:
        """The pools there are."""

    def scale(self, pool: str, replicas: int, spare: Sequence[str]) -> None:
        """Have so many workers in a pool. `spare`: names of workers, those that should leave first come first; whoever
        leaves finishes what it has in hand."""

    def repair(self) -> list[str]:
        """Start again what is not there although it should be; what was done, a sentence each."""

    def add_extractor(self, row: ExtractorRow) -> None:
        """Have a pool `extractor.<feature>` with the row's image and resources; changes one that differs."""

    def remove(self, pool: str) -> None:
        """End a pool; its workers finish what they have in hand."""

    def train(self, job: str, trainer: str, ranks: int, row: TrainerRow | None) -> None:
        """Have one training run on so many ranks; a running one saves, ends and goes on with them. 0: none."""

    def close(self) -> None:
        """Let go; workers that are children end."""
