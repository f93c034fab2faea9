"""Which videos or records a job takes, and which clips of them in which order."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    model_validator,
)

from essp_common.job.fields import Label, Section, Uri
from essp_common.validation import wrong

Targets = Literal["class", "labels", "spans"]
"""What trainers learn of a clip: of which class its video is, all labels of the video, or those of its frames."""


class DataSpec(Section):
    """The catalog and its splits, or data sets of records in place of them."""

    catalog: Uri = ""
    """URI of the catalog (`essp catalog build`); in a job file also a path, relative to the folder of
    that file."""
    records: Uri = ""
    """Train on records (`essp records build`) in place of a catalog: URI of the data set; in a job file also a path.
    A record is a clip of one frame. See docs/records.md."""
    records_validation: Uri = ""
    """The data set to validate on (default: `validation_fraction` of `records`)."""
    records_test: Uri = ""
    """The data set that the final figures are measured on (default: there is no test)."""
    versions: dict[Literal["train", "validation", "test"], Annotated[int, Field(ge=1, le=10**9)]] = Field({})
    """The version of each data set of records (default: the newest when the job begins, which it then keeps)."""
    train: Label = "train"
    """Split to train on."""
    validation: Label | None = "validation"
    """Split that selects checkpoints and fusion weights. `validation_fraction` applies if the catalog lacks it, or if
    this is null."""
    validation_fraction: float = Field(0.15, ge=0, lt=1)
    """Share of each class's training videos set aside when the catalog has no validation split. Videos of one group of
    the catalog stay together. 0: none are, and `consumers` get all; trainers then need a validation split."""
    test: Label | None = "test"
    """Split that the final figures are measured on. There is no test if this is null or the catalog lacks the split."""
    split_column: Label = ""
    """A further column of the source that says the split of each video in place of `split`, as in `split_2` of UCF-101
    and HMDB51 (default: `split`). `essp run --splits 1,2,3` sets it; see docs/recipes.md."""
    left_out: dict[Label, Label] = Field({}, max_length=1)
    """Test on the videos with this value in a column, and train on all others, as in `{group: person03}`, whatever
    their splits are; also where `test` is null. `essp run --folds group` sets it for each value; see
    docs/recipes.md."""
    targets: Targets = "class"
    """What trainers learn of a video. `class`: of which class it is, the likeliest one being the answer. `labels`: all
    that it shows, each label of the catalog by itself, be they none, one or many. `spans`: the same of each clip, by
    the spans of the video in which its frames lie. See [labels](labels.md)."""
    consumed: Literal["train", "validation", "test"] = "train"
    """Which of these three `consumers` get: of training, clips as `sampling.kind` draws them; of the others, clips at
    even distances over each video."""

    @model_validator(mode="before")
    @classmethod
    def _tests_on_what_is_left_out(cls, given: Any) -> Any:
        """`essp init` writes `test: null` where a catalog has no test split."""
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
    def record_sets(self) -> dict[Literal["train", "validation", "test"], str]:
        """Split -> the URI of its data set of records; empty: there is a catalog."""
        found: dict[Literal["train", "validation", "test"], str] = {
            "train": self.records,
            "validation": self.records_validation,
            "test": self.records_test,
        }
        return {name: uri for name, uri in found.items() if uri}


MOST_CLIPS = 10**9
"""Most clips of an epoch."""
_OF_VISITS = ("clips_per_visit", "window")


class SamplingSpec(Section):
    """Which seeds, in which order."""

    kind: Literal["class_balanced", "pooled", "exhaustive", "uniform"] = "class_balanced"
    """Training: `class_balanced` draws class, then video, then offset, each time among all of them. So an epoch as long
    as the training split shows about 63 % of the videos (of equally large classes), some of them several times.
    `pooled` draws class, then video, then takes `clips_per_visit` clips of it, which one decode makes, and mixes the
    clips of all videos within a `window`. `exhaustive` shows every place that a clip can start at once in an epoch, in
    random order, also mixed within a `window`. `uniform` walks all videos in order and shows each once. Of records, the
    default is `exhaustive` with `clips_per_visit: 1`: each once an epoch, in a random order."""
    seed: int = Field(0, ge=0, lt=2**63)
    """The job's random seed: the same seed, the same clips."""
    clips_per_epoch: int | None = Field(None, ge=1, le=MOST_CLIPS)
    """Clips of one training epoch (default: one for each training video; `exhaustive`: one for each place)."""
    clips_per_video: int = Field(3, ge=1, le=10**6)
    """Evaluation: clips at even distances over each video; scores are averaged by video. Of records: 1."""
    every_s: float | None = Field(None, ge=0.001, le=86_400)
    """Prediction: seconds from one clip to the next, in a video of any length, in place of `clips_per_video`. See
    docs/segments.md."""
    background: Label | None = None
    """Training: the class whose videos show none of the others (`essp catalog build --background`). It is learned like
    any class, and no video is ever answered with it; the model knows by it where something is seen. See
    docs/segments.md."""
    locality: int = Field(0, ge=0, le=10**6)
    """Window, in seeds, within which the seeds of one video (or one file of records) are issued together (0: off)."""
    clips_per_visit: int = Field(8, ge=1, le=1024)
    """`pooled`: clips of each video that is drawn. Decoding costs this many times less; 1 is `class_balanced`.
    `exhaustive`: neighbouring places that are decoded together, from the first one of a video on; with as many as start
    in one group of pictures, or in several, each frame is decoded about once. Of records: neighbours in a file, which
    are read together."""
    window: int = Field(512, ge=1, le=10**6)
    """`pooled`, `exhaustive`: indices within which the clips of all visits are mixed, a multiple of `clips_per_visit`.
    Two clips of a visit are at least `window / clips_per_visit / 2` clips apart, so batches up to that size never hold
    two. So many clips have to fit into `limits.budget`."""
    step: int = Field(1, ge=1, le=10**6)
    """`exhaustive`: frames from one place to the next. 1: every frame that a clip can start at. `clip.frames` x
    `clip.stride`: clips side by side, which show each frame once."""
    ranks: int = Field(1, ge=1, le=4096)
    """`consumers`: processes that share the clips of an epoch, each with a job of its own, as `essp.Loader` does."""
    rank: int = Field(0, ge=0, le=4095)
    """Which of `ranks` this job is: it makes every `ranks`-th clip, from clip `rank` on."""

    @property
    def issue_window(self) -> int:
        """Indices within which the clips of one video are issued together; 0: each clip at its turn."""
        return self.window if self.has_visits else self.locality

    @property
    def has_visits(self) -> bool:
        """Whether several clips of a video are planned together, and mixed within `window`."""
        return self.kind in ("pooled", "exhaustive")

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
