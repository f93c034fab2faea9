"""How far a training job has come that has not ended: from its history, and from what its trainers have kept."""

from __future__ import annotations

import json

from pydantic import TypeAdapter

from essp_common.artifacts import layout
from essp_common.artifacts.history import History
from essp_common.artifacts.manifest import PhaseRecord
from essp_common.artifacts.ownership import LatestLog
from essp_common.errors import NotFound
from essp_common.job.spec import JobSpec
from essp_common.job.status import PURPOSES, JobStatus, PhaseReport, PhaseStatus, ProgressStatus, TrainerStatus
from essp_common.job.sweeps import words
from essp_common.objects.port import ObjectStore

_RECORDS = TypeAdapter(tuple[PhaseRecord, ...])


def so_far(status: JobStatus, spec: JobSpec, output: ObjectStore) -> JobStatus:
    """The status with the passes of the job's last run, its working time, and its trainers' results and checkpoints.

    Raises what reading a history raises.
    """
    segments = list(History(output).read())
    begun = [entry.started.snapshot for segment in segments for entry in segment.entries if entry.HasField("started")]
    if not begun or not segments[-1].HasField("ledger"):
        return status
    ledger = segments[-1].ledger
    phases = tuple(
        PhaseStatus(
            purpose=PURPOSES[plan.purpose],
            epoch=plan.epoch,
            clips=plan.clips,
            issued=state.issued,
            done={each.consumer: each.below[number] for each in ledger.consumers if number < len(each.below)},
            skipped=sum(int.from_bytes(bits).bit_count() for bits in state.skipped.bits),
        )
        for number, (plan, state) in enumerate(zip(begun[-1].phases, ledger.phases, strict=False))
    )
    closed = [state.closed for state in ledger.phases]
    current = next((number for number, phase in enumerate(phases) if closed[number] < phase.clips), len(phases))
    total = sum(phase.clips for phase in phases)
    progress = ProgressStatus(done=sum(closed), total=total, clips_per_s=0.0, eta_s=None, current=current)
    trainers = tuple(_trainer(name, spec, output) for name in spec.trainers)
    return status.model_copy(
        update={"phases": phases, "progress": progress, "trainers": trainers, "elapsed_s": segments[-1].worked_s}
    )


def _trainer(name: str, spec: JobSpec, output: ObjectStore) -> TrainerStatus:
    try:
        records = _RECORDS.validate_python(json.loads(output.get(layout.history(name))))
    except (NotFound, ValueError):  # it has not completed a pass, or the file is damaged: then its results are missing
        records = ()
    entry = LatestLog(output, name).last().entry
    saved = None if entry is None or entry.step is None else layout.checkpoint(name, entry.step, entry.incarnation)
    trainer = spec.trainers[name]
    return TrainerStatus(
        name=name,
        stream=trainer.stream,
        model=trainer.model,
        sweep=words(trainer.sweep),
        purpose=None,
        epoch=max((record.epoch for record in records), default=0),
        clips_done=0,
        loss=None,
        top1=None,
        data_wait_ratio=None,
        clips_per_s=None,
        queue=None,
        reports=tuple(PhaseReport.model_validate(record.model_dump()) for record in records),
        checkpoint=None if saved is None else output.uri(saved.rstrip("/")),
        final=False,
    )
