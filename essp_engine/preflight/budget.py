"""What the budget of a job (`limits.budget`) has to hold.

Credits are reserved for clips of the largest size (`sizing.py`). A trainer frees the clips of a batch together, and the
clips of a locality window arrive in any order. So a job can only proceed if the budget holds a batch and, with
locality, a window (`Budget.problem`).

A large budget also serves stragglers (`ledger/stragglers.py`). Half of it is for the catch-up queues, in equal shares
for all trainers but one. Each share must hold two batches: one in training and one in preparation. Users' loops come
and go, and all of them may have to catch up at once: a job with `consumers` has a share for each of them, which holds
at least one batch. If a share cannot hold a window as well, the queue issues smaller parts of a window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from essp_common.errors import ConfigError
from essp_common.job.spec import JobSpec
from essp_common.pb.v1.messages_pb2 import TRAIN, VALIDATION
from essp_common.quantities import counted, size
from essp_engine.planning.phases import Phases

_UNIT_CLIPS, _UNIT_FRAMES = 32, 512
"""Limits of one work unit; the larger one applies: enough clips to share decoding from a keyframe, and few enough to
use several decoders."""
_PREDICTOR_BATCH = 16
"""Clips that a predictor scores and frees together."""
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Budget:
    """The budget of one job."""

    spec: JobSpec
    bounds: Sequence[Sequence[int]]
    """For each phase, the most bytes of each part of a clip."""

    @property
    def clip_bytes(self) -> int:
        """Upper bound of a clip and its features together."""
        return max(sum(parts) for parts in self.bounds)

    @property
    def problem(self) -> ConfigError | None:
        """What is wrong if it is too small for the job to proceed; None: it is large enough."""
        spec, largest, needed = self.spec, self.clip_bytes, self.least_clips
        held = spec.limits.budget // largest
        if held >= needed:
            return None
        cause = self._batch[1]
        window = spec.sampling.issue_window
        cause += f" and sampling.{_window_field(spec)} = {window} need" if window else " needs"
        return ConfigError(
            f"{size(spec.limits.budget)} holds {counted(held, 'clip')} of up to {size(largest)}, but {cause} {needed} "
            f"at once; raise it to {-(-needed * largest // _MIB)}MiB or more, or lower the others, clip.frames or "
            "clip.resize",
            field="limits.budget",
            code="range",
        )

    @property
    def least_clips(self) -> int:
        """Clips that it must hold for the job to proceed. With fewer, consumers may lack the rest of a batch.

        With loops, half of the budget holds a batch for each. The other half is enough for those that keep in step, if
        there are several.
        """
        loops = len(self.spec.consumers)
        return max((2 if loops > 1 else 1) * self._at_once(), 2 * self._batch[0] * loops)

    @property
    def enough_bytes(self) -> int:
        """The smallest budget that lets consumers take one batch while the next ones are made."""
        loops = len(self.spec.consumers)
        return max(self._at_once(batches=4), self.least_clips, 4 * self._batch[0] * loops) * self.clip_bytes

    @property
    def uncoupled_bytes(self) -> int:
        """The smallest budget that has room for catch-up queues."""
        return 2 * (len(self.spec.trainers) - 1) * self._at_once(batches=2) * self.clip_bytes

    @property
    def catch_up_bytes(self) -> int:
        """Bytes for the catch-up queue of each trainer or loop; 0: all trainers keep in step."""
        limits = self.spec.limits
        if self.spec.consumers:
            return limits.budget // 2 // len(self.spec.consumers)
        others = len(self.spec.trainers) - 1
        if limits.coupled or others < 1:
            return 0
        share = limits.budget // 2 // others
        return share if share // self.clip_bytes >= self._at_once(batches=2) else 0

    @property
    def catch_up_window(self) -> int:
        """Indices that a catch-up queue issues together: the largest part of a window that fits into its share; 0: all.

        A part divides the window, so that no work unit crosses the point where a straggler joins the others.
        """
        window = self.spec.sampling.issue_window
        room = self.catch_up_bytes // self.clip_bytes - self._batch[0] + 1
        if not self.spec.consumers or room >= window:
            return 0
        return max(part for part in range(1, max(1, room) + 1) if window % part == 0)

    @property
    def unit_clips(self) -> int:
        """Most clips of one work unit, if the budget is large enough."""
        held = (self.catch_up_bytes or self.spec.limits.budget) // self.clip_bytes
        return min(most_unit_clips(self.spec), self.spec.sampling.issue_window or held - self._at_once() + 1)

    def _at_once(self, batches: int = 1) -> int:
        """Clips that it must hold so that a consumer gets this number of batches, in any order of issue."""
        return batches * self._batch[0] + max(self.spec.sampling.issue_window, 1) - 1

    @property
    def _batch(self) -> tuple[int, str]:
        """The largest number of clips that are freed together, and the setting that leads to it."""
        batches = [
            (reader.batch_size, f"trainers.{name}.batch_size = {reader.batch_size}")
            for name, reader in self.spec.trainers.items()
        ]
        for name, reader in self.spec.consumers.items():
            field, value = (
                ("batch_pixels", reader.batch_pixels) if reader.batch_pixels else ("batch_size", reader.batch_size)
            )
            batches.append((reader.batch_size, f"consumers.{name}.{field} = {value}"))
        return max(batches, default=(_PREDICTOR_BATCH, f"the predictor's batch = {_PREDICTOR_BATCH}"))


def most_unit_clips(spec: JobSpec) -> int:
    """Most clips of one work unit, if the budget has room for any number.

    Records share no decoding, and messages of 32 cost as little per record as messages of 512. Smaller units let a
    window employ several decoders.
    """
    if spec.data.records:
        return _UNIT_CLIPS
    frames = spec.clip.frames + sum(view.frames for view in spec.clip.further.values())
    return max(_UNIT_CLIPS, _UNIT_FRAMES // frames)


def lead_clips(phases: Phases) -> int:
    """Clips by which a trainer may be ahead of the slowest one if all keep in step; 0: a prediction has no bound.

    It is `limits.lead` passes, or the last phase if that is longer: the rest of a phase is never held back.
    """
    if not phases.spec.trainers:
        return 0
    a_pass = sum(plan.clips for plan in phases.plans if plan.purpose in (TRAIN, VALIDATION) and plan.epoch == 0)
    return max(phases.spec.limits.lead * a_pass, *(plan.clips for plan in phases.plans))


def _window_field(spec: JobSpec) -> str:
    return "window" if spec.sampling.has_visits else "locality"
