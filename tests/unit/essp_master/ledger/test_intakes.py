"""The ledger and those who take its clips, together: whoever dies or lags, no clip is waited for in vain."""

from __future__ import annotations

import pytest

from tests.harness.job_simulation import JobSimulation
from tests.lanes import often

_STEPS = 800


@pytest.mark.parametrize("seeds", often([range(10), range(10, 20), range(20, 40)], 1))
@pytest.mark.parametrize("empties", [False, True], ids=["cache kept", "cache emptied"])
def test_every_trainer_trains_every_clip_in_order(seeds: range, empties: bool) -> None:
    """Nothing has to be issued again because nothing moves, unless the cache loses what nobody has heard of yet."""
    for seed in seeds:
        job = JobSimulation(seed, empties)
        job.run(_STEPS)
        for trainer in job.trainers:
            assert trainer.trained == job.clips, (seed, trainer.name)
        assert empties or not job.stalls, seed


@pytest.mark.parametrize("seeds", often([range(10), range(10, 20), range(20, 40)], 1))
def test_no_message_of_a_clip_or_report_that_is_lost_holds_a_job_up(seeds: range) -> None:
    for seed in seeds:
        job = JobSimulation(seed, loses=0.2)
        job.run(_STEPS)
        for trainer in job.trainers:
            assert trainer.trained == job.clips, (seed, trainer.name)
