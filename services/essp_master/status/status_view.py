"""Converts a job to what users read about it (`essp_common/job/status.py`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime

from essp_common.cache.port import CacheUsage
from essp_common.failures import kind_word, stage_word
from essp_common.job import status
from essp_common.job.changes import values_of
from essp_common.job.status import JobState
from essp_common.job.usage import Usage
from essp_common.pb.v1.messages_pb2 import Change
from essp_common.runtime import ids
from essp_common.runtime.conditions import Condition
from essp_master.job.job import Job
from essp_master.status.bottleneck import bottleneck
from essp_master.status.headline import headline, losses
from essp_master.status.hindrance import hindrance_of, stopped_by


def status_of(job: Job, cache: CacheUsage | None, now_s: float, usage: Usage | None = None) -> status.JobStatus:
    """Return the full status of a job at this moment. `usage`: what the workers use, if that is known."""
    ledger, spec = job.ledger, job.run.preflight.spec
    counts = ledger.counts
    backlog = ledger.backlog()
    hindrance = hindrance_of(job, now_s)
    found = status.JobStatus(
        name=job.name,
        kind=job.spec.kind,
        state=job.state,
        reason=_reason(job, hindrance),
        output=spec.output,
        created=job.life.created,
        ended=job.life.ended,
        elapsed_s=job.life.elapsed_s(now_s),
        progress=_progress(job, now_s),
        phases=_phases(job),
        credits=status.CreditStatus(
            budget_bytes=ledger.credits.budget_bytes,
            outstanding_bytes=ledger.credits.outstanding_bytes,
            outstanding_clips=ledger.outstanding,
            waiting=ledger.out_of_credit,
        ),
        cache=_cache(cache),
        streams={name: stream.feature for name, stream in spec.streams.items()},
        backlog=backlog,
        pools=job.activity.pool_statuses(backlog, now_s, ledger.waiting() if spec.predicts else 0),
        trainers=job.activity.trainer_statuses(
            ledger.finals, held_back(job), waits=not job.works and not job.state.ended
        ),
        counts=status.CountStatus(
            issued=counts.issued,
            decoded=counts.decoded,
            extracted=counts.extracted,
            delivered=counts.delivered,
            failed=counts.failed,
            replaced=counts.replaced,
            skipped=counts.skipped,
            lost=counts.lost,
            reissued=counts.reissued,
            released=counts.released,
            redecoded=counts.redecoded,
            duplicates=counts.duplicates,
        ),
        failures=_failures(job),
        result=job.reporter.result,
        last_event=job.reporter.log.last,
        first_event=job.reporter.log.first,
        team=job.team,
        priority=job.priority,
        queue=job.place,
        awaits=job.awaits,
        changes=tuple(map(_change, job.changes.made)),
        unit=spec.data.unit,
    )
    return found.model_copy(update={"bottleneck": bottleneck(found, stopped_by(hindrance), usage)})


def _reason(job: Job, hindrance: Condition | None) -> str:
    return job.reason or (hindrance.line if hindrance else "")


def curves_of(job: Job) -> list[status.TrainerCurve]:
    """Return the curves of its trainers, in the order of the job."""
    return [
        status.TrainerCurve(trainer=name, points=training.curve.points)
        for name, training in job.activity.trainers.items()
    ]


def held_back(job: Job) -> dict[str, str]:
    """Return the trainers that wait because they are as far ahead of the slowest one as they may be -> the slowest one.

    A trainer waits if it has less than a batch left to train.
    """
    ledger, trainers = job.ledger, job.run.preflight.spec.trainers
    if job.state is not JobState.RUNNING or not ledger.holds_back:
        return {}
    left = {name: ledger.untrained(ids.trainer_consumer(name)) for name in trainers}
    slowest = max(left, key=left.__getitem__)
    waiting = trainers.keys() - ledger.finals - {slowest}
    going = [name for name in waiting if not ledger.has_stopped(name)]
    return {name: slowest for name in going if left[name] < trainers[name].batch_size}


def summary_of(job: Job, now_s: float) -> status.JobSummary:
    """Return a job's entry in a list."""
    trainers = job.activity.trainer_statuses(job.ledger.finals, {}, waits=False)
    first = next(iter(job.activity.trainers.values()), None)
    progress = _progress(job, now_s)
    return status.JobSummary(
        name=job.name,
        kind=job.spec.kind,
        state=job.state,
        reason=_reason(job, hindrance_of(job, now_s)),
        created=job.life.created,
        done=progress.done,
        total=progress.total,
        clips_per_s=progress.clips_per_s,
        eta_s=progress.eta_s,
        failed=job.ledger.counts.failed,
        team=job.team,
        priority=job.priority,
        queue=job.place,
        awaits=job.awaits,
        ended=job.life.ended,
        elapsed_s=job.life.elapsed_s(now_s),
        headline=headline(trainers, job.reporter.result.metrics if job.reporter.result else {}),
        losses=_losses(trainers, [point.loss for point in first.curve.points] if first else []),
    )


def summary_of_past(past: status.JobStatus) -> status.JobSummary:
    """Return a past job's entry in a list (`lifecycle/job_table.py`)."""
    return status.JobSummary(
        name=past.name,
        kind=past.kind,
        state=past.state,
        reason=past.reason,
        created=past.created,
        done=past.progress.done,
        total=past.progress.total,
        clips_per_s=0.0,
        eta_s=None,
        failed=past.counts.failed,
        team=past.team,
        priority=past.priority,
        queue=None,
        ended=past.ended,
        elapsed_s=past.elapsed_s,
        headline=headline(past.trainers, past.result.metrics if past.result else {}),
        losses=_losses(past.trainers, []),
    )


def _losses(trainers: Sequence[status.TrainerStatus], curve: Sequence[float]) -> tuple[float, ...]:
    return losses(trainers[0].reports, curve) if trainers else ()


def _change(change: Change) -> status.ChangeStatus:
    return status.ChangeStatus(
        number=change.number,
        time=datetime.fromtimestamp(change.time_ms / 1000, UTC),
        fields=values_of(change),
        before={field: json.loads(value) for field, value in sorted(change.before.items())},
        places={
            trainer: status.PlaceStatus(epoch=place.epoch, clip=place.clip)
            for trainer, place in sorted(change.places.items())
        },
    )


def _progress(job: Job, now_s: float) -> status.ProgressStatus:
    ledger, plans = job.ledger, job.run.preflight.phases.plans
    done, total = ledger.closed, sum(plan.clips for plan in plans)
    rate = job.activity.clips_per_s(now_s) if job.state is JobState.RUNNING else 0.0
    return status.ProgressStatus(
        done=done,
        total=total,
        clips_per_s=rate,
        eta_s=(total - done) / rate if rate > 0 and done < total and not job.activity.fits else None,
        current=min(consumption.position().phase_index for consumption in ledger.consumption.values()),
    )


def _phases(job: Job) -> tuple[status.PhaseStatus, ...]:
    ledger = job.ledger
    return tuple(
        status.PhaseStatus(
            purpose=status.purpose_name(plan.purpose, job.spec.kind),
            epoch=plan.epoch,
            clips=plan.clips,
            issued=account.issued,
            done={name: consumption.done(phase_index) for name, consumption in ledger.consumption.items()},
            skipped=len(account.skipped),
        )
        for phase_index, (plan, account) in enumerate(zip(job.run.preflight.phases.plans, ledger.phases, strict=True))
    )


def _cache(usage: CacheUsage | None) -> status.CacheStatus | None:
    if usage is None:
        return None
    return status.CacheStatus(
        used_bytes=usage.used_bytes, limit_bytes=usage.limit_bytes, keys=usage.keys, full_count=usage.full_count
    )


def _failures(job: Job) -> tuple[status.FailureStatus, ...]:
    return tuple(
        status.FailureStatus(
            stage=stage_word(tally.stage),
            kind=kind_word(tally.kind),
            count=tally.count,
            examples=tuple(status.FailureExample(video=v, reason=r) for v, r in tally.examples.items()),
        )
        for tally in sorted(job.reporter.failures.values(), key=lambda tally: -tally.count)
    )
