"""Which videos or records a job uses, and which of their clips in which order."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    model_validator,
)

from essp_common.job.fields import Label, Section, Uri
from essp_common.validation import wrong

Targets = Literal["class", "labels", "spans"]
"""What trainers learn from a clip: the class of its video, all labels of the video, or the labels of its frames."""


class DataSpec(Section):
    """The catalog and its splits, or data sets of records instead."""

    catalog: Uri = ""
    """URI of the catalog (`essp catalog build`); in a job file also a path, relative to the folder of that file."""
    records: Uri = ""
    """Train on records (`essp records build`) instead of a catalog: URI of the data set; in a job file also a path. A
    record is a clip of one frame. See docs/records.md."""
    records_validation: Uri = ""
    """The data set to validate on (default: `validation_fraction` of `records`)."""
    records_test: Uri = ""
    """The data set for the final metrics (default: no test)."""
    versions: dict[Literal["train", "validation", "test"], Annotated[int, Field(ge=1, le=10**9)]] = Field({})
    """The version of each data set of records (default: the newest when the job first starts; the job then keeps
    it)."""
    train: Label = "train"
    """Split to train on."""
    validation: Label | None = "validation"
    """Split that selects checkpoints and fusion weights. `validation_fraction` applies if the catalog lacks it, or if
    this is null."""
    validation_fraction: float = Field(0.15, ge=0, lt=1)
    """Share of each class's training videos that is set aside if the catalog has no validation split. Videos of one
    group of the catalog stay together. 0: nothing is set aside, and `consumers` get all videos; trainers then need a
    validation split."""
    test: Label | None = "test"
    """Split for the final metrics. There is no test if this is null or the catalog lacks the split."""
    split_column: Label = ""
    """Another column of the source that gives the split of each video instead of `split`, as in `split_2` of UCF-101
    and HMDB51 (default: `split`). `essp run --splits 1,2,3` sets it; see docs/recipes.md."""
    left_out: dict[Label, Label] = Field({}, max_length=1)
    """Test on the videos with this value in a column, and train on all others, as in `{group: person03}`, ignoring
    their splits, and even if `test` is null. `essp run --folds group` sets it for each value; see docs/recipes.md."""
    targets: Targets = "class"
    """What trainers learn about a video. `class`: its class; the likeliest one is the answer. `labels`: everything it
    shows, each label of the catalog independently; a video may have none, one or many. `spans`: the same for each clip,
    from the labelled spans of the video that contain its frames. See [labels](labels.md)."""
    consumed: Literal["train", "validation", "test"] = "train"
    """Which split `consumers` get. Training clips are drawn according to `sampling.kind`; for the other splits, clips
    are spaced evenly over each video."""

    @model_validator(mode="before")
    @classmethod
    def _tests_on_what_is_left_out(cls, given: Any) -> Any:
        """Ignore `test: null`, which `essp init` writes if a catalog has no test split."""
        if isinstance(given, dict) and given.get("left_out") and given.get("test", "") is None:
            return {name: value for name, value in given.items() if name != "test"}
        return given

    @model_validator(mode="after")
    def _one_division(self) -> DataSpec:
        if not self.split_column and not self.left_out:
            return self
        field = "left_out" if self.left_out else "split_column"
        if self.records:
            raise wrong("names a column of a catalog, and records have none", field=field, code="conflict")
        if self.split_column and self.left_out:
            raise wrong("give one of `split_column` and `left_out`, not both", code="conflict")
        if self.left_out and (self.train, self.test) != ("train", "test"):
            raise wrong(
                "its splits are called train and test; leave `train` and `test` as they are",
                field="left_out",
                code="conflict",
            )
        return self

    @model_validator(mode="after")
    def _one_source(self) -> DataSpec:
        if self.catalog and self.records:
            raise wrong("give one of `catalog` (videos) and `records` (images), not both", code="conflict")
        if not self.records:
            for name in ("records_validation", "records_test", "versions"):
                if getattr(self, name):
                    raise wrong(
                        "belongs to `records`, the data set to train on, which is not given", field=name, code="missing"
                    )
            return self
        for name in self.versions.keys() - self.record_sets.keys():
            raise wrong(f"there is no records_{name}", field=f"versions.{name}", code="missing")
        for name in ("train", "validation", "test"):
            if getattr(self, name) not in (None, name):
                raise wrong(
                    "names a split of a catalog, and records have none; see records_validation",
                    field=name,
                    code="conflict",
                )
        return self

    @property
    def unit(self) -> Literal["video", "record"]:
        """What it consists of."""
        return "record" if self.records else "video"

    @property
    def record_sets(self) -> dict[Literal["train", "validation", "test"], str]:
        """Split -> the URI of its data set of records; empty if the job uses a catalog."""
        found: dict[Literal["train", "validation", "test"], str] = {
            "train": self.records,
            "validation": self.records_validation,
            "test": self.records_test,
        }
        return {name: uri for name, uri in found.items() if uri}


MOST_CLIPS = 10**9
"""The largest number of clips in an epoch."""
_OF_VISITS, _MIXED = ("clips_per_visit", "window"), ("class_balanced", "pooled")
EVERY = ("every_s", "every_frames")
"""Fields of `sampling` that give the distance of clips, in a video of any length."""


class MixSpec(Section):
    """How much each source of videos gives to training."""

    column: Label
    """The column of the catalog that says which source a video is from: `dataset` in one made by `essp catalog merge`,
    or any other column of its source, or `group`."""
    shares: dict[Label, Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]] = Field(min_length=2)
    """Value of that column -> its share of the training clips, in any unit: `{robots: 3, web: 1}`. Each value that a
    training video has needs one."""


class SamplingSpec(Section):
    """Which clips are drawn, in which order."""

    kind: Literal["class_balanced", "pooled", "exhaustive", "uniform"] = "class_balanced"
    """Order of the training clips. `class_balanced` draws a class, then a video, then an offset, each time among all of
    them. An epoch as long as the training split therefore shows about 63 % of the videos (if classes are equally
    large), some of them several times. `pooled` draws a class, then a video, then takes `clips_per_visit` clips of it,
    which share one decode, and mixes the clips of all videos within a `window`. `exhaustive` shows every possible start
    of a clip once per epoch, in random order, also mixed within a `window`. `uniform` goes through all videos in order
    and shows each once. For records, the default is `exhaustive` with `clips_per_visit: 1`: each record once per epoch,
    in random order."""
    seed: int = Field(0, ge=0, lt=2**63)
    """The job's random seed. The same seed gives the same clips."""
    mix: MixSpec | None = None
    """`class_balanced`, `pooled`: draw the source of a video first, by its share, then a class of that source. Without
    it, sources do not matter."""
    clips_per_epoch: int | None = Field(None, ge=1, le=MOST_CLIPS)
    """Clips of one training epoch (default: one for each training video; `exhaustive`: one for each possible start)."""
    clips_per_video: int = Field(3, ge=1, le=10**6)
    """Evaluation: clips evenly spaced over each video; scores are averaged by video. For records: 1."""
    every_s: float | None = Field(None, ge=0.001, le=86_400)
    """Prediction: seconds from one clip to the next, in a video of any length, instead of `clips_per_video`. See
    docs/segments.md. In jobs with `extract`, exactly that far apart, the first at the beginning of the video; in
    predictions, evenly spaced and at most that far apart."""
    every_frames: int | None = Field(None, ge=1, le=10**9)
    """Prediction, `extract`: frames from the start of one clip to the start of the next, instead of `clips_per_video`:
    the first clip starts with the first frame, and the last one still fits into the video."""
    background: Label | None = None
    """Training: the class whose videos show none of the other classes (`essp catalog build --background`). It is
    learned like any class, but never given as the answer for a video; the model uses it to tell where something is
    seen. See docs/segments.md."""
    locality: int = Field(0, ge=0, le=10**6)
    """Window, in clips, within which the clips of one video (or one file of records) are issued together (0: off)."""
    clips_per_visit: int = Field(8, ge=1, le=1024)
    """`pooled`: clips of each video drawn. Decoding cost drops by this factor; 1 is the same as `class_balanced`.
    `exhaustive`: neighbouring starts that are decoded together, counted from the first one of a video. If this covers
    all starts of one or several groups of pictures, each frame is decoded about once. For records: neighbours in a
    file, which are read together."""
    window: int = Field(512, ge=1, le=10**6)
    """`pooled`, `exhaustive`: indices within which the clips of all visits are mixed, a multiple of `clips_per_visit`.
    Two clips of a visit are at least `window / clips_per_visit / 2` clips apart, so batches up to that size never
    contain both. A whole window of clips must fit into `limits.budget`."""
    step: int = Field(1, ge=1, le=10**6)
    """`exhaustive`: frames from one clip start to the next. 1: every frame at which a clip can start. `clip.frames` x
    `clip.stride`: consecutive clips without overlap, which show each frame once."""
    ranks: int = Field(1, ge=1, le=4096)
    """`consumers`: processes that share the clips of an epoch, each with its own job, as in `essp.Loader`."""
    rank: int = Field(0, ge=0, le=4095)
    """Which of the `ranks` this job is: it produces every `ranks`-th clip, starting with clip `rank`."""

    @property
    def every_field(self) -> str:
        """The field that gives the distance of clips; empty: a video has `clips_per_video`."""
        return next((name for name in EVERY if getattr(self, name) is not None), "")

    @property
    def issue_window(self) -> int:
        """Indices within which the clips of one video are issued together; 0: each clip in its own turn."""
        return self.window if self.has_visits else self.locality

    @property
    def has_visits(self) -> bool:
        """Whether several clips of a video are planned together and mixed within `window`."""
        return self.kind in ("pooled", "exhaustive")

    @model_validator(mode="after")
    def _one_distance(self) -> SamplingSpec:
        if self.every_s is not None and self.every_frames is not None:
            raise wrong("give one of `every_s` and `every_frames`, not both", field="every_frames", code="conflict")
        return self

    @model_validator(mode="after")
    def _rank_is_one_of_ranks(self) -> SamplingSpec:
        if self.rank >= self.ranks:
            raise wrong(f"{self.rank} is not one of {self.ranks} ranks, which count from 0", field="rank", code="range")
        return self

    @model_validator(mode="after")
    def _fields_of_the_kind(self) -> SamplingSpec:
        fields = type(self).model_fields
        if self.step != 1 and self.kind != "exhaustive":
            raise wrong(f"only `kind: exhaustive` has it, and this is {self.kind}", field="step", code="conflict")
        if self.mix is not None and self.kind not in _MIXED:
            raise wrong(
                f"only `kind: class_balanced` and `pooled` have it, and this is {self.kind}",
                field="mix",
                code="conflict",
            )
        if self.has_visits:
            if self.locality:
                raise wrong(
                    f"`{self.kind}` has its own window; leave locality out, or set window",
                    field="locality",
                    code="conflict",
                )
            if self.window % self.clips_per_visit:
                near = max(1, self.window // self.clips_per_visit) * self.clips_per_visit
                raise wrong(
                    f"{self.window} is not a multiple of clips_per_visit = {self.clips_per_visit}; use {near}",
                    field="window",
                    code="conflict",
                )
        elif extra := [name for name in _OF_VISITS if getattr(self, name) != fields[name].default]:
            raise wrong(
                f"only `kind: pooled` and `exhaustive` have it, and this is {self.kind}",
                field=f"{extra[0]}",
                code="conflict",
            )
        return self
