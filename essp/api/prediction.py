"""Classify videos and pictures with a trained model: `essp.predict`, also for `essp predict` and the demo.

Videos become a catalog, and pictures become records, in a temporary folder. A predict job for each of the two runs in
this process, through the same decoders and extractors as training. The answer for an unusable file is the reason.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Literal

from pydantic import ValidationError

from essp.api.arguments import path_of, uri_of
from essp.api.contents import Contents, given_videos, is_contents, name_of_contents, written_to
from essp.api.pictures import suffixes_for, write_records
from essp.catalog.build import file_row
from essp.catalog.found import READ_SUFFIXES, VIDEO_SUFFIXES
from essp.embedded.composition import Embedded
from essp.frame_folders import main_series, series_by_folder
from essp.local_folder import left_out
from essp.uris import as_uri
from essp_common.artifacts import layout
from essp_common.artifacts.fused_model import FusedModel, open_model
from essp_common.artifacts.predictions import Prediction, read_predictions
from essp_common.artifacts.segments import Segment as StoredSegment
from essp_common.artifacts.segments import read_segments
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import write_catalog
from essp_common.catalog.rows import VideoRow
from essp_common.catalog.timing import Timing
from essp_common.distribution import needs_extra, require
from essp_common.errors import ConfigError, EsspError, NotFound, PermanentError
from essp_common.field_names import fields_named
from essp_common.job.spec import JobSpec
from essp_common.job.status import JobState, JobStatus
from essp_common.objects.frames import Series, as_one
from essp_common.objects.keys import is_hidden
from essp_common.objects.port import ObjectInfo, ObjectStore
from essp_common.quantities import counted
from essp_common.records.versions import DataSet
from essp_common.runtime.config import Settings
from essp_common.runtime.cores import cpu_count
from essp_common.runtime.temporary import TemporaryFolder
from essp_common.validation import problems
from essp_common.wiring import Stores
from essp_engine.decoding.probing import ProbeOptions, Prober

_LOOK_S = 0.1
_SEGMENTS_EVERY_S = 1.0
_CATALOG = "catalog.parquet"
_ARGUMENTS = {
    "predictor.model": "model",
    "predictor.segments": "segments",
    "sampling.every_s": "every_s",
    "predictor.highlight": "highlight",
    "predictor.highlight.weight": "highlight",
    "predictor.highlight.floor": "floor",
}
"""What `predict` calls the fields of its job."""

Watch = Callable[[JobStatus, int], None]
"""Called several times a second with the status of the job and the number of videos; an exception ends the job."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a video that shows a class.

    class_name: the class.
    start_s, end_s: its time in the video, in seconds.
    score: probability of the class there.

    For example:

        [answer] = essp.predict("talk.mp4", "runs/ucf101", segments=True, every_s=0.5)
        [(s.class_name, s.start_s, s.end_s) for s in answer.segments if s.score > 0.5]
    """

    class_name: str
    start_s: float
    end_s: float
    score: float


@dataclass(frozen=True)
class Answers:
    """The answers for the videos, in the order given; a video that was given twice has two."""

    model: str
    classes: tuple[str, ...]
    rows: tuple[Prediction, ...]
    segments: dict[str, tuple[Segment, ...]] = field(default_factory=dict)
    """Video -> segments in which its classes are seen, highest score first; empty unless `Look.segments`."""
    independent: bool = False
    """The model was trained on labels that do not exclude each other."""

    def labels(self, row: Prediction) -> tuple[str, ...]:
        """Labels with a probability above 0.5, the most likely first; empty if the model was trained on classes."""
        if not self.independent:
            return ()
        return tuple(name for name, score in row.top(self.classes, len(row.scores)) if score > 0.5)

    @property
    def complete(self) -> bool:
        """Whether every video has a class."""
        return all(row.class_name is not None for row in self.rows)


@dataclass(frozen=True, slots=True)
class VideoPrediction:
    """The answer of a model for one video.

    video: path or URI as given; for a file of a folder, followed by the path below the folder; for an open file its
        name, and for bytes `bytes N`, if they are number N of the videos given, from 0.
    class_name: the most likely class; None if no clip of the video could be decoded.
    scores: class -> probability, the most likely first; empty if no clip of the video could be decoded.
    clips: number of clips that were scored.
    error: why some or all clips are missing; None: no clip is missing.
    segments: the parts of the video that show a class, highest score first; empty without `segments=True`.
    labels: for a model that was trained on labels: those with a probability above 0.5, the most likely first.

    For example:

        [answer] = essp.predict("a.mp4", "runs/ucf101")
        answer.class_name or answer.error, list(answer.scores.items())[:5]
    """

    video: str
    class_name: str | None
    scores: dict[str, float]
    clips: int
    error: str | None
    segments: tuple[Segment, ...] = ()
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Look:
    """Options of a prediction."""

    segments: bool = False
    """Also find the parts of each video that show a class."""
    every_s: float | None = None
    """Seconds from one clip to the next; None: as many clips of each video as in training, or with `segments` one a
    second."""
    highlight: str | None = None
    """How clips are weighted: `contrast` or `actionness`; None: equally."""
    floor: float = 0.1
    """The least weight of a clip, with `highlight`."""

    @property
    def sampling(self) -> dict[str, float]:
        """The `sampling` of the job; empty: as in training."""
        every_s = _SEGMENTS_EVERY_S if self.every_s is None and self.segments else self.every_s
        return {} if every_s is None else {"every_s": every_s}


AS_IN_TRAINING = Look()


@needs_extra("essp.predict")
def predict(
    videos: str | Path | Contents | Sequence[str | Path | Contents],
    model: str | Path,
    *,
    segments: bool = False,
    every_s: float | None = None,
    highlight: Literal["contrast", "actionness"] | None = None,
    floor: float = 0.1,
) -> list[VideoPrediction]:
    """Classify videos with a trained model, as `essp predict` does: one answer for each video, in the order given.

    videos: files, folders (all videos in them), or their URIs; one or several. Also pictures, for a model that was
        trained on clips of one frame, such as records; for any other, a folder of pictures is a video of these frames.
        Also contents of files: `bytes`, `bytearray`, `memoryview`, or open binary files, which are copied to a
        temporary folder.
    model: path or URI of the output of the job that trained it, or of its `model` folder.
    segments: also find the parts of each video that show a class, with the resolution of the distance between clips.
    every_s: seconds from one clip to the next in videos of any length; None: as many clips of each video as in
        training, or with `segments` one a second.
    highlight: weight clips that show something more in the score of their video. This helps if most of a video shows
        no class. `contrast`: clips whose scores differ from the rest of the video. `actionness`: clips that are not
        background, for a model with a background class.
    floor: the least weight of a clip with `highlight`; the largest weight is 1.

        for answer in essp.predict(["a.mp4", "b.mp4"], "runs/ucf101"):
            print(answer.video, answer.class_name or answer.error, answer.scores)

    Child processes read the files, so for a file that crashes FFmpeg the answer has an `error`. A call takes seconds to
    start, so give many videos at once. Raises `NotFound` if the model does not exist, `ConfigError` for an invalid
    argument, and `EsspError` if the whole job fails. Ctrl-C ends it cleanly.
    """
    require("essp.predict", "torch")
    given = given_videos("videos", videos)
    look, settings, uri = Look(segments, every_s, highlight, floor), Settings(), uri_of("model", model)
    names: dict[str, str] = {}
    with ExitStack() as stack:
        stack.enter_context(fields_named(_ARGUMENTS, JobSpec))
        if any(map(is_contents, given)):
            folder = stack.enter_context(TemporaryFolder("contents"))
            settings = settings.model_copy(update={"stores": (*settings.stores, as_uri(folder))})
            for number, video in enumerate(given):
                if is_contents(video):
                    given[number] = str(written_to(folder, "videos", video, number))
                    names[given[number]] = name_of_contents(video, number)
        answers = classify([path_of("videos", video) for video in given], uri, settings, _unwatched, look)
    return [
        VideoPrediction(
            names.get(row.video_id, row.video_id),
            row.class_name,
            dict(row.top(answers.classes, len(row.scores))),
            row.clips,
            row.error,
            answers.segments.get(row.video_id, ()),
            answers.labels(row),
        )
        for row in answers.rows
    ]


def _unwatched(status: JobStatus, videos: int) -> None:
    """For callers that need only the result."""


def classify(
    videos: Sequence[str], model_uri: str, settings: Settings, watch: Watch, look: Look = AS_IN_TRAINING
) -> Answers:
    """Probe the files, run the jobs, and collect the answers. `watch` is called with the progress.

    Raises `NotFound` if the model does not exist, `ConfigError` for an invalid look, and `EsspError` if the whole job
    fails.
    """
    stores = Stores(settings.stores, settings.store_patience_s)
    _, model = open_model(stores, model_uri)
    suffixes = suffixes_for(model)
    asked = find(videos, stores, VIDEO_SUFFIXES | suffixes)
    rows = list({row.uri: row for row in asked}.values())
    named = {row.uri: row.id for row in rows}
    pictures = [row for row in rows if row.error is None and PurePosixPath(row.uri).suffix.lower() in suffixes]
    drawn = {row.uri for row in pictures}
    probed = iter(probe([row for row in rows if row.uri not in drawn], settings))
    rows = [row if row.uri in drawn else next(probed) for row in rows]
    usable = [row for row in rows if row.error is None and row.uri not in drawn]
    found = {row.id: _unused(row, row.error) for row in rows if row.error is not None}
    where: dict[str, tuple[Segment, ...]] = {}
    with TemporaryFolder("predict") as folder:
        local = settings.model_copy(
            update={"bus": "memory://", "cache": "memory://", "stores": (*settings.stores, f"file://{folder}")}
        )
        if usable:
            spec = job_of(model, model_uri, f"file://{folder}/videos", look)
            predicted, where = _of_videos(spec, usable, local, watch)
            found |= {row.video_id: row for row in predicted}
        if pictures:
            spec = job_of(model, model_uri, f"file://{folder}/pictures", records=f"file://{folder}/records")
            found |= {row.video_id: row for row in _of_pictures(spec, pictures, local, watch)}
    answers = tuple(
        replace(found.get(named[row.uri]) or _unused(row, "no clip of it was decoded"), video_id=row.id)
        for row in asked
    )
    where = {row.id: where[named[row.uri]] for row in asked if named[row.uri] in where}
    classes = tuple(name for name in model.classes if name != model.background)
    return Answers(model_uri, classes, answers, where, model.independent)


def find(videos: Iterable[str], stores: Stores, suffixes: frozenset[str] = VIDEO_SUFFIXES) -> list[VideoRow]:
    """A row for each file, also for each repetition; the row has an error if the file does not exist. A folder stands
    for its files with these suffixes, sorted by name.
    """
    return [row for text in videos for row in _meant(text, stores, suffixes)]


def probe(rows: Sequence[VideoRow], settings: Settings) -> list[VideoRow]:
    """The rows with the properties of their files, or with the error that makes a file unusable."""
    wanted = {row.uri: row for row in rows if row.error is None}
    workers = max(1, min(cpu_count(), len(wanted)))
    options = ProbeOptions(workers, store_patience_s=settings.store_patience_s)
    with Prober(settings.stores, options) as prober:
        read = {outcome.uri: file_row(wanted[outcome.uri], outcome) for outcome in prober.read(wanted)}
    return [read.get(row.uri, row) for row in rows]


def job_of(model: FusedModel, model_uri: str, output: str, look: Look = AS_IN_TRAINING, records: str = "") -> JobSpec:
    """The predict job, with the clips of the training, and only the streams whose network has a weight.

    `records`: the data set to read; empty: the catalog in its output. Raises `ConfigError` for an invalid look.
    """
    if look.highlight is None and look.floor != AS_IN_TRAINING.floor:
        raise ConfigError("only with a highlight", field="predictor.highlight.floor", code="conflict")
    sampling = look.sampling or {"clips_per_video": model.clips_per_video}
    streams = {member.stream: model.streams[member.stream].model_dump() for member in model.deciding}
    highlight = None if look.highlight is None else {"weight": look.highlight, "floor": look.floor}
    document = {
        "name": "predict",
        "output": output,
        "data": {"records": records} if records else {"catalog": f"{output}/{_CATALOG}"},
        "clip": model.clip.model_dump(),
        "sampling": {} if records else {"kind": "uniform", **sampling},
        "streams": streams,
        "predictor": {"model": model_uri, "segments": look.segments, "highlight": highlight},
        "limits": {"dead_ratio": 1.0},  # a bad video has an error of its own
    }
    try:
        return JobSpec.model_validate(document)
    except ValidationError as error:
        raise ConfigError.together(problems(error, JobSpec)) from error


def _meant(text: str, stores: Stores, suffixes: frozenset[str]) -> list[VideoRow]:
    uri = as_uri(text)
    if (named := Series.of_pattern(uri)) is not None:
        uri = named.key
    try:
        store, key = stores.resolve(uri, video=True)
        info = store.head(key)
        return [VideoRow(text, uri, "", "", info.size_bytes, info.etag)]
    except NotFound as error:
        missing = VideoRow(text, uri, "", "", 0, "", error=f"missing: {error}")
    except PermanentError as error:
        return [VideoRow(text, uri, "", "", 0, "", error=f"{error.kind}: {error}")]
    try:
        folder = stores.under(uri, videos=True)
        shown = [info for info in folder.list() if not is_hidden(info.key)]
        files = [info for info in shown if PurePosixPath(info.key).suffix.lower() in suffixes]
    except NotFound:
        return [missing]
    except ConfigError as error:  # also of a store that cannot be listed
        return [replace(missing, error=f"{error.kind}: {error}") if error.code == "refused" else missing]
    name = text.rstrip("/")
    rows = [VideoRow(f"{name}/{info.key}", folder.uri(info.key), "", "", info.size_bytes, info.etag) for info in files]
    rows = rows or ([] if suffixes - VIDEO_SUFFIXES else _of_frames(name, folder, shown))
    for below, problem in left_out(uri, suffixes).problems.items():
        rows.append(VideoRow(f"{name}/{below}", f"{uri}/{below}", "", "", 0, "", error=problem))
    if rows:
        return rows
    if shown or os.path.isdir(uri.removeprefix("file://")):
        return [VideoRow(text, uri, "", "", 0, "", error=f"empty: {_nothing_in(name, len(shown), suffixes)}")]
    return [missing]


def _of_frames(name: str, folder: ObjectStore, shown: Sequence[ObjectInfo]) -> list[VideoRow]:
    """A row for each folder of frames, and for the folder itself if frames are in it."""
    rows = []
    for below, pictures in sorted(series_by_folder(shown).items()):
        row = VideoRow(f"{name}/{below}" if below else name, folder.uri(next(iter(pictures)).key), "", "", 0, "")
        if (main := main_series(pictures)) is None:
            rows.append(replace(row, error="doubled: the folder has several series of pictures; name one"))
            continue
        info = as_one(main, pictures[main])
        rows.append(replace(row, uri=folder.uri(main.key), size_bytes=info.size_bytes, etag=info.etag))
    return rows


def _nothing_in(folder: str, others: int, suffixes: frozenset[str]) -> str:
    """Why a folder has no file to classify."""
    pictures = "" if suffixes <= VIDEO_SUFFIXES else " or picture"
    but = f", only {counted(others, 'other file')}" if others else ""
    read = ", ".join(sorted(suffixes - (VIDEO_SUFFIXES - READ_SUFFIXES)))
    return f"there is no video{pictures} in the folder {folder}{but}; files with these suffixes are read: {read}"


def _unused(row: VideoRow, error: str) -> Prediction:
    return Prediction(row.id, None, 0, (), error)


def _of_videos(
    spec: JobSpec, rows: Sequence[VideoRow], settings: Settings, watch: Watch
) -> tuple[list[Prediction], dict[str, tuple[Segment, ...]]]:
    """The answers of the job, and the segments of each video if it finds them."""
    store = Stores(settings.stores).under(spec.output)
    write_catalog(store, _CATALOG, Catalog(tuple(rows)))
    answers = _run(spec, settings, lambda status: watch(status, len(rows)))
    if spec.predictor is None or not spec.predictor.segments:
        return answers, {}
    return answers, _where(read_segments(store, layout.SEGMENTS), rows)


def _of_pictures(spec: JobSpec, rows: Sequence[VideoRow], settings: Settings, watch: Watch) -> list[Prediction]:
    """The answers, with the ids of `rows`."""
    stores = Stores(settings.stores, settings.store_patience_s)
    written, refused = write_records(rows, DataSet(stores.under(spec.data.records)), stores)
    answers = [_unused(row, error) for row, error in refused]
    if written:
        predicted = _run(spec, settings, lambda status: watch(status, len(rows)))
        answers += [replace(row, video_id=written[row.video_id].id) for row in predicted]
    return answers


def _run(spec: JobSpec, settings: Settings, watch: Callable[[JobStatus], None]) -> list[Prediction]:
    """Run the job to its end. Raises `EsspError` if it does not complete."""
    with Embedded(spec, settings) as embedded:
        while not embedded.ended(_LOOK_S):
            watch(embedded.status())
        status = embedded.status()
    if status.state != JobState.COMPLETED:
        raise EsspError(f"nothing was classified: {status.reason or status.state}")
    answers, _ = read_predictions(Stores(settings.stores).under(spec.output), layout.PREDICTIONS)
    return answers


def _where(segments: Iterable[StoredSegment], rows: Sequence[VideoRow]) -> dict[str, tuple[Segment, ...]]:
    """Segments by video, in seconds of the file."""
    timings = {row.id: Timing(row) for row in rows}
    found: dict[str, tuple[Segment, ...]] = {row.id: () for row in rows}
    for s in segments:
        start_s, end_s = (timings[s.video_id].shown_s(frame) for frame in (s.first_frame, s.last_frame + 1))
        found[s.video_id] += (Segment(s.class_name, start_s, end_s, s.score),)
    return found
