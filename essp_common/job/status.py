"""The status of a job for people: the same in the API, the terminal view, `--json` and the event stream.

Plain data (JSON in the API, under these names). It is for reading only: no part of ESSP decides by it.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from essp_common.errors import ConfigError
from essp_common.pb.v1.messages_pb2 import EMBED, PREDICT, TEST, TRAIN, VALIDATION
from essp_common.validation import unreadable

PurposeName = Literal["train", "validation", "embed", "test", "predict"]
JobKind = Literal["train", "predict", "feed"]
"""`feed`: loops of the user's own take its clips."""
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
        """Its trainers have work, or will have work again."""
        return self in (JobState.QUEUED, JobState.RUNNING, JobState.PAUSED)

    @property
    def ended(self) -> bool:
        """Nothing more happens in this state unless the job is started again."""
        return self in _ENDED


_ENDED = (JobState.COMPLETED, JobState.FAILED, JobState.STOPPED)


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)


def phase_title(purpose: str, epoch: int) -> str:
    """`train, epoch 3`: what people read, who count from one. Phases that happen once have no number."""
    return f"{purpose}, epoch {epoch + 1}" if purpose in ("train", "validation") else purpose


class PhaseStatus(_Model):
    """One phase."""

    purpose: PurposeName
    epoch: int
    """Counted from 0, as everywhere in JSON; people read `phase_title`."""
    clips: int
    """How many it has."""
    issued: int
    done: dict[str, int]
    """Consumer (`trainer.rgb`, `predictor.flow`) -> clips it is done with, skipped ones included."""
    skipped: int
    """Indices without a clip: their videos could not be decoded and nothing could take their place."""

    @property
    def finished(self) -> bool:
        """Every consumer is done with every clip."""
        return all(done >= self.clips for done in self.done.values())


class ProgressStatus(_Model):
    """How far the job is, over all phases and consumers."""

    done: int
    total: int
    clips_per_s: float
    """Clips that all consumers are done with, over the last minute."""
    eta_s: float | None
    """Null: not known yet, paused or ended; also while a trainer learns between two phases (`fit`), and when all clips
    are done: no clip tells how long that takes."""
    current: int
    """Number of the phase (in `phases`) that the slowest consumer is at; the number of phases when all are over."""


class CreditStatus(_Model):
    """The job's budget of bytes."""

    budget_bytes: int
    outstanding_bytes: int
    outstanding_clips: int
    waiting: bool
    """More could be issued if there were credit: consumers are the bottleneck."""


class CacheStatus(_Model):
    """The frame cache, of all jobs."""

    used_bytes: int
    limit_bytes: int
    keys: int
    full_count: int
    """How often a worker had to wait for room."""


class PoolStatus(_Model):
    """The workers of one kind, by their messages of the last seconds."""

    name: str
    """`decoder`, `extractor.<feature>`."""
    workers: int
    done: int
    """Clips finished for this job."""
    clips_per_s: float
    seconds_per_clip: float | None
    """Work of one lane for one clip, average of the last seconds."""
    queue: int
    """Clips that wait to be made, or are being made."""


class PhaseReport(_Model):
    """What came out of a phase of one trainer."""

    purpose: PurposeName
    epoch: int
    metrics: dict[str, float]


class StopStatus(_Model):
    """That a trainer has stopped before the last epoch."""

    epoch: int
    """The last one that it has trained, counted from 0."""
    best: int
    """The best one, whose weights it ends with."""
    words: str
    """A sentence without its subject, for people."""


class FitStatus(_Model):
    """What a trainer learns of all clips of a phase, now that they have come; live."""

    what: str
    """As in `a mixture of Gaussians`."""
    done: int
    """Steps that are done."""
    most: int
    """Steps that there may be; it may be over earlier."""
    left_s: float | None
    """Seconds left at most; null: not known."""
    words: str
    """A sentence without its subject, for people."""


class TrainerStatus(_Model):
    """One training, live."""

    name: str
    stream: str
    model: str
    purpose: PurposeName | None
    """What it is at; null before its first report."""
    epoch: int
    clips_done: int
    """Clips of that phase that are done."""
    loss: float | None
    top1: float | None
    data_wait_ratio: float | None
    """Share of the time it waited for clips; null while the job waits."""
    clips_per_s: float | None
    """Null while the job waits."""
    queue: int | None
    """Clips ready in its prefetch queue."""
    waits_for: str | None = None
    """The slowest trainer, if this one waits because it is `limits.lead` passes ahead of it."""
    fit: FitStatus | None = None
    """What it learns between two phases, as encoders of descriptors and probes do."""
    reports: tuple[PhaseReport, ...]
    """All phases so far, in order."""
    checkpoint: str | None
    """URI of its newest checkpoint."""
    final: bool
    """It is done."""
    stopped: StopStatus | None = None
    """It has stopped before the last epoch (`trainers.NAME.stop`)."""


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
    """The first few, of different videos."""


class CountStatus(_Model):
    """The ledger in figures. `issued` counts every seed published, first time or again."""

    issued: int
    decoded: int
    extracted: int
    delivered: int
    """Streams of clips that are ready for their consumers."""
    failed: int
    """Attempts that ended in a failure other than `lost`; each has a dead letter."""
    replaced: int
    skipped: int
    lost: int
    """Clips whose bytes were gone when they were wanted."""
    reissued: int
    """Seeds published again: bytes lost, or no report for long."""
    released: int
    """Clips freed on behalf of trainers that lag."""
    redecoded: int
    """Clips issued once more for a trainer that lagged."""
    duplicates: int = 0
    """Reports that repeated what was known; they are not counted twice."""


class ResultStatus(_Model):
    """What the job made."""

    uri: str
    metrics: dict[str, float]


class BottleneckStatus(_Model):
    """What limits the rate of a job."""

    part: str
    """A pool (`decoder`, `extractor.<feature>`), a trainer (`trainer.<name>`), `consumers` of a job without trainers,
    `cache`, or `budget`; empty: none of these."""
    words: str
    """One sentence, for people."""


class QueueStatus(_Model):
    """The place of a job that waits for others."""

    position: int
    """Place in the queue, from 1 on; the next job to run has 1."""
    reason: str
    """Why it does not run yet: a sentence without its end."""


class PlaceStatus(_Model):
    """Before a clip of a training epoch."""

    epoch: int
    """Counted from 0."""
    clip: int


class ChangeStatus(_Model):
    """What people changed of a job while it ran."""

    number: int
    """From 1 on."""
    time: datetime
    fields: dict[str, Any]
    """Dotted field of the job -> its value."""
    before: dict[str, Any]
    """Dotted field -> its value until then."""
    places: dict[str, PlaceStatus]
    """Trainer -> from where on it trains with it; one that is not here has not said so yet, or is not concerned."""


class JobStatus(_Model):
    """All there is to know of a job."""

    name: str
    kind: JobKind
    state: JobState
    reason: str
    """Why it failed or was stopped, that it gets more epochs or trainers now, or which of its workers do not stay up;
    otherwise empty."""
    output: str
    created: datetime
    ended: datetime | None
    elapsed_s: float
    """Since it was (last) started, without pauses."""
    progress: ProgressStatus
    phases: tuple[PhaseStatus, ...]
    credits: CreditStatus
    cache: CacheStatus | None
    streams: dict[str, str]
    """Stream -> the feature that it is."""
    backlog: dict[str, int]
    """`decoder` or stream -> clips that wait to be made, or are being made."""
    pools: tuple[PoolStatus, ...]
    trainers: tuple[TrainerStatus, ...]
    counts: CountStatus
    failures: tuple[FailureStatus, ...]
    result: ResultStatus | None
    last_event: int
    """Id of the newest event; `events?after=` or `Last-Event-ID` resumes from there. 0: this master has none."""
    first_event: int = 0
    """Id of the first event of this master; if the log begins later, those before are not held any more."""
    bottleneck: BottleneckStatus | None = None
    """What limits the rate; null: it does not run, or nothing is known yet."""
    team: str = ""
    """Whose it is, by the token with which it was started."""
    priority: int | None = None
    """Priority in the queue; null: this master has no queue."""
    queue: QueueStatus | None = None
    """Its place in the queue; null: it does not wait for other jobs."""
    awaits: tuple[str, ...] = ()
    """The pools of which no worker is up yet, where the job waits for one of each before it begins."""
    changes: tuple[ChangeStatus, ...] = ()
    """What people have changed of it while it ran, in order."""
    unit: Literal["video", "record"] = "video"
    """What its data are."""


def stored_status(text: str, where: str) -> JobStatus:
    """A status as a history has it. Raises `ConfigError` if this version cannot read it."""
    try:
        return JobStatus.model_validate_json(text)
    except ValidationError as error:
        raise ConfigError(unreadable(where, error, JobStatus), code="unreadable") from error


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
    team: str
    priority: int | None
    """Priority in the queue; null: this master has no queue."""
    queue: QueueStatus | None
    """Its place in the queue; null: it does not wait for other jobs."""
    awaits: tuple[str, ...] = ()
    """The pools of which no worker is up yet, where the job waits for one of each before it begins."""

    @property
    def why(self) -> str:
        """Why it waits, has failed or was stopped; empty: there is nothing to say."""
        if self.awaits:
            return f"it waits for a worker of {', '.join(self.awaits)}"
        return self.queue.reason if self.queue else self.reason


class CurvePoint(_Model):
    """What a trainer said while it trained."""

    epoch: int
    clips_done: int
    """Clips of that epoch that are done."""
    loss: float
    """Mean over the epoch so far."""
    top1: float
    """Mean over the epoch so far."""


class TrainerCurve(_Model):
    """The course of one training within its epochs, since this master has had the job."""

    trainer: str
    points: tuple[CurvePoint, ...]
    """At most 512, in order and evenly thinned out; the figures of whole phases are in `TrainerStatus.reports`."""


class StreamPreview(_Model):
    """What a stream carries now: pictures of one clip that its consumers have not taken yet."""

    stream: str
    feature: str
    purpose: PurposeName
    epoch: int
    index: int
    """The clip's place in its phase."""
    video: str
    class_name: str
    """Empty: the video has no label."""
    first_frame: int
    """First frame of the clip, in the video."""
    height: int
    """Of a picture as consumers get it, px."""
    width: int
    """Of a picture as consumers get it, px."""
    pictures: int
    """How many pictures of the clip the stream's consumers get."""
    shown: int
    """How many of them are here, evenly spaced."""
    caption: str = ""
    """How to read them: what colours mean. Empty: they are frames."""
    jpeg: str
    """The shown ones side by side, in order, as a JPEG in base64; large ones are made smaller."""


class JobEvent(_Model):
    """Something that happened to a job."""

    id: int
    """Ascending within the job, also after another master has taken over."""
    time: datetime
    kind: Literal[
        "state", "phase", "report", "checkpoint", "failure", "warning", "condition", "consumer", "change", "finished"
    ]
    message: str
    """One line, for people."""
    data: dict[str, Any]
    """The same in fields."""
