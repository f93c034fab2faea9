"""Where a job keeps what it makes, below its `output` URI.

spec.json                                        the job, exactly as it ran
catalog.parquet                                  (predict jobs) the videos asked about
trainers/<trainer>/checkpoints/<step>-<incarnation>/...   weights and state, then manifest.json
trainers/<trainer>/latest/<number>               the newest: which process trains, and its latest checkpoint
trainers/<trainer>/scores/<purpose>-<epoch>.parquet   per-clip scores of an evaluation phase
trainers/<trainer>/history.json                  the metrics of every phase
model/manifest.json                              the fused model: classes, streams, members, evidence; written last
model/<trainer>-<digest>.safetensors             the weights of one member: `model/` can be copied and used alone
fused/<split>.parquet                            (strategies that learn from features) fused scores by video
model/aggregation-<digest>.tensors               (strategies that learn) what the strategy of the fused model learned
predictor/...                                    (predict jobs) what is scored so far (see partial_scores.py)
consumers/<name>.json                            (jobs with consumers) where a loop of the user's own begins
predictions.parquet                              (predict jobs)
segments.parquet                                 (predict jobs that ask for it) where in each video
history/<number>                                 what became of its clips, a few seconds each (see history.py)
history/chapters/<first>-<last>                  older ones, joined
fences/<number>                                  the newest: who may speak for the job
snapshots/<fence>                                (jobs with very many classes or phases) what is too large for a message
locks/<number>                                   (jobs in one process) the process that runs it
report/                                          report.html and its pictures
deadletters/<time>-<number>.json                 (jobs in one process) what could not be processed
"""

from __future__ import annotations

import re

SPEC = "spec.json"
MODEL_MANIFEST = "model/manifest.json"
MODEL = "model"
"""The folder of the fused model."""
_DIGEST_DIGITS = 16
"""Of the SHA-256 of a file of the fused model, in its name."""
PREDICTIONS = "predictions.parquet"
SEGMENTS = "segments.parquet"
PARTS = "predictor/"
REPORT = "report/"
DEADLETTERS = "deadletters/"
FENCES = "fences/"
TRAINERS = "trainers/"
HISTORY = "history/"
LOCKS = "locks/"
SNAPSHOTS = "snapshots/"
CHECKPOINT_MANIFEST = "manifest.json"
"""Within the folder of a checkpoint; written last."""

_CHECKPOINT = re.compile(r"trainers/[^/]+/checkpoints/([0-9]{10,18})-([0-9]{10})/(.+)")


def checkpoints(trainer: str) -> str:
    """Prefix of all checkpoints of a trainer."""
    return f"trainers/{trainer}/checkpoints/"


def checkpoint(trainer: str, step: int, incarnation: int) -> str:
    """Prefix of one checkpoint's objects; steps sort by name."""
    return f"{checkpoints(trainer)}{step:010d}-{incarnation:010d}/"


def checkpoint_object(key: str) -> tuple[int, int, str] | None:
    """Step, incarnation and name of an object of a checkpoint; None for any other key."""
    found = _CHECKPOINT.fullmatch(key)
    return None if found is None else (int(found[1]), int(found[2]), found[3])


def chapter(first: int, last: int) -> str:
    """Segments of the job's history, joined."""
    return f"{HISTORY}chapters/{first:010d}-{last:010d}"


def latest(trainer: str) -> str:
    """Prefix of the log that says who trains and which checkpoint is the latest (see `ownership.py`)."""
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
    """What the strategy of the fused model learned, by the digest of the file."""
    return f"model/aggregation-{sha256[:_DIGEST_DIGITS]}.tensors"


def history(trainer: str) -> str:
    """The metrics of every phase of a trainer."""
    return f"trainers/{trainer}/history.json"
