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
    """No other works until the history holds all that the master knows."""
    history = History(fleet.adapters.stores.under(fleet.job.output))
    while (newest := history.newest()) is None or newest.ledger != master._jobs["small"].ledger.state():
        master.step(0)
