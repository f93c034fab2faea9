"""The audit of a job's history finds nothing in a sound one, and what was done to each of the others.

The sound one is made by a real master over memory adapters. It is doctored in one place for each invariant; and
mechanisms are switched off in the master, so that the history it writes itself tells of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from essp.account import account_of
from essp.audit.invariants import _SILENCE_MS, Finding, check
from essp.audit.plan import Planned, planned
from essp_common.artifacts.history import History
from essp_common.errors import Fenced
from essp_common.job.position import Position
from essp_common.objects.directory import DirectoryStore
from essp_common.pb.v1.messages_pb2 import (
    AGGREGATOR,
    ChangeTaken,
    CheckpointReady,
    Finished,
    HistoryEntry,
    HistorySegment,
    PhaseEvents,
    Progress,
    Trouble,
)
from essp_common.wiring import Adapters
from essp_engine.intake.ordered import Delivery, OrderedIntake
from essp_engine.planning.digest import as_text, joined, ref_digest
from essp_master.config import MasterSettings
from essp_master.job.stall_watch import StallWatch
from essp_master.ledger.outstanding import Credits
from essp_master.service import Master
from tests.harness.fleet import Fleet, make_job, master_over, run_to_rest, save_checkpoint
from tests.harness.masters import die

INVARIANTS = ["conservation", "no double count", "no leak", "exact resume", "one master", "liveness", "API = truth"]
LAST = Position(5, 0)


class Audited:
    """A job with a master, workers, and trainers that keep digests as real ones do."""

    def __init__(self, adapters: Adapters, folder: Path, bad: str = "") -> None:
        self.fleet = Fleet(adapters, make_job(folder), bad=lambda unit: "bad" if unit.video.id == bad else "")
        self.adapters = adapters
        self.master: Master = master_over(adapters, history_s=0.0)
        self.seen: dict[str, list[int]] = {}

    def run(self, then: Callable[[], None] = lambda: None) -> list[HistorySegment]:
        """The whole job, and `then` before it completes; its history."""
        self.master.start(self.fleet.job)
        self.watch()
        run_to_rest(self.master, self.fleet)
        then()
        for trainer in self.fleet.job.trainers:
            self.save(trainer)
        self.fleet.report(Progress(finished=Finished(stage=AGGREGATOR, uri="file:///model"), fence=1))
        return self.ended()

    def ended(self) -> list[HistorySegment]:
        """Have the master account for all, look through the cache, and leave; the history."""
        run_to_rest(self.master, self.fleet)
        self.master.drain()
        self.master.run()
        return list(History(self.adapters.stores.under(self.fleet.job.output)).read())

    def watch(self) -> None:
        """Digest what trainers finish."""
        self.fleet.learn()
        for consumer, intake in self.fleet.intakes.items():
            self.seen[consumer] = []
            self._watch(intake, self.seen[consumer])

    def save(self, trainer: str) -> None:
        """A final checkpoint with the digest of what was seen."""
        self.fleet.report(
            Progress(
                fence=1,
                checkpoint=CheckpointReady(
                    trainer=trainer,
                    final=True,
                    step=45,
                    position=LAST.message(),
                    digest=as_text(joined(self.seen[f"trainer.{trainer}"])),
                ),
            )
        )

    def plan(self) -> Planned:
        return planned(self.fleet.job, self.adapters.stores)

    def _watch(self, intake: OrderedIntake, seen: list[int]) -> None:
        finish = intake.finish

        def watched(items: list[Delivery]) -> None:
            seen.extend(ref_digest(item.phase_index, item.clip) for item in items if not item.skipped)
            finish(items)

        intake.finish = watched  # type: ignore[method-assign, assignment]


def audit(job: Audited, segments: list[HistorySegment]) -> dict[str, Finding]:
    account = account_of(segments)
    return {finding.invariant: finding for finding in check(account, job.plan(), None, account.last_ms)}


def broken(findings: dict[str, Finding]) -> dict[str, str]:
    return {name: found.violations[0] for name, found in findings.items() if not found.holds}


@pytest.mark.parametrize("bad", ["", "train/v2.mp4", "test/v1.mp4"])
def test_a_sound_history_holds(adapters: Adapters, tmp_path: Path, bad: str) -> None:
    """Also with videos that cannot be decoded: replaced in training, skipped in evaluation."""
    job = Audited(adapters, tmp_path, bad)
    findings = audit(job, job.run())
    assert list(findings) == INVARIANTS
    assert broken(findings) == {}
    assert "44 clips of 5 phases, 2 consumers" in findings["conservation"].checked
    assert findings["liveness"].checked == "completed, 0 takeovers in 1 run"
    assert findings["one master"].checked.endswith(" entries of 1 master")


def test_what_a_trainer_did_in_the_run_before_need_not_be_issued(adapters: Adapters, tmp_path: Path) -> None:
    job = Audited(adapters, tmp_path)
    segments = job.run()
    for entry in entries(segments):
        for events in entry.phases:
            if events.phase_index == 0:
                del events.issued.lengths[:]
                for consumer, runs in events.trained.items():
                    events.trained_before[consumer].CopyFrom(runs)
                events.trained.clear()
    findings = broken(audit(job, segments))
    assert "conservation" not in findings
    assert "no double count" not in findings


def entries(segments: list[HistorySegment]) -> Iterator[HistoryEntry]:
    for segment in segments:
        yield from segment.entries


def trained(segments: list[HistorySegment]) -> tuple[HistoryEntry, PhaseEvents]:
    """Some entry in which clips of the first phase are trained."""
    for entry in entries(segments):
        for events in entry.phases:
            if events.phase_index == 0 and events.trained["trainer.rgb"].lengths:
                return entry, events
    raise AssertionError("nothing was trained")


def lose_a_clip(segments: list[HistorySegment]) -> None:
    del trained(segments)[1].trained["trainer.rgb"].lengths[:]


def train_a_clip_twice(segments: list[HistorySegment]) -> None:
    entry, events = trained(segments)
    segments[-1].entries.add(time_ms=entry.time_ms, fence=entry.fence, phases=[events])


def train_what_was_not_issued(segments: list[HistorySegment]) -> None:
    for entry in entries(segments):
        for events in entry.phases:
            if events.phase_index == 0:
                del events.issued.lengths[:]


def exceed_the_budget(segments: list[HistorySegment]) -> None:
    sample = next(entry for entry in entries(segments) if entry.budget_bytes)
    sample.peak_bytes = sample.budget_bytes + 1


def leak_a_key(segments: list[HistorySegment], searches: int = 3) -> None:
    for _ in range(searches):
        segments[-1].entries.add(time_ms=1, fence=1, swept=True, stray_keys=1)


def train_another_clip(segments: list[HistorySegment]) -> None:
    for entry in entries(segments):
        if entry.checkpoint.trainer == "rgb":
            entry.checkpoint.digest = as_text(joined([int(entry.checkpoint.digest, 16), 1]))


def forget_the_final_checkpoint(segments: list[HistorySegment]) -> None:
    for entry in entries(segments):
        if entry.HasField("checkpoint"):
            entry.checkpoint.final = False


def accept_a_lower_fence(segments: list[HistorySegment]) -> None:
    segments[0].entries[0].fence = 2


def begin_with_a_used_fence(segments: list[HistorySegment]) -> None:
    segments[-1].entries.add(time_ms=1, fence=1, taken_over=True)


def resume_what_is_over(segments: list[HistorySegment]) -> None:
    segments[-1].entries.add(time_ms=1, fence=1, state="paused")


def count_wrong(segments: list[HistorySegment]) -> None:
    segments[-1].ledger.counts["decoded"] += 1


def tell_wrong(segments: list[HistorySegment]) -> None:
    told = segments[-1].status_json
    segments[-1].status_json = told.replace('"issued":44,"decoded"', '"issued":45,"decoded"')
    assert segments[-1].status_json != told


def keep_bytes(segments: list[HistorySegment]) -> None:
    segments[-1].entries.add(time_ms=1, fence=1, budget_bytes=9, outstanding_bytes=5, outstanding_clips=1)


def write_under_a_fence_of_nobody(segments: list[HistorySegment]) -> None:
    segments[-1].entries.add(time_ms=1, fence=9)


def said(trainer: str, epoch: int) -> ChangeTaken:
    """That a trainer has the first change from an epoch on."""
    return ChangeTaken(trainer=trainer, number=1, place={"epoch": epoch})


def hold_a_change(segments: list[HistorySegment], epoch: int) -> None:
    for entry in entries(segments):
        if entry.checkpoint.trainer == "rgb":
            entry.checkpoint.changes.append(said("rgb", epoch))


def hold_a_change_that_nobody_said(segments: list[HistorySegment]) -> None:
    hold_a_change(segments, 1)


def hold_a_change_too_early(segments: list[HistorySegment]) -> None:
    segments[0].entries.add(time_ms=1, fence=1, change_taken=said("rgb", 7))
    hold_a_change(segments, 7)


def lack_a_change(segments: list[HistorySegment]) -> None:
    segments[0].entries.add(time_ms=1, fence=1, change_taken=said("rgb", 1))


DOCTORED: dict[Callable[[list[HistorySegment]], None], tuple[str, str]] = {
    lose_a_clip: ("conservation", "trainer.rgb never trained clip 0 of phase 0"),
    train_a_clip_twice: ("no double count", "was credited with clip 0 of phase 0 2 times"),
    train_what_was_not_issued: ("conservation", "trained clip 0 of phase 0, which was not issued"),
    exceed_the_budget: ("no leak", "65537 bytes were outstanding, the budget is 65536"),
    leak_a_key: ("no leak", "1 key of the job came into the cache after its end"),
    train_another_clip: ("exact resume", "checkpoint 45 of rgb (at clip 0 of phase 5) has seen unplanned clips"),
    keep_bytes: ("no leak", "5 bytes of 1 clips were never released"),
    write_under_a_fence_of_nobody: ("one master", "an entry has fence 9, but no master began with it"),
    hold_a_change_that_nobody_said: ("exact resume", "on, which was never announced"),
    hold_a_change_too_early: ("exact resume", "on, which it has not reached"),
    lack_a_change: ("exact resume", "checkpoint 45 of rgb (at clip 0 of phase 5) lacks change 1, taken from"),
    forget_the_final_checkpoint: ("exact resume", "trainer rgb has no final checkpoint"),
    accept_a_lower_fence: ("one master", "an entry with fence 1 was accepted after one with 2"),
    begin_with_a_used_fence: ("one master", "a master began with fence 1, which another one had"),
    resume_what_is_over: ("liveness", "the job went from completed to paused"),
    count_wrong: ("API = truth", "the ledger says 45 decoded, the history 44"),
    tell_wrong: ("API = truth", "the API says 45 issued, the history 44"),
}


@pytest.mark.parametrize("doctor", DOCTORED, ids=lambda doctor: doctor.__name__)
def test_a_doctored_history_is_found_out(
    adapters: Adapters, tmp_path: Path, doctor: Callable[[list[HistorySegment]], None]
) -> None:
    job = Audited(adapters, tmp_path)
    segments = job.run()
    doctor(segments)
    invariant, violation = DOCTORED[doctor]
    assert violation in broken(audit(job, segments))[invariant]


@pytest.mark.parametrize("searches", [1, 2])
def test_keys_that_were_freed_before_a_master_was_killed_are_no_leak(
    adapters: Adapters, tmp_path: Path, searches: int
) -> None:
    job = Audited(adapters, tmp_path)
    segments = job.run()
    leak_a_key(segments, searches)
    assert audit(job, segments)["no leak"].holds is None


@pytest.mark.parametrize(("silent_min", "holds"), [(55, True), (70, False)])
def test_a_running_job_may_be_silent_as_long_as_the_master_waits(
    adapters: Adapters, tmp_path: Path, silent_min: int, holds: bool
) -> None:
    """It waits an hour, whatever `ESSP_STALL_S` is: the audit cannot know that of another machine."""
    account = account_of(Audited(adapters, tmp_path).run())
    silent = replace(account, states=["running"], outstanding=(1, 1), last_ms=0)
    (liveness,) = (it for it in check(silent, None, None, silent_min * 60_000) if it.invariant == "liveness")
    assert liveness.holds is holds
    assert StallWatch(0.0).has_stalled(_SILENCE_MS / 1000, stall_s=1e9)


@pytest.mark.parametrize("planned", [True, False])
def test_a_trainer_may_die_before_it_has_told_of_its_checkpoint(
    adapters: Adapters, tmp_path: Path, planned: bool
) -> None:
    """The master finds it when the next run begins, which is written down. It is checked as every other one."""
    job, position = Audited(adapters, tmp_path), Position(0, 6)
    digest = job.plan().digest(position, {}, {}, 2) if planned else "0"
    job.master.start(job.fleet.job)
    job.master.stop("small")
    save_checkpoint(DirectoryStore(str(tmp_path / "out")), "rgb", position, digest=digest)
    for _ in range(2):
        job.master.start(job.fleet.job)
        job.master.stop("small")
    job.master.step(0)
    segments = list(History(adapters.stores.under(job.fleet.job.output)).read())
    assert [(saved.trainer, saved.position) for saved in account_of(segments).saved] == [("rgb", position)]
    findings = broken(audit(job, segments))
    assert findings.keys() == (set() if planned else {"exact resume"}), findings


@pytest.mark.parametrize("bad", ["test/v2.mp4", "train/v1.mp4"])
def test_what_was_skipped_or_replaced_for_a_checkpoint_is_known_to_the_next_master(
    adapters: Adapters, tmp_path: Path, bad: str
) -> None:
    """The one before died and had written nothing since the start; the next one reads at once all that was said."""
    job = Audited(adapters, tmp_path, bad)
    settings = MasterSettings(history_s=1e9, ready_s=0.0)
    first = Master(adapters, settings, "m1", recovers=True)
    first.recover()
    first.start(job.fleet.job)
    job.watch()
    run_to_rest(first, job.fleet)
    for trainer in job.fleet.job.trainers:
        job.save(trainer)
    die(first)
    job.master = Master(adapters, settings, "m2", recovers=True)
    job.master.recover()
    job.fleet.report(Progress(finished=Finished(stage=AGGREGATOR, uri="file:///model"), fence=1))
    segments = job.ended()
    assert not broken(audit(job, segments))
    assert account_of(segments).runs[-1].counts["failed"]


def test_a_checkpoint_is_told_of_when_it_is_made_or_when_a_trainer_goes_on_from_it(
    adapters: Adapters, tmp_path: Path
) -> None:
    job, position = Audited(adapters, tmp_path), Position(0, 6)
    digest = job.plan().digest(position, {}, {}, 2)
    ready = CheckpointReady(trainer="rgb", step=6, position=position.message(), digest=digest, resumed=True)
    job.master.start(job.fleet.job)
    for _ in range(2):
        job.fleet.report(Progress(fence=1, checkpoint=ready))
    job.fleet.report(Progress(trouble=Trouble(trainer="rgb", reason="the disk is full", unsaved=True), fence=1))
    job.fleet.report(Progress(fence=1, checkpoint=ready))
    job.master.step(0)
    status = job.master.status("small")
    assert "rgb resumes from its checkpoint after 6 clips" in [event.message for event in job.master.events("small")]
    assert status.phases[0].done["trainer.rgb"] == 6
    assert job.master.conditions.look(), "nothing was saved since"
    job.master.stop("small")
    segments = job.ended()
    assert [(saved.trainer, saved.position) for saved in account_of(segments).saved] == [("rgb", position)]
    assert not broken(audit(job, segments))


def test_a_training_that_resumed_from_rounded_numbers_is_named(adapters: Adapters, tmp_path: Path) -> None:
    """It has seen the planned clips, so nothing is broken."""
    job = Audited(adapters, tmp_path)
    segments = job.run()
    [ready] = [e.checkpoint for s in segments for e in s.entries if e.checkpoint.trainer == "rgb"]
    ready.approximate[:] = [20, 30]
    findings = audit(job, segments)
    assert findings["exact resume"].holds
    assert "; trainer rgb is approximate from step 20 on" in findings["exact resume"].checked
    assert "trainer diff" not in findings["exact resume"].checked


# --- mechanisms switched off, one at a time ---


def test_a_trainer_that_sees_a_clip_twice_is_found_out(adapters: Adapters, tmp_path: Path) -> None:
    job = Audited(adapters, tmp_path)
    segments = job.run(then=lambda: job.seen["trainer.diff"].append(job.seen["trainer.diff"][3]))
    assert list(broken(audit(job, segments))) == ["exact resume"]


def test_credits_that_let_everything_pass_are_found_out(
    adapters: Adapters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Credits, "free_bytes", 2**40)
    job = Audited(adapters, tmp_path)
    assert list(broken(audit(job, job.run()))) == ["no leak"]


def test_a_cache_that_is_not_emptied_is_found_out(
    adapters: Adapters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapters.cache, "purge", lambda prefix: adapters.cache.usage().keys)
    job = Audited(adapters, tmp_path)
    left = lambda: adapters.cache.put("essp:small:{1.0.0.0}", b"left", ["trainer.rgb"], 60)  # noqa: E731
    assert list(broken(audit(job, job.run(then=left)))) == ["no leak"]


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("{}", "was written by another version of ESSP: name: is required"),
        ("null", "was written by another version of ESSP"),
        ("[" * 1000, "is damaged"),
        ("damaged", "is damaged"),
    ],
)
def test_a_status_of_another_version_keeps_nothing_else_from_being_checked(
    adapters: Adapters, tmp_path: Path, status: str, said: str
) -> None:
    job = Audited(adapters, tmp_path)
    segments = job.run()
    segments[-1].status_json = status
    findings = audit(job, segments)
    unchecked = findings.pop("API = truth")
    assert unchecked.holds is None
    assert said in unchecked.checked
    assert broken(findings) == {}
    segments[-1].ledger.counts["issued"] += 1
    assert "API = truth" in broken(audit(job, segments))


def test_writes_without_a_condition_are_found_out(
    adapters: Adapters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two masters of one job append; the store lets the older one write where the newer one has written."""
    job = Audited(adapters, tmp_path)
    history = History(adapters.stores.under(job.fleet.job.output))
    job.run()
    number = history.last() + 1
    for fence in (2, 3):
        beginning = HistoryEntry(fence=fence, time_ms=1, taken_over=True)
        history.append(HistorySegment(first=number, last=number, fence=fence, entries=[beginning]))
        number += 1
    late = HistorySegment(first=number - 1, last=number - 1, fence=2, entries=[HistoryEntry(fence=1, time_ms=1)])
    with pytest.raises(Fenced):
        history.append(late)
    assert broken(audit(job, list(history.read()))) == {}
    put = DirectoryStore.put
    monkeypatch.setattr(DirectoryStore, "put", lambda store, key, data, if_absent=False: put(store, key, data))
    history.append(late)
    assert "fence 1 was accepted after one with 2" in broken(audit(job, list(history.read())))["one master"]
