"""The handshake before a job begins: its seeds wait until each pool that its clips flow through has a worker. Pure.

Without it, decoders would fill the job's budget for trainers that were never started, and the clips would occupy the
frame cache until someone notices. Workers announce themselves with heartbeats. A pool that loses its workers later
stops nothing: credits bound the clips that can wait for it.

If the master divides fewer ranks than the job has trainers, some trainers get their turn only when others are done; the
handshake does not wait for them. Nor does it wait for the aggregator, which has nothing to do before the last
checkpoint.

Source: the ESSP paper, whose master asks whether the decoders are ready before it sends them the epoch's seeds.
"""

from __future__ import annotations

from collections.abc import Collection, Set

from essp_common.job.spec import JobSpec
from essp_common.runtime import ids


class Handshake:
    """The handshake of one job."""

    def __init__(self, spec: JobSpec, ranks: int, patience_s: float) -> None:
        """`ranks`: how many the master divides; 0 if it does not start trainers. `patience_s`: after this long, seeds
        are issued regardless."""
        self._job = spec.name
        features = sorted({stream.feature for stream in spec.streams.values()} - {"rgb"})
        self._makers = (ids.DECODER, *(ids.extractor_pool([feature]) for feature in features))
        self._predictors = (ids.PREDICTOR,) if spec.predicts else ()
        self._trainers = tuple(spec.trainers)
        self._ranks = ranks
        self._patience_s = patience_s
        self._since_s: float | None = None
        self.lacking: tuple[str, ...] = ()
        """The pools that had no worker at the last check."""

    def look(self, up: Collection[str], finals: Set[str], now_s: float) -> bool:
        """Check whether the seeds may be issued now. `up`: the pools that have a worker. `finals`: trainers that are
        done."""
        self._since_s = now_s if self._since_s is None else self._since_s
        lacking = [pool for pool in self._makers if not any(ids.serves(other, pool) for other in up)]
        lacking += [pool for pool in self._predictors if pool not in up]
        self.lacking = (*lacking, *self._lacking_trainers(up, finals))
        return not self.lacking or now_s - self._since_s >= self._patience_s

    def rest(self) -> None:
        """The job does not run now. Its workers may leave, so its patience starts again when it resumes."""
        self._since_s = None

    def _lacking_trainers(self, up: Collection[str], finals: Set[str]) -> list[str]:
        pools = [ids.trainer_pool(self._job, name) for name in self._trainers if name not in finals]
        silent = [pool for pool in pools if pool not in up]
        turns = min(self._ranks or len(pools), len(pools))
        return silent if len(pools) - len(silent) < turns else []


def workers_of(pools: Collection[str]) -> str:
    """What the job waits for, in words: `a decoder, an extractor of flow and trainer rgb`."""
    *most, last = map(_worker_of, pools)
    return f"{', '.join(most)} and {last}" if most else last


def _worker_of(pool: str) -> str:
    if ids.is_training(pool):
        return f"trainer {ids.training_of(pool)[1]}"
    if features := ids.features_of(pool):
        return f"an extractor of {features[0]}"
    return f"a {pool}"
