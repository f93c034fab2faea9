"""What limits the rate of a job, in one sentence: the same words in the API, on the page and in the terminal.

Pure, and computed from what users see anyway (`essp_common/job/status.py`, `essp_common/job/usage.py`), so the sentence
never contradicts the figures next to it. It examines the flow from its end to its beginning:

    a trainer waits for clips       their producer is too slow: the pool with the most clips queued per worker
    ... and no more is issued       another consumer holds it up: the slowest trainer, or the budget is too small
    no trainer waits                the slowest trainer limits the rate, and nothing before it does

A trainer that waits because it is as far ahead as it may be is not short of clips. Nothing is claimed about unknown
figures: a job that is not running has no bottleneck, nor has one whose workers have not reported anything. A condition
that stops the job (`hindrance.py`) is the bottleneck, whatever the figures say.
"""

from __future__ import annotations

from collections.abc import Sequence

from essp_common.job.status import BottleneckStatus, JobState, JobStatus, PoolStatus, TrainerStatus
from essp_common.job.usage import ONE_PROCESS, PoolUsage, Usage
from essp_common.quantities import counted, percent, size
from essp_common.runtime import ids
from essp_common.runtime.conditions import Condition
from essp_common.runtime.troubles import Kind
from essp_master.job.handshake import workers_of

WAITS = 0.05
"""A trainer that waits for clips for more than this share of its time is short of them (as `Policy.wait_high`)."""
_FULL = 0.95
"""Used share from which the frame cache counts as full."""
_MUCH = 0.5
"""Used share of the budget from which the next clips may not fit into the rest. Below it, the bound on the lead holds
them back."""
_BUSY, _IDLE = 0.85, 0.5
"""Shares of cores, or of a GPU's time, from which on it counts as busy, and up to which it has room."""
_TAKERS = {"predict": "The predictors", "extract": "The predictors", "feed": "The loops that take the clips"}


def bottleneck(job: JobStatus, stops: Condition | None = None, usage: Usage | None = None) -> BottleneckStatus | None:
    """Return what limits the job; None if it does not run or nothing is known yet. `stops`: what keeps it from
    working. `usage`: what the workers use."""
    found = _bottleneck(job, stops)
    if found is None or usage is None or stops is not None or job.awaits or _unmade(job) is not None:
        return found
    uses = _uses(job, found.part, usage)
    return found.model_copy(update={"words": f"{found.words} {uses}"}) if uses else found


def _bottleneck(job: JobStatus, stops: Condition | None) -> BottleneckStatus | None:
    if job.state is not JobState.RUNNING or job.progress.done >= job.progress.total:
        return None
    if stops is not None and stops.kind is Kind.PAUSED:
        who = f"The {_workers(stops.subject)} are paused: `essp pool resume {stops.subject}` lets them work again."
        return BottleneckStatus(part=stops.subject, words=who)
    if stops is not None:
        return BottleneckStatus(part=_part(stops.subject), words=f"{stops.line}.")
    if job.awaits:
        words = f"The job begins when its workers are up; it waits for {workers_of(job.awaits)}."
        return BottleneckStatus(part=_part(job.awaits[0]), words=words)
    if (unmade := _unmade(job)) is not None:
        return unmade
    if job.kind != "train":
        return _without_trainers(job)
    known = [t for t in job.trainers if not t.final and t.data_wait_ratio is not None and not t.waits_for]
    if not known:
        return _unreported(job)
    hungry = max(known, key=_wait)
    if _wait(hungry) <= WAITS:
        return _slowest(job, known)
    fed = [trainer for trainer in known if _wait(trainer) <= WAITS]
    if job.credits.waiting and fed:
        return _slowest(job, fed, f"; {hungry.name} waits, as no more is issued until others have taken theirs")
    effect = f"; {hungry.name} waits for clips for {percent(_wait(hungry), 0)} of its time"
    return _supply(job, (hungry.stream,), effect)


def _uses(job: JobStatus, part: str, usage: Usage) -> str:
    """Say what the machines of the limiting part have left, and what that means; empty if it says nothing new."""
    trainer = next((t.name for t in job.trainers if part == ids.trainer_consumer(t.name)), None)
    pool = part if trainer is None else ids.trainer_pool(job.name, trainer)
    rows = {row.pool: row for row in usage.pools}
    known = [row for name, row in rows.items() if row.cores and (name == pool or ids.serves(name, pool))]
    alone = bool(known)
    if not alone and any(pool in process.pools or trainer is not None for process in usage.processes):
        known = [row for name, row in rows.items() if name == ONE_PROCESS]
    if not part or not known:
        return ""
    row = known[0]
    if trainer is not None and row.gpu_busy is not None:
        return _gpu_words(row)
    if row.cpu_cores is None or not row.cores:
        return ""
    cores = f"{row.cpu_cores:.1f} of {row.cores:g} cores"
    whose = ("Its process uses" if trainer is not None else "Its workers use") if alone else "The whole process uses"
    if row.cpu_cores >= _BUSY * row.cores:
        return f"{whose} {cores}: more cores would make it faster."
    if trainer is None and row.cpu_cores <= _IDLE * row.cores:
        return f"{whose} {cores}: there is room for more workers."
    return ""


def _gpu_words(row: PoolUsage) -> str:
    busy = row.gpu_busy or 0.0
    gpus = "Its GPU is" if row.gpus == 1 else f"Its {row.gpus} GPUs are"
    if busy >= _BUSY:
        return f"{gpus} {percent(busy, 0)} busy."
    if busy > _IDLE:
        return ""
    if row.cpu_cores is not None and row.cores and row.cpu_cores >= _BUSY * row.cores:
        cores = f"{row.cpu_cores:.1f} of {row.cores:g}"
        return f"{gpus} only {percent(busy, 0)} busy, because its cores are ({cores}): give it more of them."
    return f"{gpus} only {percent(busy, 0)} busy: try a larger batch_size."


def _full(job: JobStatus) -> bool:
    """Whether nothing more fits into the budget."""
    return job.credits.waiting and job.credits.outstanding_bytes >= _MUCH * job.credits.budget_bytes


def _wait(trainer: TrainerStatus) -> float:
    """Return the trainer's share of waiting. A trainer that is fitting waits for nothing, whatever it did before."""
    return trainer.data_wait_ratio or 0.0 if trainer.fit is None else 0.0


def _part(pool: str) -> str:
    return ids.trainer_consumer(ids.training_of(pool)[1]) if ids.is_training(pool) else pool


def _unmade(job: JobStatus) -> BottleneckStatus | None:
    """Clips wait, and no worker of their kind has made one yet."""
    made = {pool.name for pool in job.pools if pool.done}
    if (waiting := job.backlog.get(ids.DECODER, 0)) and ids.DECODER not in made:
        words = f"No decoder has reported a clip yet: {counted(waiting, 'clip')} queued."
        return BottleneckStatus(part=ids.DECODER, words=words)
    for stream, feature in job.streams.items():
        pool = ids.extractor_pool([feature])
        if (waiting := job.backlog.get(stream, 0)) and pool not in made:
            queued = f"{counted(waiting, 'clip')} of {stream} queued"
            return BottleneckStatus(part=pool, words=f"No extractor of {feature} has reported a clip yet: {queued}.")
    return None


def _unreported(job: JobStatus) -> BottleneckStatus | None:
    """Clips were made, but no trainer has reported yet: they are starting, or were never started."""
    silent = [trainer.name for trainer in job.trainers if not trainer.final]
    if any(trainer.purpose for trainer in job.trainers) or not silent or not any(pool.done for pool in job.pools):
        return None
    since = "since the job resumed" if any(trainer.reports for trainer in job.trainers) else "yet"
    waiting = f"{counted(job.credits.outstanding_clips, 'clip')} on the way to {', '.join(silent)}"
    return BottleneckStatus(part=ids.trainer_consumer(silent[0]), words=f"No trainer has reported {since}: {waiting}.")


def _slowest(job: JobStatus, trainers: Sequence[TrainerStatus], effect: str = "") -> BottleneckStatus:
    """Return the trainer that has the most left to do. `effect`: the consequence, as a clause."""
    done = {t.name: sum(phase.done.get(ids.trainer_consumer(t.name), 0) for phase in job.phases) for t in trainers}
    slowest = min(trainers, key=lambda trainer: done[trainer.name])
    behind = [trainer.name for trainer in job.trainers if trainer.waits_for == slowest.name]
    rate = "" if slowest.clips_per_s is None else f"trains {slowest.clips_per_s:.1f} clips/s and "
    ahead = f"; {', '.join(behind)} may not get further ahead of it" if behind else ""
    does = f"{rate}waits for clips for only {percent(_wait(slowest), 0)} of its time"
    if slowest.fit is not None:
        does = slowest.fit.words
    words = f"Trainer {slowest.name} limits the rate: it {does}{ahead}{effect}."
    return BottleneckStatus(part=ids.trainer_consumer(slowest.name), words=words)


def _without_trainers(job: JobStatus) -> BottleneckStatus | None:
    """For jobs whose consumers do not report how long they wait."""
    if any(pool.queue for pool in job.pools if pool.name != ids.PREDICTOR):
        return _supply(job, tuple(job.streams), "")
    if not job.credits.waiting:
        return None
    held = "no more is issued until they have taken what is made"
    if _full(job):
        held = f"the budget of {size(job.credits.budget_bytes)} is full of clips that wait for them"
    return BottleneckStatus(part="consumers", words=f"{_TAKERS[job.kind]} limit the rate: {held}.")


def _supply(job: JobStatus, streams: Sequence[str], effect: str) -> BottleneckStatus:
    """The producers of these streams' clips are too slow: say which, and why. `effect`: the consequence, as a
    clause."""
    cache, budget = job.cache, size(job.credits.budget_bytes)
    if cache is not None and cache.limit_bytes and cache.used_bytes >= _FULL * cache.limit_bytes:
        used = f"{size(cache.used_bytes)} of {size(cache.limit_bytes)} are used, and workers wait for room"
        return BottleneckStatus(part="cache", words=f"The frame cache limits the rate: {used}{effect}.")
    feeding = {ids.DECODER, *(ids.extractor_pool([job.streams[stream]]) for stream in streams if stream in job.streams)}
    pools = [pool for pool in job.pools if pool.name in feeding and pool.queue]
    if pools:
        longest = max(pools, key=lambda pool: pool.queue / max(1, pool.workers))
        return BottleneckStatus(part=longest.name, words=f"{_pool(longest)}{effect}.")
    if _full(job):
        used = f"all {budget} of it are in use, and no clip is queued"
        return BottleneckStatus(part="budget", words=f"limits.budget limits the rate: {used}{effect}.")
    return BottleneckStatus(part="", words=f"No clip is queued at any worker{effect}.")


def _pool(pool: PoolStatus) -> str:
    if not pool.workers:
        kind, _, feature = pool.name.partition(".")
        one = f"No {kind} of {feature}" if feature else f"No {kind}"
        return f"{one} has made a clip lately: {counted(pool.queue, 'clip')} queued"
    who = f"The {_workers(pool.name)}"
    cost = "" if pool.seconds_per_clip is None else f" that take {1000 * pool.seconds_per_clip:.1f} ms a clip"
    return f"{who} limit the rate: {counted(pool.queue, 'clip')} queued at {counted(pool.workers, 'worker')}{cost}"


def _workers(pool: str) -> str:
    """The workers of a pool, in words: `extractors of flow`."""
    kind, _, feature = pool.partition(".")
    return f"{kind}s" + (f" of {feature}" if feature else "")
