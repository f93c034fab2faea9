"""The sentence that says what limits the rate of a job."""

from __future__ import annotations

from typing import Any

import pytest

from essp_common.job.status import JobStatus
from essp_common.job.usage import ONE_PROCESS, PoolUsage, ProcessUsage, Usage
from essp_master.status.bottleneck import bottleneck
from tests.harness.statuses import MIB, document, status

FLOW = {"name": "extractor.flow", "workers": 1, "done": 90, "clips_per_s": 9.0, "seconds_per_clip": 0.11, "queue": 12}
DECODER = {"name": "decoder", "workers": 2, "done": 90, "clips_per_s": 9.0, "seconds_per_clip": 0.012, "queue": 8}


def job(*waits: float | None, pools: Any = (DECODER, FLOW), **changes: Any) -> JobStatus:
    """A job whose trainers rgb and flow wait for clips for these shares of their time."""
    trainers = [dict(trainer) for trainer in document()["trainers"]]
    for trainer, wait in zip(trainers, waits, strict=True):
        trainer["data_wait_ratio"] = wait
    credits = document()["credits"] | {"waiting": changes.pop("waiting", False)}
    return status(**({"trainers": trainers, "pools": list(pools), "credits": credits} | changes))


def said(found: JobStatus) -> tuple[str, str]:
    limit = bottleneck(found)
    return ("", "") if limit is None else (limit.part, limit.words)


def test_a_stage_with_the_longest_queue_at_each_worker_keeps_a_trainer_waiting() -> None:
    assert said(job(0.03, 0.41)) == (
        "extractor.flow",
        "The extractors of flow limit the rate: 12 clips queued at 1 worker that take 110.0 ms a clip; "
        "flow waits for clips for 41 % of its time.",
    )


def test_only_what_feeds_the_trainer_that_waits_is_named() -> None:
    part, words = said(job(0.5, 0.0))
    assert part == "decoder"
    assert words.startswith("The decoders limit the rate: 8 clips queued at 2 workers")


def test_where_nobody_waits_the_slowest_trainer_limits() -> None:
    assert said(job(0.03, 0.01)) == (
        "trainer.flow",
        "Trainer flow limits the rate: it trains 25.0 clips/s and waits for clips for only 1 % of its time.",
    )


def test_a_trainer_held_back_by_another_is_not_short_of_clips() -> None:
    held = [trainer | {"waits_for": "flow"} if trainer["name"] == "rgb" else trainer for trainer in trainers(0.9, 0.01)]
    part, words = said(job(0.9, 0.01, trainers=held))
    assert part == "trainer.flow"
    assert words.endswith("; rgb may not get further ahead of it.")


def test_a_trainer_that_learns_between_two_phases_limits_and_is_not_short_of_clips() -> None:
    words = "learns centres: step 25 of at most 100"
    fit = {"what": "centres", "done": 25, "most": 100, "left_s": None, "words": words}
    fitting = [trainer | {"fit": fit} if trainer["name"] == "flow" else trainer for trainer in trainers(0.01, 0.4)]
    assert said(job(0.01, 0.4, trainers=fitting)) == ("trainer.flow", f"Trainer flow limits the rate: it {words}.")


def trainers(*waits: float | None) -> list[dict[str, Any]]:
    return [trainer.model_dump() for trainer in job(*waits).trainers]


def test_who_holds_the_budget_limits_those_who_wait() -> None:
    part, words = said(job(0.0, 0.6, waiting=True))
    assert part == "trainer.rgb"
    assert "flow waits, as no more is issued" in words


def test_a_full_cache_and_a_small_budget_are_named() -> None:
    cache = {"used_bytes": 250 * MIB, "limit_bytes": 256 * MIB, "keys": 33, "full_count": 2}
    part, words = said(job(0.4, 0.6, cache=cache))
    assert part == "cache"
    assert words.startswith("The frame cache limits the rate: 250 MiB of 256 MiB")
    idle = [pool | {"queue": 0} for pool in (DECODER, FLOW)]
    part, words = said(job(0.4, 0.6, pools=idle, waiting=True))
    assert part == "budget"
    assert words.startswith("limits.budget limits the rate: all 64.0 MiB")


def test_a_budget_that_is_hardly_used_is_not_blamed_for_what_keeps_trainers_in_step() -> None:
    idle = [pool | {"queue": 0} for pool in (DECODER, FLOW)]
    credits = {"budget_bytes": 512 * MIB, "outstanding_bytes": 80 * MIB, "outstanding_clips": 9, "waiting": True}
    part, words = said(job(0.4, 0.6, pools=idle, credits=credits))
    assert (part, words) == ("", "No clip is queued at any worker; flow waits for clips for 60 % of its time.")
    part, words = said(job(0.0, 0.0, kind="predict", trainers=[], pools=idle, credits=credits))
    assert (part, "budget" in words) == ("consumers", False)


def test_clips_of_which_none_was_made_yet_are_named_first() -> None:
    backlog = {"decoder": 5, "flow": 7}
    assert said(job(None, None, pools=(), backlog=backlog)) == (
        "decoder",
        "No decoder has reported a clip yet: 5 clips queued.",
    )
    assert said(job(0.0, None, pools=(DECODER,), backlog=backlog)) == (
        "extractor.flow",
        "No extractor of flow has reported a clip yet: 7 clips of flow queued.",
    )


def test_trainers_that_nobody_has_started_are_named_once_clips_are_made() -> None:
    resumed = [trainer | {"purpose": None} for trainer in trainers(None, None)]
    assert "since the job resumed: " in said(job(None, None, trainers=resumed, pools=[DECODER | {"queue": 0}]))[1]
    silent = [trainer | {"reports": []} for trainer in resumed]
    part, words = said(job(None, None, trainers=silent, pools=[DECODER | {"queue": 0}]))
    assert part == "trainer.rgb"
    assert words.startswith("No trainer has reported yet: ")
    assert words.endswith(" on the way to rgb, flow.")
    assert said(job(None, None, trainers=silent, pools=[], backlog={})) == ("", "")


def test_a_prediction_is_limited_by_who_takes_its_clips_or_by_who_makes_them() -> None:
    idle = [pool | {"queue": 0} for pool in (DECODER, FLOW)]
    part, words = said(job(0.0, 0.0, kind="predict", trainers=[], pools=idle, waiting=True))
    assert (part, words.split(" limit ")[0]) == ("consumers", "The predictors")
    assert said(job(0.0, 0.0, kind="predict", trainers=[]))[0] == "extractor.flow"
    assert bottleneck(job(0.0, 0.0, kind="predict", trainers=[], pools=idle)) is None


@pytest.mark.parametrize("state", ["pending", "paused", "completed", "failed", "stopped"])
def test_nothing_is_said_of_a_job_that_does_not_run(state: str) -> None:
    assert bottleneck(job(0.4, 0.6, state=state)) is None


def test_nothing_is_said_of_what_is_not_known() -> None:
    assert bottleneck(job(None, None)) is None


def uses(pool: str, workers: int = 2, **figures: float) -> PoolUsage:
    none = dict.fromkeys(PoolUsage.model_fields) | {"pool": pool, "workers": workers, "gpus": 0, "cores": 8.0}
    return PoolUsage.model_validate(none | figures)


TRAINED = "trainer.demo.flow"


@pytest.mark.parametrize(
    ("waits", "row", "words"),
    [
        (
            (0.5, 0.0),
            uses("decoder", cpu_cores=7.6),
            "Its workers use 7.6 of 8 cores: more cores would make it faster.",
        ),
        ((0.5, 0.0), uses("decoder", cpu_cores=2.0), "Its workers use 2.0 of 8 cores: there is room for more workers."),
        ((0.5, 0.0), uses("decoder", cpu_cores=5.0), ""),
        ((0.5, 0.0), uses("decoder"), ""),
        ((0.5, 0.0), uses("extractor.flow", cpu_cores=8.0), ""),
        ((0.03, 0.41), uses("extractor", cpu_cores=8.0), "Its workers use 8.0 of 8 cores: more cores would"),
        ((0.5, 0.0), uses(ONE_PROCESS, cpu_cores=7.9), "The whole process uses 7.9 of 8 cores: more cores would"),
        ((0.0, 0.0), uses(TRAINED, gpus=1, gpu_busy=0.97), "Its GPU is 97 % busy."),
        ((0.0, 0.0), uses(TRAINED, gpus=2, gpu_busy=0.3), "Its 2 GPUs are only 30 % busy: try a larger batch_size."),
        ((0.0, 0.0), uses(TRAINED, gpus=1, gpu_busy=0.3, cpu_cores=7.5), "because its cores are (7.5 of 8)"),
        ((0.0, 0.0), uses(TRAINED, cpu_cores=7.9), "Its process uses 7.9 of 8 cores: more cores would make it faster."),
        ((0.0, 0.0), uses(TRAINED, cpu_cores=1.0), ""),
    ],
)
def test_the_sentence_says_what_the_machines_have_left(waits: tuple[float, float], row: PoolUsage, words: str) -> None:
    found = job(*waits)
    alone = bottleneck(found)
    process = ProcessUsage(
        host="a", process=1, workers=("w",), pools=("decoder", "extractor.flow"), cpu_cores=None, cores=8,
        memory_bytes=0, memory_limit_bytes=0, disk_free_bytes=0, disk_bytes=0, gpus=(),
    )  # fmt: skip
    told = bottleneck(found, usage=Usage(pools=(row,), processes=(process,)))
    assert alone is not None
    assert told is not None
    assert told.part == alone.part
    added = told.words.removeprefix(alone.words).strip()
    assert words in added if words else added == ""
