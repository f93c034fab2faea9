from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Purpose(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PURPOSE_UNSPECIFIED: _ClassVar[Purpose]
    TRAIN: _ClassVar[Purpose]
    VALIDATION: _ClassVar[Purpose]
    TEST: _ClassVar[Purpose]
    PREDICT: _ClassVar[Purpose]
    EMBED: _ClassVar[Purpose]

class Stage(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STAGE_UNSPECIFIED: _ClassVar[Stage]
    DECODER: _ClassVar[Stage]
    EXTRACTOR: _ClassVar[Stage]
    TRAINER: _ClassVar[Stage]
    AGGREGATOR: _ClassVar[Stage]
    PREDICTOR: _ClassVar[Stage]
    CONSUMER: _ClassVar[Stage]

class FailureKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAILURE_KIND_UNSPECIFIED: _ClassVar[FailureKind]
    ERROR: _ClassVar[FailureKind]
    DAMAGED: _ClassVar[FailureKind]
    TRUNCATED: _ClassVar[FailureKind]
    EMPTY: _ClassVar[FailureKind]
    NOT_VIDEO: _ClassVar[FailureKind]
    VANISHED: _ClassVar[FailureKind]
    CHANGED: _ClassVar[FailureKind]
    LIMIT: _ClassVar[FailureKind]
    CRASHED: _ClassVar[FailureKind]
    TIMEOUT: _ClassVar[FailureKind]
    LOST: _ClassVar[FailureKind]
    CONFLICT: _ClassVar[FailureKind]
    MEMORY: _ClassVar[FailureKind]
    STORAGE: _ClassVar[FailureKind]
    DIVERGED: _ClassVar[FailureKind]
    UNAVAILABLE: _ClassVar[FailureKind]
    CACHE_FULL: _ClassVar[FailureKind]
    FORMAT: _ClassVar[FailureKind]
    ENCRYPTED: _ClassVar[FailureKind]
PURPOSE_UNSPECIFIED: Purpose
TRAIN: Purpose
VALIDATION: Purpose
TEST: Purpose
PREDICT: Purpose
EMBED: Purpose
STAGE_UNSPECIFIED: Stage
DECODER: Stage
EXTRACTOR: Stage
TRAINER: Stage
AGGREGATOR: Stage
PREDICTOR: Stage
CONSUMER: Stage
FAILURE_KIND_UNSPECIFIED: FailureKind
ERROR: FailureKind
DAMAGED: FailureKind
TRUNCATED: FailureKind
EMPTY: FailureKind
NOT_VIDEO: FailureKind
VANISHED: FailureKind
CHANGED: FailureKind
LIMIT: FailureKind
CRASHED: FailureKind
TIMEOUT: FailureKind
LOST: FailureKind
CONFLICT: FailureKind
MEMORY: FailureKind
STORAGE: FailureKind
DIVERGED: FailureKind
UNAVAILABLE: FailureKind
CACHE_FULL: FailureKind
FORMAT: FailureKind
ENCRYPTED: FailureKind

class ClipRef(_message.Message):
    __slots__ = ("job", "purpose", "epoch", "index", "attempt", "class_id", "video_id", "first_frame", "last_frame", "labels")
    JOB_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CLASS_ID_FIELD_NUMBER: _ClassVar[int]
    VIDEO_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_FRAME_FIELD_NUMBER: _ClassVar[int]
    LAST_FRAME_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    job: str
    purpose: Purpose
    epoch: int
    index: int
    attempt: int
    class_id: int
    video_id: str
    first_frame: int
    last_frame: int
    labels: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, job: _Optional[str] = ..., purpose: _Optional[_Union[Purpose, str]] = ..., epoch: _Optional[int] = ..., index: _Optional[int] = ..., attempt: _Optional[int] = ..., class_id: _Optional[int] = ..., video_id: _Optional[str] = ..., first_frame: _Optional[int] = ..., last_frame: _Optional[int] = ..., labels: _Optional[_Iterable[int]] = ...) -> None: ...

class Video(_message.Message):
    __slots__ = ("id", "uri", "size_bytes", "etag", "frame_count", "width", "height", "seekable", "lookahead", "labels", "sums", "unproven")
    ID_FIELD_NUMBER: _ClassVar[int]
    URI_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    FRAME_COUNT_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    SEEKABLE_FIELD_NUMBER: _ClassVar[int]
    LOOKAHEAD_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    SUMS_FIELD_NUMBER: _ClassVar[int]
    UNPROVEN_FIELD_NUMBER: _ClassVar[int]
    id: str
    uri: str
    size_bytes: int
    etag: str
    frame_count: int
    width: int
    height: int
    seekable: bool
    lookahead: int
    labels: _containers.RepeatedScalarFieldContainer[int]
    sums: bytes
    unproven: bool
    def __init__(self, id: _Optional[str] = ..., uri: _Optional[str] = ..., size_bytes: _Optional[int] = ..., etag: _Optional[str] = ..., frame_count: _Optional[int] = ..., width: _Optional[int] = ..., height: _Optional[int] = ..., seekable: bool = ..., lookahead: _Optional[int] = ..., labels: _Optional[_Iterable[int]] = ..., sums: _Optional[bytes] = ..., unproven: bool = ...) -> None: ...

class Seek(_message.Message):
    __slots__ = ("pts", "frame_index", "byte_offset", "next_frame", "next_offset")
    PTS_FIELD_NUMBER: _ClassVar[int]
    FRAME_INDEX_FIELD_NUMBER: _ClassVar[int]
    BYTE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    NEXT_FRAME_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    pts: int
    frame_index: int
    byte_offset: int
    next_frame: int
    next_offset: int
    def __init__(self, pts: _Optional[int] = ..., frame_index: _Optional[int] = ..., byte_offset: _Optional[int] = ..., next_frame: _Optional[int] = ..., next_offset: _Optional[int] = ...) -> None: ...

class StoredRecord(_message.Message):
    __slots__ = ("id", "offset", "length", "crc", "height", "width", "channels")
    ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    CRC_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    id: str
    offset: int
    length: int
    crc: int
    height: int
    width: int
    channels: int
    def __init__(self, id: _Optional[str] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ..., crc: _Optional[int] = ..., height: _Optional[int] = ..., width: _Optional[int] = ..., channels: _Optional[int] = ...) -> None: ...

class Seed(_message.Message):
    __slots__ = ("index", "attempt", "class_id", "first_frame", "frame_count", "stride", "seek", "last_frame", "record", "later", "labels", "offsets", "views")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CLASS_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_FRAME_FIELD_NUMBER: _ClassVar[int]
    FRAME_COUNT_FIELD_NUMBER: _ClassVar[int]
    STRIDE_FIELD_NUMBER: _ClassVar[int]
    SEEK_FIELD_NUMBER: _ClassVar[int]
    LAST_FRAME_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    LATER_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    VIEWS_FIELD_NUMBER: _ClassVar[int]
    index: int
    attempt: int
    class_id: int
    first_frame: int
    frame_count: int
    stride: int
    seek: Seek
    last_frame: int
    record: StoredRecord
    later: _containers.RepeatedCompositeFieldContainer[Snippet]
    labels: _containers.RepeatedScalarFieldContainer[int]
    offsets: _containers.RepeatedScalarFieldContainer[int]
    views: _containers.RepeatedCompositeFieldContainer[Seed]
    def __init__(self, index: _Optional[int] = ..., attempt: _Optional[int] = ..., class_id: _Optional[int] = ..., first_frame: _Optional[int] = ..., frame_count: _Optional[int] = ..., stride: _Optional[int] = ..., seek: _Optional[_Union[Seek, _Mapping]] = ..., last_frame: _Optional[int] = ..., record: _Optional[_Union[StoredRecord, _Mapping]] = ..., later: _Optional[_Iterable[_Union[Snippet, _Mapping]]] = ..., labels: _Optional[_Iterable[int]] = ..., offsets: _Optional[_Iterable[int]] = ..., views: _Optional[_Iterable[_Union[Seed, _Mapping]]] = ...) -> None: ...

class Snippet(_message.Message):
    __slots__ = ("first_frame", "seek", "offsets")
    FIRST_FRAME_FIELD_NUMBER: _ClassVar[int]
    SEEK_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    first_frame: int
    seek: Seek
    offsets: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, first_frame: _Optional[int] = ..., seek: _Optional[_Union[Seek, _Mapping]] = ..., offsets: _Optional[_Iterable[int]] = ...) -> None: ...

class Resize(_message.Message):
    __slots__ = ("mode", "height", "width", "interpolation", "pixels", "min_pixels", "max_pixels", "multiple_of", "frames")
    class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        NONE: _ClassVar[Resize.Mode]
        SHORT_SIDE: _ClassVar[Resize.Mode]
        EXACT: _ClassVar[Resize.Mode]
        CROP: _ClassVar[Resize.Mode]
        BOUNDED: _ClassVar[Resize.Mode]
    NONE: Resize.Mode
    SHORT_SIDE: Resize.Mode
    EXACT: Resize.Mode
    CROP: Resize.Mode
    BOUNDED: Resize.Mode
    MODE_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    INTERPOLATION_FIELD_NUMBER: _ClassVar[int]
    PIXELS_FIELD_NUMBER: _ClassVar[int]
    MIN_PIXELS_FIELD_NUMBER: _ClassVar[int]
    MAX_PIXELS_FIELD_NUMBER: _ClassVar[int]
    MULTIPLE_OF_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    mode: Resize.Mode
    height: int
    width: int
    interpolation: str
    pixels: str
    min_pixels: int
    max_pixels: int
    multiple_of: int
    frames: int
    def __init__(self, mode: _Optional[_Union[Resize.Mode, str]] = ..., height: _Optional[int] = ..., width: _Optional[int] = ..., interpolation: _Optional[str] = ..., pixels: _Optional[str] = ..., min_pixels: _Optional[int] = ..., max_pixels: _Optional[int] = ..., multiple_of: _Optional[int] = ..., frames: _Optional[int] = ...) -> None: ...

class FrameCodec(_message.Message):
    __slots__ = ("name", "quality", "subsampling")
    NAME_FIELD_NUMBER: _ClassVar[int]
    QUALITY_FIELD_NUMBER: _ClassVar[int]
    SUBSAMPLING_FIELD_NUMBER: _ClassVar[int]
    name: str
    quality: int
    subsampling: str
    def __init__(self, name: _Optional[str] = ..., quality: _Optional[int] = ..., subsampling: _Optional[str] = ...) -> None: ...

class StreamRequest(_message.Message):
    __slots__ = ("stream", "feature", "params_json", "codec", "consumers", "view")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    FEATURE_FIELD_NUMBER: _ClassVar[int]
    PARAMS_JSON_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    stream: str
    feature: str
    params_json: str
    codec: FrameCodec
    consumers: _containers.RepeatedScalarFieldContainer[str]
    view: str
    def __init__(self, stream: _Optional[str] = ..., feature: _Optional[str] = ..., params_json: _Optional[str] = ..., codec: _Optional[_Union[FrameCodec, _Mapping]] = ..., consumers: _Optional[_Iterable[str]] = ..., view: _Optional[str] = ...) -> None: ...

class View(_message.Message):
    __slots__ = ("name", "resize")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RESIZE_FIELD_NUMBER: _ClassVar[int]
    name: str
    resize: Resize
    def __init__(self, name: _Optional[str] = ..., resize: _Optional[_Union[Resize, _Mapping]] = ...) -> None: ...

class Recipe(_message.Message):
    __slots__ = ("resize", "codec", "streams", "ttl_s", "strict", "motion", "snippets", "views")
    RESIZE_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    STRICT_FIELD_NUMBER: _ClassVar[int]
    MOTION_FIELD_NUMBER: _ClassVar[int]
    SNIPPETS_FIELD_NUMBER: _ClassVar[int]
    VIEWS_FIELD_NUMBER: _ClassVar[int]
    resize: Resize
    codec: FrameCodec
    streams: _containers.RepeatedCompositeFieldContainer[StreamRequest]
    ttl_s: int
    strict: bool
    motion: bool
    snippets: int
    views: _containers.RepeatedCompositeFieldContainer[View]
    def __init__(self, resize: _Optional[_Union[Resize, _Mapping]] = ..., codec: _Optional[_Union[FrameCodec, _Mapping]] = ..., streams: _Optional[_Iterable[_Union[StreamRequest, _Mapping]]] = ..., ttl_s: _Optional[int] = ..., strict: bool = ..., motion: bool = ..., snippets: _Optional[int] = ..., views: _Optional[_Iterable[_Union[View, _Mapping]]] = ...) -> None: ...

class Probe(_message.Message):
    __slots__ = ("uris", "quick", "salvage", "timeout_s", "key", "consumer")
    URIS_FIELD_NUMBER: _ClassVar[int]
    QUICK_FIELD_NUMBER: _ClassVar[int]
    SALVAGE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    uris: _containers.RepeatedScalarFieldContainer[str]
    quick: bool
    salvage: bool
    timeout_s: float
    key: str
    consumer: str
    def __init__(self, uris: _Optional[_Iterable[str]] = ..., quick: bool = ..., salvage: bool = ..., timeout_s: _Optional[float] = ..., key: _Optional[str] = ..., consumer: _Optional[str] = ...) -> None: ...

class DecodeSeed(_message.Message):
    __slots__ = ("job", "purpose", "epoch", "fence", "video", "seeds", "recipe", "further", "probe")
    JOB_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    VIDEO_FIELD_NUMBER: _ClassVar[int]
    SEEDS_FIELD_NUMBER: _ClassVar[int]
    RECIPE_FIELD_NUMBER: _ClassVar[int]
    FURTHER_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    job: str
    purpose: Purpose
    epoch: int
    fence: int
    video: Video
    seeds: _containers.RepeatedCompositeFieldContainer[Seed]
    recipe: Recipe
    further: _containers.RepeatedCompositeFieldContainer[Video]
    probe: Probe
    def __init__(self, job: _Optional[str] = ..., purpose: _Optional[_Union[Purpose, str]] = ..., epoch: _Optional[int] = ..., fence: _Optional[int] = ..., video: _Optional[_Union[Video, _Mapping]] = ..., seeds: _Optional[_Iterable[_Union[Seed, _Mapping]]] = ..., recipe: _Optional[_Union[Recipe, _Mapping]] = ..., further: _Optional[_Iterable[_Union[Video, _Mapping]]] = ..., probe: _Optional[_Union[Probe, _Mapping]] = ...) -> None: ...

class ClipReady(_message.Message):
    __slots__ = ("clip", "key", "bytes", "recipe", "skipped", "fence")
    CLIP_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    RECIPE_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    clip: ClipRef
    key: str
    bytes: int
    recipe: Recipe
    skipped: str
    fence: int
    def __init__(self, clip: _Optional[_Union[ClipRef, _Mapping]] = ..., key: _Optional[str] = ..., bytes: _Optional[int] = ..., recipe: _Optional[_Union[Recipe, _Mapping]] = ..., skipped: _Optional[str] = ..., fence: _Optional[int] = ...) -> None: ...

class FeatureReady(_message.Message):
    __slots__ = ("clip", "stream", "key", "bytes", "skipped", "consumers", "fence")
    CLIP_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    clip: ClipRef
    stream: str
    key: str
    bytes: int
    skipped: str
    consumers: _containers.RepeatedScalarFieldContainer[str]
    fence: int
    def __init__(self, clip: _Optional[_Union[ClipRef, _Mapping]] = ..., stream: _Optional[str] = ..., key: _Optional[str] = ..., bytes: _Optional[int] = ..., skipped: _Optional[str] = ..., consumers: _Optional[_Iterable[str]] = ..., fence: _Optional[int] = ...) -> None: ...

class Made(_message.Message):
    __slots__ = ("purpose", "epoch", "stream", "indices", "attempts", "bytes", "seconds")
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    purpose: Purpose
    epoch: int
    stream: str
    indices: _containers.RepeatedScalarFieldContainer[int]
    attempts: _containers.RepeatedScalarFieldContainer[int]
    bytes: _containers.RepeatedScalarFieldContainer[int]
    seconds: float
    def __init__(self, purpose: _Optional[_Union[Purpose, str]] = ..., epoch: _Optional[int] = ..., stream: _Optional[str] = ..., indices: _Optional[_Iterable[int]] = ..., attempts: _Optional[_Iterable[int]] = ..., bytes: _Optional[_Iterable[int]] = ..., seconds: _Optional[float] = ...) -> None: ...

class Trained(_message.Message):
    __slots__ = ("job", "purpose", "epoch", "consumer", "indices", "attempts", "again")
    JOB_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    job: str
    purpose: Purpose
    epoch: int
    consumer: str
    indices: _containers.RepeatedScalarFieldContainer[int]
    attempts: _containers.RepeatedScalarFieldContainer[int]
    again: bool
    def __init__(self, job: _Optional[str] = ..., purpose: _Optional[_Union[Purpose, str]] = ..., epoch: _Optional[int] = ..., consumer: _Optional[str] = ..., indices: _Optional[_Iterable[int]] = ..., attempts: _Optional[_Iterable[int]] = ..., again: bool = ...) -> None: ...

class Failed(_message.Message):
    __slots__ = ("clip", "stage", "reason", "kind", "stream", "consumer", "awaited")
    CLIP_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    AWAITED_FIELD_NUMBER: _ClassVar[int]
    clip: ClipRef
    stage: Stage
    reason: str
    kind: FailureKind
    stream: str
    consumer: str
    awaited: bool
    def __init__(self, clip: _Optional[_Union[ClipRef, _Mapping]] = ..., stage: _Optional[_Union[Stage, str]] = ..., reason: _Optional[str] = ..., kind: _Optional[_Union[FailureKind, str]] = ..., stream: _Optional[str] = ..., consumer: _Optional[str] = ..., awaited: bool = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("pool", "gauges", "troubles", "machine")
    class GaugesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class TroublesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    POOL_FIELD_NUMBER: _ClassVar[int]
    GAUGES_FIELD_NUMBER: _ClassVar[int]
    TROUBLES_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    pool: str
    gauges: _containers.ScalarMap[str, float]
    troubles: _containers.ScalarMap[str, str]
    machine: Machine
    def __init__(self, pool: _Optional[str] = ..., gauges: _Optional[_Mapping[str, float]] = ..., troubles: _Optional[_Mapping[str, str]] = ..., machine: _Optional[_Union[Machine, _Mapping]] = ...) -> None: ...

class Machine(_message.Message):
    __slots__ = ("host", "process", "cpu", "cores", "memory_bytes", "memory_limit_bytes", "disk_free_bytes", "disk_bytes", "gpus")
    HOST_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    CPU_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    host: str
    process: int
    cpu: float
    cores: float
    memory_bytes: int
    memory_limit_bytes: int
    disk_free_bytes: int
    disk_bytes: int
    gpus: _containers.RepeatedCompositeFieldContainer[Gpu]
    def __init__(self, host: _Optional[str] = ..., process: _Optional[int] = ..., cpu: _Optional[float] = ..., cores: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., memory_limit_bytes: _Optional[int] = ..., disk_free_bytes: _Optional[int] = ..., disk_bytes: _Optional[int] = ..., gpus: _Optional[_Iterable[_Union[Gpu, _Mapping]]] = ...) -> None: ...

class Gpu(_message.Message):
    __slots__ = ("id", "name", "busy", "memory_bytes", "memory_limit_bytes", "watts", "joules")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    WATTS_FIELD_NUMBER: _ClassVar[int]
    JOULES_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    busy: float
    memory_bytes: int
    memory_limit_bytes: int
    watts: float
    joules: float
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., busy: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., memory_limit_bytes: _Optional[int] = ..., watts: _Optional[float] = ..., joules: _Optional[float] = ...) -> None: ...

class PhaseReport(_message.Message):
    __slots__ = ("job", "purpose", "epoch", "trainer", "metrics")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    job: str
    purpose: Purpose
    epoch: int
    trainer: str
    metrics: _containers.ScalarMap[str, float]
    def __init__(self, job: _Optional[str] = ..., purpose: _Optional[_Union[Purpose, str]] = ..., epoch: _Optional[int] = ..., trainer: _Optional[str] = ..., metrics: _Optional[_Mapping[str, float]] = ...) -> None: ...

class CheckpointReady(_message.Message):
    __slots__ = ("job", "trainer", "uri", "epoch", "final", "scores_uri", "position", "step", "digest", "approximate", "changes", "resumed")
    JOB_FIELD_NUMBER: _ClassVar[int]
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    URI_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    SCORES_URI_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    APPROXIMATE_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    job: str
    trainer: str
    uri: str
    epoch: int
    final: bool
    scores_uri: str
    position: Position
    step: int
    digest: str
    approximate: _containers.RepeatedScalarFieldContainer[int]
    changes: _containers.RepeatedCompositeFieldContainer[ChangeTaken]
    resumed: bool
    def __init__(self, job: _Optional[str] = ..., trainer: _Optional[str] = ..., uri: _Optional[str] = ..., epoch: _Optional[int] = ..., final: bool = ..., scores_uri: _Optional[str] = ..., position: _Optional[_Union[Position, _Mapping]] = ..., step: _Optional[int] = ..., digest: _Optional[str] = ..., approximate: _Optional[_Iterable[int]] = ..., changes: _Optional[_Iterable[_Union[ChangeTaken, _Mapping]]] = ..., resumed: bool = ...) -> None: ...

class Trouble(_message.Message):
    __slots__ = ("trainer", "reason", "unsaved")
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    UNSAVED_FIELD_NUMBER: _ClassVar[int]
    trainer: str
    reason: str
    unsaved: bool
    def __init__(self, trainer: _Optional[str] = ..., reason: _Optional[str] = ..., unsaved: bool = ...) -> None: ...

class LogLines(_message.Message):
    __slots__ = ("pool", "lines", "left_out")
    POOL_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    pool: str
    lines: _containers.RepeatedCompositeFieldContainer[LogLine]
    left_out: int
    def __init__(self, pool: _Optional[str] = ..., lines: _Optional[_Iterable[_Union[LogLine, _Mapping]]] = ..., left_out: _Optional[int] = ...) -> None: ...

class LogLine(_message.Message):
    __slots__ = ("time", "level", "event", "thread", "job", "error")
    TIME_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    time: float
    level: str
    event: str
    thread: str
    job: str
    error: str
    def __init__(self, time: _Optional[float] = ..., level: _Optional[str] = ..., event: _Optional[str] = ..., thread: _Optional[str] = ..., job: _Optional[str] = ..., error: _Optional[str] = ...) -> None: ...

class Loop(_message.Message):
    __slots__ = ("consumer", "incarnation", "position", "left")
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    consumer: str
    incarnation: str
    position: Position
    left: bool
    def __init__(self, consumer: _Optional[str] = ..., incarnation: _Optional[str] = ..., position: _Optional[_Union[Position, _Mapping]] = ..., left: bool = ...) -> None: ...

class StoppedEarly(_message.Message):
    __slots__ = ("trainer", "position", "epoch", "best")
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BEST_FIELD_NUMBER: _ClassVar[int]
    trainer: str
    position: Position
    epoch: int
    best: int
    def __init__(self, trainer: _Optional[str] = ..., position: _Optional[_Union[Position, _Mapping]] = ..., epoch: _Optional[int] = ..., best: _Optional[int] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("job", "stage", "uri", "metrics", "changes")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    URI_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    job: str
    stage: Stage
    uri: str
    metrics: _containers.ScalarMap[str, float]
    changes: int
    def __init__(self, job: _Optional[str] = ..., stage: _Optional[_Union[Stage, str]] = ..., uri: _Optional[str] = ..., metrics: _Optional[_Mapping[str, float]] = ..., changes: _Optional[int] = ...) -> None: ...

class ChangeTaken(_message.Message):
    __slots__ = ("trainer", "number", "place")
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    trainer: str
    number: int
    place: TrainingPlace
    def __init__(self, trainer: _Optional[str] = ..., number: _Optional[int] = ..., place: _Optional[_Union[TrainingPlace, _Mapping]] = ...) -> None: ...

class TrainerLeft(_message.Message):
    __slots__ = ("trainer",)
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    trainer: str
    def __init__(self, trainer: _Optional[str] = ...) -> None: ...

class TrainingPlace(_message.Message):
    __slots__ = ("epoch", "clip")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CLIP_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    clip: int
    def __init__(self, epoch: _Optional[int] = ..., clip: _Optional[int] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("job", "worker", "fence", "made", "trained", "failed", "heartbeat", "phase_report", "checkpoint", "finished", "step", "trouble", "loop", "logs", "stopped", "change_taken", "left")
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    MADE_FIELD_NUMBER: _ClassVar[int]
    TRAINED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    PHASE_REPORT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    LOOP_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    CHANGE_TAKEN_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    job: str
    worker: str
    fence: int
    made: Made
    trained: Trained
    failed: Failed
    heartbeat: Heartbeat
    phase_report: PhaseReport
    checkpoint: CheckpointReady
    finished: Finished
    step: StepReport
    trouble: Trouble
    loop: Loop
    logs: LogLines
    stopped: StoppedEarly
    change_taken: ChangeTaken
    left: TrainerLeft
    def __init__(self, job: _Optional[str] = ..., worker: _Optional[str] = ..., fence: _Optional[int] = ..., made: _Optional[_Union[Made, _Mapping]] = ..., trained: _Optional[_Union[Trained, _Mapping]] = ..., failed: _Optional[_Union[Failed, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., phase_report: _Optional[_Union[PhaseReport, _Mapping]] = ..., checkpoint: _Optional[_Union[CheckpointReady, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ..., step: _Optional[_Union[StepReport, _Mapping]] = ..., trouble: _Optional[_Union[Trouble, _Mapping]] = ..., loop: _Optional[_Union[Loop, _Mapping]] = ..., logs: _Optional[_Union[LogLines, _Mapping]] = ..., stopped: _Optional[_Union[StoppedEarly, _Mapping]] = ..., change_taken: _Optional[_Union[ChangeTaken, _Mapping]] = ..., left: _Optional[_Union[TrainerLeft, _Mapping]] = ...) -> None: ...

class Fit(_message.Message):
    __slots__ = ("what", "done", "most", "left_s")
    WHAT_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    MOST_FIELD_NUMBER: _ClassVar[int]
    LEFT_S_FIELD_NUMBER: _ClassVar[int]
    what: str
    done: int
    most: int
    left_s: float
    def __init__(self, what: _Optional[str] = ..., done: _Optional[int] = ..., most: _Optional[int] = ..., left_s: _Optional[float] = ...) -> None: ...

class StepReport(_message.Message):
    __slots__ = ("trainer", "purpose", "epoch", "clips_done", "loss", "top1", "data_wait_ratio", "clips_per_s", "queue", "fit", "lr")
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CLIPS_DONE_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    TOP1_FIELD_NUMBER: _ClassVar[int]
    DATA_WAIT_RATIO_FIELD_NUMBER: _ClassVar[int]
    CLIPS_PER_S_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    FIT_FIELD_NUMBER: _ClassVar[int]
    LR_FIELD_NUMBER: _ClassVar[int]
    trainer: str
    purpose: Purpose
    epoch: int
    clips_done: int
    loss: float
    top1: float
    data_wait_ratio: float
    clips_per_s: float
    queue: int
    fit: Fit
    lr: float
    def __init__(self, trainer: _Optional[str] = ..., purpose: _Optional[_Union[Purpose, str]] = ..., epoch: _Optional[int] = ..., clips_done: _Optional[int] = ..., loss: _Optional[float] = ..., top1: _Optional[float] = ..., data_wait_ratio: _Optional[float] = ..., clips_per_s: _Optional[float] = ..., queue: _Optional[int] = ..., fit: _Optional[_Union[Fit, _Mapping]] = ..., lr: _Optional[float] = ...) -> None: ...

class JobSnapshot(_message.Message):
    __slots__ = ("spec_json", "classes", "versions", "phases", "plan_digest", "layouts", "training_digest")
    class VersionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class LayoutsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SPEC_JSON_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    PHASES_FIELD_NUMBER: _ClassVar[int]
    PLAN_DIGEST_FIELD_NUMBER: _ClassVar[int]
    LAYOUTS_FIELD_NUMBER: _ClassVar[int]
    TRAINING_DIGEST_FIELD_NUMBER: _ClassVar[int]
    spec_json: str
    classes: _containers.RepeatedScalarFieldContainer[str]
    versions: _containers.ScalarMap[str, str]
    phases: _containers.RepeatedCompositeFieldContainer[PhasePlan]
    plan_digest: int
    layouts: _containers.ScalarMap[str, str]
    training_digest: int
    def __init__(self, spec_json: _Optional[str] = ..., classes: _Optional[_Iterable[str]] = ..., versions: _Optional[_Mapping[str, str]] = ..., phases: _Optional[_Iterable[_Union[PhasePlan, _Mapping]]] = ..., plan_digest: _Optional[int] = ..., layouts: _Optional[_Mapping[str, str]] = ..., training_digest: _Optional[int] = ...) -> None: ...

class PhasePlan(_message.Message):
    __slots__ = ("purpose", "epoch", "clips")
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CLIPS_FIELD_NUMBER: _ClassVar[int]
    purpose: Purpose
    epoch: int
    clips: int
    def __init__(self, purpose: _Optional[_Union[Purpose, str]] = ..., epoch: _Optional[int] = ..., clips: _Optional[int] = ...) -> None: ...

class Control(_message.Message):
    __slots__ = ("job", "fence", "command", "snapshot", "reason", "since", "stored", "loops", "team", "queued", "priority", "changes", "next_spec_json", "removed", "pools")
    class Command(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        COMMAND_UNSPECIFIED: _ClassVar[Control.Command]
        START: _ClassVar[Control.Command]
        PAUSE: _ClassVar[Control.Command]
        RESUME: _ClassVar[Control.Command]
        STOP: _ClassVar[Control.Command]
        DRAIN: _ClassVar[Control.Command]
        COMPLETE: _ClassVar[Control.Command]
        FAIL: _ClassVar[Control.Command]
    COMMAND_UNSPECIFIED: Control.Command
    START: Control.Command
    PAUSE: Control.Command
    RESUME: Control.Command
    STOP: Control.Command
    DRAIN: Control.Command
    COMPLETE: Control.Command
    FAIL: Control.Command
    JOB_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    LOOPS_FIELD_NUMBER: _ClassVar[int]
    TEAM_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    NEXT_SPEC_JSON_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    POOLS_FIELD_NUMBER: _ClassVar[int]
    job: str
    fence: int
    command: Control.Command
    snapshot: JobSnapshot
    reason: str
    since: int
    stored: str
    loops: _containers.RepeatedCompositeFieldContainer[Loop]
    team: str
    queued: bool
    priority: int
    changes: _containers.RepeatedCompositeFieldContainer[Change]
    next_spec_json: str
    removed: bool
    pools: PausedPools
    def __init__(self, job: _Optional[str] = ..., fence: _Optional[int] = ..., command: _Optional[_Union[Control.Command, str]] = ..., snapshot: _Optional[_Union[JobSnapshot, _Mapping]] = ..., reason: _Optional[str] = ..., since: _Optional[int] = ..., stored: _Optional[str] = ..., loops: _Optional[_Iterable[_Union[Loop, _Mapping]]] = ..., team: _Optional[str] = ..., queued: bool = ..., priority: _Optional[int] = ..., changes: _Optional[_Iterable[_Union[Change, _Mapping]]] = ..., next_spec_json: _Optional[str] = ..., removed: bool = ..., pools: _Optional[_Union[PausedPools, _Mapping]] = ...) -> None: ...

class PausedPools(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class TryCandidate(_message.Message):
    __slots__ = ("job", "fence", "search", "number", "strategy", "params_json")
    JOB_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    SEARCH_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    PARAMS_JSON_FIELD_NUMBER: _ClassVar[int]
    job: str
    fence: int
    search: str
    number: int
    strategy: str
    params_json: str
    def __init__(self, job: _Optional[str] = ..., fence: _Optional[int] = ..., search: _Optional[str] = ..., number: _Optional[int] = ..., strategy: _Optional[str] = ..., params_json: _Optional[str] = ...) -> None: ...

class Change(_message.Message):
    __slots__ = ("number", "time_ms", "fields", "before", "places")
    class FieldsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class BeforeEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class PlacesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: TrainingPlace
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[TrainingPlace, _Mapping]] = ...) -> None: ...
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    number: int
    time_ms: int
    fields: _containers.ScalarMap[str, str]
    before: _containers.ScalarMap[str, str]
    places: _containers.MessageMap[str, TrainingPlace]
    def __init__(self, number: _Optional[int] = ..., time_ms: _Optional[int] = ..., fields: _Optional[_Mapping[str, str]] = ..., before: _Optional[_Mapping[str, str]] = ..., places: _Optional[_Mapping[str, TrainingPlace]] = ...) -> None: ...

class DeadLetter(_message.Message):
    __slots__ = ("topic", "message", "reason", "kind", "attempts", "worker", "time_ms", "cut_bytes", "purged")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    CUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    PURGED_FIELD_NUMBER: _ClassVar[int]
    topic: str
    message: bytes
    reason: str
    kind: FailureKind
    attempts: int
    worker: str
    time_ms: int
    cut_bytes: int
    purged: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[str] = ..., message: _Optional[bytes] = ..., reason: _Optional[str] = ..., kind: _Optional[_Union[FailureKind, str]] = ..., attempts: _Optional[int] = ..., worker: _Optional[str] = ..., time_ms: _Optional[int] = ..., cut_bytes: _Optional[int] = ..., purged: _Optional[_Iterable[int]] = ...) -> None: ...

class Indices(_message.Message):
    __slots__ = ("blocks", "bits")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BITS_FIELD_NUMBER: _ClassVar[int]
    blocks: _containers.RepeatedScalarFieldContainer[int]
    bits: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, blocks: _Optional[_Iterable[int]] = ..., bits: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Position(_message.Message):
    __slots__ = ("phase_index", "index")
    PHASE_INDEX_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    phase_index: int
    index: int
    def __init__(self, phase_index: _Optional[int] = ..., index: _Optional[int] = ...) -> None: ...

class ConsumerState(_message.Message):
    __slots__ = ("consumer", "start", "below", "beyond", "absent", "incarnation", "retired", "stopped", "wanted_from")
    class BeyondEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: Indices
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[Indices, _Mapping]] = ...) -> None: ...
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    BELOW_FIELD_NUMBER: _ClassVar[int]
    BEYOND_FIELD_NUMBER: _ClassVar[int]
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RETIRED_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    WANTED_FROM_FIELD_NUMBER: _ClassVar[int]
    consumer: str
    start: Position
    below: _containers.RepeatedScalarFieldContainer[int]
    beyond: _containers.MessageMap[int, Indices]
    absent: bool
    incarnation: str
    retired: _containers.RepeatedScalarFieldContainer[str]
    stopped: Position
    wanted_from: Position
    def __init__(self, consumer: _Optional[str] = ..., start: _Optional[_Union[Position, _Mapping]] = ..., below: _Optional[_Iterable[int]] = ..., beyond: _Optional[_Mapping[int, Indices]] = ..., absent: bool = ..., incarnation: _Optional[str] = ..., retired: _Optional[_Iterable[str]] = ..., stopped: _Optional[_Union[Position, _Mapping]] = ..., wanted_from: _Optional[_Union[Position, _Mapping]] = ...) -> None: ...

class PhaseState(_message.Message):
    __slots__ = ("issued", "closed", "skipped")
    ISSUED_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    issued: int
    closed: int
    skipped: Indices
    def __init__(self, issued: _Optional[int] = ..., closed: _Optional[int] = ..., skipped: _Optional[_Union[Indices, _Mapping]] = ...) -> None: ...

class OutstandingClip(_message.Message):
    __slots__ = ("position", "attempt", "state", "left", "made", "counted", "sizes", "losses", "catch_up")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[OutstandingClip.State]
        ISSUED: _ClassVar[OutstandingClip.State]
        REISSUED: _ClassVar[OutstandingClip.State]
        QUEUED: _ClassVar[OutstandingClip.State]
        PREEMPTED: _ClassVar[OutstandingClip.State]
        REOPENED_QUEUED: _ClassVar[OutstandingClip.State]
        REOPENED_REISSUED: _ClassVar[OutstandingClip.State]
        REOPENED_PREEMPTED: _ClassVar[OutstandingClip.State]
    STATE_UNSPECIFIED: OutstandingClip.State
    ISSUED: OutstandingClip.State
    REISSUED: OutstandingClip.State
    QUEUED: OutstandingClip.State
    PREEMPTED: OutstandingClip.State
    REOPENED_QUEUED: OutstandingClip.State
    REOPENED_REISSUED: OutstandingClip.State
    REOPENED_PREEMPTED: OutstandingClip.State
    POSITION_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    MADE_FIELD_NUMBER: _ClassVar[int]
    COUNTED_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    LOSSES_FIELD_NUMBER: _ClassVar[int]
    CATCH_UP_FIELD_NUMBER: _ClassVar[int]
    position: Position
    attempt: int
    state: OutstandingClip.State
    left: int
    made: int
    counted: int
    sizes: _containers.RepeatedScalarFieldContainer[int]
    losses: int
    catch_up: str
    def __init__(self, position: _Optional[_Union[Position, _Mapping]] = ..., attempt: _Optional[int] = ..., state: _Optional[_Union[OutstandingClip.State, str]] = ..., left: _Optional[int] = ..., made: _Optional[int] = ..., counted: _Optional[int] = ..., sizes: _Optional[_Iterable[int]] = ..., losses: _Optional[int] = ..., catch_up: _Optional[str] = ...) -> None: ...

class PlainColumns(_message.Message):
    __slots__ = ("phase_index", "indices", "left", "made", "sizes")
    class Sizes(_message.Message):
        __slots__ = ("bytes",)
        BYTES_FIELD_NUMBER: _ClassVar[int]
        bytes: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, bytes: _Optional[_Iterable[int]] = ...) -> None: ...
    PHASE_INDEX_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    MADE_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    phase_index: int
    indices: _containers.RepeatedScalarFieldContainer[int]
    left: _containers.RepeatedScalarFieldContainer[int]
    made: _containers.RepeatedScalarFieldContainer[int]
    sizes: _containers.RepeatedCompositeFieldContainer[PlainColumns.Sizes]
    def __init__(self, phase_index: _Optional[int] = ..., indices: _Optional[_Iterable[int]] = ..., left: _Optional[_Iterable[int]] = ..., made: _Optional[_Iterable[int]] = ..., sizes: _Optional[_Iterable[_Union[PlainColumns.Sizes, _Mapping]]] = ...) -> None: ...

class IssueState(_message.Message):
    __slots__ = ("phase_index", "begin", "end", "issued")
    PHASE_INDEX_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    ISSUED_FIELD_NUMBER: _ClassVar[int]
    phase_index: int
    begin: int
    end: int
    issued: Indices
    def __init__(self, phase_index: _Optional[int] = ..., begin: _Optional[int] = ..., end: _Optional[int] = ..., issued: _Optional[_Union[Indices, _Mapping]] = ...) -> None: ...

class CatchUpState(_message.Message):
    __slots__ = ("consumer", "order", "joins")
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    JOINS_FIELD_NUMBER: _ClassVar[int]
    consumer: str
    order: IssueState
    joins: Position
    def __init__(self, consumer: _Optional[str] = ..., order: _Optional[_Union[IssueState, _Mapping]] = ..., joins: _Optional[_Union[Position, _Mapping]] = ...) -> None: ...

class ReplacedClip(_message.Message):
    __slots__ = ("position", "attempt")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    position: Position
    attempt: int
    def __init__(self, position: _Optional[_Union[Position, _Mapping]] = ..., attempt: _Optional[int] = ...) -> None: ...

class LedgerState(_message.Message):
    __slots__ = ("consumers", "streams", "phases", "outstanding", "order", "counts", "finals", "catch_up_queues", "replaced", "plain")
    class CountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    PHASES_FIELD_NUMBER: _ClassVar[int]
    OUTSTANDING_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    FINALS_FIELD_NUMBER: _ClassVar[int]
    CATCH_UP_QUEUES_FIELD_NUMBER: _ClassVar[int]
    REPLACED_FIELD_NUMBER: _ClassVar[int]
    PLAIN_FIELD_NUMBER: _ClassVar[int]
    consumers: _containers.RepeatedCompositeFieldContainer[ConsumerState]
    streams: _containers.RepeatedScalarFieldContainer[str]
    phases: _containers.RepeatedCompositeFieldContainer[PhaseState]
    outstanding: _containers.RepeatedCompositeFieldContainer[OutstandingClip]
    order: IssueState
    counts: _containers.ScalarMap[str, int]
    finals: _containers.RepeatedScalarFieldContainer[str]
    catch_up_queues: _containers.RepeatedCompositeFieldContainer[CatchUpState]
    replaced: _containers.RepeatedCompositeFieldContainer[ReplacedClip]
    plain: _containers.RepeatedCompositeFieldContainer[PlainColumns]
    def __init__(self, consumers: _Optional[_Iterable[_Union[ConsumerState, _Mapping]]] = ..., streams: _Optional[_Iterable[str]] = ..., phases: _Optional[_Iterable[_Union[PhaseState, _Mapping]]] = ..., outstanding: _Optional[_Iterable[_Union[OutstandingClip, _Mapping]]] = ..., order: _Optional[_Union[IssueState, _Mapping]] = ..., counts: _Optional[_Mapping[str, int]] = ..., finals: _Optional[_Iterable[str]] = ..., catch_up_queues: _Optional[_Iterable[_Union[CatchUpState, _Mapping]]] = ..., replaced: _Optional[_Iterable[_Union[ReplacedClip, _Mapping]]] = ..., plain: _Optional[_Iterable[_Union[PlainColumns, _Mapping]]] = ...) -> None: ...

class Runs(_message.Message):
    __slots__ = ("lengths",)
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    lengths: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, lengths: _Optional[_Iterable[int]] = ...) -> None: ...

class PhaseEvents(_message.Message):
    __slots__ = ("phase_index", "issued", "decoded", "extracted", "trained", "retrained", "skipped", "released", "trained_before")
    class ExtractedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Runs
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Runs, _Mapping]] = ...) -> None: ...
    class TrainedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Runs
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Runs, _Mapping]] = ...) -> None: ...
    class RetrainedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Runs
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Runs, _Mapping]] = ...) -> None: ...
    class SkippedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Runs
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Runs, _Mapping]] = ...) -> None: ...
    class ReleasedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Runs
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Runs, _Mapping]] = ...) -> None: ...
    class TrainedBeforeEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Runs
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Runs, _Mapping]] = ...) -> None: ...
    PHASE_INDEX_FIELD_NUMBER: _ClassVar[int]
    ISSUED_FIELD_NUMBER: _ClassVar[int]
    DECODED_FIELD_NUMBER: _ClassVar[int]
    EXTRACTED_FIELD_NUMBER: _ClassVar[int]
    TRAINED_FIELD_NUMBER: _ClassVar[int]
    RETRAINED_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    TRAINED_BEFORE_FIELD_NUMBER: _ClassVar[int]
    phase_index: int
    issued: Runs
    decoded: Runs
    extracted: _containers.MessageMap[str, Runs]
    trained: _containers.MessageMap[str, Runs]
    retrained: _containers.MessageMap[str, Runs]
    skipped: _containers.MessageMap[str, Runs]
    released: _containers.MessageMap[str, Runs]
    trained_before: _containers.MessageMap[str, Runs]
    def __init__(self, phase_index: _Optional[int] = ..., issued: _Optional[_Union[Runs, _Mapping]] = ..., decoded: _Optional[_Union[Runs, _Mapping]] = ..., extracted: _Optional[_Mapping[str, Runs]] = ..., trained: _Optional[_Mapping[str, Runs]] = ..., retrained: _Optional[_Mapping[str, Runs]] = ..., skipped: _Optional[_Mapping[str, Runs]] = ..., released: _Optional[_Mapping[str, Runs]] = ..., trained_before: _Optional[_Mapping[str, Runs]] = ...) -> None: ...

class ClipFailure(_message.Message):
    __slots__ = ("position", "attempt", "stage", "kind", "video", "stream", "replaced")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    VIDEO_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    REPLACED_FIELD_NUMBER: _ClassVar[int]
    position: Position
    attempt: int
    stage: Stage
    kind: FailureKind
    video: str
    stream: str
    replaced: bool
    def __init__(self, position: _Optional[_Union[Position, _Mapping]] = ..., attempt: _Optional[int] = ..., stage: _Optional[_Union[Stage, str]] = ..., kind: _Optional[_Union[FailureKind, str]] = ..., video: _Optional[str] = ..., stream: _Optional[str] = ..., replaced: bool = ...) -> None: ...

class TrainedAttempt(_message.Message):
    __slots__ = ("position", "consumer", "attempt")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    position: Position
    consumer: str
    attempt: int
    def __init__(self, position: _Optional[_Union[Position, _Mapping]] = ..., consumer: _Optional[str] = ..., attempt: _Optional[int] = ...) -> None: ...

class RunStart(_message.Message):
    __slots__ = ("snapshot", "start", "checkpoints")
    class StartEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Position
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Position, _Mapping]] = ...) -> None: ...
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    snapshot: JobSnapshot
    start: _containers.MessageMap[str, Position]
    checkpoints: _containers.RepeatedCompositeFieldContainer[CheckpointReady]
    def __init__(self, snapshot: _Optional[_Union[JobSnapshot, _Mapping]] = ..., start: _Optional[_Mapping[str, Position]] = ..., checkpoints: _Optional[_Iterable[_Union[CheckpointReady, _Mapping]]] = ...) -> None: ...

class HistoryEntry(_message.Message):
    __slots__ = ("time_ms", "fence", "started", "taken_over", "state", "reason", "checkpoint", "phases", "failures", "attempts", "budget_bytes", "peak_bytes", "outstanding_bytes", "outstanding_clips", "swept", "stray_keys", "stopped", "changed", "change_taken")
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    TAKEN_OVER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    PHASES_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    BUDGET_BYTES_FIELD_NUMBER: _ClassVar[int]
    PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    OUTSTANDING_BYTES_FIELD_NUMBER: _ClassVar[int]
    OUTSTANDING_CLIPS_FIELD_NUMBER: _ClassVar[int]
    SWEPT_FIELD_NUMBER: _ClassVar[int]
    STRAY_KEYS_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    CHANGE_TAKEN_FIELD_NUMBER: _ClassVar[int]
    time_ms: int
    fence: int
    started: RunStart
    taken_over: bool
    state: str
    reason: str
    checkpoint: CheckpointReady
    phases: _containers.RepeatedCompositeFieldContainer[PhaseEvents]
    failures: _containers.RepeatedCompositeFieldContainer[ClipFailure]
    attempts: _containers.RepeatedCompositeFieldContainer[TrainedAttempt]
    budget_bytes: int
    peak_bytes: int
    outstanding_bytes: int
    outstanding_clips: int
    swept: bool
    stray_keys: int
    stopped: StoppedEarly
    changed: Change
    change_taken: ChangeTaken
    def __init__(self, time_ms: _Optional[int] = ..., fence: _Optional[int] = ..., started: _Optional[_Union[RunStart, _Mapping]] = ..., taken_over: bool = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., checkpoint: _Optional[_Union[CheckpointReady, _Mapping]] = ..., phases: _Optional[_Iterable[_Union[PhaseEvents, _Mapping]]] = ..., failures: _Optional[_Iterable[_Union[ClipFailure, _Mapping]]] = ..., attempts: _Optional[_Iterable[_Union[TrainedAttempt, _Mapping]]] = ..., budget_bytes: _Optional[int] = ..., peak_bytes: _Optional[int] = ..., outstanding_bytes: _Optional[int] = ..., outstanding_clips: _Optional[int] = ..., swept: bool = ..., stray_keys: _Optional[int] = ..., stopped: _Optional[_Union[StoppedEarly, _Mapping]] = ..., changed: _Optional[_Union[Change, _Mapping]] = ..., change_taken: _Optional[_Union[ChangeTaken, _Mapping]] = ...) -> None: ...

class FailureTally(_message.Message):
    __slots__ = ("stage", "kind", "count", "examples")
    class ExamplesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    STAGE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    stage: Stage
    kind: FailureKind
    count: int
    examples: _containers.ScalarMap[str, str]
    def __init__(self, stage: _Optional[_Union[Stage, str]] = ..., kind: _Optional[_Union[FailureKind, str]] = ..., count: _Optional[int] = ..., examples: _Optional[_Mapping[str, str]] = ...) -> None: ...

class HistorySegment(_message.Message):
    __slots__ = ("first", "last", "fence", "since", "writer", "entries", "ledger", "state", "status_json", "created_ms", "worked_s", "failures", "changes")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STATUS_JSON_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    WORKED_S_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    first: int
    last: int
    fence: int
    since: int
    writer: str
    entries: _containers.RepeatedCompositeFieldContainer[HistoryEntry]
    ledger: LedgerState
    state: str
    status_json: str
    created_ms: int
    worked_s: float
    failures: _containers.RepeatedCompositeFieldContainer[FailureTally]
    changes: _containers.RepeatedCompositeFieldContainer[Change]
    def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ..., fence: _Optional[int] = ..., since: _Optional[int] = ..., writer: _Optional[str] = ..., entries: _Optional[_Iterable[_Union[HistoryEntry, _Mapping]]] = ..., ledger: _Optional[_Union[LedgerState, _Mapping]] = ..., state: _Optional[str] = ..., status_json: _Optional[str] = ..., created_ms: _Optional[int] = ..., worked_s: _Optional[float] = ..., failures: _Optional[_Iterable[_Union[FailureTally, _Mapping]]] = ..., changes: _Optional[_Iterable[_Union[Change, _Mapping]]] = ...) -> None: ...
