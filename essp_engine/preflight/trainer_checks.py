"""What a job's networks and encoders could not learn anything sensible from, found before it begins.

Each check compares fields that are sound one by one: the feature of a stream, the size of its frames, the crop, the
mirror, the network and the batch. Errors name the field to change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

from essp_common.errors import ConfigError
from essp_common.job.feature_layout import FeatureLayout
from essp_common.job.network_limits import limits_of
from essp_common.job.registered import ENCODERS, known_loss, known_model
from essp_common.job.spec import JobSpec
from essp_common.job.trainer_spec import TrainerSpec
from essp_common.pb.v1.messages_pb2 import TRAIN
from essp_common.validation import suggested
from essp_engine.features.declared import DeclaredFeature
from essp_engine.features.port import ArraySpec
from essp_engine.features.registry import needs_of
from essp_engine.planning.phases import Phases
from essp_engine.preflight.sizing import decoded_clips
from essp_engine.preflight.stream_outputs import stream_frames, stream_output
from essp_engine.registrations import Declared, row_for

_AXES = 4
"""Of a picture: `(T, H, W, C)`."""
_MIRRORED_VIEWS = 10
_MULTIPLE = {"colours": 3, "horizontal_motion": 2}
"""What the number of channels has to be a multiple of."""


def check_needs(spec: JobSpec, declared: Mapping[str, DeclaredFeature] | None = None) -> None:
    """Raises `ConfigError` for a stream that needs several frames where clips are records, or colours where clips have
    none.

    A loop of the user's own may take grey frames as they are; networks here take photographs in colour.
    """
    for name, stream in spec.streams.items() if spec.data.records else ():
        if (frames := stream_frames(spec, name, declared)) > 1:
            field = "params.frames" if stream.feature == "rgb" else "feature"
            raise ConfigError(
                f"streams.{name}.{field}: {stream.feature} needs clips of {frames} frames, and a record (data.records) "
                "is one frame; use rgb with one frame, or train on videos (data.catalog)"
            )
    if spec.clip.pixels != "gray":
        return
    for name, stream in spec.streams.items():
        taken_as_is = stream.feature == "rgb" and spec.consumers
        if not taken_as_is and needs_of(stream.feature, declared) == "colours":
            raise ConfigError(
                f"clip.pixels: gray has no colours, and {stream.feature} (streams.{name}.feature) needs them; use "
                "yuv420 or rgb, or a feature of luma such as flow"
            )


def check_trainers(
    phases: Phases,
    classes: Sequence[str],
    layouts: Mapping[str, FeatureLayout],
    declared: Declared,
) -> None:
    """Raises `ConfigError` for a trainer whose settings contradict its stream or its network. `classes`: names of what
    the job learns, be they labels. `declared`: what is not installed here, and may be named all the same."""
    spec = phases.spec
    clips = {clip for _, view in phases.views for clip in decoded_clips(spec, view)}
    for name, trainer in spec.trainers.items():
        _check_names(trainer, name, declared)
        _check_classes(spec, classes, name)
        made = [stream_output(spec, trainer.stream, clip, declared.features) for clip in clips]
        if trainer.is_encoder:
            _check_descriptors(spec, name, layouts[trainer.stream], made)
            continue
        _check_picture(spec, name, layouts[trainer.stream], made)
        _check_frames(spec, name, made)
        _check_crop(spec, name, made)
        _check_mirror(spec, name, layouts[trainer.stream])
        _check_colours(spec, name, layouts[trainer.stream])
        _check_normalisation(phases, name, made)


def alike(spec: JobSpec) -> list[tuple[str, str]]:
    """Pairs of trainers that will give the same weights: they differ in nothing that counts."""
    free = {"device", "threads", "checkpoint"}
    what = {name: trainer.model_dump(exclude=free) for name, trainer in spec.trainers.items()}
    return [(one, other) for one, other in combinations(what, 2) if what[one] == what[other]]


def _check_names(trainer: TrainerSpec, name: str, declared: Declared) -> None:
    row = row_for(trainer.model, declared.trainers)
    models, losses = (row.models, row.losses) if row is not None else ((), ())
    fields: tuple[tuple[str, str, Sequence[str], Callable[[str, Sequence[str]], str]], ...] = (
        ("model", trainer.model, models, known_model),
        ("loss", trainer.loss, losses, known_loss),
    )
    for field, named, in_image, known in fields:
        if named in in_image and declared.images_run:
            continue
        try:
            known(named, declared.code)
        except ConfigError as error:
            where = f"trainers.{name}.{field}"
            if row is None or named not in in_image:
                raise ConfigError(f"{where}: {error}") from error
            raise ConfigError(
                f"{where}: {named} is in the image of the registered trainer {row.name}, and this master starts "
                "trainers as processes of its own machine, where it is not installed (ESSP_POOLS=processes); install "
                "its package here, too, or have a master in Kubernetes train the job (ESSP_POOLS=kubernetes)"
            ) from error


def _check_classes(spec: JobSpec, classes: Sequence[str], name: str) -> None:
    for given in spec.trainers[name].class_weights:
        if given not in classes:
            raise ConfigError(
                f"trainers.{name}.class_weights: there is no class {given!r}; {suggested(given, classes)}"
            )


def _check_picture(spec: JobSpec, name: str, layout: FeatureLayout, made: list[ArraySpec]) -> None:
    stream = spec.trainers[name].stream
    feature = spec.streams[stream].feature
    if layout.values == "descriptor" or any(len(array.shape) != _AXES for array in made):
        raise ConfigError(
            f"trainers.{name}.stream: {feature} (streams.{stream}.feature) is a descriptor, not a picture, so no "
            f"network here can learn from it; set model to an encoder ({', '.join(ENCODERS)}), or choose a stream of "
            "rgb, flow or another picture"
        )
    for kind in (layout.values, layout.mirrored):
        multiple = _MULTIPLE.get(kind, 1)
        for array in made:
            if array.shape[-1] % multiple:
                raise ConfigError(
                    f"streams.{stream}.feature: {feature} declares {kind}, so the number of its channels should be a "
                    f"multiple of {multiple}, and is {array.shape[-1]}; register it with its true layout"
                )


def _check_descriptors(spec: JobSpec, name: str, layout: FeatureLayout, made: list[ArraySpec]) -> None:
    trainer = spec.trainers[name]
    feature = spec.streams[trainer.stream].feature
    if layout.values != "descriptor":
        raise ConfigError(
            f"trainers.{name}.model: {trainer.model} encodes descriptors, and {feature} (streams.{trainer.stream}."
            "feature) is a picture; choose a network for it, such as resnet18, or a stream of hog, hof, mbh, "
            "trajectories or improved_trajectories"
        )
    numbers = min(array.shape[-1] for array in made) - layout.facts
    if trainer.encoder.pca > numbers:
        raise ConfigError(
            f"trainers.{name}.encoder.pca: {trainer.encoder.pca} components are more than the {numbers} numbers of a "
            f"descriptor of {feature} (streams.{trainer.stream}.feature); set it to {numbers} or less"
        )


def _check_frames(spec: JobSpec, name: str, made: list[ArraySpec]) -> None:
    """A network of clips reads time along the frames of photographs."""
    trainer = spec.trainers[name]
    limits = limits_of(trainer.model).clip_frames
    if limits is None:
        return
    stream, (least, most) = spec.streams[trainer.stream], limits
    if stream.feature != "rgb":
        raise ConfigError(
            f"trainers.{name}.model: {trainer.model} sees photographs in time, and {stream.feature} "
            f"(streams.{trainer.stream}.feature) has other channels, where time may lie, too; choose a network of "
            "single frames for it, such as resnet18, or a stream of rgb"
        )
    if any(not least <= array.shape[0] // spec.clip.snippets <= most for array in made):
        wanted = f"{least}" if least == most else f"{least} or more"
        raise ConfigError(
            f"streams.{trainer.stream}.params.frames: {trainer.model} (trainers.{name}.model) sees {wanted} frames at "
            f"once, and gets {made[0].shape[0] // spec.clip.snippets}; set it to {wanted}, and clip.frames to no fewer"
            + (" for each snippet" if spec.clip.snippets > 1 else "")
        )


def _check_crop(spec: JobSpec, name: str, made: list[ArraySpec]) -> None:
    trainer = spec.trainers[name]
    crop, least = trainer.augment.crop, limits_of(trainer.model).least_side
    _, height, width, _ = min((array.shape for array in made), key=lambda shape: min(shape[1:3]))
    if crop > min(height, width):
        raise ConfigError(
            f"trainers.{name}.augment.crop: {crop} is larger than the smallest frames of stream "
            f"{trainer.stream!r}, {width} x {height} pixels; set it to {min(height, width)} or less, or enlarge "
            + _where_size_is_set(spec, trainer.stream)
        )
    if crop < least:
        raise ConfigError(
            f"trainers.{name}.augment.crop: {crop} is too small for {trainer.model}; {least} is the least"
        )


def _where_size_is_set(spec: JobSpec, stream: str) -> str:
    return f"streams.{stream}.params.short_side" if spec.streams[stream].params.get("short_side") else "clip.resize"


def _check_mirror(spec: JobSpec, name: str, layout: FeatureLayout) -> None:
    augment, stream = spec.trainers[name].augment, spec.trainers[name].stream
    if layout.mirrored != "unknown":
        return
    reason = (
        f"what {spec.streams[stream].feature} (streams.{stream}.feature) becomes in a mirror is not known; "
        "declare it (`layout.mirrored` of the extractor), or set this to"
    )
    if augment.flip:
        raise ConfigError(f"trainers.{name}.augment.flip: {reason} false")
    if augment.evaluation_crops == _MIRRORED_VIEWS:
        raise ConfigError(f"trainers.{name}.augment.evaluation_crops: {reason} 1 or 3")


def _check_colours(spec: JobSpec, name: str, layout: FeatureLayout) -> None:
    trainer = spec.trainers[name]
    if trainer.augment.rand_augment is not None and layout.values != "colours":
        raise ConfigError(
            f"trainers.{name}.augment.rand_augment: is for colours, and {spec.streams[trainer.stream].feature} "
            f"(streams.{trainer.stream}.feature) are none; leave it out, or set augment.erase"
        )


def _check_normalisation(phases: Phases, name: str, made: list[ArraySpec]) -> None:
    """Every batch would have one value a channel, so normalisation would never have a variance to divide by. A probe
    divides by the statistics that it was given."""
    trainer = phases.spec.trainers[name]
    if (
        trainer.partial_bn
        or trainer.probe is not None
        or trainer.augment.crop > limits_of(trainer.model).single_value_side
    ):
        return
    epoch = max(plan.clips for plan in phases.plans if plan.purpose == TRAIN)
    if trainer.micro_batch == 1 and max(array.shape[0] for array in made) == 1:
        raise ConfigError(
            f"trainers.{name}.micro_batch: one frame gives a normalisation of {trainer.model} one value a channel, "
            f"which has no variance; set it to 2 or more, or set trainers.{name}.partial_bn: true"
        )
    if min(trainer.batch_size, epoch) * max(array.shape[0] for array in made) > 1:
        return
    field = f"trainers.{name}.batch_size" if trainer.batch_size == 1 else "sampling.clips_per_epoch"
    raise ConfigError(
        f"{field}: batches of one frame give a normalisation of {trainer.model} one value a channel, which has no "
        f"variance; set it to 2 or more, or set trainers.{name}.partial_bn: true"
    )
