"""What a master tells of a training job of two streams, in its second epoch."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from essp_common.job.status import CountStatus, JobStatus

WHEN = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)
MIB = 2**20


def status(**changes: Any) -> JobStatus:
    return JobStatus.model_validate(document(**changes))


def document(**changes: Any) -> dict[str, Any]:
    """The same as the API sends it; `changes` are fields of the job."""
    job = {
        "name": "demo",
        "kind": "train",
        "state": "running",
        "reason": "",
        "output": "file:///runs/demo",
        "created": WHEN,
        "ended": None,
        "elapsed_s": 83.0,
        "streams": {"rgb": "rgb", "flow": "flow"},
        "result": None,
        "last_event": 7,
    }
    return job | _progress() | _resources() | {"trainers": _trainers()} | changes


def _progress() -> dict[str, Any]:
    done = (
        {"trainer.rgb": 100},
        {"trainer.rgb": 100},
        {"trainer.rgb": 48, "trainer.flow": 40},
        {"trainer.rgb": 0, "trainer.flow": 0},
    )
    purposes = ("train", "validation", "train", "validation")
    truncated = {"video": "a/[b].mp4", "reason": "the video ends before its frame 12"}
    return {
        "progress": {"done": 240, "total": 400, "clips_per_s": 12.34, "eta_s": 130.0, "current": 2},
        "phases": [
            {"purpose": purpose, "epoch": n // 2, "clips": 100, "issued": 100, "done": by_consumer, "skipped": 0}
            for n, (purpose, by_consumer) in enumerate(zip(purposes, done, strict=True))
        ],
        "counts": dict.fromkeys(CountStatus.model_fields, 0),
        "failures": [{"stage": "decoder", "kind": "truncated", "count": 3, "examples": [truncated]}],
    }


def _resources() -> dict[str, Any]:
    decoder = {"workers": 2, "done": 1240, "clips_per_s": 55.5, "seconds_per_clip": 0.0123, "queue": 5}
    return {
        "credits": {
            "budget_bytes": 64 * MIB,
            "outstanding_bytes": 32 * MIB,
            "outstanding_clips": 21,
            "waiting": True,
        },
        "cache": {"used_bytes": 30 * MIB, "limit_bytes": 256 * MIB, "keys": 33, "full_count": 2},
        "backlog": {"decoder": 5, "flow": 0},
        "pools": [{"name": "decoder"} | decoder],
    }


def _trainers() -> list[dict[str, Any]]:
    rgb = {
        "name": "rgb",
        "stream": "rgb",
        "model": "small",
        "purpose": "train",
        "epoch": 1,
        "clips_done": 48,
        "loss": 1.234,
        "top1": 0.5,
        "data_wait_ratio": 0.031,
        "clips_per_s": 25.0,
        "queue": 6,
        "reports": [
            {"purpose": "train", "epoch": 0, "metrics": {"loss": 2.0, "top1": 0.2, "data_wait_ratio": 0.05}},
            {"purpose": "validation", "epoch": 0, "metrics": {"loss": 1.5, "top1": 0.3, "video_top1": 0.333}},
        ],
        "checkpoint": None,
        "final": False,
    }
    flow = {"name": "flow", "stream": "flow", "clips_done": 40, "data_wait_ratio": 0.41, "reports": []}
    return [rgb, rgb | flow]
