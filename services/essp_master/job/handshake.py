"""The handshake before a job begins: its seeds go out when each pool that its clips flow through has a worker. Pure.

Without it decoders would fill the job's budget for trainers that nobody has started, and the clips would hold the
frame cache until somebody notices. Workers say in their heartbeats that they are up. A pool that loses its workers
later stops nothing: credits bound what can wait for it.

Where the master divides fewer ranks than the job has trainers, some of them only get their turn when others are done;
they are not waited for. Nor is the aggregator, which has nothing to do before the last checkpoint.

Source: the ESSP paper, whose master asks whether the decoders are ready before it sends them the epoch's seeds.
"""

from __future__ import annotations

from collections.abc import Collection, Set

from essp_common.job.spec import JobSpec
from essp_common.runtime import ids


class Handshake:
    """Of one job."""

    def __init__(self, spec: JobSpec, ranks: int, patience_s: float) -> None:
        """`ranks`: how many the master divides; 0: trainers are started by others. `patience_s`: after so long the
        seeds go out all the same."""
        self._job = spec.name
        features = sorted({stream.feature for stream in spec.streams.values()} - {"rgb"})
        self._makers = (ids.DECODER, *(ids.extractor_pool([feature]) for feature in features))
        self._predictors = () if spec.predictor is None else (ids.PREDICTOR,)
        self._trainers = tuple(spec.trainers)
        self._ranks = ranks
        self._patience_s = patience_s
        self._since_s: float | None = None
        self.lacking: tuple[str, ...] = ()
        """The pools that had no worker at the last look."""

    def look(self, up: Collection[str], finals: Set[str], now_s: float) -> bool:
        """Whether the seeds may go out now. `up`: the pools with a worker. `finals`: trainers that are done."""
        self._since_s = now_s if self._since_s is None else self._since_s
        lacking = [pool for pool in self._makers if not any(ids.serves(other, pool) for other in up)]
        lacking += [pool for pool in self._predictors if pool not in up]
        self.lacking = (*lacking, *self._lacking_trainers(up, finals))
        return not self.lacking or now_s - self._since_s >= self._patience_s

    def rest(self) -> None:
        """The job does not run now: its workers may well have gone, and its patience begins anew when it does."""
        self._since_s = None

    def _lacking_trainers(self, up: Collection[str], finals: Set[str]) -> list[str]:
        pools = [ids.trainer_pool(self._job, name) for name in self._trainers if name not in finals]
        silent = [pool for pool in pools if pool not in up]
        turns = min(self._ranks or len(pools), len(pools))
        return silent if len(pools) - len(silent) < turns else []


def workers_of(pools: Collection[str]) -> str:
    """What is waited for, in words: `a decoder, an extractor of flow and trainer rgb`."""
    *most, last = map(_worker_of, pools)
    return f"{', '.join(most)} and {last}" if most else last


def _worker_of(pool: str) -> str:
    if ids.is_training(pool):
        return f"trainer {ids.training_of(pool)[1]}"
    if features := ids.features_of(pool):
        return f"an extractor of {features[0]}"
    return f"a {pool}"
