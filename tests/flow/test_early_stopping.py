"""Whole jobs in which trainers stop before the last epoch."""

from __future__ import annotations

import pytest

from essp.account import account_of
from essp.audit.invariants import check
from essp.audit.plan import planned
from essp.embedded.composition import Embedded
from essp_common.artifacts import checkpoint
from essp_common.artifacts.history import History
from essp_common.job.spec import JobSpec
from essp_common.job.status import JobState, JobStatus
from essp_common.pb.v1.messages_pb2 import TEST, TRAIN
from essp_common.runtime.config import Settings
from essp_common.wiring import Stores
from tests.flow.conftest import MakeJob
from tests.flow.test_journey import course_of
from tests.harness.embedded_jobs import finish, run
from tests.harness.journeys import weights_of

pytestmark = pytest.mark.lane("promises")

STORES = Stores(("file:///",))
EPOCHS = 6


def impatient(spec: JobSpec, flow_rate: float = 0.01, **patience: int) -> JobSpec:
    """The job with a patience for these trainers. The rate is so high for `rgb` that it gets worse and worse, and
    right for `flow`, which gets better with each epoch."""
    trainers = {}
    for name, trainer in spec.trainers.items():
        rates = trainer.optimizer.model_copy(update={"lr": flow_rate if name == "flow" else 0.1})
        stop = trainer.stop.model_copy(update={"patience": patience.get(name, 0)})
        trainers[name] = trainer.model_copy(update={"optimizer": rates, "stop": stop})
    return spec.model_copy(update={"trainers": trainers})


def epochs_of(status: JobStatus) -> dict[str, int]:
    """Trainer -> epochs that it has trained."""
    return {t.name: sum(report.purpose == "train" for report in t.reports) for t in status.trainers}


def violations(spec: JobSpec) -> list[str]:
    """What `essp audit` finds wrong with a job, or clips that a trainer has trained after it stopped."""
    account = account_of(History(STORES.under(spec.output)).read())
    findings = check(account, planned(spec, STORES), None, account.last_ms)
    assert all(finding.holds is not None for finding in findings)
    trained = [
        f"{consumer} trained a clip of phase {number} in run {run.fence}"
        for run in account.runs
        for consumer, stopped in run.stopped.items()
        for number in range(stopped.phase_index, run.rest.phase_index)
        if run.done[consumer][number][run.first(consumer, number) :].any()
    ]
    return trained + [violation for finding in findings for violation in finding.violations]


def test_one_trainer_stops_and_the_other_goes_on(make_job: MakeJob) -> None:
    spec = impatient(make_job(epochs=EPOCHS), rgb=1)
    with Embedded(spec, Settings()) as job:
        status = finish(job)
        assert job.adapters.cache.usage().keys == 0
    assert status.state is JobState.COMPLETED, status.reason
    rgb, flow = status.trainers
    assert flow.stopped is None
    assert rgb.stopped is not None
    done = rgb.stopped.epoch + 1
    assert done < EPOCHS
    assert epochs_of(status) == {"rgb": done, "flow": EPOCHS}
    assert [report.purpose for report in rgb.reports][-1] == "test", "what follows all epochs comes all the same"
    assert all(phase.finished for phase in status.phases)
    assert violations(spec) == []
    manifest = checkpoint.read_latest(STORES.under(spec.output), "rgb")
    assert manifest is not None
    assert manifest.final
    assert manifest.epoch == rgb.stopped.best, "it ends with its best weights"


def test_once_all_have_stopped_nothing_is_decoded_for_training(make_job: MakeJob) -> None:
    """The budget holds few clips, so the master is never an epoch ahead of the trainers. With the rate of `flow` its
    loss is 0 after few epochs, to the last bit, and no epoch can be better."""
    spec = impatient(make_job(epochs=10, clips=60, budget="256KiB"), flow_rate=0.5, rgb=1, flow=2)
    course = course_of(spec)
    status, seeds = course.status, course.seeds
    last = max(trainer.stopped.epoch for trainer in status.trainers if trainer.stopped)
    assert all(trainer.stopped for trainer in status.trainers)
    assert last < 8, "there would have been more"
    assert max(epoch for purpose, epoch, *_ in seeds if purpose == TRAIN) <= last + 1, "one may have begun"
    assert any(purpose == TEST for purpose, *_ in seeds)
    assert status.counts.decoded < sum(phase.clips for phase in status.phases)
    assert violations(spec) == []


@pytest.mark.lane("long")
def test_a_job_that_is_drained_anywhere_ends_with_the_same_weights(make_job: MakeJob) -> None:
    whole = impatient(make_job("whole", epochs=EPOCHS), rgb=1, flow=2)
    ends = {trainer.name: trainer.stopped for trainer in run(whole).trainers}
    parted = impatient(make_job("parted", epochs=EPOCHS), rgb=1, flow=2)
    for done in (10, 45, 75):
        with Embedded(parted, Settings()) as job:
            while not job.ended(0.005) and job.status().progress.done < done:
                pass
    status = run(parted)
    assert status.state is JobState.COMPLETED, status.reason
    assert {trainer.name: trainer.stopped for trainer in status.trainers} == ends
    assert weights_of(STORES, parted.output) == weights_of(STORES, whole.output)
    assert violations(parted) == []


def test_more_epochs_leave_it_stopped_and_more_patience_lets_it_go_on(make_job: MakeJob) -> None:
    spec = impatient(make_job(epochs=EPOCHS), rgb=1)
    first = run(spec)
    longer = spec.model_copy(update={"epochs": EPOCHS + 1})
    second = run(longer)
    assert second.state is JobState.COMPLETED, second.reason
    assert epochs_of(second) == epochs_of(first) | {"flow": EPOCHS + 1}
    assert second.trainers[0].stopped == first.trainers[0].stopped
    assert violations(longer) == []

    patient = impatient(longer, rgb=0).model_copy(update={"epochs": EPOCHS + 2})
    third = run(patient)
    assert third.state is JobState.COMPLETED, third.reason
    assert epochs_of(third) == {"rgb": EPOCHS + 2, "flow": EPOCHS + 2}
    assert third.trainers[0].stopped is None
    assert violations(patient) == []

    whole = impatient(make_job("whole", epochs=EPOCHS + 2))
    assert run(whole).state is JobState.COMPLETED
    assert weights_of(STORES, whole.output) == weights_of(STORES, patient.output), "as if it had never stopped"
