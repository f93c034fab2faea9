"""Groups of arguments of a loader: `essp.Clip`, `essp.Sampling`, `essp.Targets`, `essp.Budget`,
`essp.Limits`, and `essp.RecordSampling`.

`clip` and `sampling` have the fields of the sections of a job by these names, and are checked as these are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from essp.api.arguments import MOST_DECODERS, bytes_of, mapping_of, name_of, plain, several, sides_of, whole_number
from essp_common.errors import ConfigError
from essp_common.field_names import Names, fields_named
from essp_common.job.clip_spec import ClipSpec
from essp_common.job.data_spec import SamplingSpec
from essp_common.job.fields import MOST_EPOCHS, MOST_READERS
from essp_common.job.spec import JobSpec
from essp_common.validation import problems, shown

M = TypeVar("M", bound=BaseModel)

MOST_LOOPS = MOST_READERS // 2
_SIZE_BY_VIDEO = ("min_pixels", "max_pixels", "multiple_of", "temporal_multiple", "pixels_of")
"""Fields of `Clip`, and of a job's `clip.resize`, for frames with a size for each video."""
CLIP_NAMES = {
    "clip.resize": "clip.size",
    "clip.resize.mode": "clip.max_pixels",  # wrong only because of it
    "clip.resize.height": "clip.size",
    "clip.resize.width": "clip.size",
    **{f"clip.resize.{name}": f"clip.{name}" for name in _SIZE_BY_VIDEO},
}
"""What `Clip` calls the fields of a job's `clip`, where it has another name for them."""

_FRAMES = 16
_BY_TIME = ("fps", "every_s", "seconds", "max_frames", "spread")
_SIDE = 224
_LEAST_SIDE = 8
_MOST_SIDE = 7680
_VISITS_OF_A_WINDOW = 64
_MOST_DELTA_S = 10**6
_MOST_PIXELS = 2**50
_VISITS = ("pooled", "exhaustive")
_KINDS_WITH = {
    **{"clips_per_visit": _VISITS, "window": _VISITS, "step": ("exhaustive",)},
    "mix": ("class_balanced", "pooled"),
}
"""Field of `Sampling` -> the kinds of sampling that have it."""


@dataclass(frozen=True, slots=True)
class Clip:
    """The shape of a clip: number of frames, distance between them, size and colours.

    frames: frames of a clip. `max_frames`, and `seconds` with a rate, replace it.
    stride: distance between two frames of the clip, in frames of the video. If the video is shorter than the clip, its
        last frame is repeated.
    size: `(height, width)` in pixels, or the side of a square. Frames are scaled to cover it, and then cropped at the
        centre.
    pixels: format in which frames reach the loop. `yuv420`: as in the video, with half the bytes and a third of the
        cost of scaling; `Batch.frames` is still RGB, converted on the loader's device (before the `transform`,
        if there is one). `gray`: luma only, for flow and for networks with one input channel. `gray16`: luma as the
        video stores it, with all its bits, as uint16: for depth cameras. Frames are scaled to the nearest pixel.
    part: the part of each video from which clips are taken: `(0.25, 0.75)` is its middle half.
    snippets: number of pieces of a clip, each with `frames / snippets` consecutive frames of one of as many equal parts
        of the video (TSN). The feature is computed for each piece. Such clips have no `Batch.targets`, and their
        `first_frame` belongs to the first piece.
    fps, every_s: choose frames by time instead of by `stride`: frames per second, or seconds from one to the next, in
        videos of any frame rate, also of a varying one. The clip begins when its first frame appears; each later moment
        shows the last frame that has appeared by then, so a video with a lower rate repeats some.
    seconds: the length of the clip, or of each of its `snippets`: its frames are `seconds / frames` apart. With `fps`
        or `every_s`, it gives the number of frames.
    max_frames: the clip is the whole video (or its `part`) at `fps` or `every_s`, as this many frames: if more would
        fit, that many are spread evenly over the video; if fewer do, the last frame of the video is repeated.
    spread: `"video"` spreads the frames evenly over the time of the whole video (or its `part`), from its first frame
        to its last.
    min_pixels, max_pixels: instead of `size`, a size for each video, as for a vision-language model: its aspect ratio
        is kept as far as sides that are multiples of `multiple_of` allow, and frames have about this many pixels at
        least and at most. These are the sizes that the processors of Qwen-VL compute. `Batch.frames` is a list then.
    multiple_of: sides are multiples of it: the side of a patch times the patches that are merged, 28 for Qwen2.5-VL and
        32 for Qwen3-VL.
    temporal_multiple: the number of frames is a multiple of it; `frames` is rounded to the nearest one.
    pixels_of: whether `min_pixels` and `max_pixels` are of each frame, as for Qwen2-VL and Qwen2.5-VL, or of all frames
        of a clip together, as for Qwen3-VL.

    For example:

        essp.Clip(frames=16, stride=4, size=224)  # spans 61 frames of the video
        essp.Clip(fps=4, frames=16)               # 4 s of the video, whatever its frame rate
        essp.Clip(seconds=2.0, frames=16)         # 8 frames per second
        essp.Clip(every_s=1, max_frames=64)       # the whole video, a frame per second up to 64 s
        essp.Clip(frames=32, spread="video")      # 32 frames of the whole video
        essp.Clip(frames=16, max_pixels=360 * 420)  # of a video of 640 x 480: (16, 336, 448, 3)
    """

    frames: int = _FRAMES
    stride: int = 1
    size: int | tuple[int, int] = _SIDE
    pixels: Literal["rgb", "yuv420", "gray", "gray16"] = "rgb"
    part: tuple[float, float] = (0.0, 1.0)
    snippets: int = 1
    fps: float | None = None
    every_s: float | None = None
    seconds: float | None = None
    max_frames: int | None = None
    spread: Literal["video"] | None = None
    min_pixels: int | None = None
    max_pixels: int | None = None
    multiple_of: int = 28
    temporal_multiple: int = 2
    pixels_of: Literal["frame", "clip"] = "frame"

    def __post_init__(self) -> None:
        """Raises `ConfigError`."""
        self._job_section()

    def _job_section(self) -> dict[str, Any]:
        """The `clip` of a job."""
        height, width = sides_of("clip.size", self.size, _MOST_SIDE, least=_LEAST_SIDE)
        section: dict[str, Any] = {
            "frames": whole_number("clip.frames", self.frames, 1),
            "stride": self.stride,
            "pixels": self.pixels,
            "snippets": whole_number("clip.snippets", self.snippets, 1),
            "part": self.part,
            "resize": {"mode": "crop", "height": height, "width": width},
        }
        by_time = {name: value for name in _BY_TIME if (value := getattr(self, name)) is not None}
        if "max_frames" in by_time:
            whole_number("clip.max_frames", self.max_frames, 2)
        replaced = "max_frames" in by_time or ("seconds" in by_time and len(by_time) > 1)
        if replaced and self.frames == _FRAMES:
            del section["frames"]
        section |= by_time
        section |= self._size_by_video(section)
        frames = _check("clip", section, ClipSpec, CLIP_NAMES).frames
        if section["resize"]["mode"] == "bounded" and frames % self.temporal_multiple:
            raise ConfigError(
                f"{frames} frames are not a multiple of {self.temporal_multiple}; change seconds, fps or max_frames",
                field="clip.temporal_multiple",
                code="conflict",
            )
        return {**section, "frames": frames}

    def _size_by_video(self, section: Mapping[str, Any]) -> dict[str, Any]:
        """What the `clip` of a job has instead, if frames have a size for each video.

        Sizes are scaled as Qwen-VL scales them, and the number of frames is rounded as it does.
        """
        given = {name: getattr(self, name) for name in _SIZE_BY_VIDEO}
        for name in ("min_pixels", "max_pixels", "multiple_of", "temporal_multiple"):
            if given[name] is not None or name in ("multiple_of", "temporal_multiple"):
                given[name] = whole_number(f"clip.{name}", given[name], 1)
        if self.min_pixels is None and self.max_pixels is None:
            for field_ in fields(self):
                if field_.name in given and given[field_.name] != field_.default:
                    raise ConfigError(
                        "only with min_pixels or max_pixels, which give frames a size for each video",
                        field=f"clip.{field_.name}",
                        code="conflict",
                    )
            return {}
        if plain(self.size) != _SIDE:
            raise ConfigError("give a size, or min_pixels and max_pixels", field="clip.size", code="conflict")
        made: dict[str, Any] = {"resize": {"mode": "bounded", "interpolation": "bicubic", **given}}
        if "frames" in section:
            several = given["temporal_multiple"]
            made["frames"] = max(1, round(section["frames"] / several)) * several
        return made


@dataclass(frozen=True, slots=True)
class Sampling:
    """Which clips of the videos are shown, and in which order. The fields are those of a job's `sampling`.

    kind: how the clips of the `train` split are chosen. `class_balanced` draws a class, then a video, then an offset.
        `pooled` draws a class, then a video, and takes `clips_per_visit` clips of it with one decode, so that a clip
        costs less CPU. `exhaustive` shows every clip that starts at a multiple of `step` frames once an epoch.
        `uniform` shows one clip of each video, in order.
    seed: the same seed gives the same clips in the same order.
    clips_per_epoch: default: the number of training videos; for `exhaustive`, the number of clips that there are.
    clips_per_video: of any other split, `validation` for example, an epoch has this many clips of each video, at even
        distances (default: 3; one, if a clip covers the whole video).
    clips_per_visit: for `pooled`, clips of each video that is drawn; for `exhaustive`, neighbouring clips that are
        decoded together, which costs least if it is the number of clips that start in one group of pictures, or a
        multiple of it (default: 8).
    window: for `pooled` and `exhaustive`, the number of clips within which those of different videos are mixed, a
        multiple of `clips_per_visit` (default: 64 visits). They must fit into memory.
    step: for `exhaustive`, frames from the start of one clip to the start of the next (default: 1).
    mix: for `class_balanced` and `pooled`, the column of the catalog that says which source a video is from, and the
        share of each source, in any unit: the source of each video is drawn first.

    For example:

        essp.Sampling(kind="pooled", clips_per_visit=8, seed=1)
        essp.Sampling(mix={"column": "dataset", "shares": {"robots": 3, "web": 1}})
        essp.Sampling(kind="exhaustive", step=16)
    """

    kind: Literal["class_balanced", "pooled", "exhaustive", "uniform"] = "class_balanced"
    seed: int = 0
    clips_per_epoch: int | None = None
    clips_per_video: int | None = None
    clips_per_visit: int | None = None
    window: int | None = None
    step: int | None = None
    mix: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        """Raises `ConfigError`."""
        self._job_section()

    def _job_section(self) -> dict[str, Any]:
        """The `sampling` of a job."""
        given = plain(asdict(self))
        optional = {field.name for field in fields(self) if field.default is None}
        section = {name: value for name, value in given.items() if value is not None or name not in optional}
        _check("sampling", {"kind": given["kind"]}, SamplingSpec)
        for name in section.keys() - {"kind", "mix"}:
            whole_number(f"sampling.{name}", getattr(self, name), int(name != "seed"))
        for name, kinds in _KINDS_WITH.items():
            if name in section and self.kind not in kinds:
                wanted = " or ".join(map(repr, kinds))
                raise ConfigError(
                    f"only with kind={wanted}, and kind is {self.kind!r}", field=f"sampling.{name}", code="conflict"
                )
        if self.kind in _VISITS and self.window is None:
            section["window"] = _VISITS_OF_A_WINDOW * section.get("clips_per_visit", SamplingSpec().clips_per_visit)
        _check("sampling", section, SamplingSpec)
        return section


@dataclass(frozen=True, slots=True)
class RecordSampling:
    """Which records are shown, and in which order.

    seed: the same seed gives the same records in the same order.
    replacement: draw independent samples of `sample_size` records from all records, instead of each record once an
        epoch.
    sample_size: records of a sample, with `replacement` (default: 4096).

    For example:

        essp.RecordSampling(seed=1, replacement=True, sample_size=512)
    """

    seed: int = 0
    replacement: bool = False
    sample_size: int | None = None

    def __post_init__(self) -> None:
        """Raises `ConfigError`."""
        whole_number("sampling.seed", self.seed, 0)
        if self.sample_size is None:
            return
        whole_number("sampling.sample_size", self.sample_size, 1)
        if not self.replacement:
            raise ConfigError("only with replacement=True", field="sampling.sample_size", code="conflict")


@dataclass(frozen=True, slots=True)
class Targets:
    """What a batch has of the catalog in addition to frames and classes.

    series: for series of the catalog, the times at which to take values, in seconds from the last frame of a clip.
        `Batch.targets` then has these values, and says which of them lie outside the video. Series that are not named
        have their values at the clip's own frames.
    text: columns with captions, questions, answers or tasks, by their names in `Batch.meta`. A value is a string, or a
        list of strings: a list of JSON, also as text in a field of a CSV file. `Batch.text` then has them.
    pick: of several texts of a video, `one` draws one for each clip, from the seed, the epoch and the clip's index
        alone. Lists of the same length are drawn alike, so a question comes with its own answer. `all` gives the list.

    For example:

        essp.Targets(series={"action": [0, 0.1, 0.2], "observation.state": [-0.1, 0]})
        essp.Targets(text=["question", "answer"])
    """

    series: Mapping[str, Sequence[float]] = field(default_factory=dict)
    text: Sequence[str] = ()
    pick: Literal["one", "all"] = "one"

    former_names: ClassVar[Mapping[str, str]] = {"delta_timestamps": "series"}

    def __post_init__(self) -> None:
        """Raises `ConfigError`."""
        object.__setattr__(self, "series", _seconds_of(self.series))
        names = [name_of("targets.text", name) for name in several("targets.text", self.text, str)]
        object.__setattr__(self, "text", tuple(dict.fromkeys(names)))
        if self.pick not in ("one", "all"):
            raise ConfigError(f"must be 'one' or 'all', got {shown(self.pick)}", field="targets.pick", code="unknown")


@dataclass(frozen=True, slots=True)
class Budget:
    """Batches that are limited in pixels instead of clips, for clips with a size for each video.

    pixels: a batch has as many clips, in their order, as have this many pixels together: the sum of frames x height x
        width of its clips. A token of Qwen2.5-VL stands for 2 x 28 x 28 pixels. Where batches end follows from the
        catalog alone, so they are the same in each run and after a resume. With several ranks, each rank has this
        budget, and all ranks take equally many clips in a step: as many as fit on every rank. A clip that replaces one
        that cannot be decoded may be larger than the planned one, and its batch then exceeds the budget.

    For example:

        essp.Loader("catalog.parquet", clip=essp.Clip(max_pixels=300_000), batch_size=essp.Budget(pixels=20_000_000))
    """

    pixels: int

    def __post_init__(self) -> None:
        """Raises `ConfigError`."""
        object.__setattr__(self, "pixels", whole_number("batch_size.pixels", self.pixels, 1, _MOST_PIXELS))

    def _job_section(self) -> dict[str, Any]:
        """What it is in a job's `consumers`."""
        return {"batch_pixels": self.pixels}


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a loader may use, and how much damage it tolerates. Limits do not change which clips are shown.

    epochs: epochs that you will take, if you know: nothing beyond the last one is decoded ahead. After it, the next
        epoch waits for decoding to start again; if several loops share the clips, it is an error.
    decoders: child processes that decode; 0: one per CPU, shared by the ranks of this machine.
    memory: bytes of clips that are decoded ahead (`"2GiB"`); default: as many as `batch_size` and the sampling's
        `window` need, or those of the job file.
    dead_ratio: if more than this share of the clips cannot be decoded, the loop gets an `EsspError` that names a video;
        0: at the first one. Default: 0.2, or as in the job file.
    loops: loops that may share the clips and their decodes: the loader itself, and those that `another` makes.

    For example:

        essp.Limits(decoders=4, memory="2GiB", dead_ratio=0)
    """

    epochs: int | None = None
    decoders: int = 0
    memory: int | str | None = None
    dead_ratio: float | None = None
    loops: int = 1

    def __post_init__(self) -> None:
        """Raises `ConfigError`."""
        whole_number("limits.decoders", self.decoders, 0, MOST_DECODERS)
        whole_number("limits.loops", self.loops, 1, MOST_LOOPS)
        if self.epochs is not None:
            whole_number("limits.epochs", self.epochs, 1, MOST_EPOCHS)
        if self.memory is not None:
            bytes_of(self.memory, "limits.memory")
        ratio = plain(self.dead_ratio)
        if ratio is None:
            return
        if isinstance(ratio, bool) or not isinstance(ratio, int | float):
            raise ConfigError(f"must be a number, got {shown(ratio)}", field="limits.dead_ratio", code="type")
        if not 0 <= ratio <= 1:
            raise ConfigError(f"must be from 0 to 1, got {ratio}", field="limits.dead_ratio", code="range")

    def _job_section(self) -> dict[str, Any]:
        """What a job's `limits` says of it."""
        given = {"budget": self.memory, "dead_ratio": self.dead_ratio}
        return {name: plain(value) for name, value in given.items() if value is not None}


def _seconds_of(given: Any) -> dict[str, tuple[float, ...]]:
    """Name of a series -> seconds. Raises `ConfigError`."""
    name = "targets.series"
    try:
        found = {series: tuple(map(float, plain(each))) for series, each in mapping_of(name, given).items()}
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"must be a list of seconds for each name, got {shown(given)}", field=name, code="type"
        ) from error
    if any(not abs(second) <= _MOST_DELTA_S for seconds in found.values() for second in seconds):
        raise ConfigError(f"must be seconds of at most {_MOST_DELTA_S}, got {shown(given)}", field=name, code="range")
    return found


def _check(name: str, section: Mapping[str, Any], kind: type[M], names: Names | None = None) -> M:
    """The section of a job. Raises `ConfigError` if it is not valid."""
    try:
        return kind.model_validate(plain(section))
    except ValidationError as error:
        with fields_named(names or {}, JobSpec):
            raise ConfigError.together([each.within(name) for each in problems(error, kind)]) from error


def batch_of(given: Any) -> dict[str, Any]:
    """The argument `batch_size` as in a job's `consumers`. Raises `ConfigError`."""
    return given._job_section() if isinstance(given, Budget) else {"batch_size": whole_number("batch_size", given, 1)}


def checked_group(name: str, value: Any, kind: type[Any]) -> None:
    """Raises `ConfigError` for an argument that is not of this group."""
    if not isinstance(value, kind):
        raise ConfigError(f"must be essp.{kind.__name__}(...), got {shown(value)}", field=name, code="type")
