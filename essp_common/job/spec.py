"""The job specification, which a user writes as YAML or JSON.

Its sections: `data_spec.py` (videos, and which clips of them), `clip_spec.py` (frames, streams), `trainer_spec.py`
(networks and how they learn); the others are defined here.

The sequence of clips depends only on this document and the catalog, not on the number of workers. A predict job has a
`predictor` instead of `trainers`, one that writes features has `extract`; a job that feeds the user's own loops has
`consumers`.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    Field,
    ValidationError,
    WithJsonSchema,
    model_serializer,
    model_validator,
)

from essp_common.errors import ConfigError
from essp_common.job.clip_spec import ClipSpec, StreamSpec
from essp_common.job.data_spec import EVERY, DataSpec, SamplingSpec
from essp_common.job.documents import read_yaml
from essp_common.job.extract_spec import ExtractSpec
from essp_common.job.fields import (
    _NAME,
    MOST_EPOCHS,
    MOST_READERS,
    ByteSize,
    Name,
    ParamValue,
    Section,
    Uri,
    plain_values,
)
from essp_common.job.sweeps import expanded, sweeps_of
from essp_common.job.trainer_spec import TrainerSpec
from essp_common.runtime import ids
from essp_common.validation import problems, suggested, unreadable, wrong

JobKind = Literal["train", "predict", "extract", "feed"]
"""`feed`: the user's own loops consume its clips."""
MOST_STREAMS = 64
MOST_CANDIDATES = 256
"""Strategies of one job, counting every combination of their parameters."""


class StrategySpec(Section):
    """A strategy of `aggregation.strategies`: just its name, as in `average`, or a mapping of `name` and its
    parameters, as in `{name: top_k, k: 3}`. A list of values is a grid: each value is tried, and several lists are
    tried in every combination. `essp aggregator ls` lists the strategies, `describe` their parameters."""

    name: Name
    """A name from `essp aggregator ls`."""
    params: dict[str, ParamValue | tuple[ParamValue, ...]] = Field({}, max_length=32, exclude=True)
    """The parameters. In a job file they are written next to `name`, not in a section of their own."""

    @model_validator(mode="before")
    @classmethod
    def _parameters_beside_the_name(cls, given: Any) -> Any:
        if isinstance(given, str):
            return {"name": given}
        if not isinstance(given, dict):
            return given
        params = plain_values({key: value for key, value in given.items() if key != "name"})
        for name, value in params.items():
            values = value if isinstance(value, list) else [value]
            if not values or not all(isinstance(one, str | bool | int | float) for one in values):
                raise wrong(
                    "must be a number, a text, true or false, or a list of such values to try",
                    field=name,
                    code="type",
                )
        return {**({"name": given["name"]} if "name" in given else {}), "params": params}

    @model_serializer
    def _as_written(self) -> str | dict[str, Any]:
        return {"name": self.name, **self.params} if self.params else self.name

    @property
    def candidates(self) -> int:
        """The number of parameter combinations that it covers."""
        return math.prod(len(value) for value in self.params.values() if isinstance(value, tuple))


_STRATEGY = {
    "anyOf": [
        {"type": "string", "pattern": _NAME},
        {
            "type": "object",
            "properties": {"name": {"type": "string", "pattern": _NAME}},
            "required": ["name"],
            "additionalProperties": {
                "anyOf": [
                    {"type": ["boolean", "number", "string"]},
                    {"type": "array", "items": {"type": ["boolean", "number", "string"]}, "minItems": 1},
                ]
            },
        },
    ],
    "description": StrategySpec.__doc__,
}


OF_LABELS = ("average", "best")
"""The strategies for scores that need not sum to 1, as with labels that are learned independently."""


class AggregationSpec(Section):
    """How the scores of the streams are fused."""

    strategies: tuple[Annotated[StrategySpec, WithJsonSchema(_STRATEGY)], ...] = Field(
        tuple(StrategySpec(name=name) for name in ("average", "product", "best", "weighted", "weighted_product")),
        min_length=1,
        max_length=MOST_CANDIDATES,
    )
    """Strategies to try on the validation split, as in `[average, {name: top_k, k: [1, 3, 5]}]`: a list of values is a
    grid. The strategy with the lowest log loss under cross-validation is chosen; the first one wins a tie. `average`:
    the mean of the streams' scores. `product`: their product. `best`: the best stream alone. `weighted`,
    `weighted_product`: mean and product with weights fitted on that split. For labels (`data.targets`) the default is
    `[average, best]`, and only these two are allowed. `max`, `top_k`, `linear`, `attention`: for videos in which only a
    few clips are informative ([aggregation](aggregation.md)). `feature_linear` and others that learn from features need
    `features: true`."""
    features: bool = False
    """Also give strategies the features of the clips: the input of each network's last layer. For this, the best
    weights process the validation videos once more after all epochs. The features stay in the frame cache until the
    last trainer is done, in addition to `limits.budget`: 2 bytes per clip of a validation or test video and number of a
    feature (512 for resnet18, 2048 for resnet50)."""

    @model_validator(mode="after")
    def _few_enough(self) -> AggregationSpec:
        if (count := sum(strategy.candidates for strategy in self.strategies)) > MOST_CANDIDATES:
            raise wrong(
                f"their grids make {count} candidates, and {MOST_CANDIDATES} are the most",
                field="strategies",
                code="range",
            )
        return self


class HighlightSpec(Section):
    """The weight of each clip in the score of its video."""

    weight: Literal["contrast", "actionness"] = "contrast"
    """`actionness`: how strongly the clip shows any class, that is, 1 minus the background score, for a model that has
    learned a background (`sampling.background`). `contrast`: how much the clip's scores differ from the rest of the
    video; it needs no background, and suits videos whose background looks the same throughout."""
    floor: float = Field(0.1, gt=0, le=1)
    """The smallest weight of a clip, where 1 is the largest. 1: all clips count the same."""


class PredictorSpec(Section):
    """Classify the videos of the catalog with a trained model."""

    model: Uri
    """URI of a fused model (`<output>/model`). Leave `clip` and `streams` out of the job: they come from the model, and
    other values are refused."""
    segments: bool = False
    """Also write where in each video its classes are seen (`segments.parquet`). `sampling.every_s` sets the resolution:
    the distance between clips must be shorter than the shortest action."""
    highlight: HighlightSpec | None = None
    """Give clips in which something is seen more weight in the score of their video, as in `{weight: contrast}`; null:
    all count the same. See docs/segments.md."""


class ConsumerSpec(Section):
    """A loop of the user's own that reads a stream (`essp.Loader`)."""

    stream: str
    """The stream to read, one of `streams`."""
    batch_size: int = Field(32, ge=1, le=65_536)
    """Clips that the loop takes at a time. With `batch_pixels`, it is computed: the number of the largest clips that
    take as much memory as a batch."""
    batch_pixels: int | None = Field(None, ge=1, le=2**50)
    """The loop takes as many clips at a time as have this many pixels: the sum of frames x height x width of all
    clips. For clips with a size for each video (`clip.resize.mode: bounded`)."""


class LimitsSpec(Section):
    """Bounds on memory and on the damage from bad input."""

    budget: ByteSize = 256 * 2**20
    """Bytes of clips and features that may be outstanding at once, over all workers."""
    lag: float = Field(0.75, gt=0, le=1)
    """A trainer becomes a straggler when the budget is used up and the trainer is behind the fastest one by more than
    this share of the outstanding clips. Its clips are released, and decoded again for it later. Half of the budget is
    for stragglers, in equal shares for all trainers but one; each share must hold two batches."""
    coupled: bool = False
    """True: all trainers keep pace with the slowest one, within `lead`, and no clip is decoded twice because of a
    straggler. False suits a cluster, where a slow trainer on its own machine should not delay the others and decoders
    can be added. `essp init` writes true, because decoding again slows every trainer that shares its cores with the
    decoders."""
    lead: int = Field(1, ge=1, le=MOST_EPOCHS)
    """How many passes (training epochs, each with its validation) a trainer may be ahead of the slowest one, if all
    keep pace. A trainer at this limit waits, and the job's status says for whom, even if the budget has room for more
    clips."""
    replacements: int = Field(5, ge=0, le=1000)
    """Other videos to try instead of one that cannot be decoded, before its index is skipped."""
    dead_ratio: float = Field(0.2, ge=0, le=1)
    """The job fails if more than this share of its clips cannot be decoded."""
    ttl_s: int = Field(3600, ge=1, le=30 * 24 * 3600)
    """Seconds until a cache key expires if its consumers never acknowledge it."""
    strict: bool = True
    """True: any sign of damage fails a clip. False: take the frames that FFmpeg can decode."""


class JobSpec(Section):
    """A job. Exactly one of `trainers`, `predictor`, `extract` and `consumers` is given."""

    name: Name
    """Identifies the job in messages, cache keys and the API: lower-case letters, digits, `-` and `_`."""
    output: Uri
    """URI of the folder for checkpoints, model and report; in a job file also a path. No other job may write to this
    folder, and it must not contain videos; see docs/outputs.md."""
    data: DataSpec = DataSpec()
    """The videos or records."""
    clip: ClipSpec = ClipSpec()
    """The frames of a clip and their size."""
    sampling: SamplingSpec = SamplingSpec()
    """Which clips of the videos, in which order."""
    streams: dict[Name, StreamSpec] = Field({"rgb": StreamSpec()}, min_length=1, max_length=MOST_STREAMS)
    """The inputs of the models, by name."""
    trainers: dict[Name, TrainerSpec] = Field({})
    """The models to train, by name. More can be added at any time, as with `epochs`."""
    epochs: int = Field(10, ge=1, le=MOST_EPOCHS)
    """Training epochs, each followed by a validation phase. More can be added at any time: while the job runs (`essp
    job set NAME epochs=30`), and after it has ended (here, or with `essp run --epochs`), because it continues from its
    last checkpoint."""
    aggregation: AggregationSpec = AggregationSpec()
    """How the streams are fused into one classifier."""
    predictor: PredictorSpec | None = None
    """Predict with a trained model instead of training."""
    extract: ExtractSpec | None = None
    """Write features or embeddings instead of training."""
    consumers: dict[Name, ConsumerSpec] = Field({})
    """Loops of your own instead of trainers, by name."""
    limits: LimitsSpec = LimitsSpec()
    """Bounds on memory, retries and failures."""
    priority: int = Field(0, ge=-1000, le=1000)
    """If jobs must wait for each other, a team's jobs with a higher priority run first and preempt those with a lower
    one. See docs/queue.md."""

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_records(cls, job: Any) -> Any:
        """Defaults for records: a record is a clip of one frame, and a loop over records shows each once per epoch."""
        if not isinstance(job, dict) or not _value(job.get("data"), "records"):
            return job
        sampling = _completed(job.get("sampling", {}), {"clips_per_video": 1})
        if _value(sampling, "kind") is None and _value(sampling, "locality") is None:
            sampling = _completed(sampling, {"kind": "exhaustive", "clips_per_visit": 1})
        found = {**job, "sampling": sampling}
        of_model = job.get("predictor") is not None or _value(job.get("extract"), "model") is not None
        if not of_model or "clip" in job:  # a prediction uses the clips of its model
            found["clip"] = _completed(job.get("clip", {}), {"frames": 1})
        return found

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_whole_videos(cls, job: Any) -> Any:
        """A video has one clip that covers all of it."""
        if not isinstance(job, dict) or all(_value(job.get("clip"), name) is None for name in ("spread", "max_frames")):
            return job
        sampling = job.get("sampling", {})
        if any(_value(sampling, name) is not None for name in EVERY):
            return job
        return {**job, "sampling": _completed(sampling, {"clips_per_video": 1})}

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_labels(cls, job: Any) -> Any:
        if not isinstance(job, dict) or _value(job.get("data"), "targets") in (None, "class"):
            return job
        return {**job, "aggregation": _completed(job.get("aggregation", {}), {"strategies": OF_LABELS})}

    @model_validator(mode="before")
    @classmethod
    def _with_sweeps_expanded(cls, job: Any) -> Any:
        if not isinstance(job, dict) or not isinstance(job.get("trainers"), dict):
            return job
        seed = _value(job.get("sampling"), "seed")
        trainers = expanded(job["trainers"], TrainerSpec, seed if isinstance(seed, int) else 0, MOST_READERS)
        return {**job, "trainers": trainers}

    @model_validator(mode="after")
    def _sweeps_have_a_judge(self) -> JobSpec:
        keeping = next((name for name, trainer in self.trainers.items() if trainer.keep), None)
        if keeping is not None and self.data.validation is None and not self.data.records:
            raise wrong(
                "the best are chosen on validation videos, and data.validation is null",
                field=f"trainers.{keeping}.keep",
                code="conflict",
            )
        return self

    @model_validator(mode="after")
    def _fits_records(self) -> JobSpec:
        if not self.data.records:
            return self
        if self.clip.frames != 1 and "clip" in self.model_fields_set:
            raise wrong(
                f"a record is one frame, and this is {self.clip.frames}; leave it out",
                field="clip.frames",
                code="conflict",
            )
        if self.clip.pixels == "gray16":
            raise wrong("records have 8 bits; use gray or rgb", field="clip.pixels", code="conflict")
        if self.sampling.kind == "pooled":
            raise wrong(
                "pooled takes several clips of each video, and a record has one; use exhaustive (each "
                "record once an epoch) or class_balanced",
                field="sampling.kind",
                code="conflict",
            )
        if self.sampling.clips_per_video != 1:
            raise wrong(
                f"a record has one clip, not {self.sampling.clips_per_video}; leave it out",
                field="sampling.clips_per_video",
                code="conflict",
            )
        if self.predictor is not None and self.predictor.segments:
            raise wrong(
                "a record is one frame, so classes have no place in time in it",
                field="predictor.segments",
                code="conflict",
            )
        if self.predictor is not None and self.predictor.highlight is not None:
            raise wrong(
                "a record is one frame, so there is nothing to highlight; leave it out",
                field="predictor.highlight",
                code="conflict",
            )
        if every := self.sampling.every_field:
            raise wrong(
                "a record is one frame and has no length; leave it out", field=f"sampling.{every}", code="conflict"
            )
        return self

    @model_validator(mode="after")
    def _fits_whole_videos(self) -> JobSpec:
        if self.data.records and self.clip.by_time:
            raise wrong("a record is one frame, and has no time; leave it out", field="clip", code="conflict")
        if not self.clip.of_whole_video:
            return self
        if self.predictor is not None and self.predictor.segments:
            raise wrong(
                "a clip covers its whole video, so classes have no place in time in it; leave it out",
                field="predictor.segments",
                code="conflict",
            )
        every = self.sampling.every_field
        if self.sampling.clips_per_video != 1 and not every:
            raise wrong(
                f"a clip covers its whole video, so a video has one, not {self.sampling.clips_per_video}; leave it out",
                field="sampling.clips_per_video",
                code="conflict",
            )
        if every:
            raise wrong(
                "a clip covers its whole video, so a video has one; leave it out",
                field=f"sampling.{every}",
                code="conflict",
            )
        return self

    @model_validator(mode="after")
    def _has_a_use_for_its_sampling(self) -> JobSpec:
        if (every := self.sampling.every_field) and not self.predicts:
            raise wrong(
                "is for jobs that predict or extract; this one takes clips_per_video of each video",
                field=f"sampling.{every}",
                code="conflict",
            )
        if self.sampling.background is not None and not self.trainers:
            raise wrong("is for jobs that train; leave it out", field="sampling.background", code="conflict")
        return self

    @model_validator(mode="after")
    def _can_learn_labels(self) -> JobSpec:
        if self.data.targets == "class":
            return self
        if not self.trainers:
            raise wrong(
                "is for jobs that train; a prediction answers with what its model has learned, and loops "
                "of your own get all labels anyway (`Batch.targets`); leave it out",
                field="data.targets",
                code="conflict",
            )
        if self.data.records:
            raise wrong("a record has one label; leave it out", field="data.targets", code="conflict")
        if self.sampling.background is not None:
            raise wrong(
                f"with data.targets: {self.data.targets} a clip may show none of them, which "
                "needs no class for background; leave it out",
                field="sampling.background",
                code="conflict",
            )
        if self.data.targets == "spans" and self.clip.snippets > 1:
            raise wrong(
                "with data.targets: spans a clip is of one part of its video, whose labels it has; "
                "leave it out, or learn the labels of whole videos (data.targets: labels)",
                field="clip.snippets",
                code="conflict",
            )
        for name, trainer in self.trainers.items():
            if not trainer.has_rate:
                field = f"model: {trainer.model}" if trainer.is_encoder else "probe: a probe"
                raise wrong(
                    f"trainers.{name}.{field} learns one class for each clip, not labels; train it in a job of its "
                    "own, with data.targets: class",
                    code="conflict",
                )
        return self

    @model_validator(mode="after")
    def _consistent(self) -> JobSpec:
        if bool(self.trainers) + bool(self.consumers) + (self.predictor is not None) + (self.extract is not None) != 1:
            raise wrong(
                "give one of `trainers` (to train), `predictor` (to predict), `extract` (to write features) and "
                "`consumers` (for a loop of your own)",
                code="conflict",
            )
        if self.sampling.ranks > 1 and not self.consumers:
            raise wrong(
                "only a job with `consumers` has it; trainers share batches by themselves",
                field="sampling.ranks",
                code="conflict",
            )
        for name, consumer in self.consumers.items():
            if consumer.stream not in self.streams:
                known = suggested(consumer.stream, self.streams)
                raise wrong(f"no stream {consumer.stream!r}; {known}", field=f"consumers.{name}.stream", code="unknown")
        for name, trainer in self.trainers.items():
            if trainer.stream not in self.streams:
                known = suggested(trainer.stream, self.streams)
                raise wrong(f"no stream {trainer.stream!r}; {known}", field=f"trainers.{name}.stream", code="unknown")
        self._check_views()
        self._check_readers()
        return self

    def _check_views(self) -> None:
        """A stream is computed from one view; only a loop takes the frames of all of them."""
        views = self.clip.views
        if views and self.data.records:
            raise wrong("records have no views; leave it out", field="clip.views", code="conflict")
        for name, stream in self.streams.items():
            if stream.view and stream.view not in views:
                known = suggested(stream.view, views, "views: ") if views else "clip.views names none"
                raise wrong(f"no view {stream.view!r}; {known}", field=f"streams.{name}.view", code="unknown")
            takes_all = stream.feature == "rgb" and self.consumers
            if len(views) > 1 and not stream.view and not takes_all:
                raise wrong(
                    f"{stream.feature} is computed from one view; name one of {', '.join(views)} (a loader: give only "
                    "the clip of this view)",
                    field=f"streams.{name}.view",
                    code="missing",
                )

    def _check_readers(self) -> None:
        """Check the number of readers: the ledger has one bit per reader of a clip, in a 64-bit number."""
        consumers = self.readers()
        extracted = {stream for stream in consumers.values() if self.streams[stream].feature != "rgb"}
        if len(consumers) + len(extracted) > MOST_READERS:
            what = "trainers" if self.trainers else "consumers" if self.consumers else "streams"
            raise wrong(
                f"{len(consumers)} of them and {len(extracted)} extracted streams make "
                f"{len(consumers) + len(extracted)} readers of each clip, and {MOST_READERS} are the most; share "
                "streams, or make several jobs",
                field=what,
                code="conflict",
            )

    @property
    def sweeps(self) -> dict[str, tuple[str, ...]]:
        """Sweep -> the trainers it was expanded to."""
        return sweeps_of(self.trainers)

    @property
    def kind(self) -> JobKind:
        """What the job is for."""
        if self.consumers:
            return "feed"
        if self.extract is not None:
            return "extract"
        return "train" if self.predictor is None else "predict"

    @property
    def predicts(self) -> bool:
        """Whether predictors work on it: it predicts or extracts, in one pass over its videos."""
        return self.predictor is not None or self.extract is not None

    @property
    def fused_model(self) -> tuple[str, str] | None:
        """The field that names a fused model, and its URI; None: the job uses none."""
        if self.predictor is not None:
            return "predictor.model", self.predictor.model
        if self.extract is not None and self.extract.model is not None:
            return "extract.model", self.extract.model
        return None

    def readers(self) -> dict[str, str]:
        """The consumers that acknowledge clips and features: consumer id -> stream."""
        if self.predicts:
            return {ids.predictor_consumer(stream): stream for stream in self.streams}
        if self.consumers:
            return {ids.loop_consumer(name): consumer.stream for name, consumer in self.consumers.items()}
        return {ids.trainer_consumer(name): trainer.stream for name, trainer in self.trainers.items()}


def _value(section: Any, name: str) -> Any:
    """The value that a section gives for a field, or None."""
    if isinstance(section, BaseModel):
        return getattr(section, name, None) if name in section.model_fields_set else None
    return section.get(name) if isinstance(section, dict) else None


def _completed(section: Any, defaults: dict[str, Any]) -> Any:
    """The section with these values for the fields that it does not give."""
    if isinstance(section, BaseModel):
        missing = {name: value for name, value in defaults.items() if name not in section.model_fields_set}
        return section.model_copy(update=missing)
    return {**defaults, **section} if isinstance(section, dict) else section


def parse_spec(text: str, where: str = "job") -> JobSpec:
    """Parse a job from YAML or JSON text. Raises `ConfigError`, with one line for each wrong field."""
    return spec_of(job_document(text, where), where)


def job_document(text: str, where: str) -> dict[str, Any]:
    """The fields of a job in YAML or JSON text, which are not checked yet. Raises `ConfigError`."""
    document = read_yaml(text, where)
    if not isinstance(document, dict):
        raise ConfigError(f"{where}: a job is a mapping of fields; `essp init` writes a commented one", code="type")
    return document


def spec_of(document: dict[str, Any], where: str) -> JobSpec:
    """The job with these fields. Raises `ConfigError`, with one line for each wrong field."""
    try:
        return JobSpec.model_validate(document)
    except ValidationError as error:
        count = "a problem" if error.error_count() == 1 else f"{error.error_count()} problems"
        raise ConfigError.together(problems(error, JobSpec), f"{where} has {count}:") from error


def stored_spec(text: str, where: str) -> JobSpec:
    """Parse a job that ESSP itself wrote. It may be from another version, so unknown fields are ignored.

    Raises `ConfigError` if this version cannot read it.
    """
    try:
        return JobSpec.model_validate_json(text, extra="ignore")
    except ValidationError as error:
        raise ConfigError(unreadable(where, error, JobSpec), code="unreadable") from error
