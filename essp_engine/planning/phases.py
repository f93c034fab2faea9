"""The phases of a job: their order, their videos, and their plans.

A training job is [train 0, validation 0, train 1, validation 1, ..., embed 0, test 0]. `embed` shows the validation
videos once more to the best weights, only if strategies use features (`aggregation.features`); `test` exists only if
there is a test split. A prediction is one phase over every usable video of its catalog; a job for the user's own loops
is one split, epoch after epoch.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping
from functools import cached_property, lru_cache

from essp_common.catalog.catalog import Catalog
from essp_common.catalog.rows import Rows
from essp_common.catalog.splits import consumed_view, splits_of
from essp_common.catalog.view import CatalogView
from essp_common.errors import ConfigError
from essp_common.job.data_spec import SamplingSpec
from essp_common.job.spec import JobSpec
from essp_common.pb.v1.messages_pb2 import EMBED, PREDICT, TEST, TRAIN, VALIDATION, PhasePlan, Purpose
from essp_engine.planning.moments import Moments
from essp_engine.planning.plan import plan_of
from essp_engine.planning.planned_clip import Plan

_CONSUMED: Mapping[str, Purpose] = {"train": TRAIN, "validation": VALIDATION, "test": TEST}
_DIGESTED = 256
"""Clips of each phase that enter the digest: enough to tell two plans apart, few enough to cost nothing."""
_TEXTS, _NUMBERS = ("id", "etag"), ("size_bytes", "frame_count", "first_frame", "last_frame")
"""Columns that change if a video is replaced or repaired."""


class Phases:
    """The work of a job. Plans are made when needed, and the last few are cached."""

    def __init__(self, spec: JobSpec, catalog: Catalog) -> None:
        """Raises `ConfigError` for missing splits, and for splits without usable videos."""
        self.spec = spec
        self._views = _views(spec, catalog)
        self.order: tuple[tuple[Purpose, int], ...] = _order(spec, self._views)
        self.plan = lru_cache(maxsize=8)(self._plan)
        sizes = {purpose: len(self.plan(self.order.index((purpose, 0)))) for purpose in self._views}
        self.plans = tuple(PhasePlan(purpose=p, epoch=e, clips=sizes[p]) for p, e in self.order)

    @property
    def views(self) -> tuple[tuple[Purpose, CatalogView], ...]:
        """The videos of each kind of phase."""
        return tuple(self._views.items())

    def view(self, number: int) -> CatalogView:
        """The videos of a phase."""
        return self._views[self.order[number][0]]

    @cached_property
    def digest(self) -> int:
        """A digest of the plans, from 256 clips of each phase of the first epoch; it is the same for every rank.

        For a prediction it covers every video, with its file as it was when the catalog was built, because scores are
        kept from one run of the job to the next.
        """
        return self._digest_of({purpose for purpose, _ in self.order})

    @cached_property
    def training_digest(self) -> int:
        """The digest of only the first epoch and its validation, which does not change if the job gets more epochs."""
        return self._digest_of((TRAIN, VALIDATION))

    def _digest_of(self, purposes: Collection[Purpose]) -> int:
        crc = 0
        sampling = self.spec.sampling.model_copy(update={"ranks": 1, "rank": 0})
        for number, (purpose, epoch) in enumerate(self.order):
            if epoch or purpose not in purposes:
                continue
            view = self.view(number)
            if purpose == PREDICT:
                crc = _crc_of_files(view.rows)
            plan = self._plan_over(view, sampling, purpose, epoch)
            moments = Moments(view, self.spec.clip) if view.further else None
            for index in range(0, len(plan), max(1, len(plan) // _DIGESTED)):
                clip = plan.clip(index)
                text = f"{number} {index} {clip.class_id} {view.rows.text('id', clip.video)} {clip.first_frame}\n"
                text += f"{clip.offsets}\n" if clip.offsets else ""
                crc = zlib.crc32(text.encode(), crc)
                if moments is not None:
                    shown = zip(view.further.items(), moments.frames(clip.video, clip.first_frame), strict=True)
                    texts = (f"{rows.text('id', clip.video)} {frames}\n" for (_, rows), frames in shown)
                    crc = zlib.crc32("".join(texts).encode(), crc)
        return crc

    def let_go(self) -> None:
        """Release the catalog and the plans when nothing more will be issued. The order and sizes of phases stay
        known."""
        self._views = {}
        self.plan.cache_clear()

    def _plan(self, number: int) -> Plan:
        purpose, epoch = self.order[number]
        return self._plan_over(self._views[purpose], self.spec.sampling, purpose, epoch)

    def _plan_over(self, view: CatalogView, sampling: SamplingSpec, purpose: Purpose, epoch: int) -> Plan:
        return plan_of(view, self.spec.clip, sampling, purpose, epoch, exact=self.spec.extract is not None)


def _crc_of_files(rows: Rows) -> int:
    crc = 0
    for name in _TEXTS:
        crc = zlib.crc32(b"\0".join(rows.encoded(name)), crc)
    for name in _NUMBERS:
        crc = zlib.crc32(rows.numbers(name).astype("<i8").tobytes(), crc)
    return crc


def _views(spec: JobSpec, catalog: Catalog) -> Mapping[Purpose, CatalogView]:
    if spec.predicts:
        view = catalog.view(None)
        if not len(view):
            raise ConfigError(
                "no video in it can be used; `essp catalog show --problems` says why",
                field="data.catalog",
                code="empty",
            )
        return {PREDICT: view}
    if spec.consumers:
        return {_CONSUMED[spec.data.consumed]: consumed_view(catalog, spec.data)}
    splits = splits_of(catalog, spec.data)
    views = {TRAIN: splits.train, VALIDATION: splits.validation}
    if spec.aggregation.features:
        views[EMBED] = splits.validation
    return views if splits.test is None else {**views, TEST: splits.test}


def _order(spec: JobSpec, views: Mapping[Purpose, CatalogView]) -> tuple[tuple[Purpose, int], ...]:
    if PREDICT in views:
        return ((PREDICT, 0),)
    if spec.consumers:
        return tuple((purpose, epoch) for epoch in range(spec.epochs) for purpose in views)
    epochs = [(purpose, epoch) for epoch in range(spec.epochs) for purpose in (TRAIN, VALIDATION)]
    return tuple(epochs + [(purpose, 0) for purpose in (EMBED, TEST) if purpose in views])
