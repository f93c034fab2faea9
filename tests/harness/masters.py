"""Masters that come one after another, and what is left when one dies."""

from __future__ import annotations

from essp_common.artifacts.history import History
from essp_common.wiring import Adapters
from essp_master.config import MasterSettings
from essp_master.service import Master
from tests.harness.fleet import EVERYTHING, Clock, Fleet

BOTH = {"trainer.rgb": EVERYTHING, "trainer.diff": EVERYTHING}
"""What `Fleet.trained` is once both trainers of `make_job` have had every clip."""


def master_named(name: str, adapters: Adapters, clock: Clock | None = None) -> Master:
    """A master that knows what was under way. Its history is written at every step."""
    settings = MasterSettings(history_s=0.0, ready_s=0.0)
    made = Master(adapters, settings, name, True) if clock is None else Master(adapters, settings, name, True, clock)
    made.recover()
    return made


def die(master: Master) -> None:
    """A master is killed: its share of the group falls to others. A write that is under way may or may not come
    through."""
    master._subscription.close()


def written(master: Master, fleet: Fleet) -> None:
    """No other works until the master has read all reports and the history holds them; nothing is being written."""
    history = History(fleet.adapters.stores.under(fleet.job.output))
    while master.step(0) or master._history.writing or not holds_all(history, master):
        pass


def holds_all(history: History, master: Master) -> bool:
    """Whether the history holds what the master knows."""
    newest = history.newest()
    return newest is not None and newest.ledger == master._jobs["small"].ledger.state()
