"""The configuration of small made-up jobs, for tests of the ledger."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache

from essp_common.catalog.catalog import Catalog
from essp_common.catalog.rows import VideoRow
from essp_common.catalog.view import CatalogView
from essp_common.job.clip_spec import ClipSpec
from essp_common.job.data_spec import SamplingSpec
from essp_common.job.position import Position
from essp_common.pb.v1.messages_pb2 import AGGREGATOR, TEST, TRAIN, VALIDATION, PhasePlan
from essp_engine.planning.plan import plan_of
from essp_engine.planning.planned_clip import Plan
from essp_engine.seeding.clip_parts import ClipParts
from essp_master.ledger.config import LedgerConfig

CLIP_BYTES, STREAM_BYTES = 100, 60
"""The bounds; actual sizes are smaller (`LedgerSimulation.actual`)."""
FEATURES = {"rgb": "rgb", "flow": "flow", "diff": "frame_diff"}
CONSUMERS = {"trainer.rgb": "rgb", "trainer.flow": "flow"}


def view_of(videos: int, classes: int = 2) -> CatalogView:
    """So many videos of 40 frames, dealt out to the classes in turn."""
    rows = [
        VideoRow(f"v{n:03d}", f"file:///v{n}", f"c{n % classes}", "train", 1, "e", frame_count=40, last_frame=39)
        for n in range(videos)
    ]
    return Catalog(tuple(rows)).view(None)


def ledger_config(
    epochs: int = 1,
    clips: int = 6,
    videos: int = 4,
    consumers: Mapping[str, str] = CONSUMERS,
    start: Mapping[str, Position] | None = None,
    budget: int = 10_000,
    locality: int = 0,
    unit_clips: int = 4,
    replacements: int = 2,
    dead_ratio: float = 1.0,
    kind: str = "class_balanced",
    catch_up: int = 0,
    lead: int = 0,
    loops: Collection[str] = (),
    catch_up_window: int = 0,
    test: bool = False,
) -> LedgerConfig:
    """Epochs of training, each with a validation phase, over a small made-up catalog. `lead`: in passes; 0: any.
    `test`: a test phase follows them.

    `locality` of a pooled plan: its window, which is one visit.
    """
    view = view_of(videos)
    clip = ClipSpec(frames=5)
    window = {"clips_per_visit": locality, "window": locality} if kind == "pooled" else {"locality": locality}
    sampling = SamplingSpec(kind=kind, clips_per_epoch=clips, clips_per_video=2, **window)
    purposes = [(purpose, epoch) for epoch in range(epochs) for purpose in (TRAIN, VALIDATION)]
    purposes += [(TEST, 0)] if test else []

    @cache
    def plan(phase_index: int) -> Plan:
        return plan_of(view, clip, sampling, *purposes[phase_index])

    parts = ClipParts(FEATURES, consumers)
    phases = [PhasePlan(purpose=p, epoch=e, clips=len(plan(n))) for n, (p, e) in enumerate(purposes)]
    return LedgerConfig(
        phases=phases,
        plan_of=plan,
        parts=parts,
        bounds=[[CLIP_BYTES] + [STREAM_BYTES] * len(parts.streams)] * len(purposes),
        replaceable=[purpose == TRAIN for purpose, _ in purposes],
        start=start or {},
        finals=frozenset(),
        budget_bytes=budget,
        unit_clips=unit_clips,
        locality=locality,
        replacements=replacements,
        dead_ratio=dead_ratio,
        last_stage=AGGREGATOR,
        catch_up_bytes=catch_up,
        catch_up_window=catch_up_window,
        loops=frozenset(loops),
        lead_clips=lead * sum(phase.clips for phase in phases[:2]),
    )
