"""The files that a job writes below its `output` URI; `TABLE` lists all of them.

The table also proves that an object may be removed: `is_own` matches whole keys that ESSP writes, so a `model/net.py`
next to `model/manifest.json` belongs to the user (`removal.py`). Not in it is `job.yaml` (`job_copy.py`), which may be
the user's.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Literal, NamedTuple, get_args

Kind = Literal["any", "training", "scoring", "prediction", "extraction"]
"""The kinds of jobs that write an object. `scoring`: predictions and extractions."""


class Line(NamedTuple):
    """A line of the table."""

    key: str
    """Parts in `<>` vary, as defined in `_VARIES`."""
    meaning: str
    of: Kind = "any"


TABLE = (
    Line("spec.json", "the job, exactly as it ran"),
    Line("owner.json", "(jobs of a team) whose output it is"),
    Line("trainers/<trainer>/checkpoints/<step>-<number>/<file>", "weights and state, then manifest.json", "training"),
    Line("trainers/<trainer>/latest/<number>", "the newest: who trains, and the latest checkpoint", "training"),
    Line("trainers/<trainer>/scores/<purpose>-<epoch>.parquet", "per-clip scores of an evaluation phase", "training"),
    Line("trainers/<trainer>/history.json", "the metrics of every phase", "training"),
    Line("model/manifest.json", "the fused model: classes, streams, members, evidence; written last", "training"),
    Line("model/<trainer>-<digest>.safetensors", "the weights of one member: `model/` can be used alone", "training"),
    Line("model/aggregation-<digest>.tensors", "what the strategy of the fused model learned, if it does", "training"),
    Line("aggregator/<digest>/scores", "(long searches) what aggregators try candidates on", "training"),
    Line("aggregator/<digest>/<number>", "the result of one candidate", "training"),
    Line("fused/<split>.parquet", "(strategies that learn from features) fused scores by video", "training"),
    Line("report/report.html", "the report", "training"),
    Line("report/run-<runs>.html", "the report after that many runs of the job", "training"),
    Line("report/<picture>.png", "its pictures", "training"),
    Line("catalog.parquet", "the videos asked about", "scoring"),
    Line("predictor/<digest>/<stream>/<blocks>/<trainer>.parquet", "scores so far (partial_scores.py)", "scoring"),
    Line("predictor/<digest>/<stream>/<blocks>/done.json", "where each of those clips is", "scoring"),
    Line("predictor/runs/<fence>", "what a run of the job scores with", "scoring"),
    Line("predictions.parquet", "the answers", "prediction"),
    Line("segments.parquet", "(jobs that ask for it) where in each video", "prediction"),
    Line("features/<stream>/part-<part>.parquet", "(jobs that extract) the vectors of a source", "extraction"),
    Line("features/<stream>/<video>.npy", "(jobs that extract NumPy files) the vectors of a video", "extraction"),
    Line("features/<stream>-videos.parquet", "(jobs that extract) each video, and why vectors lack", "extraction"),
    Line("features/manifest.json", "(jobs that extract) what there is; written last", "extraction"),
    Line("history/<number>", "the outcome of its clips, a few seconds each (history.py)"),
    Line("history/chapters/<number>-<number>", "older ones, joined"),
    Line("timeline.json", "its course: rates, waiting, what workers used; and the curves within epochs"),
    Line("fences/<number>", "the newest: who may speak for the job"),
    Line("snapshots/<number>", "(jobs with very many classes or phases) what is too large for a message, by its fence"),
    Line("locks/<number>", "(jobs in one process) the process that runs it"),
    Line("deadletters/<time>-<offset>.json", "(jobs in one process) what could not be processed"),
)

_NAME = "[a-z0-9](?:[-a-z0-9_]{0,61}[a-z0-9])?"
_VARIES = {
    "trainer": _NAME,
    "stream": _NAME,
    "step": "[0-9]{10,18}",
    "blocks": "[0-9]{10}(?:-[0-9a-f]{1,128})?",  # without the second number: from earlier versions
    "number": "[0-9]{10}",
    "file": r"manifest\.json|(?:model|trained|optimizer)\.(?:safe)?tensors",  # .safetensors: from earlier versions
    "purpose": "train|validation|test|predict|embed",
    "epoch": "[0-9]{4}",
    "digest": "[0-9a-f]{16}",
    "split": "validation|test",
    "part": "[0-9]{5,9}",
    "video": "(?:[^/]+/)*[^/]+",
    "fence": "[1-9][0-9]{0,18}",
    "runs": "[1-9][0-9]{0,8}",
    "picture": "loss|accuracy|sweeps|confusion|samples|curves",  # curves: from earlier versions
    "time": "[0-9]{13}",
    "offset": "[0-9]{1,19}",
}


def _pattern(key: str) -> str:
    """A pattern for the keys of a line of the table."""
    parts = re.split("<([a-z]+)>", key)
    return "".join(f"(?:{_VARIES[part]})" if place % 2 else re.escape(part) for place, part in enumerate(parts))


_OWN = {of: re.compile("|".join(_pattern(line.key) for line in TABLE if line.of == of)) for of in get_args(Kind)}
FOLDERS = tuple(sorted({line.key.partition("/")[0] + "/" for line in TABLE if "/" in line.key}))
"""The folders of an output, each with its `/`."""
FILES = tuple(line.key for line in TABLE if "/" not in line.key)
"""The top-level files."""


def is_own(key: str, kinds: Collection[Kind] = get_args(Kind)) -> bool:
    """Whether jobs of these kinds write such a key in their output. An object with such a key may still belong to
    someone else: check first whose output it is (`removal.py`)."""
    return any(_OWN[kind].fullmatch(key) for kind in kinds)


SPEC = "spec.json"
OWNER = "owner.json"
TIMELINE = "timeline.json"
CATALOG = "catalog.parquet"
MODEL_MANIFEST = "model/manifest.json"
MODEL = "model"
"""The folder of the fused model."""
_DIGEST_DIGITS = 16
"""Digits of the SHA-256 in the name of a file of the fused model."""
SEARCHES = "aggregator/"
PREDICTIONS = "predictions.parquet"
SEGMENTS = "segments.parquet"
PARTS = "predictor/"
FEATURES = "features/"
REPORT = "report/"
DEADLETTERS = "deadletters/"
FENCES = "fences/"
TRAINERS = "trainers/"
HISTORY = "history/"
LOCKS = "locks/"
SNAPSHOTS = "snapshots/"
CHECKPOINT_MANIFEST = "manifest.json"
"""In the folder of a checkpoint; written last."""

_WEIGHTS = re.compile(r"model/(.+)-[0-9a-f]{16}\.safetensors")
_CHECKPOINT = re.compile(r"trainers/[^/]+/checkpoints/([0-9]{10,18})-([0-9]{10})/(.+)")


def trainer_of(key: str) -> str | None:
    """The trainer to whose objects this key belongs; None if it belongs to none."""
    if key.startswith(TRAINERS):
        return key.split("/")[1]
    found = _WEIGHTS.fullmatch(key)
    return None if found is None else found[1]


def checkpoints(trainer: str) -> str:
    """Prefix of all checkpoints of a trainer."""
    return f"trainers/{trainer}/checkpoints/"


def checkpoint(trainer: str, step: int, incarnation: int) -> str:
    """Prefix of one checkpoint's objects; sorting by name sorts by step."""
    return f"{checkpoints(trainer)}{step:010d}-{incarnation:010d}/"


def checkpoint_object(key: str) -> tuple[int, int, str] | None:
    """Step, incarnation and name of an object of a checkpoint; None for any other key."""
    found = _CHECKPOINT.fullmatch(key)
    return None if found is None else (int(found[1]), int(found[2]), found[3])


def chapter(first: int, last: int) -> str:
    """Joined segments of the job's history."""
    return f"{HISTORY}chapters/{first:010d}-{last:010d}"


def latest(trainer: str) -> str:
    """Prefix of the log that records which process trains and which checkpoint is the latest (see `ownership.py`)."""
    return f"trainers/{trainer}/latest/"


def scores(trainer: str, purpose: str, epoch: int) -> str:
    """The scores of one evaluation phase."""
    return f"trainers/{trainer}/scores/{purpose}-{epoch:04d}.parquet"


def fused_scores(split: str) -> str:
    """The fused scores of the videos of a split."""
    return f"fused/{split}.parquet"


def model_weights(trainer: str, sha256: str) -> str:
    """The weights of one member of the fused model, by the digest of the file."""
    return f"model/{trainer}-{sha256[:_DIGEST_DIGITS]}.safetensors"


def model_state(sha256: str) -> str:
    """The learned state of the fused model's strategy, by the digest of the file."""
    return f"model/aggregation-{sha256[:_DIGEST_DIGITS]}.tensors"


def history(trainer: str) -> str:
    """The metrics of every phase of a trainer."""
    return f"trainers/{trainer}/history.json"
