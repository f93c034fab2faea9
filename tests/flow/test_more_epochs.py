"""A job with real trainers that gets more epochs while it runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from essp.cli.main import app
from essp.embedded.composition import Embedded
from essp_common.errors import ConfigError, Conflict
from essp_common.job.changes import next_run
from essp_common.job.spec import JobSpec
from essp_common.job.status import JobState
from essp_common.runtime.config import Settings
from essp_common.wiring import Stores
from tests.flow.conftest import MakeJob
from tests.harness.embedded_jobs import complete
from tests.harness.journeys import weights_of
from tests.harness.refused import refused
from tests.lanes import often

pytestmark = pytest.mark.lane("promises")

STORES = Stores(("file:///",))
CLIPS = 24


def run(spec: JobSpec) -> None:
    with Embedded(spec, Settings()) as job:
        complete(job)


@pytest.mark.parametrize("paused", often([True, False], 1))
def test_a_job_that_gets_more_epochs_equals_one_that_had_them_from_the_start(
    make_job: MakeJob, tmp_path: Path, paused: bool
) -> None:
    spec = make_job("more", clips=CLIPS, epochs=2, checkpoint=8)
    with Embedded(spec, Settings()) as job:
        while not job.ended(0.01) and job.status().progress.done < CLIPS // 2:
            pass
        if paused:
            job.master.pause("more")
        began = job.status().created
        with pytest.raises(ConfigError, match="epochs: the job has 2, and can be given more, not fewer"):
            job.master.change("more", {"epochs": 1})
        with job.master._lock:  # no trainer is seen to have left between the two
            status = job.master.change("more", {"epochs": 3})
            assert status.state is (JobState.PAUSED if paused else JobState.RUNNING)
            assert status.reason.startswith("it gets 3 epochs instead of 2")
            job.master.change("more", {"epochs": 4})
        while job.status().reason:
            assert not job.ended(0.01)
        status = job.status()
        epochs = {phase.epoch for phase in status.phases if phase.purpose == "train"}
        assert (len(epochs), status.created) == (4, began)
        if paused:
            assert status.state is JobState.PAUSED
            job.master.resume("more")
        complete(job)
        assert [event.message for event in job.events(0) if event.kind == "change"] == [
            "job more: gets 3 epochs instead of 2 as soon as its trainers have saved",
            "job more: gets 4 epochs instead of 3 as soon as its trainers have saved",
            "job more: has 4 epochs instead of 2",
        ]
        with pytest.raises(Conflict, match=r"job more is completed; start it again with more \(--epochs\)"):
            job.master.change("more", {"epochs": 5})
    whole = make_job("whole", clips=CLIPS, epochs=4, checkpoint=8)
    run(whole)
    assert weights_of(STORES, spec.output) == weights_of(STORES, whole.output)
    audit = CliRunner().invoke(app, ["audit", str(tmp_path / "more"), "--json"])
    findings = {finding["invariant"]: finding for finding in json.loads(audit.stdout)["findings"]}
    assert {name: found["violations"] for name, found in findings.items() if not found["holds"]} == {}


def test_a_trainer_that_is_attached_learns_as_if_it_had_been_there_from_the_start(
    make_job: MakeJob, tmp_path: Path
) -> None:
    """With a stream of its own; the others lose nothing. The job is then another file's, which says what to do."""
    late = {"trainers.late.stream": "near", "trainers.late.batch_size": 4, "trainers.late.threads": 1}
    late |= {"trainers.late.augment.crop": 32, "streams.near.feature": "frame_diff", "streams.near.params.length": 2}
    spec = make_job("late", clips=CLIPS, checkpoint=8)
    with Embedded(spec, Settings()) as job:
        while not job.ended(0.01) and job.status().progress.done < CLIPS // 2:
            pass
        assert job.master.change("late", late).reason.startswith("it gets the trainer late as soon as")
        complete(job)
        assert [trainer.name for trainer in job.status().trainers] == ["rgb", "flow", "late"]
    whole = make_job("whole", clips=CLIPS)
    whole = next_run(whole, late).model_copy(update={"name": "whole"})
    run(whole)
    assert weights_of(STORES, spec.output) == weights_of(STORES, whole.output)
    audit = CliRunner().invoke(app, ["audit", str(tmp_path / "late"), "--json"])
    assert [found for found in json.loads(audit.stdout)["findings"] if not found["holds"]] == []
    with refused("trainers.late", "missing"):
        run(spec)


def test_a_trainer_that_was_done_goes_on(make_job: MakeJob) -> None:
    """In one process it waits for the others, and for what people may want still."""
    spec = make_job("done", clips=CLIPS, epochs=1)
    with Embedded(spec, Settings()) as job:
        while not job.ended(0.001) and not any(trainer.final for trainer in job.status().trainers):
            pass
        try:
            job.master.change("done", {"epochs": 2})
        except Conflict:
            assert job.status().state is JobState.COMPLETED
            return
        complete(job)
    whole = make_job("whole", clips=CLIPS, epochs=2)
    run(whole)
    assert weights_of(STORES, spec.output) == weights_of(STORES, whole.output)
