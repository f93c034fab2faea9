"""Whole journeys of a job in one process: from videos to a fused model, and what must hold on the way."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from essp.catalog.build import BuildOptions, build
from essp.embedded.composition import Embedded
from essp_common import topics
from essp_common.artifacts import checkpoint
from essp_common.artifacts.fused_model import open_model
from essp_common.job.spec import JobSpec, parse_spec
from essp_common.job.status import JobState, JobStatus
from essp_common.pb.v1.messages_pb2 import TRAIN, DecodeSeed
from essp_common.runtime.config import Settings
from essp_common.wiring import Stores
from tests.flow.conftest import MakeJob
from tests.harness.embedded_jobs import finish, run
from tests.harness.journeys import IssuedSeed, job_text, seeds_in, weights_of

STORES = Stores(("file:///",))


def run_in_two(spec: JobSpec) -> JobStatus:
    """Drain a job in the middle, then run it to its end."""
    with Embedded(spec, Settings()) as job:
        while not job.ended(0.01) and job.status().progress.done < 10:
            pass
    assert not job.status().state.ended
    return run(spec)


@dataclass(frozen=True)
class Course:
    """What a job did from its beginning to its end."""

    output: str
    status: JobStatus
    seeds: list[IssuedSeed]
    """Those that the master issued, in order of their indices."""
    units: int
    """In so many messages."""
    keys: int
    """What was left in the cache."""
    weights: dict[str, str]

    @property
    def reports(self) -> list[tuple[str, str, list[float | None]]]:
        """The figures of each trainer and phase."""
        return [
            (trainer.name, report.purpose, [report.metrics.get(name) for name in ("loss", "video_loss", "video_top1")])
            for trainer in self.status.trainers
            for report in trainer.reports
        ]


def course_of(spec: JobSpec) -> Course:
    """Run a job to its end, and look on."""
    with Embedded(spec, Settings()) as job:
        subscription = job.adapters.bus.subscribe([topics.SEEDS], group=None)
        status = finish(job)
        assert status.state is JobState.COMPLETED, status.reason
        seeds, units = list[IssuedSeed](), 0
        while records := subscription.poll(1000, 0.05):
            units += len(records)
            seeds += seeds_in(records, spec.name)
        keys = job.adapters.cache.usage().keys
    return Course(spec.output, status, sorted(seeds), units, keys, weights_of(STORES, spec.output))


@pytest.fixture(scope="module")
def whole(catalog: Path, tmp_path_factory: pytest.TempPathFactory) -> Course:
    """Of a job that nothing befell, with one process that decodes."""
    output = (tmp_path_factory.mktemp("whole") / "run").as_uri()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("ESSP_DECODER_PROCESSES", "1")
        return course_of(parse_spec(job_text("whole", output=output, catalog=catalog.as_uri())))


def test_every_clip_is_trained_once_by_every_trainer_and_nothing_stays_in_the_cache(whole: Course) -> None:
    status = whole.status
    assert whole.keys == 0
    for passed in status.phases:
        assert passed.done == {"trainer.rgb": passed.clips, "trainer.flow": passed.clips}
    assert status.counts.decoded == sum(passed.clips for passed in status.phases)
    assert status.counts.skipped == status.counts.failed == status.counts.reissued == 0
    _, model = open_model(STORES, f"{whole.output}/model")
    assert model.classes == ("left", "right")
    assert {member.stream for member in model.members} == {"rgb", "flow"}
    assert model.test is not None
    assert model.test.videos == 4


def test_seeds_and_weights_do_not_depend_on_the_number_of_workers(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, whole: Course
) -> None:
    monkeypatch.setenv("ESSP_DECODER_PROCESSES", "3")
    three = course_of(make_job("three"))
    assert whole.seeds
    assert (three.seeds, three.weights) == (whole.seeds, whole.weights)


def test_locality_changes_the_order_of_decoding_and_no_batch(make_job: MakeJob, whole: Course) -> None:
    """Trainers take clips in index order, so weights, and with them every accuracy, are the same bit for bit."""
    spec = make_job("together")
    together = course_of(spec.model_copy(update={"sampling": spec.sampling.model_copy(update={"locality": 12})}))
    assert together.units < whole.units, "seeds of a video come in one message"
    assert together.seeds == whole.seeds
    assert (together.weights, together.reports) == (whole.weights, whole.reports)


def test_a_pooled_plan_decodes_each_visit_once_and_resumes(make_job: MakeJob) -> None:
    """A drained run of it ends with the weights of one that was never stopped."""
    sampling = {"kind": "pooled", "clips_per_visit": 4, "window": 12}
    whole, parted = (
        spec.model_copy(update={"sampling": spec.sampling.model_copy(update=sampling)})
        for spec in (make_job("whole"), make_job("parted"))
    )
    with Embedded(whole, Settings()) as job:
        subscription = job.adapters.bus.subscribe([topics.SEEDS], group=None)
        assert finish(job).state is JobState.COMPLETED
        units: list[DecodeSeed] = []
        while records := subscription.poll(1000, 0.05):
            units += [DecodeSeed.FromString(record.value) for record in records]
    training = [unit for unit in units if unit.purpose == TRAIN]
    clips = sum(len(unit.seeds) for unit in training)
    assert len(training) <= clips // 3, "a visit is one unit"
    assert run_in_two(parted).state is JobState.COMPLETED
    assert weights_of(STORES, parted.output) == weights_of(STORES, whole.output)


def test_a_drained_run_goes_on_and_ends_with_the_weights_of_one_never_stopped(make_job: MakeJob, whole: Course) -> None:
    parted = make_job("parted")
    assert run_in_two(parted).state is JobState.COMPLETED
    assert weights_of(STORES, parted.output) == whole.weights


def test_outstanding_bytes_stay_under_the_budget(make_job: MakeJob) -> None:
    """The cache is sampled all the while; with so small a budget the trainers are what is waited for."""
    spec = make_job(budget="256KiB")
    most = 0
    with Embedded(spec, Settings()) as job:
        while not job.ended(0.002):
            most = max(most, job.adapters.cache.usage().used_bytes)
            assert job.status().credits.outstanding_bytes <= spec.limits.budget
        status = job.status()
    assert status.state is JobState.COMPLETED, status.reason
    assert 0 < most <= spec.limits.budget


def test_damaged_videos_are_replaced_in_training_skipped_in_evaluation_and_counted(
    videos: Path, make_job: MakeJob, tmp_path: Path
) -> None:
    damaged = tmp_path / "videos"
    shutil.copytree(videos, damaged)
    catalog = tmp_path / "catalog.parquet"
    build(f"file://{damaged}", f"file://{catalog}", ("file:///",), BuildOptions("folders"))
    # After the catalog was made, so that only decoding can find out.
    (damaged / "train" / "left" / "0.mp4").unlink()
    broken = damaged / "test" / "right" / "1.avi"
    broken.write_bytes(broken.read_bytes()[:2000])
    spec = make_job(clips=24)
    spec = spec.model_copy(update={"data": spec.data.model_copy(update={"catalog": f"file://{catalog}"})})
    status = run(spec)
    assert status.state is JobState.COMPLETED, status.reason
    kinds = {failure.kind for failure in status.failures}
    assert kinds == {"vanished", "changed"}
    assert status.counts.replaced > 0
    assert status.counts.skipped == 2
    for passed in status.phases:
        assert passed.done == {"trainer.rgb": passed.clips, "trainer.flow": passed.clips}
    _, model = open_model(STORES, f"{spec.output}/model")
    assert model.test is not None
    assert model.test.videos == 3


def test_a_job_starts_from_the_weights_of_another_and_goes_on_without_them(make_job: MakeJob, tmp_path: Path) -> None:
    """Flow from what rgb has learned; drained in the middle, it ends with the same weights, though rgb is gone."""
    rgb = make_job("rgb", epochs=1)
    scratch, whole, halved = (make_job(name) for name in ("scratch", "whole", "halved"))
    assert run(rgb).state == JobState.COMPLETED
    assert run(flow_of(whole, f"{rgb.output}/trainers/rgb")).state == JobState.COMPLETED
    assert run(flow_of(scratch, None)).state == JobState.COMPLETED
    manifest = checkpoint.read_latest(STORES.under(whole.output), "flow")
    assert manifest is not None
    assert manifest.origin is not None
    assert manifest.origin.uri.startswith(f"{rgb.output}/trainers/rgb/checkpoints/")
    weights = weights_of(STORES, whole.output)
    assert weights != weights_of(STORES, scratch.output)

    with Embedded(flow_of(halved, f"{rgb.output}/trainers/rgb"), Settings()) as job:
        while not job.ended(0.01) and job.status().progress.done < 20:
            pass
    assert not job.status().state.ended
    shutil.rmtree(tmp_path / "rgb")
    assert run(flow_of(halved, f"{rgb.output}/trainers/rgb")).state == JobState.COMPLETED
    assert weights_of(STORES, halved.output) == weights


def flow_of(spec: JobSpec, weights: str | None) -> JobSpec:
    """The job with its flow trainer alone, which starts from these weights."""
    return spec.model_copy(update={"trainers": {"flow": spec.trainers["flow"].model_copy(update={"weights": weights})}})
