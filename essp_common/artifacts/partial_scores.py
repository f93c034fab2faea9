"""What a predict job has scored so far, so that a predictor resumes there after a crash or a restart of the job.

    predictor/<identity>/<stream>/<stop>/<trainer>.parquet   1. the scores of the clips of one part, by each member
    predictor/<identity>/<stream>/<stop>/done.json           2. where each clip is, and why some are missing
    predictor/runs/<run>                                     the identity that a run of the job scores with

A part exists once the second object does. Parts contain the same clips for every stream. If all videos have the same
small number of clips, a part contains whole videos; otherwise the clips of a video may be in several parts. The
identity is a digest of everything that determines the scores; parts of another model or catalog are ignored. It stays
the same within a run, because clips that were scored with one model do not arrive again for another.

The master uses this module to find out where a predictor will start, so it does not import torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import BaseModel, ValidationError

from essp_common.artifacts import layout, scores
from essp_common.artifacts.extraction import Extraction
from essp_common.artifacts.fused_model import FusedModel
from essp_common.artifacts.removal import lies_within
from essp_common.artifacts.scores import ScoreTable
from essp_common.errors import Conflict, PermanentError
from essp_common.job.spec import JobSpec
from essp_common.objects.port import ObjectStore
from essp_common.validation import problems

_DONE = "done.json"
_TABLE = ".parquet"
_RUNS = f"{layout.PARTS}runs/"
_PART_CLIPS = 2000
"""Approximate number of clips in a part: seconds to minutes of work, which is what a crash costs."""
_LEAST_PART_CLIPS, _PART_NUMBERS = 16, 2**23
"""If an extract job writes all values of its clips (`extract.reduce: none`): the fewest clips of a part, and about how
many positions of frames a part has."""


@dataclass(frozen=True, slots=True)
class ScoredPart:
    """Scores of one stream for some videos."""

    tables: dict[str, ScoreTable]
    """Trainer -> its scores."""
    errors: dict[str, str]
    """Video -> why one of its clips is missing."""
    frames: dict[int, tuple[int, int]]
    """Index of a scored clip -> its first and last frame in the file."""


class _Rest(BaseModel):
    """The content of a part other than its tables."""

    errors: dict[str, str]
    frames: tuple[tuple[int, int, int], ...]
    """Index of a scored clip, its first and last frame."""


class PartialScores:
    """The parts of one predict job."""

    def __init__(self, output: ObjectStore, spec: JobSpec, plan_digest: int, model: FusedModel | Extraction) -> None:
        """`plan_digest`: from the job's snapshot. `model`: what scores the clips."""
        self._output = output
        self._job = spec.name
        self._model = _source(spec)
        self._identity = _identity(spec, plan_digest, model)
        most = _most_clips(spec)
        of_video = most if spec.sampling.every_field else spec.sampling.clips_per_video
        self.part_clips = most // of_video * of_video or most
        """Clips of every part except the last."""

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

    def stop(self, stream: str, clips: int) -> int:
        """How many of a stream's `clips` are scored and saved, counted from the first one without a gap."""
        prefix = self._prefix(stream)
        done = {info.key.removeprefix(prefix) for info in self._output.list(prefix) if info.key.endswith(_DONE)}
        stop = 0
        while stop < clips and f"{(after := min(clips, stop + self.part_clips)):010d}/{_DONE}" in done:
            stop = after
        return stop

    def save(self, stream: str, stop: int, part: ScoredPart) -> None:
        """Write one part: the scores of a stream's clips from the end of the previous part up to `stop`. Idempotent."""
        for trainer, table in part.tables.items():
            scores.write(self._output, f"{self._part(stream, stop)}{trainer}{_TABLE}", table)
        rest = _Rest(errors=part.errors, frames=tuple((index, *ends) for index, ends in part.frames.items()))
        self._output.put(f"{self._part(stream, stop)}{_DONE}", rest.model_dump_json().encode())

    def read(self, stream: str, stop: int) -> ScoredPart:
        """The part that `save` wrote. Raises `NotFound`, or `PermanentError` if it is damaged."""
        prefix = self._part(stream, stop)
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
        return ScoredPart(tables, rest.errors, frames)

    def _prefix(self, stream: str) -> str:
        return f"{layout.PARTS}{self._identity}/{stream}/"

    def _part(self, stream: str, stop: int) -> str:
        return f"{self._prefix(stream)}{stop:010d}/"


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


def _most_clips(spec: JobSpec) -> int:
    """About how many clips a part has: fewer if the values of a clip are large, because a part is held in memory."""
    if spec.extract is None or spec.extract.reduce == "mean":
        return _PART_CLIPS
    frame = spec.clip.resize
    return max(_LEAST_PART_CLIPS, min(_PART_CLIPS, _PART_NUMBERS // (spec.clip.frames * frame.height * frame.width)))


def _identity(spec: JobSpec, plan_digest: int, model: FusedModel | Extraction) -> str:
    scored_by = (
        model.digested() if isinstance(model, Extraction) else model.model_dump(mode="json", exclude={"versions"})
    )
    document = {
        "spec": spec.model_dump(mode="json", include={"data", "clip", "sampling", "streams"}),
        "plan": plan_digest,
        "model": scored_by,
        "part": _PART_CLIPS,
    }
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]
