"""Checks the seven invariants on the account of a job. Each check lists its violations with the affected clips.

conservation       every consumer trained or skipped every clip of a completed job, and only clips that were issued;
                   a trainer that stopped early had nothing to do from that point to the phases after all epochs
no double count    no consumer was credited with a clip twice in one run
no leak            outstanding bytes never exceeded the budget, and the cache has no data of the job after its end;
                   undecided if the last search freed something and the master was killed before the next one
exact resume       each checkpoint has seen each planned clip once: its digest equals the digest of the plan. It
                   contains the changes to the running job that were due before it, from the announced positions on.
                   A training that resumed from rounded numbers is reported as approximate: its clips are the planned
                   ones, but its weights are only close to those of an uninterrupted training
one master         fences never decrease, and each master begins with a new one
liveness           all state changes are allowed, and a running job is not stalled
API = truth        the counters of the API equal the counters computed from the history
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from itertools import pairwise
from typing import Protocol

import numpy as np
from pydantic import BaseModel, ConfigDict

from essp.account import Account, Run, Saved, open_clips
from essp_common.errors import ConfigError
from essp_common.job.lifecycle import allows
from essp_common.job.position import Position
from essp_common.job.status import JobState, JobStatus, stored_status
from essp_common.quantities import counted, percent
from essp_common.runtime import ids

_SHOWN = 10
_SILENCE_MS = 65 * 60 * 1000
"""A job with outstanding clips is stuck if there is no event for this long. The master issues clips again after
`ESSP_STALL_S`, and after an hour at the latest."""
_SEARCHES = 3
"""If this number of consecutive searches each found keys of an ended job, something is still storing them."""
_COUNTED = ("issued", "decoded", "extracted", "failed", "replaced", "skipped", "lost")


class Finding(BaseModel):
    """The result of checking one invariant."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    invariant: str
    holds: bool | None
    """Null: it could not be checked, for the reason in `checked`."""
    checked: str
    """What was checked, in one line."""
    violations: tuple[str, ...] = ()
    """The first violations, and the number of further ones."""


class PlanDigests(Protocol):
    """Digests of the planned clips."""

    def digest(
        self,
        until: Position,
        attempts: Mapping[int, Mapping[int, int]],
        skipped: Mapping[int, Set[int]],
        epochs: int,
        stopped: Position | None,
    ) -> str: ...


def check(account: Account, plan: PlanDigests | None, status: JobStatus | None, now_ms: int) -> list[Finding]:
    """Check all invariants. `plan`: None if it cannot be computed. `status`: the API's status of the job, if known."""
    if not account.runs:
        return [Finding(invariant="conservation", holds=None, checked="the history holds no run of the job")]
    run = account.runs[-1]
    return [
        _conservation(account, run),
        _no_double_count(account),
        _no_leak(account),
        _exact_resume(account, plan),
        _one_master(account),
        _liveness(account, run, now_ms),
        _api_is_truth(account, run, status),
    ]


def _finding(invariant: str, checked: str, violations: list[str]) -> Finding:
    shown = violations[:_SHOWN] + ([f"and {len(violations) - _SHOWN} more"] if len(violations) > _SHOWN else [])
    return Finding(invariant=invariant, holds=not violations, checked=checked, violations=tuple(shown))


def _conservation(account: Account, run: Run) -> Finding:
    violations = []
    completed = account.state == JobState.COMPLETED
    for number in range(len(run.snapshot.phases)):
        for consumer in run.lasting:
            marks, first = run.done[consumer][number], run.first(consumer, number)
            here = (marks > 0) & (run.before[consumer][number] == 0)
            unissued = np.flatnonzero(here[first:] & (run.issued[number][first:] == 0)) + first
            violations += [f"{consumer} trained clip {i} of phase {number}, which was not issued" for i in unissued]
            if completed:
                missing = np.flatnonzero(run.gone(consumer, number) == 0)
                violations += [f"{consumer} never trained clip {i} of phase {number}" for i in missing]
    clips = sum(plan.clips for plan in run.snapshot.phases)
    phases, consumers = counted(len(run.snapshot.phases), "phase"), counted(len(run.lasting), "consumer")
    what = f"{counted(clips, 'clip')} of {phases}, {consumers}"
    if loops := len(run.done) - len(run.lasting):
        what += f" (and {counted(loops, 'loop')} that say themselves what they have had)"
    for consumer, position in sorted(run.stopped.items()):
        what += f"; {consumer} stopped early, before {_text(position)}"
    return _finding("conservation", what if completed else f"{what}; {open_clips(run)} under way", violations)


def _no_double_count(account: Account) -> Finding:
    violations, trained = [], 0
    for run in account.runs:
        for consumer in run.lasting:
            for number, marks in enumerate(run.done[consumer]):
                trained += int(np.count_nonzero(marks[run.first(consumer, number) :]))
                twice = np.flatnonzero(marks > 1)
                violations += [
                    f"{consumer} was credited with clip {i} of phase {number} {marks[i]} times" for i in twice
                ]
    what = f"{counted(trained, 'clip')} trained in {counted(len(account.runs), 'run')}"
    return _finding("no double count", what, violations)


def _no_leak(account: Account) -> Finding:
    violations = [
        f"{peak} bytes were outstanding, the budget is {budget}" for peak, budget in account.peaks if peak > budget
    ]
    most, budget = max(account.peaks, default=(0, 0), key=lambda sample: sample[0] / max(sample[1], 1))
    checked = f"{counted(len(account.peaks), 'sample')}, at most {percent(most / max(budget, 1), 0)} of the budget"
    if account.state == JobState.COMPLETED and account.outstanding != (0, 0):
        violations.append(f"{account.outstanding[0]} bytes of {account.outstanding[1]} clips were never released")
    if account.sweeps:
        checked += f"; cache searched {counted(len(account.sweeps), 'time')} after the end"
    if (found := account.sweeps[-1:]) and found[0]:
        # A search frees what it finds. Workers learn about the end a moment later, so only repeated findings are a
        # leak.
        if all(account.sweeps[-_SEARCHES:]) and len(account.sweeps) >= _SEARCHES:
            violations.append(
                f"{counted(found[0], 'key')} of the job came into the cache after its end, the last of {_SEARCHES} "
                "searches in a row that found some"
            )
        elif not violations:
            unsure = f"{checked}; the last one freed {counted(found[0], 'key')}, and the master ended before another"
            return Finding(invariant="no leak", holds=None, checked=unsure)
    elif JobState(account.state).ended and not account.sweeps:
        checked += "; the cache was not searched after the end"
    return _finding("no leak", checked, violations)


def _exact_resume(account: Account, plan: PlanDigests | None) -> Finding:
    name = "exact resume"
    if plan is None:
        return Finding(invariant=name, holds=None, checked="the plan cannot be computed: the catalog cannot be read")
    violations = [
        f"{_checkpoint(saved)} has seen unplanned clips: its digest is {saved.digest or 'missing'}, not {wanted}"
        for saved in account.saved
        if saved.digest != (wanted := _digest(plan, saved))
    ]
    violations += _lineage(account)
    violations += _changes(account)
    what = f"{counted(len(account.saved), 'checkpoint')} against the plan"
    if account.changes:
        what += f" and {counted(len(account.changes), 'change')} of the running job"
    checked = "; ".join([what, *_approximate(account)])
    return _finding(name, checked, violations)


def _digest(plan: PlanDigests, saved: Saved) -> str:
    return plan.digest(saved.position, saved.attempts, saved.skipped, saved.epochs, saved.stopped)


def _approximate(account: Account) -> list[str]:
    """One sentence for each training that is not bit-identical to an uninterrupted one."""
    rounded = {saved.trainer: saved.approximate for saved in account.saved if saved.approximate}
    return [
        f"trainer {trainer} is approximate from step {steps[0]} on: it resumed from a checkpoint of rounded numbers"
        for trainer, steps in sorted(rounded.items())
    ]


def _changes(account: Account) -> list[str]:
    """Check that each checkpoint contains the changes to the job that its trainer announced.

    A trainer that died before it saved a change may have announced several places for it. The last one counts.
    """
    violations = []
    for saved in account.saved:
        for number, place in saved.changes.items():
            if place not in account.taken.get((saved.trainer, number), []):
                violations.append(
                    f"{_checkpoint(saved)} has change {number} from {place} on, which was never announced"
                )
            if place > saved.place:
                violations.append(f"{_checkpoint(saved)} has change {number} from {place} on, which it has not reached")
        for number in sorted(saved.told - saved.changes.keys()):
            if (last := max(account.taken[saved.trainer, number])) < saved.place:
                violations.append(f"{_checkpoint(saved)} lacks change {number}, taken from {last} on")
    return violations


def _lineage(account: Account) -> list[str]:
    """Check that each trainer begins a run at a checkpoint, and ends a completed job with a final one."""
    known = {(ids.trainer_consumer(saved.trainer), saved.position) for saved in account.saved}
    violations = []
    for run in account.runs[1:]:
        for consumer, start in run.start.items():
            if start > Position(0, 0) and ids.service_of(consumer) == ids.TRAINER and (consumer, start) not in known:
                violations.append(f"{consumer} began at {_text(start)}, where it has no checkpoint")
    if account.state == JobState.COMPLETED:
        finals = {saved.trainer for saved in account.saved if saved.final}
        violations += [
            f"trainer {name} has no final checkpoint" for name in account.runs[-1].spec.trainers if name not in finals
        ]
    return violations


def _one_master(account: Account) -> Finding:
    violations = []
    for (before, _), (fence, begins) in pairwise(account.fences):
        if fence < before:
            violations.append(f"an entry with fence {fence} was accepted after one with {before}")
        elif begins and fence == before:
            violations.append(f"a master began with fence {fence}, which another one had")
        elif not begins and fence > before:
            violations.append(f"an entry has fence {fence}, but no master began with it")
    masters = len({fence for fence, _ in account.fences})
    what = f"{counted(len(account.fences), 'entry')} of {counted(masters, 'master')}"
    return _finding("one master", what, violations)


def _liveness(account: Account, run: Run, now_ms: int) -> Finding:
    states = [JobState.PENDING, *map(JobState, account.states)]
    violations = [
        f"the job went from {before} to {after}" for before, after in pairwise(states) if not allows(before, after)
    ]
    silent_ms = now_ms - account.last_ms
    if states[-1] is JobState.RUNNING and account.outstanding[1] and silent_ms > _SILENCE_MS:
        violations.append(
            f"{account.outstanding[1]} clips are outstanding, and nothing has happened for {silent_ms / 6e4:.0f} min"
        )
    if states[-1] is JobState.COMPLETED and open_clips(run):
        violations.append(f"the job is completed, and {open_clips(run)} clips were never finished")
    what = f"{states[-1]}, {counted(account.takeovers, 'takeover')} in {counted(len(account.runs), 'run')}"
    return _finding("liveness", what, violations)


def _api_is_truth(account: Account, run: Run, status: JobStatus | None) -> Finding:
    """Compare the history with the stored ledger and the API. While a job runs, the history lags behind the API."""
    name = "API = truth"
    violations: list[str] = []
    if account.ledger is not None:
        stored = {name: account.ledger.counts.get(name, 0) for name in _COUNTED}
        violations += _differences("the ledger", stored, run, lambda reported, found: reported == found)
    if status is None and account.status_json:
        try:
            status = stored_status(account.status_json, "the status in the history")
        except ConfigError as error:
            violated = tuple(violations)
            return Finding(invariant=name, holds=False if violated else None, checked=str(error), violations=violated)
    if status is not None:
        ended = status.state.ended and account.state == status.state
        counts = {name: getattr(status.counts, name) for name in _COUNTED}
        agree = (lambda reported, found: reported == found) if ended else (lambda reported, found: reported >= found)
        violations += _differences("the API", counts, run, agree)
        violations += _wrong_phases(status, run, agree)
    return _finding(name, f"{len(_COUNTED)} counters and the progress of each phase", violations)


def _differences(source: str, counts: Mapping[str, int], run: Run, agree: Callable[[int, int], bool]) -> list[str]:
    return [
        f"{source} says {counts[name]} {name}, the history {run.counts[name]}"
        for name in _COUNTED
        if not agree(counts[name], run.counts[name])
    ]


def _wrong_phases(status: JobStatus, run: Run, agree: Callable[[int, int], bool]) -> list[str]:
    violations = []
    for number, phase in enumerate(status.phases):
        for consumer in run.lasting:
            done = phase.done.get(consumer, 0)
            found = int(np.count_nonzero(run.gone(consumer, number)))
            if not agree(done, found):
                violations.append(f"the API says {consumer} did {done} clips of phase {number}, the history {found}")
    return violations


def _checkpoint(saved: Saved) -> str:
    return f"checkpoint {saved.step} of {saved.trainer} (at {_text(saved.position)})"


def _text(position: Position) -> str:
    return f"clip {position.index} of phase {position.phase_index}"
