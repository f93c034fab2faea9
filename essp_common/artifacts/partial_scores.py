"""What predictors have scored of a job so far: each part is a number of blocks of clips that one predictor has scored.

    predictor/<identity>/<stream>/<blocks>/<trainer>.parquet   1. the scores of the clips of one part, by each member
    predictor/<identity>/<stream>/<blocks>/done.json           2. where each clip is, and why some are missing
    predictor/runs/<run>                                       the identity that a run of the job scores with

A part exists once the second object does. Its name says which blocks (`topics.BLOCK_CLIPS` consecutive clips) it holds:
the first one, and a bit for each from there. A block may be in two parts, if two predictors have scored it because one
of them did not know yet that the other had taken it over. The scores are the same: they depend on the block alone.

The identity is a digest of everything that determines the scores; parts of another model or catalog are ignored. It
stays the same within a run, because clips that were scored with one model do not arrive again for another.

The master uses this module to find out where predictors will start, so it does not import torch.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from pydantic import BaseModel, ValidationError

from essp_common import topics
from essp_common.artifacts import layout, scores
from essp_common.artifacts.extraction import Extraction
from essp_common.artifacts.fused_model import FusedModel
from essp_common.artifacts.removal import lies_within
from essp_common.artifacts.scores import ScoreTable
from essp_common.errors import Conflict, NotFound, PermanentError
from essp_common.job.spec import JobSpec
from essp_common.objects.port import ObjectStore
from essp_common.validation import problems

_DONE = "done.json"
_TABLE = ".parquet"
_RUNS = f"{layout.PARTS}runs/"
_FORMAT = 2
_NAMED = re.compile("([0-9]{10})-([0-9a-f]+)")
_SPAN = 512
"""Most blocks from the first to the last of a part: its name has a digit for each four."""
_READERS = 8
"""Objects that are read at the same time. A part is small, and a store may take long to answer."""


@dataclass(frozen=True, slots=True)
class ScoredPart:
    """Scores of one stream for some clips."""

    tables: dict[str, ScoreTable]
    """Trainer -> its scores."""
    missing: dict[int, tuple[str, str]]
    """Index of a clip that is missing -> its video, and the reason."""
    frames: dict[int, tuple[int, int]]
    """Index of a scored clip -> its first and last frame in the file."""

    @property
    def errors(self) -> dict[str, str]:
        """Video -> why one of its clips is missing: the last one."""
        return dict(self.missing[index] for index in sorted(self.missing))

    def between(self, start: int, stop: int) -> ScoredPart:
        """The clips from index `start` to before `stop`."""
        tables = {}
        for name, table in self.tables.items():
            rows = np.flatnonzero((table.clip_index >= start) & (table.clip_index < stop))
            if len(rows):
                tables[name] = table.at(rows)
        return ScoredPart(
            tables,
            {index: why for index, why in self.missing.items() if start <= index < stop},
            {index: ends for index, ends in self.frames.items() if start <= index < stop},
        )

    @classmethod
    def joined(cls, parts: Sequence[ScoredPart]) -> ScoredPart:
        """The clips of all parts, one after the other."""
        tables: dict[str, list[ScoreTable]] = {}
        for part in parts:
            for name, table in part.tables.items():
                tables.setdefault(name, []).append(table)
        return cls(
            {name: found[0] if len(found) == 1 else scores.joined(found) for name, found in tables.items()},
            {index: why for part in parts for index, why in part.missing.items()},
            {index: ends for part in parts for index, ends in part.frames.items()},
        )


class _Rest(BaseModel):
    """The content of a part other than its tables."""

    missing: tuple[tuple[int, str, str], ...]
    """Index of a missing clip, its video, and the reason."""
    frames: tuple[tuple[int, int, int], ...]
    """Index of a scored clip, its first and last frame."""


class Saved:
    """The saved blocks of one stream, as they were when the store was asked."""

    def __init__(self, names: Iterable[str]) -> None:
        """`names`: of the parts."""
        self._part_of: dict[int, str] = {}
        for name in sorted(names):
            for block in _blocks(name):
                self._part_of.setdefault(block, name)

    @property
    def blocks(self) -> frozenset[int]:
        """All saved blocks."""
        return frozenset(self._part_of)

    def stop(self, clips: int) -> int:
        """How many of a stream's `clips` are saved, counted from the first one without a gap."""
        block = 0
        while block * topics.BLOCK_CLIPS < clips and block in self._part_of:
            block += 1
        return min(clips, block * topics.BLOCK_CLIPS)

    def part_of(self, block: int) -> str:
        """The name of a part that holds a block. Raises `NotFound` if it was removed since."""
        try:
            return self._part_of[block]
        except KeyError as error:
            raise NotFound(
                f"what was saved of clip {block * topics.BLOCK_CLIPS} is gone from {layout.PARTS}; start the job "
                "again, and it is computed again"
            ) from error


class PartialScores:
    """The parts of one predict job."""

    def __init__(self, output: ObjectStore, spec: JobSpec, plan_digest: int, model: FusedModel | Extraction) -> None:
        """`plan_digest`: from the job's snapshot. `model`: what scores the clips."""
        self._output = output
        self._job = spec.name
        self._model = _source(spec)
        self.plan_digest = plan_digest
        """Of the plan whose clips are scored."""
        self._identity = _identity(spec, plan_digest, model)

    @property
    def identity(self) -> str:
        """A digest of everything that determines the scores."""
        return self._identity

    def bind(self, run: int) -> None:
        """Bind a run of the job to this model. Idempotent.

        `run`: the fence with which it began. Raises `PermanentError` if it began with another model.
        """
        key = f"{_RUNS}{run}"
        try:
            self._output.put(key, self._identity.encode(), if_absent=True)
        except Conflict as error:
            if self._output.get(key) != self._identity.encode():
                raise PermanentError(
                    f"{self._model} is another model than job {self._job} has begun with (or another "
                    "version of ESSP reads it); start the job again, and all videos are scored with what is there now"
                ) from error

    def saved(self, stream: str) -> Saved:
        """What is scored and saved of a stream."""
        prefix, end = self._prefix(stream), f"/{_DONE}"
        keys = (info.key for info in self._output.list(prefix) if info.key.endswith(end))
        return Saved(key[len(prefix) : -len(end)] for key in keys)

    def save(self, stream: str, blocks: Sequence[int], part: ScoredPart) -> None:
        """Write one part: the scores of a stream's clips in these blocks, in ascending order. Idempotent."""
        prefix = f"{self._prefix(stream)}{_name(blocks)}/"
        for trainer, table in part.tables.items():
            scores.write(self._output, f"{prefix}{trainer}{_TABLE}", table)
        rest = _Rest(
            missing=tuple((index, *why) for index, why in part.missing.items()),
            frames=tuple((index, *ends) for index, ends in part.frames.items()),
        )
        self._output.put(f"{prefix}{_DONE}", rest.model_dump_json().encode())

    def read_blocks(self, stream: str, saved: Saved, blocks: range) -> Generator[ScoredPart, None, None]:
        """Yield the saved blocks of a stream one by one, in order; memory holds the parts that they are from.

        Raises `NotFound`, or `PermanentError` for a damaged part.
        """
        last = {saved.part_of(block): block for block in blocks}
        names = list(dict.fromkeys(map(saved.part_of, blocks)))
        parts: dict[str, Future[ScoredPart]] = {}
        with ThreadPoolExecutor(_READERS, thread_name_prefix="essp-parts") as readers:
            for block in blocks:
                name = saved.part_of(block)
                while names and (name not in parts or len(parts) < _READERS):
                    ahead = names.pop(0)
                    parts[ahead] = readers.submit(self._read, stream, ahead)
                start = block * topics.BLOCK_CLIPS
                yield parts[name].result().between(start, start + topics.BLOCK_CLIPS)
                if last[name] == block:
                    del parts[name]

    def _read(self, stream: str, name: str) -> ScoredPart:
        prefix = f"{self._prefix(stream)}{name}/"
        where = self._output.uri(f"{prefix}{_DONE}")
        remedy = f"remove {where} and start the job again: what is missing is then scored again"
        try:
            rest = _Rest.model_validate_json(self._output.get(f"{prefix}{_DONE}"))
            keys = [info.key for info in self._output.list(prefix) if info.key.endswith(_TABLE)]
            tables = {key[len(prefix) : -len(_TABLE)]: scores.read(self._output, key) for key in keys}
        except ValidationError as error:
            raise PermanentError(f"{where} is damaged: {problems(error, _Rest)[0]}; {remedy}") from error
        except PermanentError as error:
            raise PermanentError(f"{error}, or {remedy}") from error
        frames = {index: (first, last) for index, first, last in rest.frames}
        if any(table.clip_index.tolist() != list(frames) for table in tables.values()) or (frames and not tables):
            raise PermanentError(f"{where} has other clips than the other tables; {remedy}")
        return ScoredPart(tables, {index: (video, why) for index, video, why in rest.missing}, frames)

    def _prefix(self, stream: str) -> str:
        return f"{layout.PARTS}{self._identity}/{stream}/"


def fits(blocks: Sequence[int], block: int) -> bool:
    """Whether a part that begins with these blocks may have another one."""
    return not blocks or block - blocks[0] < _SPAN


def _name(blocks: Sequence[int]) -> str:
    return f"{blocks[0]:010d}-{sum(1 << block - blocks[0] for block in blocks):x}"


def _blocks(name: str) -> Iterator[int]:
    """The blocks of the part with this name; none for another name, which is not a part's."""
    if (match := _NAMED.fullmatch(name)) is None:
        return
    first, mask = int(match[1]), int(match[2], 16)
    yield from (first + place for place in range(mask.bit_length()) if mask >> place & 1)


def remove(output: ObjectStore, still: Callable[[], bool] = lambda: True) -> None:
    """Remove the parts of every identity. Call it after the job is complete; safe to repeat.

    `still`: whether the job is still complete. Objects are removed one by one; if the job is started again meanwhile,
    its next run saves parts under the same names, which must be kept.
    """
    keys = [info.key for info in output.list(layout.PARTS) if layout.is_own(info.key) and lies_within(output, info.key)]
    # markers first, so that no part is left without its tables
    for key in sorted(keys, key=lambda key: not key.endswith(_DONE)):
        if not still():
            return
        output.delete(key)


def _source(spec: JobSpec) -> str:
    """The field of a job that names what scores its clips, with its value."""
    if spec.fused_model is not None:
        return ": ".join(spec.fused_model)
    return "extract.weights" if spec.extract is None else f"extract.weights: {spec.extract.weights}"


def _identity(spec: JobSpec, plan_digest: int, model: FusedModel | Extraction) -> str:
    plain = model.model_dump(mode="json", exclude={"versions"}) if isinstance(model, FusedModel) else model.digested()
    document = {
        "spec": spec.model_dump(mode="json", include={"data", "clip", "sampling", "streams"}),
        "plan": plan_digest,
        "model": plain,
        "format": _FORMAT,
        "block": topics.BLOCK_CLIPS,
    }
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]
