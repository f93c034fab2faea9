"""The checks of a resolved job: do its settings fit its data, its model, its features, and each other?

To add a check, write a function and add it to `CHECKS`. A check takes the resolved job, opens nothing, and yields a
`ConfigError` for each problem. All checks run, and users see all problems at once. So a check must work on a job that
fails other checks, and should not report what another check reports (see `_on_pictures`). What can be checked in the
document alone belongs in a validator of its section's model (`essp_common/job/*_spec.py`), and what is legal but
probably a mistake in `advice.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from essp_common.catalog.notes import is_depth
from essp_common.errors import ConfigError
from essp_common.job.data_spec import EVERY
from essp_common.job.network_limits import limits_of
from essp_common.job.registered import ENCODERS, known_loss, known_model
from essp_common.job.trainer_spec import TrainerSpec
from essp_common.messages.snapshot import MOST_SPEC_BYTES
from essp_common.pb.v1.messages_pb2 import TRAIN
from essp_common.validation import refuse, suggested
from essp_engine.aggregation.candidates import candidates
from essp_engine.planning.planned_clip import WHOLE
from essp_engine.preflight.extraction_checks import (
    network_exists,
    network_reads_streams,
    vectors_are_alike,
    weights_are_of_network,
)
from essp_engine.preflight.resolve import ResolvedJob
from essp_engine.preflight.streams import Stream
from essp_engine.registrations import TrainerRow, row_for
from essp_engine.video.motion_layout import CODECS

Check = Callable[[ResolvedJob], Iterator[ConfigError]]

_MIRRORED_VIEWS = 10
_MULTIPLE = {"colours": 3, "horizontal_motion": 2}
"""What the number of channels must be a multiple of."""


def check(job: ResolvedJob) -> None:
    """Run all checks. Raises one `ConfigError` for all problems."""
    refuse(problem for each in CHECKS for problem in each(job))


def _document(job: ResolvedJob) -> Iterator[ConfigError]:
    if (size := len(job.spec.model_dump_json().encode())) > MOST_SPEC_BYTES:
        yield ConfigError(
            f"the job takes {size} bytes as JSON, and {MOST_SPEC_BYTES} is the maximum; shorten streams.*.params, or "
            "make several jobs",
            code="range",
        )


def _whole_videos(job: ResolvedJob) -> Iterator[ConfigError]:
    """Of a job whose clips are those of its model; for other jobs, `JobSpec` checks this."""
    predictor, sampling = job.spec.predictor, job.spec.sampling
    if job.model is None or not job.spec.clip.of_whole_video:
        return
    wrong = {
        "predictor.segments": predictor is not None and predictor.segments,
        **{f"sampling.{name}": sampling.every_field == name for name in EVERY},
        "sampling.clips_per_video": sampling.clips_per_video != 1,
    }
    for field in (field for field, given in wrong.items() if given):
        yield ConfigError(
            "the model was trained on clips that cover their whole video, so a video has one; leave it out",
            field=field,
            code="conflict",
        )


def _segments(job: ResolvedJob) -> Iterator[ConfigError]:
    clip, predictor = job.spec.clip, job.spec.predictor
    if predictor is None:
        return
    if not predictor.segments:
        return
    if clip.snippets > 1:
        yield ConfigError(
            f"the model was trained on clips of {clip.snippets} snippets, which are spread over the whole video, so "
            "its answers have no position in time; use a model that was trained with clip.snippets: 1",
            field="predictor.segments",
            code="conflict",
        )
    if clip.part != WHOLE:
        yield ConfigError(
            "the model sees only a part of each video (clip.part), and not the rest; use a model that was trained "
            "without clip.part",
            field="predictor.segments",
            code="conflict",
        )


def _background(job: ResolvedJob) -> Iterator[ConfigError]:
    background = job.spec.sampling.background
    if background is None:
        return
    others = [name for name in job.catalog.classes if name != background]
    if len(others) == len(job.catalog.classes):
        yield ConfigError(
            f"the catalog has no class {background!r}; {suggested(background, others)}. "
            f"`essp catalog build --background {background}` makes one of what a list of segments leaves out",
            field="sampling.background",
            code="unknown",
        )
    elif not others:
        yield ConfigError(
            f"the catalog has no class but {background!r}; add videos of others",
            field="sampling.background",
            code="conflict",
        )


def _strategies(job: ResolvedJob) -> Iterator[ConfigError]:
    if job.spec.trainers:
        try:
            candidates(job.spec.aggregation, job.spec.data.targets)
        except ConfigError as error:
            yield error


def _pixels(job: ResolvedJob, stream: str) -> str:
    """The pixel format of the frames that a stream is computed from."""
    return job.spec.clip.of(job.spec.streams[stream].view).pixels


def _taken_as_they_are(job: ResolvedJob, stream: str) -> bool:
    """Whether a user's own loop takes the frames of a stream as they are, in any pixel format."""
    return bool(job.streams[stream].feature == "rgb" and job.spec.consumers)


def _lacks_colours(job: ResolvedJob, stream: str) -> bool:
    """Whether a stream needs colours that its clips do not have."""
    needs_them = job.streams[stream].needs == "colours" and not _taken_as_they_are(job, stream)
    return _pixels(job, stream) == "gray" and needs_them


def _luma(job: ResolvedJob) -> Iterator[ConfigError]:
    found = {name: stream.feature for name, stream in job.streams.items() if _lacks_colours(job, name)}
    if found:
        yield ConfigError(
            f"gray has no colours, and {_features(found)} {'needs' if len(found) == 1 else 'need'} them; use yuv420 or "
            "rgb, or only features of luma, such as flow",
            field="clip.pixels",
            code="conflict",
        )


def _features(found: Mapping[str, str]) -> str:
    return " and ".join(f"{feature} (streams.{name}.feature)" for name, feature in found.items())


def _levels(job: ResolvedJob) -> Iterator[ConfigError]:
    """Networks and features have no use for 16 bits."""
    found = {
        name: stream.feature
        for name, stream in job.streams.items()
        if _pixels(job, name) == "gray16" and not _taken_as_they_are(job, name)
    }
    if found:
        yield ConfigError(
            f"gray16 is for loops that take frames as they are (essp.Loader), and {_features(found)} "
            f"{'needs' if len(found) == 1 else 'need'} 8 bits; use gray, yuv420 or rgb",
            field="clip.pixels",
            code="conflict",
        )


def _depth(job: ResolvedJob) -> Iterator[ConfigError]:
    """A depth camera is never read as colours."""
    first = next(iter(job.spec.clip.views), "")
    views = [] if job.spec.data.records else [{first: view.rows, **view.further} for _, view in job.phases.views]
    cameras = {name for each in views for name, rows in each.items() if any(map(is_depth, rows.names("notes")))}
    for name in sorted(name for name in cameras if job.spec.clip.of(name).pixels != "gray16"):
        yield ConfigError(
            f"{name or 'the catalog'} has distances of a depth camera, which other formats round; use gray16",
            field="clip.pixels" if name == first else f"clip.views.{name}.pixels",
            code="conflict",
        )


def _motion(job: ResolvedJob) -> Iterator[ConfigError]:
    """Motion vectors are read only if the job says so, and only from codecs that have them."""
    users = [name for name, stream in job.streams.items() if stream.needs == "motion"]
    if users and not job.spec.clip.motion:
        yield ConfigError(
            f"streams.{users[0]} needs the motion vectors of the videos; set clip.motion: true",
            field="clip.motion",
            code="missing",
        )
    if not job.spec.clip.motion:
        return
    if job.spec.data.records:
        yield ConfigError("records are images, which have no motion; set it to false", field="clip.motion")
        return
    without = sorted({codec for _, view in job.phases.views for codec in view.rows.names("codec")} - CODECS)
    if without:
        yield ConfigError(
            f"some videos are {', '.join(without)}, which has no motion vectors to read; use flow, or videos of "
            f"{', '.join(sorted(CODECS))}",
            field="clip.motion",
            code="unsupported",
        )


def _networks(job: ResolvedJob) -> Iterator[ConfigError]:
    """A name is valid if it is installed here, or if a registered trainer declares it and runs in its image."""
    for name, trainer in job.spec.trainers.items():
        row = row_for(trainer.model, job.declared.trainers)
        models, losses = (row.models, row.losses) if row is not None else ((), ())
        fields: tuple[tuple[str, str, Sequence[str], Callable[[str, Sequence[str]], str]], ...] = (
            ("model", trainer.model, models, known_model),
            ("loss", trainer.loss, losses, known_loss),
        )
        for field, named, in_image, known in fields:
            if named in in_image and job.declared.images_run:
                continue
            try:
                known(named, job.declared.code)
            except ConfigError as error:
                found = error if row is None or named not in in_image else _not_here(named, row)
                yield found.within(f"trainers.{name}.{field}")


def _not_here(named: str, row: TrainerRow) -> ConfigError:
    return ConfigError(
        f"{named} is in the image of the registered trainer {row.name}, but this master starts trainers as processes "
        "of its own machine, where it is not installed (ESSP_POOLS=processes); install its package here, too, or have "
        "a master in Kubernetes train the job (ESSP_POOLS=kubernetes)",
        code="not_installed",
    )


def _class_weights(job: ResolvedJob) -> Iterator[ConfigError]:
    for name, trainer in job.spec.trainers.items():
        for given in trainer.class_weights:
            if given not in job.classes:
                yield ConfigError(
                    f"there is no class {given!r}; {suggested(given, job.classes)}",
                    field=f"trainers.{name}.class_weights",
                    code="unknown",
                )


def _on_pictures(job: ResolvedJob) -> Iterator[tuple[str, TrainerSpec, Stream]]:
    """The trainers with a network and a stream of pictures."""
    for name, trainer in job.spec.trainers.items():
        stream = job.streams[trainer.stream]
        if stream.is_picture and not trainer.is_encoder:
            yield name, trainer, stream


def _descriptors_for_networks(job: ResolvedJob) -> Iterator[ConfigError]:
    for name, trainer in job.spec.trainers.items():
        stream = job.streams[trainer.stream]
        if not (trainer.is_encoder or stream.is_picture):
            yield ConfigError(
                f"{stream.feature} (streams.{trainer.stream}.feature) is a descriptor, not a picture, so no network "
                f"here can learn from it; set model to an encoder ({', '.join(ENCODERS)}), or choose a stream of rgb, "
                "flow or another picture",
                field=f"trainers.{name}.stream",
                code="conflict",
            )


def _pictures_for_encoders(job: ResolvedJob) -> Iterator[ConfigError]:
    for name, trainer in job.spec.trainers.items():
        stream = job.streams[trainer.stream]
        if trainer.is_encoder and stream.layout.values != "descriptor":
            yield ConfigError(
                f"{trainer.model} encodes descriptors, and {stream.feature} (streams.{trainer.stream}.feature) is a "
                "picture; choose a network for it, such as resnet18, or a stream of hog, hof, mbh, trajectories or "
                "improved_trajectories",
                field=f"trainers.{name}.model",
                code="conflict",
            )


def _components(job: ResolvedJob) -> Iterator[ConfigError]:
    for name, trainer in job.spec.trainers.items():
        stream = job.streams[trainer.stream]
        numbers = min(shape[-1] for shape in stream.shapes) - stream.layout.facts
        if trainer.is_encoder and stream.layout.values == "descriptor" and trainer.encoder.pca > numbers:
            yield ConfigError(
                f"{trainer.encoder.pca} components are more than the {numbers} numbers of a descriptor of "
                f"{stream.feature} (streams.{trainer.stream}.feature); set it to {numbers} or less",
                field=f"trainers.{name}.encoder.pca",
                code="range",
            )


def _channels(job: ResolvedJob) -> Iterator[ConfigError]:
    for name in dict.fromkeys(trainer.stream for _, trainer, _ in _on_pictures(job)):
        stream = job.streams[name]
        for kind in () if _lacks_colours(job, name) else (stream.layout.values, stream.layout.mirrored):
            multiple = _MULTIPLE.get(kind, 1)
            if wrong := [shape[-1] for shape in stream.shapes if shape[-1] % multiple]:
                yield ConfigError(
                    f"{stream.feature} declares {kind}, so the number of its channels must be a multiple of "
                    f"{multiple}, and is {wrong[0]}; register it with its true layout",
                    field=f"streams.{name}.feature",
                    code="conflict",
                )


def _frames(job: ResolvedJob) -> Iterator[ConfigError]:
    """A network of clips sees motion in the sequence of RGB frames."""
    snippets = job.spec.clip.snippets
    for name, trainer, stream in _on_pictures(job):
        limits = limits_of(trainer.model).clip_frames
        if limits is None:
            continue
        least, most = limits
        if stream.feature != "rgb":
            yield ConfigError(
                f"{trainer.model} sees RGB frames over time, and {stream.feature} (streams.{trainer.stream}.feature) "
                "has other channels; choose a network of single frames for it, such as resnet18, or a stream of rgb",
                field=f"trainers.{name}.model",
                code="conflict",
            )
        elif any(not least <= shape[0] // snippets <= most for shape in stream.shapes):
            wanted = f"{least}" if least == most else f"{least} or more"
            yield ConfigError(
                f"{trainer.model} (trainers.{name}.model) sees {wanted} frames at once, and gets "
                f"{stream.shapes[0][0] // snippets}; set it to {wanted}, and clip.frames to at least as many"
                + (" for each snippet" if snippets > 1 else ""),
                field=f"streams.{trainer.stream}.params.frames",
                code="range",
            )


def _crops(job: ResolvedJob) -> Iterator[ConfigError]:
    for name, trainer, stream in _on_pictures(job):
        crop, least = trainer.augment.crop, limits_of(trainer.model).least_side
        height, width = min((shape[1:3] for shape in stream.shapes), key=min)
        if crop > min(height, width):
            own = job.spec.streams[trainer.stream].params.get("short_side")
            where = f"streams.{trainer.stream}.params.short_side" if own else "clip.resize"
            yield ConfigError(
                f"{crop} is larger than the smallest frames of stream {trainer.stream!r}, {width} x {height} pixels; "
                f"set it to {min(height, width)} or less, or enlarge {where}",
                field=f"trainers.{name}.augment.crop",
                code="range",
            )
        if crop < least:
            yield ConfigError(
                f"{crop} is too small for {trainer.model}; the minimum is {least}",
                field=f"trainers.{name}.augment.crop",
                code="range",
            )


def _mirrors(job: ResolvedJob) -> Iterator[ConfigError]:
    for name, trainer, stream in _on_pictures(job):
        if stream.layout.mirrored != "unknown":
            continue
        reason = (
            f"the mirror image of {stream.feature} (streams.{trainer.stream}.feature) is not defined; declare it "
            "(`layout.mirrored` of the extractor), or set this to"
        )
        where = f"trainers.{name}.augment"
        if trainer.augment.flip:
            yield ConfigError(f"{reason} false", field=f"{where}.flip", code="conflict")
        if trainer.augment.evaluation_crops == _MIRRORED_VIEWS:
            yield ConfigError(f"{reason} 1 or 3", field=f"{where}.evaluation_crops", code="conflict")


def _colour_changes(job: ResolvedJob) -> Iterator[ConfigError]:
    for name, trainer, stream in _on_pictures(job):
        if trainer.augment.rand_augment is not None and stream.layout.values != "colours":
            yield ConfigError(
                f"RandAugment changes colours, but {stream.feature} (streams.{trainer.stream}.feature) has no colours; "
                "leave it out, or set augment.erase",
                field=f"trainers.{name}.augment.rand_augment",
                code="conflict",
            )


def _normalisation(job: ResolvedJob) -> Iterator[ConfigError]:
    """With one value per channel in every batch, a normalisation has no variance to divide by. A probe divides by the
    statistics of its weights."""
    epoch = max((plan.clips for plan in job.phases.plans if plan.purpose == TRAIN), default=0)
    for name, trainer, stream in _on_pictures(job):
        given = trainer.partial_bn or trainer.probe is not None
        if given or trainer.augment.crop > limits_of(trainer.model).single_value_side:
            continue
        frames = max(shape[0] for shape in stream.shapes)
        own = f"trainers.{name}"
        if trainer.micro_batch == 1 and frames == 1:
            field, batch = f"{own}.micro_batch", "a micro-batch of one frame"
        elif min(trainer.batch_size, epoch) * frames <= 1:
            field = f"{own}.batch_size" if trainer.batch_size == 1 else "sampling.clips_per_epoch"
            batch = "a batch of one frame"
        else:
            continue
        yield ConfigError(
            f"{batch} gives the normalisation of {trainer.model} one value per channel, which has no variance; set it "
            f"to 2 or more, or set {own}.partial_bn: true",
            field=field,
            code="range",
        )


def _budget(job: ResolvedJob) -> Iterator[ConfigError]:
    if problem := job.budget.problem:
        yield problem


CHECKS: tuple[Check, ...] = (
    _document,
    _whole_videos,
    _segments,
    _background,
    _strategies,
    _luma,
    _levels,
    _depth,
    _motion,
    _networks,
    _class_weights,
    _descriptors_for_networks,
    _pictures_for_encoders,
    _components,
    _channels,
    _frames,
    _crops,
    _mirrors,
    _colour_changes,
    _normalisation,
    network_exists,
    weights_are_of_network,
    network_reads_streams,
    vectors_are_alike,
    _budget,
)
"""All checks, in the order in which users read their problems; they do not depend on each other."""
