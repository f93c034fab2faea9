"""The checks of a job that writes features: do its network and its form of vectors fit the streams?"""

from __future__ import annotations

import math
from collections.abc import Iterator

from essp_common.artifacts.extraction import Extraction
from essp_common.errors import ConfigError
from essp_common.job.network_limits import limits_of
from essp_common.job.registered import ENCODERS, known_model
from essp_common.quantities import counted
from essp_engine.preflight.resolve import ResolvedJob
from essp_engine.preflight.streams import Stream

MOST_NUMBERS = 2**20
"""Numbers of one vector."""


def network_exists(job: ResolvedJob) -> Iterator[ConfigError]:
    """A network runs where predictors do, so it must be installed."""
    if (name := _network(job)) is None:
        return
    if name in ENCODERS:
        yield ConfigError(
            f"{name} is an encoder, which first has to learn from descriptors; train it in a job, and name that job's "
            "model in extract.model",
            field="extract.network",
            code="conflict",
        )
        return
    try:
        known_model(name, job.declared.code)
    except ConfigError as error:
        yield error.within("extract.network")


def weights_are_of_network(job: ResolvedJob) -> Iterator[ConfigError]:
    """A trainer names its network. A file does not; there the predictor finds out."""
    found, network = job.scored_with, _network(job)
    if isinstance(found, Extraction) and found.trained not in ("", network):
        yield ConfigError(
            f"{found.extract.weights} contains weights of {found.trained}, not {network}; set network: {found.trained}",
            field="extract.weights",
            code="conflict",
        )


def network_reads_streams(job: ResolvedJob) -> Iterator[ConfigError]:
    """Every stream must be one of pictures, with frames that the network can see."""
    if (network := _network(job)) is None or network in ENCODERS:
        return
    for name, stream in job.streams.items():
        if not stream.is_picture:
            yield ConfigError(
                f"{stream.feature} (streams.{name}.feature) is a descriptor, not a picture, so no network can read "
                "it; leave out the network, and the descriptors themselves are written, or choose another stream",
                field="extract.network",
                code="conflict",
            )
            continue
        yield from _frames(job, network, name, stream)
        yield from _crop(job, network, name, stream)
        if stream.layout.mirrored == "unknown" and job.spec.extract and job.spec.extract.evaluation_crops > 3:
            yield ConfigError(
                f"the mirror image of {stream.feature} (streams.{name}.feature) is not defined; use 1 or 3",
                field="extract.evaluation_crops",
                code="conflict",
            )


def vectors_are_alike(job: ResolvedJob) -> Iterator[ConfigError]:
    """With `reduce: none`, every clip must have the same numbers, and not too many."""
    extract = job.spec.extract
    if extract is None or extract.reduce != "none":
        return
    for name, stream in job.streams.items():
        if stream.layout.values == "descriptor" and stream.layout.facts:
            yield ConfigError(
                f"the number of descriptors of {stream.feature} (streams.{name}.feature) differs from clip to clip; "
                "use mean, or encode them: train fisher_vector, vlad or bag_of_words, and name the model in "
                "extract.model",
                field="extract.reduce",
                code="conflict",
            )
        elif len(shapes := set(stream.shapes)) > 1:
            yield ConfigError(
                f"clips of stream {name} have {counted(len(shapes), 'size')}, so their numbers of values differ; use "
                "mean, or clip.resize.mode: crop or exact",
                field="extract.reduce",
                code="conflict",
            )
        elif (numbers := math.prod(next(iter(shapes)))) > MOST_NUMBERS:
            yield ConfigError(
                f"a clip of stream {name} has {numbers:,} numbers, and a vector at most {MOST_NUMBERS:,}; use mean, or "
                "smaller frames",
                field="extract.reduce",
                code="range",
            )


def _network(job: ResolvedJob) -> str | None:
    return None if job.spec.extract is None else job.spec.extract.network


def _frames(job: ResolvedJob, network: str, name: str, stream: Stream) -> Iterator[ConfigError]:
    if (limits := limits_of(network).clip_frames) is None:
        return
    least, most = limits
    seen = stream.shapes[0][0] // job.spec.clip.snippets
    if stream.feature != "rgb":
        yield ConfigError(
            f"{network} sees RGB frames over time, and {stream.feature} (streams.{name}.feature) has other channels; "
            "choose a network of single frames for it, such as resnet18, or a stream of rgb",
            field="extract.network",
            code="conflict",
        )
    elif not least <= seen <= most:
        wanted = f"{least}" if least == most else f"{least} or more"
        yield ConfigError(
            f"{network} (extract.network) sees {wanted} frames at once, and gets {seen}; set it to {wanted}",
            field="clip.frames",
            code="range",
        )


def _crop(job: ResolvedJob, network: str, name: str, stream: Stream) -> Iterator[ConfigError]:
    crop = job.spec.extract.crop if job.spec.extract else 0
    least = limits_of(network).least_side
    height, width = min((shape[1:3] for shape in stream.shapes), key=min)
    if crop > min(height, width):
        yield ConfigError(
            f"{crop} is larger than the smallest frames of stream {name!r}, {width} x {height} pixels; set it to "
            f"{min(height, width)} or less, or enlarge clip.resize",
            field="extract.crop",
            code="range",
        )
    if crop < least:
        yield ConfigError(
            f"{crop} is too small for {network}; the minimum is {least}", field="extract.crop", code="range"
        )
