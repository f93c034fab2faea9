"""The status of a job for users: the same in the API, the terminal view, `--json` and the event stream.

Plain data (JSON in the API, under these names). It is only for display: no part of ESSP makes decisions by it.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from essp_common.errors import ConfigError
from essp_common.job.spec import JobKind
from essp_common.job.sweeps import label_of
from essp_common.pb.v1.messages_pb2 import EMBED, PREDICT, TEST, TRAIN, VALIDATION
from essp_common.validation import unreadable

PurposeName = Literal["train", "validation", "embed", "test", "predict", "extract"]
PURPOSES: dict[int, PurposeName] = {
    TRAIN: "train",
    VALIDATION: "validation",
    EMBED: "embed",
    TEST: "test",
    PREDICT: "predict",
}
"""The names of purposes."""


class JobState(StrEnum):
    """The lifecycle of a job: `pending -> queued <-> running <-> paused -> completed | failed | stopped`."""

    PENDING = "pending"
    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def under_way(self) -> bool:
        """Whether its trainers have work, or will have work again."""
        return self in (JobState.QUEUED, JobState.RUNNING, JobState.PAUSED)

    @property
    def ended(self) -> bool:
        """Whether nothing more happens in this state unless the job is started again."""
        return self in _ENDED


_ENDED = (JobState.COMPLETED, JobState.FAILED, JobState.STOPPED)


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)


def purpose_name(purpose: int, kind: JobKind = "train") -> PurposeName:
    """The name of a phase's purpose in a job of this kind: the only phase of one that writes features is a prediction
    to the workers, and `extract` to users. Raises `KeyError` if a later version has added it (see `PURPOSES`)."""
    return "extract" if kind == "extract" and purpose == PREDICT else PURPOSES[purpose]


def phase_title(purpose: str, epoch: int) -> str:
    """A title for users, who count from one: `train, epoch 3`. Phases that happen once have no number."""
    return f"{purpose}, epoch {epoch + 1}" if purpose in ("train", "validation") else purpose


class PhaseStatus(_Model):
    """One phase."""

    purpose: PurposeName
    epoch: int
    """Counted from 0, as everywhere in JSON; users see `phase_title`."""
    clips: int
    """The number of clips of the phase."""
    issued: int
    done: dict[str, int]
    """Consumer (`trainer.rgb`, `predictor.flow`) -> clips that it has processed, including skipped ones."""
    skipped: int
    """Indices without a clip: their videos could not be decoded and could not be replaced."""

    @property
    def finished(self) -> bool:
        """Whether every consumer has processed every clip."""
        return all(done >= self.clips for done in self.done.values())


class ProgressStatus(_Model):
    """Progress of the job, over all phases and consumers."""

    done: int
    total: int
    clips_per_s: float
    """Clips per second processed by all consumers, over the last minute."""
    eta_s: float | None
    """Seconds left. Null if not yet known, paused or ended; also while a trainer learns between two phases (`fit`) and
    when all clips are done, because clips do not measure how long that takes."""
    current: int
    """Index in `phases` of the phase that the slowest consumer is in; the number of phases when all are over."""


class CreditStatus(_Model):
    """The job's budget of bytes."""

    budget_bytes: int
    outstanding_bytes: int
    outstanding_clips: int
    waiting: bool
    """Credit is used up although more clips could be issued: consumers are the bottleneck."""


class CacheStatus(_Model):
    """The frame cache, shared by all jobs."""

    used_bytes: int
    limit_bytes: int
    keys: int
    full_count: int
    """How often a worker had to wait for room."""


class PoolStatus(_Model):
    """The workers of one kind, according to their messages of the last seconds."""

    name: str
    """`decoder`, `extractor.<feature>`."""
    workers: int
    done: int
    """Clips finished for this job."""
    clips_per_s: float
    seconds_per_clip: float | None
    """Work of one lane for one clip, averaged over the last seconds."""
    queue: int
    """Clips that are waiting to be made or being made."""


class PhaseReport(_Model):
    """The results of a phase of one trainer."""

    purpose: PurposeName
    epoch: int
    metrics: dict[str, float]


class StopStatus(_Model):
    """Says that a trainer has stopped before the last epoch."""

    epoch: int
    """The last epoch that it has trained, counted from 0."""
    best: int
    """The best epoch, whose weights are the final ones."""
    words: str
    """A sentence without its subject, for users."""


class FitStatus(_Model):
    """What a trainer is learning from all clips of a phase after they have arrived; live."""

    what: str
    """The thing being fitted, as in `a mixture of Gaussians`."""
    done: int
    """Steps done."""
    most: int
    """The largest number of steps; the fit may end earlier."""
    left_s: float | None
    """Seconds left at most; null: not known."""
    words: str
    """A sentence without its subject, for users."""


class TrainerStatus(_Model):
    """One training, live."""

    name: str
    stream: str
    model: str
    sweep: dict[str, str] = {}
    """The values of its swept fields; empty for a trainer of no sweep."""
    purpose: PurposeName | None
    """Its current phase; null before its first report."""
    epoch: int
    clips_done: int
    """Clips of that phase that it has processed."""
    loss: float | None
    top1: float | None
    data_wait_ratio: float | None
    """Share of its time spent waiting for clips; null while the job waits."""
    clips_per_s: float | None
    """Null while the job waits."""
    queue: int | None
    """Clips ready in its prefetch queue."""
    lr: float | None = None
    """Its learning rate; null outside training, and for trainers that learn without one."""
    waits_for: str | None = None
    """The slowest trainer, if this one waits because it is `limits.lead` passes ahead of it."""
    fit: FitStatus | None = None
    """What it is learning between two phases, as encoders of descriptors and probes do."""
    reports: tuple[PhaseReport, ...]
    """All phases so far, in order."""
    checkpoint: str | None
    """URI of its newest checkpoint."""
    final: bool
    """Whether it is done."""
    stopped: StopStatus | None = None
    """Set if it has stopped before the last epoch (`trainers.NAME.stop`)."""

    @property
    def label(self) -> str:
        """Its name, for example `rgb-2 (optimizer.lr 0.03)` in a sweep."""
        return label_of(self.name, self.sweep)


class FailureExample(_Model):
    """One clip that could not be made."""

    video: str
    reason: str


class FailureStatus(_Model):
    """Failures of one kind."""

    stage: str
    """decoder, extractor, trainer or predictor."""
    kind: str
    count: int
    examples: tuple[FailureExample, ...]
    """The first few, from different videos."""


class CountStatus(_Model):
    """The counters of the ledger. `issued` counts every clip published, whether for the first time or again."""

    issued: int
    decoded: int
    extracted: int
    delivered: int
    """Streams of clips that were ready for their consumers."""
    failed: int
    """Attempts that ended in a failure other than `lost`; each has a dead letter."""
    replaced: int
    skipped: int
    lost: int
    """Clips whose bytes were gone when they were needed."""
    reissued: int
    """Clips published again, because their bytes were lost or no report came for a long time."""
    released: int
    """Clips freed because a trainer lagged."""
    redecoded: int
    """Clips issued again for a trainer that lagged."""
    duplicates: int = 0
    """Reports that repeated known facts; they are not counted twice."""


class ResultStatus(_Model):
    """The result of the job."""

    uri: str
    metrics: dict[str, float]


class BottleneckStatus(_Model):
    """What limits the rate of a job."""

    part: str
    """A pool (`decoder`, `extractor.<feature>`), a trainer (`trainer.<name>`), `consumers` of a job without trainers,
    `cache`, or `budget`; empty if it is something else."""
    words: str
    """One sentence, for users."""


class QueueStatus(_Model):
    """The queue position of a job that waits for others."""

    position: int
    """Position in the queue, counted from 1; the next job to run has 1."""
    reason: str
    """Why it does not run yet: a sentence without its end."""


class PlaceStatus(_Model):
    """A place in the training: before a clip of an epoch."""

    epoch: int
    """Counted from 0."""
    clip: int


class ChangeStatus(_Model):
    """A change that a user made while the job ran."""

    number: int
    """Counted from 1."""
    time: datetime
    fields: dict[str, Any]
    """Dotted field of the job -> its new value."""
    before: dict[str, Any]
    """Dotted field -> its value before the change."""
    places: dict[str, PlaceStatus]
    """Trainer -> the place from which it trains with the change. Trainers that have not reported it yet, or are not
    affected, are missing."""


class JobStatus(_Model):
    """Everything that is known about a job."""

    name: str
    kind: JobKind
    state: JobState
    reason: str
    """Why it failed or was stopped, that it is getting more epochs or trainers, or which of its workers do not stay up;
    otherwise empty."""
    output: str
    created: datetime
    ended: datetime | None
    elapsed_s: float
    """Seconds since it was last started, without pauses."""
    progress: ProgressStatus
    phases: tuple[PhaseStatus, ...]
    credits: CreditStatus
    cache: CacheStatus | None
    streams: dict[str, str]
    """Stream -> its feature."""
    backlog: dict[str, int]
    """`decoder` or stream -> clips that are waiting to be made or being made."""
    pools: tuple[PoolStatus, ...]
    trainers: tuple[TrainerStatus, ...]
    counts: CountStatus
    failures: tuple[FailureStatus, ...]
    result: ResultStatus | None
    last_event: int
    """Id of the newest event; `events?after=` or `Last-Event-ID` resumes from there. 0: this master has no events."""
    first_event: int = 0
    """Id of this master's first event; if the log begins later, earlier events are no longer stored."""
    bottleneck: BottleneckStatus | None = None
    """What limits the rate; null if the job does not run or nothing is known yet."""
    team: str = ""
    """The team that owns it, according to the token with which it was started."""
    priority: int | None = None
    """Priority in the queue; null: this master has no queue."""
    queue: QueueStatus | None = None
    """Its position in the queue; null: it does not wait for other jobs."""
    awaits: tuple[str, ...] = ()
    """The pools that have no running worker yet, while the job waits for one of each before it begins."""
    changes: tuple[ChangeStatus, ...] = ()
    """The changes that users made while it ran, in order."""
    unit: Literal["video", "record"] = "video"
    """The kind of its data."""


def stored_status(text: str, where: str) -> JobStatus:
    """Parse a status from a history. Raises `ConfigError` if this version cannot read it."""
    try:
        return JobStatus.model_validate_json(text)
    except ValidationError as error:
        raise ConfigError(unreadable(where, error, JobStatus), code="unreadable") from error


class HeadlineStatus(_Model):
    """The figure by which a list shows how good a job's models are."""

    figure: str
    """`top1` for classes, `mAP` for labels."""
    of: str
    """`fused`, or a trainer while nothing is fused."""
    split: str
    """`test` or `validation`."""
    value: float


class JobSummary(_Model):
    """A job in a list."""

    name: str
    kind: JobKind
    state: JobState
    reason: str
    created: datetime
    done: int
    total: int
    clips_per_s: float
    eta_s: float | None
    failed: int
    """Attempts to make a clip that failed; a clip may be made at a later attempt."""
    team: str
    priority: int | None
    """Priority in the queue; null: this master has no queue."""
    queue: QueueStatus | None
    """Its position in the queue; null: it does not wait for other jobs."""
    awaits: tuple[str, ...] = ()
    """The pools that have no running worker yet, while the job waits for one of each before it begins."""
    ended: datetime | None = None
    elapsed_s: float = 0.0
    """Seconds since it was last started, without pauses."""
    headline: HeadlineStatus | None = None
    """Its result, or the best validation so far; null: there is none yet."""
    losses: tuple[float, ...] = ()
    """The training loss of its first trainer over time, at most 32 values."""

    @property
    def why(self) -> str:
        """Why it waits, has failed or was stopped; empty if there is no reason to give."""
        if self.awaits:
            return f"it waits for a worker of {', '.join(self.awaits)}"
        return self.queue.reason if self.queue else self.reason


class CurvePoint(_Model):
    """Figures that a trainer reported during an epoch."""

    epoch: int
    clips_done: int
    """Clips of that epoch processed so far."""
    loss: float
    """Mean over the epoch so far."""
    top1: float
    """Mean over the epoch so far."""


class TrainerCurve(_Model):
    """The course of one training within its epochs, since this master has run the job."""

    trainer: str
    points: tuple[CurvePoint, ...]
    """At most 512, in order, thinned out evenly; the figures of whole phases are in `TrainerStatus.reports`."""


class StreamPreview(_Model):
    """What a stream carries now: pictures of one clip that its consumers have not taken yet."""

    stream: str
    feature: str
    purpose: PurposeName
    epoch: int
    index: int
    """Index of the clip in its phase."""
    video: str
    class_name: str
    """Empty if the video has no label."""
    first_frame: int
    """First frame of the clip, in the video."""
    height: int
    """Height in pixels of a picture as consumers get it."""
    width: int
    """Width in pixels of a picture as consumers get it."""
    pictures: int
    """Number of pictures of the clip that the stream's consumers get."""
    shown: int
    """Number of pictures included here, evenly spaced."""
    caption: str = ""
    """How to read them, such as the meaning of colours. Empty: they are ordinary frames."""
    jpeg: str
    """The included pictures side by side, in order, as a base64 JPEG; large ones are scaled down."""


class JobEvent(_Model):
    """Something that happened to a job."""

    id: int
    """Ascending within the job, even after another master has taken over."""
    time: datetime
    kind: Literal[
        "state", "phase", "report", "checkpoint", "failure", "warning", "condition", "consumer", "change", "finished"
    ]
    message: str
    """One line, for users."""
    data: dict[str, Any]
    """The same information as fields."""
