"""The job specification: what a user writes (YAML or JSON), and all that determines a run.

The sequence of seeds is a function of this document and the catalog alone, never of how many workers run.
A predict job has a `predictor` in place of `trainers`.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from essp_common.errors import ConfigError
from essp_common.job.documents import read_yaml
from essp_common.quantities import parse_bytes
from essp_common.runtime import ids
from essp_common.validation import problems

ByteSize = Annotated[int, BeforeValidator(parse_bytes), Field(gt=0)]
MODELS = (
    *("small", "alexnet", "densenet121", "efficientnet_lite0", "inception_v3", "mobilenet_v3_small"),
    *("resnet18", "resnet50", "resnet101", "resnet152", "resnext50_32x4d", "vgg19"),
)
"""The networks of `essp_common.learning.networks`, named here so that a job can be checked without torch."""


def known_model(name: str) -> str:
    """The name itself. Raises `ValueError` for a network that is not there."""
    if name not in MODELS:
        raise ValueError(f"no model {name!r}; there are: {', '.join(MODELS)}")
    return name


def plain_name(name: str) -> str:
    """The name itself. Raises `ValueError` for one that cannot stand in topics, keys and URLs."""
    if not re.fullmatch(_NAME, name):
        raise ValueError(
            f"{name!r} is not a name: 1 to 63 lower-case letters, digits, `-` and `_`, a letter or digit first and last"
        )
    return name


_NAME = r"^[a-z0-9]([-a-z0-9_]{0,61}[a-z0-9])?$"
Name = Annotated[str, AfterValidator(plain_name), WithJsonSchema({"type": "string", "pattern": _NAME})]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class CodecSpec(_Section):
    """How frames are stored in the cache."""

    name: Literal["raw", "jpeg", "zstd"] = "raw"
    """`raw`: as they are, no CPU. `jpeg`: 4 to 9 times smaller, lossy. `zstd`: lossless, pays for flow, not photos."""
    quality: int = Field(0, ge=0, le=100)
    """JPEG quality 1..100 (0: 95); for zstd the level (0: 1)."""
    subsampling: Literal["444", "422", "420"] = "444"
    """JPEG chroma subsampling."""


class ResizeSpec(_Section):
    """Size of the decoded frames, made in the same pass as the colour conversion."""

    mode: Literal["none", "short_side", "exact", "crop"] = "crop"
    """`short_side`: height is the short side. `exact`: aspect ratio not kept. `crop`: cover, then centre crop."""
    height: int = Field(256, ge=8, le=4320)
    """Pixels; for `short_side`, the length of the short side."""
    width: int = Field(256, ge=8, le=7680)
    """Pixels; not used by `short_side`."""
    interpolation: Literal["fast_bilinear", "bilinear", "bicubic", "area", "lanczos", "nearest"] = "bilinear"
    """A method of libswscale."""


class ClipSpec(_Section):
    """The geometry of a clip."""

    frames: int = Field(11, ge=1, le=512)
    """Frames decoded for each seed. A flow stack of length L needs L + 1."""
    stride: int = Field(1, ge=1, le=64)
    """Distance between those frames in the video."""
    resize: ResizeSpec = ResizeSpec()
    """Size of the frames."""
    codec: CodecSpec = CodecSpec()
    """How the clip's frames are stored in the cache."""


class DataSpec(_Section):
    """Which videos, and what they are for."""

    catalog: str = ""
    """URI of the catalog (`essp catalog build`); in a job file a path, too, meant from the folder of that file."""
    train: str = "train"
    """Split to train on."""
    validation: str | None = "validation"
    """Split that chooses checkpoints and fusion weights. Absent from the catalog: see `validation_fraction`."""
    validation_fraction: float = Field(0.15, gt=0, lt=1)
    """Share of each class's training videos set aside when the catalog has no validation split."""
    test: str | None = "test"
    """Split the final figures are for; null or absent from the catalog: no test."""


class SamplingSpec(_Section):
    """Which seeds, in which order."""

    kind: Literal["class_balanced", "uniform"] = "class_balanced"
    """Training: `class_balanced` draws class, then video, then offset; `uniform` walks all videos in order."""
    seed: int = Field(0, ge=0, lt=2**63)
    """The job's random seed: the same seed, the same clips."""
    clips_per_epoch: int | None = Field(None, ge=1)
    """Clips of one training epoch (default: one for each training video)."""
    clips_per_video: int = Field(3, ge=1, le=250)
    """Evaluation: clips at even distances over each video; scores are averaged by video."""
    locality: int = Field(0, ge=0)
    """Reorder each window of so many seeds so that seeds of one video come together (0: off)."""


class StreamSpec(_Section):
    """A feature as the input of models."""

    feature: str = "rgb"
    """An extractor's name (`essp extractor ls`)."""
    params: dict[str, Any] = {}
    """The extractor's parameters (`essp extractor describe NAME`). `rgb`: `frames`, how many of the clip's frames."""
    codec: CodecSpec = CodecSpec()
    """How the feature is stored in the cache. Of `rgb`, the clip's own codec counts."""


class AugmentSpec(_Section):
    """Augmentation of the two-stream recipe (Wang et al., Temporal Segment Networks, 2016)."""

    crop: int = Field(224, ge=8)
    """Side of the square the model sees."""
    scales: tuple[float, ...] = (1.0, 0.875, 0.75, 0.66)
    """Multi-scale corner cropping: sides as shares of the short side. Evaluation takes the centre."""
    flip: bool = True
    """Mirror half of the clips; horizontal flow changes sign. Off where left and right are different classes."""
    evaluation_crops: Literal[1, 3, 10] = 1
    """What is scored, and averaged, of each frame in evaluation and prediction: `1` the centre, `3` squares along the
    long side (SlowFast), `10` corners and centre, each mirrored too (two-stream, TSN). Costs as many times the work."""


class OptimizerSpec(_Section):
    """SGD with momentum, and how its learning rate goes."""

    lr: float = Field(0.01, gt=0)
    """Highest learning rate, for the whole batch, on however many ranks: where a recipe gives the rate for another
    batch size, scale it in proportion (Goyal et al., 2017)."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """Momentum of SGD."""
    nesterov: bool = False
    """Nesterov's momentum."""
    weight_decay: float = Field(5e-4, ge=0)
    """L2 penalty on the weights."""
    decay_all: bool = True
    """Decay biases and the parameters of normalisations, too; false: only the weights of convolutions and linear
    layers, as large batches and long trainings want it."""
    schedule: Literal["step", "cosine"] = "step"
    """`step`: multiplied by `gamma` at each of `steps`. `cosine`: from `lr` to 0 along half a cosine over `epochs`."""
    warmup_epochs: float = Field(0.0, ge=0)
    """Epochs, or a part of one, in which the rate rises in a line from a hundredth to what the schedule says."""
    steps: tuple[int, ...] = ()
    """Epochs at whose start the learning rate is multiplied by `gamma`."""
    gamma: float = Field(0.1, gt=0, le=1)
    """Factor of each step."""
    clip_grad_norm: float = Field(20.0, gt=0)
    """Gradients are scaled down to this norm."""


class TrainerSpec(_Section):
    """One training of one model on one stream."""

    stream: str
    """The stream it learns from, one of `streams`."""
    model: Annotated[str, AfterValidator(known_model)] = "small"
    """`small` (CPU), or a torchvision name: vgg19, resnet18/50/101/152, resnext50_32x4d, inception_v3, densenet121,
    alexnet, mobilenet_v3_small; or `efficientnet_lite0` with weights from its package."""
    weights: str | None = None
    """URI of a safetensors/state-dict file to start from; null: from scratch."""
    partial_bn: bool = False
    """Keep the statistics of every batch normalisation but the first (TSN): for fine-tuning on few videos."""
    batch_size: int = Field(32, ge=1)
    """Clips of one optimizer step, over all ranks."""
    dropout: float = Field(0.5, ge=0, lt=1)
    """Dropout before the classifier."""
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    """Share of each label's weight that is spread over all classes (Szegedy et al., 2016); 0.1 is common."""
    ema: float = Field(0.0, ge=0, lt=1)
    """Evaluate and keep an exponential moving average of the weights with this decay (0.999 is common; less at the
    beginning, where there is little to average) in place of those of the last step; 0: off."""
    optimizer: OptimizerSpec = OptimizerSpec()
    """How the weights move."""
    augment: AugmentSpec = AugmentSpec()
    """What training clips go through."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto`: a GPU when there is one."""
    amp: bool = False
    """Mixed precision (CUDA only): bfloat16 where the GPU computes in it, else float16 with scaled gradients."""
    threads: int = Field(0, ge=0)
    """CPU threads for the model (0: shared evenly between the trainings of a process)."""
    checkpoint_clips: int = Field(0, ge=0)
    """Also save every so many clips within an epoch (0: at the end of each epoch)."""
    keep_checkpoints: int = Field(2, ge=1)
    """Newest checkpoints kept, besides the best."""


class AggregationSpec(_Section):
    """How the streams' scores become one."""

    strategies: tuple[Literal["average", "product", "weighted", "weighted_product"], ...] = Field(
        ("average", "product", "weighted", "weighted_product"), min_length=1
    )
    """All are tried on the validation split; one that comes later has to be clearly better. `average`: the mean of the
    streams' scores. `product`: their product. `weighted`, `weighted_product`: with weights found on that split."""


class PredictorSpec(_Section):
    """Classify the videos of the catalog with a trained model."""

    model: str
    """URI of a fused model (`<output>/model`)."""
    segments: bool = False
    """Also say where in each video its classes are seen (`segments.parquet`), as finely as `sampling.clips_per_video`
    lets it: clips must lie closer than what is looked for lasts."""


class LimitsSpec(_Section):
    """Bounds that keep one bad input, or a flood of them, from hurting the rest."""

    budget: ByteSize = 256 * 2**20
    """Bytes of clips and features outstanding at once, over all workers."""
    lag: float = Field(0.75, gt=0, le=1)
    """When the budget is used up and a trainer is behind the furthest one by more than this share of the clips
    outstanding, it is left behind: its clips are released, and decoded again for it in its turn, within half of the
    budget (shared by all but one of the trainers). Needs a budget of which each of these shares holds two batches."""
    coupled: bool = False
    """Never leave a trainer behind: all keep in step with the slowest, and no clip is decoded twice on that account.
    False suits a cluster, where a slow training on its own machine should not hold up the others, and decoders can be
    added. Where trainers and decoders share the same cores, decoding again slows everybody: `essp init` writes true."""
    replacements: int = Field(5, ge=0)
    """Other videos tried in place of one that cannot be decoded, before its index is skipped."""
    dead_ratio: float = Field(0.2, ge=0, le=1)
    """The job fails when more than this share of its seeds could not be decoded."""
    ttl_s: int = Field(3600, ge=1)
    """Life of a cache key whose consumers never ack."""
    strict: bool = True
    """Any sign of damage fails a clip; false: take the frames FFmpeg could make of it."""


class JobSpec(_Section):
    """A job. Exactly one of `trainers` and `predictor` is given."""

    name: Name
    """Names the job in messages, cache keys and the API: lower-case letters, digits, `-` and `_`."""
    output: str
    """URI below which everything the job makes is written: checkpoints, model, report; in a job file a path, too."""
    data: DataSpec = DataSpec()
    """Which videos."""
    clip: ClipSpec = ClipSpec()
    """How many frames, which size."""
    sampling: SamplingSpec = SamplingSpec()
    """Which clips of them, in which order."""
    streams: dict[Name, StreamSpec] = {"rgb": StreamSpec()}
    """What models see, by name."""
    trainers: dict[Name, TrainerSpec] = {}
    """What is trained, by name."""
    epochs: int = Field(10, ge=1)
    """Training epochs, each followed by a validation phase."""
    aggregation: AggregationSpec = AggregationSpec()
    """How the streams become one classifier."""
    predictor: PredictorSpec | None = None
    """Predict with a trained model in place of training."""
    limits: LimitsSpec = LimitsSpec()
    """Memory, retries, and when to give up."""

    @model_validator(mode="after")
    def _consistent(self) -> JobSpec:
        if bool(self.trainers) == (self.predictor is not None):
            raise ValueError("give either `trainers` (to train) or `predictor` (to predict)")
        for name, trainer in self.trainers.items():
            if trainer.stream not in self.streams:
                known = ", ".join(self.streams)
                raise ValueError(f"trainers.{name}.stream: no stream {trainer.stream!r}; there are: {known}")
        return self

    def consumers(self) -> dict[str, str]:
        """Who must ack what: consumer id -> stream."""
        if self.predictor is not None:
            return {ids.predictor_consumer(stream): stream for stream in self.streams}
        return {ids.trainer_consumer(name): trainer.stream for name, trainer in self.trainers.items()}


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
    """A job that ESSP wrote itself, maybe an earlier version of it: fields that are no more are passed over.

    Raises `ConfigError` for one that cannot be read any more.
    """
    try:
        return JobSpec.model_validate_json(text, extra="ignore")
    except ValidationError as error:
        lines = problems(error, JobSpec)
        raise ConfigError(f"{where} was written by another version of ESSP: {'; '.join(lines)}") from error
