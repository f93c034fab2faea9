"""The aggregator: waits for the last trainer, writes a model that stands alone, says so, and can be run again."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load

from essp_aggregator import assembly, sharing
from essp_aggregator.assembly import assemble, final_checkpoints
from essp_aggregator.config import AggregatorSettings
from essp_aggregator.fusion import Aligned, Trial, in_turn, try_candidates
from essp_aggregator.load import AggregatorLoad
from essp_aggregator.search import Search, TrialPool
from essp_aggregator.service import Aggregator, build
from essp_aggregator.shared_scores import SharedScores, scores_at
from essp_aggregator.sharing import SharedSearch, _candidate
from essp_common import topics
from essp_common.artifacts import checkpoint_writer, fused_model, layout, scores
from essp_common.artifacts.figures import figures
from essp_common.artifacts.fused_model import FEW_VIDEOS, FusedModel, member_weights, open_model, read_model
from essp_common.artifacts.manifest import MODEL_FILE
from essp_common.artifacts.scores import ScoreTable
from essp_common.bus.memory import MemoryBus
from essp_common.bus.port import Subscription
from essp_common.cache.memory import MemoryCache
from essp_common.errors import ConfigError, NotFound, PermanentError, Unavailable
from essp_common.job.spec import AggregationSpec
from essp_common.messages.control import ControlFeed
from essp_common.messages.parsing import parsed
from essp_common.objects.directory import DirectoryStore
from essp_common.objects.port import ObjectInfo
from essp_common.pb.v1.messages_pb2 import (
    AGGREGATOR,
    CheckpointReady,
    Control,
    JobSnapshot,
    PhaseReport,
    Progress,
    TryCandidate,
)
from essp_common.wiring import Adapters, Stores
from essp_engine.aggregation.candidates import Candidate
from essp_engine.aggregation.fused import fusion_of
from tests.harness import finished_job as finished_job_module
from tests.harness.finished_job import (
    BEST_EPOCH,
    CLASSES,
    JOB,
    VIDEOS_PER_CLASS,
    FinishedJob,
    finished_job,
    save_final,
    swept,
    weights_of,
)
from tests.harness.refused import refused
from tests.harness.running import running
from tests.harness.waiting import LONGEST_S, until
from tests.lanes import often
from tests.unit.essp_aggregator.test_groups import job_with, row

STORES = Stores(("file:///",))


@pytest.fixture
def job(tmp_path: Path) -> FinishedJob:
    return finished_job(tmp_path)


def fuse(job: FinishedJob) -> FusedModel:
    finals = final_checkpoints(job.store, job.spec)
    assert finals is not None
    return assemble(job.store, MemoryCache(), JOB, job.spec, finals, STORES)


class AggregatorBench:
    """A bus with a job on it, and an aggregator at work."""

    def __init__(self, job: FinishedJob, announced: bool = True) -> None:
        self.adapters = Adapters(MemoryBus(), MemoryCache(), STORES)
        self.bus = self.adapters.bus
        self.bus.ensure_topics({t: topics.partitions(t) for t in topics.FIXED})
        self._reader = self.bus.subscribe([topics.PROGRESS], group=None)
        self._snapshot = JobSnapshot(spec_json=job.spec.model_dump_json(), classes=CLASSES)
        if announced:
            self.announce()

    def announce(self, fence: int = 4, command: Control.Command = Control.START) -> None:
        """Let everybody know of the job."""
        control = Control(job=JOB, fence=fence, command=command, snapshot=self._snapshot)
        self.bus.publish(topics.CONTROL, JOB.encode(), control.SerializeToString())

    @contextmanager
    def aggregator(self) -> Iterator[Aggregator]:
        service = build(self.adapters, AggregatorSettings(), "agg-1")
        with running(service):
            yield service

    def send(self, progress: Progress) -> None:
        progress.job = JOB
        self.bus.publish(topics.PROGRESS, JOB.encode(), progress.SerializeToString())

    def checkpoint_ready(self, trainer: str, final: bool = True, fence: int = 4) -> None:
        self.send(Progress(fence=fence, checkpoint=CheckpointReady(job=JOB, trainer=trainer, final=final)))

    def answer(self) -> Progress:
        """The aggregator's next message; the test's time limit ends a wait in vain."""
        while True:
            for record in self._reader.poll(1, 1.0):
                progress = Progress.FromString(record.value)
                if progress.HasField("finished") or progress.HasField("failed"):
                    return progress

    def backlog(self) -> int:
        return self.bus.backlog(topics.PROGRESS, "aggregator")


def test_one_that_would_read_no_message_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESSP_POLL_RECORDS", "0")
    with pytest.raises(ConfigError, match=r"ESSP_POLL_RECORDS: .*1"):
        AggregatorSettings()


def test_the_last_trainer_sets_it_off(job: FinishedJob, tmp_path: Path) -> None:
    for info in list(job.store.list("trainers/flow/")):
        job.store.delete(info.key)  # as long as that trainer is at work
    bench = AggregatorBench(job)
    with bench.aggregator():
        bench.checkpoint_ready("rgb")
        bench.checkpoint_ready("flow", final=False)
        bench.send(Progress(phase_report=PhaseReport(job=JOB, trainer="flow")))
        save_final(job.store, job.spec, "flow")
        bench.checkpoint_ready("flow")
        progress = bench.answer()
    assert (progress.job, progress.worker, progress.fence) == (JOB, "agg-1", 4)
    assert (progress.finished.job, progress.finished.stage) == (JOB, AGGREGATOR)
    assert progress.finished.uri == f"file://{tmp_path}/model/manifest.json"
    metrics = progress.finished.metrics
    assert metrics["test.fused.top1"] == 1.0
    assert metrics["weight.rgb"] + metrics["weight.flow"] == pytest.approx(1)
    assert {f"{s}.{t}.top1" for s in ("validation", "test") for t in ("rgb", "flow", "fused")} <= set(metrics)


def test_it_looks_up_which_videos_are_too_alike(tmp_path: Path) -> None:
    """All of them here, so there is no evidence for any strategy."""
    names = [f"validation/{name}/{take}.mp4" for name in CLASSES for take in range(VIDEOS_PER_CLASS)]
    bench = AggregatorBench(job := job_with(tmp_path, *(row(name, "person01") for name in names)))
    with bench.aggregator():
        bench.checkpoint_ready("rgb")
        assert bench.answer().HasField("finished")
    model = read_model(job.store, layout.MODEL_MANIFEST)
    assert model.strategies
    assert all(one.held_out_log_loss is None for one in model.strategies)


def test_trainers_that_end_at_once_are_fused_once(job: FinishedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def count(*arguments: Any) -> Any:
        tried.append(1)
        return try_candidates(*arguments)

    monkeypatch.setattr("essp_aggregator.assembly.try_candidates", count)
    bench = AggregatorBench(job)
    with bench.aggregator():
        bench.checkpoint_ready("rgb")
        first = bench.answer()
        bench.checkpoint_ready("flow")
        assert bench.answer().finished == first.finished
    assert len(tried) == 1


@pytest.mark.processes
def test_a_long_search_in_processes_makes_the_same_model(
    job: FinishedJob, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    fuse(job)
    expected = {info.key: job.store.get(info.key) for info in job.store.list("model/")}
    for key in expected:
        job.store.delete(key)
    monkeypatch.setattr("essp_aggregator.search._WORTH", 0)
    bench = AggregatorBench(job)
    with bench.aggregator():
        bench.checkpoint_ready("flow")
        assert bench.answer().finished.job == JOB
    assert {info.key: job.store.get(info.key) for info in job.store.list("model/")} == expected
    assert "tries 5 candidates" in caplog.text


def test_jobs_that_there_are_not_hold_up_none_that_there_is(job: FinishedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("essp_aggregator.early._PATIENCE_S", 1e6)
    bench = AggregatorBench(job)
    with bench.aggregator():
        for name in ("nobody", "x" * 100_000, "nobody"):
            checkpoint = CheckpointReady(job=name, trainer="rgb", final=True)
            bench.bus.publish(topics.PROGRESS, b"", Progress(job=name, checkpoint=checkpoint).SerializeToString())
        bench.checkpoint_ready("flow")
        assert bench.answer().finished.job == JOB
    assert bench.backlog() > 0, "what waits is delivered again"


def test_jobs_that_there_are_not_are_forgotten(job: FinishedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("essp_aggregator.early._PATIENCE_S", 0.0)
    bench = AggregatorBench(job)
    with bench.aggregator():
        for _ in range(3):
            checkpoint = CheckpointReady(job="nobody", trainer="rgb", final=True)
            bench.bus.publish(topics.PROGRESS, b"", Progress(job="nobody", checkpoint=checkpoint).SerializeToString())
        until(lambda: bench.backlog() == 0)


def test_a_checkpoint_may_come_before_the_job_is_known(job: FinishedJob) -> None:
    bench = AggregatorBench(job, announced=False)
    with bench.aggregator() as aggregator:
        bench.checkpoint_ready("flow")
        until(lambda: len(aggregator._early) == 1)
        bench.announce()
        assert bench.answer().finished.job == JOB


def test_a_checkpoint_may_come_before_its_run_is_known(job: FinishedJob) -> None:
    """Else the run before would have the model, and the job would wait for ever."""
    bench = AggregatorBench(job)
    with bench.aggregator() as aggregator:
        bench.checkpoint_ready("flow", fence=7)
        until(lambda: len(aggregator._early) == 1)
        bench.announce(fence=7)
        assert bench.answer().fence == 7


@pytest.mark.parametrize("most", [1, 100])
def test_no_checkpoint_is_dropped_while_commands_are_late(
    job: FinishedJob, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, most: int
) -> None:
    """However long they take, and however many wait."""
    heard = threading.Event()

    class LateFeed(ControlFeed):
        def latest(self, job: str) -> Control | None:
            return super().latest(job) if heard.is_set() else None

    monkeypatch.setattr("essp_aggregator.service.ControlFeed", LateFeed)
    monkeypatch.setattr("essp_aggregator.early._PATIENCE_S", 1e6 if most == 1 else 0.0)
    monkeypatch.setattr("essp_aggregator.early._MOST", most)
    bench = AggregatorBench(job)
    with bench.aggregator():
        bench.checkpoint_ready("flow", fence=4)
        bench.checkpoint_ready("flow", fence=5)  # of a run that nobody has begun
        until(lambda: caplog.text.count("its command is in essp.control") == 1 and "ignored" in caplog.text)
        assert bench.backlog() > 0
        heard.set()
        assert bench.answer().fence == 4
        until(lambda: bench.backlog() == 0)


def test_no_checkpoint_is_dropped_while_the_bus_does_not_answer(
    job: FinishedJob, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("essp_aggregator.early._PATIENCE_S", 0.0)
    bench = AggregatorBench(job, announced=False)

    def silent(topic: str) -> None:
        raise Unavailable(f"{topic}: no broker answers")

    monkeypatch.setattr(bench.bus, "held", silent)
    with bench.aggregator():
        bench.checkpoint_ready("flow")
        until(lambda: "no broker answers" in caplog.text)
        bench.announce()
        assert bench.answer().finished.job == JOB


@pytest.mark.parametrize("fails", [False, True])
def test_what_becomes_of_a_checkpoint_is_said_of_its_run(
    job: FinishedJob, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """And of no run that has begun since."""
    if fails:
        monkeypatch.setattr("essp_aggregator.service.assemble", lambda *_: 1 / 0)
    bench = AggregatorBench(job)
    bench.announce(fence=7)
    with bench.aggregator():
        for fence, said in ((4, 4), (7, 7), (0, 7)):
            bench.checkpoint_ready("flow", fence=fence)
            progress = bench.answer()
            assert (progress.HasField("failed"), progress.fence) == (fails, said)


def test_what_does_not_fit_together_fails_the_job(job: FinishedJob) -> None:
    other = scores.read(job.store, layout.scores("flow", "validation", BEST_EPOCH))
    renamed = ScoreTable(
        tuple(f"x{v}" for v in other.video_id), other.class_id, other.clip_index, other.probabilities, CLASSES
    )
    scores.write(job.store, layout.scores("flow", "validation", BEST_EPOCH), renamed)
    bench = AggregatorBench(job)
    with bench.aggregator():
        bench.checkpoint_ready("flow")
        progress = bench.answer()
        assert (progress.failed.stage, progress.failed.clip.job) == (AGGREGATOR, JOB)
        assert progress.fence == 4
        assert "no video that all of rgb, flow scored" in progress.failed.reason
        bench.checkpoint_ready("flow")
        assert bench.answer().HasField("failed"), "it continues"
    assert not list(job.store.list("model/manifest"))


def test_a_defect_fails_one_job_and_the_next_is_fused(job: FinishedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its message would else be handed out again and again, and those of other jobs never."""
    bench = AggregatorBench(job)

    def defect(*_: object) -> None:
        raise KeyError("no such trainer")

    with bench.aggregator():
        with monkeypatch.context() as patched:
            patched.setattr("essp_aggregator.service.assemble", defect)
            bench.checkpoint_ready("flow")
            assert bench.answer().failed.reason == "KeyError: 'no such trainer'"
        bench.checkpoint_ready("flow")
        assert bench.answer().HasField("finished")


def test_killed_before_it_said_so_it_does_the_same_again(job: FinishedJob) -> None:
    bench = AggregatorBench(job)
    bench.checkpoint_ready("flow")
    with bench.aggregator():
        bench.answer()
    first = {info.key: job.store.get(info.key) for info in job.store.list("model/")}
    bench.checkpoint_ready("flow")  # as a bus delivers it again
    with bench.aggregator():
        bench.answer()
    assert {info.key: job.store.get(info.key) for info in job.store.list("model/")} == first


def test_the_model_says_all_that_is_needed_to_use_it(job: FinishedJob) -> None:
    fused = fuse(job)
    assert read_model(job.store, layout.MODEL_MANIFEST) == fused
    assert fused.classes == CLASSES
    assert fused.clip == job.spec.clip
    assert fused.streams == job.spec.streams
    assert [(m.trainer, m.stream, m.model.crop, m.epoch) for m in fused.members] == [
        ("rgb", "rgb", 32, BEST_EPOCH),
        ("flow", "motion", 32, BEST_EPOCH),
    ]
    assert [s.name for s in fused.strategies] == [s.name for s in job.spec.aggregation.strategies]
    chosen = next(s for s in fused.strategies if s.name == fused.strategy)
    assert (fused.rule, fused.weights) == (chosen.rule, chosen.weights)
    assert fused.validation is not None
    assert fused.test is not None
    assert fused.test.members["rgb"]["top1"] < 0.8
    assert fused.test.fused["top1"] == 1.0


def test_the_model_folder_can_be_moved(job: FinishedJob, tmp_path_factory: pytest.TempPathFactory) -> None:
    fuse(job)
    elsewhere = tmp_path_factory.mktemp("deployed")
    (job.root / "model").rename(elsewhere / "m")
    store, model = open_model(STORES, f"file://{elsewhere}/m")
    assert [sorted(load(member_weights(store, m))) for m in model.members] == [["rgb.weight"], ["flow.weight"]]
    for member in model.members:
        found = load(member_weights(store, member))[f"{member.trainer}.weight"]
        assert found.tolist() == weights_of(member.trainer)[f"{member.trainer}.weight"].tolist()


@pytest.mark.parametrize("suffix", often(["/", "/model/manifest.json", "", "/model", "/model/"], 2))
def test_a_model_is_found_by_its_folder_its_manifest_or_its_job(job: FinishedJob, suffix: str) -> None:
    fuse(job)
    _, model = open_model(STORES, f"{job.spec.output}{suffix}")
    assert model.job == JOB


def test_no_model_is_an_error_that_says_where_models_come_from(job: FinishedJob) -> None:
    with pytest.raises(NotFound, match="training job writes one"):
        open_model(STORES, f"{job.spec.output}/elsewhere")
    with pytest.raises(NotFound, match="is the output of a job that has not completed, so it has no model yet"):
        open_model(STORES, job.spec.output)


def test_weights_that_were_changed_are_refused(job: FinishedJob) -> None:
    fuse(job)
    store, model = open_model(STORES, job.spec.output)
    store.put(model.members[0].file, b"other weights")
    with pytest.raises(PermanentError, match="changed"):
        member_weights(store, model.members[0])


def trained_anew(job: FinishedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainer `rgb` has come to other weights, in a later process."""
    for info in list(job.store.list("trainers/rgb/")):
        job.store.delete(info.key)
    checkpoint_writer.claim(job.store, "rgb")
    monkeypatch.setattr(finished_job_module, "weights_of", lambda trainer: {f"{trainer}.weight": np.ones(6, "f4")})
    save_final(job.store, job.spec, "rgb")


class Interrupted(DirectoryStore):
    """A store in which no manifest of a model can be written."""

    def put(self, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
        if key == layout.MODEL_MANIFEST:
            raise Unavailable("no answer")
        return super().put(key, data, if_absent=if_absent)


def test_until_another_model_is_whole_the_one_before_can_be_used(
    job: FinishedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = by_clips(job, {"name": "linear", "parts": 2})
    before = fuse(job)
    trained_anew(job, monkeypatch)
    other = by_clips(job, {"name": "linear", "parts": 4})
    with pytest.raises(Unavailable):
        fuse(replace(other, store=Interrupted.from_url(other.spec.output)))
    store, model = open_model(STORES, job.spec.output)
    assert model == before
    fusion_of(store, model)
    for member in model.members:
        member_weights(store, member)

    after = fuse(other)
    assert after.files.isdisjoint(before.files - {member.file for member in before.members if member.trainer == "flow"})
    assert {info.key for info in store.list()} == {"manifest.json", *after.files}
    fusion_of(store, after)
    for member in after.members:
        member_weights(store, member)


def test_damaged_checkpoints_are_not_fused(job: FinishedJob) -> None:
    finals = final_checkpoints(job.store, job.spec)
    assert finals is not None
    path = job.root / finals["rgb"].prefix / MODEL_FILE
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(PermanentError, match="SHA-256"):
        assemble(job.store, MemoryCache(), JOB, job.spec, finals, STORES)


def test_manifest_hashes_are_those_of_the_files(job: FinishedJob) -> None:
    for member in fuse(job).members:
        data = job.store.get(layout.model_weights(member.trainer, member.sha256))
        assert hashlib.sha256(data).hexdigest() == member.sha256


def test_without_a_test_split_there_are_no_test_figures(tmp_path: Path) -> None:
    fused = fuse(finished_job(tmp_path, test=False))
    assert fused.test is None
    assert fused.validation is not None


def test_without_a_validation_split_all_count_the_same(job: FinishedJob) -> None:
    finals = final_checkpoints(job.store, job.spec)
    assert finals is not None
    without = {
        name: final.model_copy(update={"scores": {"test": final.scores["test"]}}) for name, final in finals.items()
    }
    fused = assemble(job.store, MemoryCache(), JOB, job.spec, without, STORES)
    assert (fused.strategy, fused.strategies, fused.validation) == ("average", (), None)
    assert np.allclose(list(fused.weights.values()), 0.5)


@pytest.mark.parametrize(
    ("keep", "members"), [(0, {"rgb-1", "rgb-2", "rgb-3"}), (1, {"rgb-2"}), (2, {"rgb-1", "rgb-2"})]
)
def test_a_sweep_is_fused_with_as_many_as_it_keeps(tmp_path: Path, keep: int, members: set[str]) -> None:
    job = swept(tmp_path, keep)
    fused = fuse(job)
    assert {member.trainer for member in fused.members} == members | {"flow"}
    assert set(fused.weights) == members | {"flow"}
    assert fused.streams.keys() == {"rgb", "motion"}
    for evaluation in (fused.validation, fused.test):
        assert evaluation is not None
        assert evaluation.members.keys() == job.spec.trainers.keys(), "what was left out is reported all the same"
    assert fuse(job) == fused, "a second time it does the same"
    alone = {name: figures["top1"] for name, figures in fused.validation.members.items()} if fused.validation else {}
    assert alone["rgb-2"] == max(alone.values())


def test_members_that_scored_no_video_together_fail_the_job_in_words(tmp_path: Path) -> None:
    job = swept(tmp_path, 1)
    key = layout.scores("rgb-1", "validation", BEST_EPOCH)
    table = scores.read(job.store, key)
    scores.write(job.store, key, replace(table, video_id=tuple(f"other/{name}" for name in table.video_id)))
    with pytest.raises(PermanentError, match=f"the trainers of {JOB} cannot be fused: there is no video that all of"):
        fuse(job)


def test_another_number_of_kept_ones_is_fused_anew(tmp_path: Path) -> None:
    job = swept(tmp_path, 1)
    assert len(fuse(job).members) == 2
    trainers = {
        name: trainer.model_copy(update={"keep": 2 * bool(trainer.sweep)})
        for name, trainer in job.spec.trainers.items()
    }
    more = replace(job, spec=job.spec.model_copy(update={"trainers": trainers}))
    assert len(fuse(more).members) == 3


def test_the_best_are_chosen_by_the_phase_that_has_features_where_these_are_fused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And only theirs are fetched."""
    job = swept(tmp_path, 1, features=True)
    finals = final_checkpoints(job.store, job.spec)
    assert finals is not None
    embedded = {
        name: final.model_copy(update={"scores": {"embed": final.scores["validation"], "test": final.scores["test"]}})
        for name, final in finals.items()
    }
    fetched: set[str] = set()

    def fetch(cache: object, name: str, trainer: str, purpose: str, table: ScoreTable) -> ScoreTable:
        fetched.add(trainer)
        return table

    monkeypatch.setattr(assembly, "with_features", fetch)
    fused = assemble(job.store, MemoryCache(), JOB, job.spec, embedded, STORES)
    assert {member.trainer for member in fused.members} == {"rgb-2", "flow"} == fetched
    assert fused.validation is not None
    assert fused.validation.members.keys() == job.spec.trainers.keys()


def test_the_test_split_has_no_say(job: FinishedJob) -> None:
    weights = fuse(job).weights
    table = scores.read(job.store, layout.scores("rgb", "test", 0))
    reversed_scores = ScoreTable(
        table.video_id, table.class_id, table.clip_index, table.probabilities[:, ::-1].copy(), CLASSES
    )
    scores.write(job.store, layout.scores("rgb", "test", 0), reversed_scores)
    assert fuse(job).weights == weights


def test_that_few_videos_chose_the_strategy_is_said(job: FinishedJob, caplog: pytest.LogCaptureFixture) -> None:
    model = fuse(job)
    assert model.validation is not None
    videos = model.validation.videos
    assert videos < FEW_VIDEOS
    assert f"only {videos} validation videos chose the strategy and its weights, which may be chance" in model.doubt
    assert model.doubt in caplog.text
    enough = model.validation.model_copy(update={"videos": FEW_VIDEOS})
    assert not model.model_copy(update={"validation": enough}).doubt
    assert not model.model_copy(update={"members": model.members[:1]}).doubt, "there was nothing to choose"
    assert not model.model_copy(update={"validation": None}).doubt


def by_clips(job: FinishedJob, *strategies: dict[str, object]) -> FinishedJob:
    """The same job, with these strategies."""
    document = job.spec.model_dump(mode="json") | {"aggregation": {"strategies": list(strategies)}}
    spec = type(job.spec).model_validate(document)
    job.store.put(layout.SPEC, spec.model_dump_json().encode())
    return FinishedJob(spec, job.store, job.root)


def test_a_strategy_that_looks_at_clips_goes_with_the_model(
    job: FinishedJob, tmp_path_factory: pytest.TempPathFactory
) -> None:
    learning = by_clips(job, {"name": "attention", "penalty": [0.1, 0.01]}, {"name": "top_k", "k": 2})
    fused = fuse(learning)
    assert (fused.format, fused.rule) == (2, None)
    assert [tried.label for tried in fused.strategies] == [
        "attention penalty=0.1",
        "attention penalty=0.01",
        "top_k k=2",
    ]
    assert sum(fused.weights.values()) == pytest.approx(1)
    first = {info.key: job.store.get(info.key) for info in job.store.list("model/")}
    assert fuse(learning) == fused
    assert {info.key: job.store.get(info.key) for info in job.store.list("model/")} == first

    elsewhere = tmp_path_factory.mktemp("deployed")
    (job.root / "model").rename(elsewhere / "m")
    store, model = open_model(STORES, f"file://{elsewhere}/m")
    parts = {
        name: scores.clips_by_video(scores.read(job.store, layout.scores(name, "test", 0)))
        for name in job.spec.trainers
    }
    assert fused.test is not None
    found = fusion_of(store, model)(parts)
    assert figures(found.class_id, found.probabilities) == pytest.approx(fused.test.fused)


def test_a_state_that_was_changed_is_refused(job: FinishedJob) -> None:
    fuse(by_clips(job, {"name": "linear", "parts": 2}))
    store, model = open_model(STORES, job.spec.output)
    assert model.state is not None
    store.put(model.state.file, b"something else")
    with pytest.raises(PermanentError, match=r"aggregation-.*\.tensors was changed since the model was made"):
        fusion_of(store, model)


def test_a_state_of_more_than_strategies_learn_is_refused(job: FinishedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    fuse(by_clips(job, {"name": "linear", "parts": 2}))
    store, model = open_model(STORES, job.spec.output)
    monkeypatch.setattr(fused_model, "_MOST_STATE_BYTES", 1)
    with pytest.raises(
        PermanentError, match=r"is not a state of a strategy: its arrays have .* bytes, and 1 are the most"
    ):
        fusion_of(store, model)


def test_a_model_whose_strategy_is_not_installed_says_so(job: FinishedJob) -> None:
    fuse(by_clips(job, {"name": "linear", "parts": 2}))
    store, model = open_model(STORES, job.spec.output)
    with pytest.raises(PermanentError, match="no aggregator 'gone' is installed"):
        fusion_of(store, model.model_copy(update={"strategy": "gone"}))


def test_parameters_that_are_wrong_fail_the_job_in_the_words_of_the_check(job: FinishedJob) -> None:
    with refused("aggregation.strategies.0.part", "unknown"):
        fuse(by_clips(job, {"name": "linear", "part": 2}))


def test_aggregators_share_a_long_search_and_write_the_model_of_one(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each candidate is tried once, by either of them, and nothing is left of it."""
    strategies = ["average", "best", "weighted", {"name": "attention", "penalty": [0.01, 0.1]}]
    manifests = []
    written: list[str] = []
    put, subscribe = DirectoryStore.put, MemoryBus.subscribe
    helpers: list[Subscription] = []
    half = topics.DATA_PARTITIONS // 2

    def subscribed(bus: MemoryBus, wanted: Sequence[str], *rest: Any, **named: Any) -> Any:
        made = subscribe(bus, wanted, *rest, **named)
        if topics.SEARCHES in wanted:
            helpers.append(made)
        return made

    def noted(store: DirectoryStore, key: str, *rest: Any, **named: Any) -> Any:
        if key.startswith(layout.SEARCHES):
            written.append(f"{threading.current_thread().name} {key.rpartition('/')[2]}")
        return put(store, key, *rest, **named)

    for aggregators in (1, 2):
        job = finished_job(tmp_path_factory.mktemp("shared"))
        aggregation = AggregationSpec.model_validate({"strategies": strategies})
        job = replace(job, spec=job.spec.model_copy(update={"aggregation": aggregation}))
        with monkeypatch.context() as patched, ExitStack() as running_ones:
            bench = AggregatorBench(job)
            if aggregators == 2:
                patched.setattr(sharing, "_WORTH", 0)
                patched.setattr(sharing, "_LOOK_S", 0.01)
                patched.setattr(DirectoryStore, "put", noted)
                patched.setattr(MemoryBus, "subscribe", subscribed)
            for _ in range(aggregators):
                running_ones.enter_context(bench.aggregator())
            if aggregators == 2:  # a candidate may be tried twice only while shares change
                until(lambda: [one.partitions for one in helpers] == [half, half])
            for trainer in job.spec.trainers:
                bench.checkpoint_ready(trainer)
            assert bench.answer().HasField("finished")
        model = read_model(job.store, layout.MODEL_MANIFEST)
        manifests.append((model.strategies, model.strategy, model.weights, model.validation, model.test))
        assert not list(job.store.list(layout.SEARCHES))
    assert manifests[0] == manifests[1]
    numbers = sorted(line.split()[1] for line in written if not line.endswith("scores"))
    assert numbers == [f"{number:010d}" for number in range(5)]


@pytest.mark.parametrize("fails", [PermanentError("strategy best failed"), ValueError("no videos")])
def test_a_candidate_of_a_shared_search_that_fails_fails_the_job_by_name(
    job: FinishedJob, monkeypatch: pytest.MonkeyPatch, fails: Exception
) -> None:
    def try_all(pool: TrialPool, processes: int, job: str) -> None:
        for number, one in enumerate(pool._candidates):
            if one.name == "best":
                raise fails
            [pool.trials[number]] = in_turn([one], scores_at(pool._shared.fd, pool._shared.size))

    monkeypatch.setattr(TrialPool, "try_all", try_all)
    monkeypatch.setattr(sharing, "_WORTH", 0)
    monkeypatch.setattr(sharing, "_LOOK_S", 0.01)
    bench = AggregatorBench(job)
    with bench.aggregator():
        for trainer in job.spec.trainers:
            bench.checkpoint_ready(trainer)
        assert str(fails) in bench.answer().failed.reason
        until(lambda: not list(job.store.list(layout.SEARCHES)))  # so the next run tries that candidate again


def test_the_wait_for_a_shared_search_ends_with_the_job(job: FinishedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody tries the candidates of a job that was stopped. Heartbeats say how many wait, until then."""
    asked = threading.Event()

    def ask_nobody(*_: object) -> bool:
        asked.set()
        return True

    monkeypatch.setattr(sharing.Helper, "_try", ask_nobody)
    monkeypatch.setattr(sharing, "_WORTH", 0)
    monkeypatch.setattr(sharing, "_LOOK_S", 0.01)
    bench = AggregatorBench(job)
    with bench.aggregator() as aggregator:
        for trainer in job.spec.trainers:
            bench.checkpoint_ready(trainer)
        assert asked.wait(LONGEST_S)
        until(lambda: aggregator.gauges()["queue"] > 1)
        assert aggregator.gauges()["busy"] > 0
        bench.announce(command=Control.STOP)
        assert "has ended" in bench.answer().failed.reason
        until(lambda: not aggregator.gauges()["in_hand"])
        assert aggregator.gauges()["queue"] == 0


def test_a_candidate_that_another_has_tried_is_not_tried_again(
    job: FinishedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither before the first one, if a message comes again, nor in between: an aggregator that has just come takes
    over a part of the share."""
    bench = AggregatorBench(job)
    finals = final_checkpoints(job.store, job.spec)
    assert finals is not None
    aligned: list[Aligned] = []

    def keep(candidates: Sequence[Candidate], scores: Aligned) -> list[Trial]:
        aligned.append(scores)
        return in_turn(candidates, scores)

    assemble(job.store, MemoryCache(), JOB, job.spec, finals, STORES, keep)
    prefix = f"{layout.SEARCHES}{'0a' * 8}/"
    with SharedScores(aligned[0]) as shared:
        job.store.put(f"{prefix}scores", shared.data)
    job.store.put(f"{prefix}0000000000", b"before")

    def try_all(pool: TrialPool, processes: int, job_name: str) -> None:
        for number, one in enumerate(pool._candidates):
            [pool.trials[number]] = in_turn([one], scores_at(pool._shared.fd, pool._shared.size))
        job.store.put(f"{prefix}0000000002", b"meanwhile")

    monkeypatch.setattr(TrialPool, "try_all", try_all)
    asked = [
        TryCandidate(job=JOB, fence=4, search="0a" * 8, number=number, strategy="best", params_json="{}")
        for number in range(4)
    ]
    with closing(ControlFeed(bench.bus)) as control:
        until(lambda: control.latest(JOB) is not None)
        sharing.Helper(bench.adapters, 1, AggregatorLoad(1), threading.Event())._answer(asked, control)
    results = [job.store.get(f"{prefix}{number:010d}") for number in range(4)]
    assert [result in (b"before", b"meanwhile") for result in results] == [True, False, True, False]


def test_a_search_that_another_aggregator_has_ended_is_made_again(job: FinishedJob) -> None:
    search = SharedSearch(
        MemoryBus(), job.store, JOB, 4, Search(1, JOB), AggregatorLoad(1), lambda _: False, lambda: False
    )
    with pytest.raises(Unavailable, match="another aggregator"):
        search._wait_for([_candidate(BEST)], "a")


BEST = TryCandidate(strategy="best", params_json="{}")


def test_a_candidate_that_nobody_tried_is_announced_again(job: FinishedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """An aggregator drops the candidates of a job that it does not know yet."""
    monkeypatch.setattr(sharing, "_AGAIN_S", 5 * sharing._LOOK_S)
    bus = MemoryBus()
    bus.ensure_topics({topics.SEARCHES: topics.DATA_PARTITIONS})
    announced: list[int] = []

    def look(_: float) -> bool:
        for record in helper.poll(8, 0):
            number = parsed(TryCandidate, record).number
            announced.append(number)
            job.store.put(f"{layout.SEARCHES}a/{number:010d}", b"result")
        return False

    with closing(bus.subscribe([topics.SEARCHES], "helper")) as helper:
        for key in ("scores", "0000000000"):
            job.store.put(f"{layout.SEARCHES}a/{key}", b"stored")
        load = AggregatorLoad(1)
        search = SharedSearch(bus, job.store, JOB, 4, Search(1, JOB), load, look, lambda: False)
        search._wait_for([_candidate(BEST)] * 3, "a")
    assert sorted(announced) == [1, 2]
