"""What a GPU waits for: clips, and checkpoints. Both only where there is one.

A network learns as fast as its GPU can from batches that lie there already. What of that rate is left with clips that
are decoded meanwhile is the share of the time for which the GPU is busy. Networks are those of torchvision, trained in
bfloat16 by a loop of one's own, or by ESSP's trainer.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import cycle, pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks import peers
from benchmarks.checkpoint_saver import Saver, torch_save
from benchmarks.embedded import NullJob
from benchmarks.figures import Aim, Figure, Scale, clips_of
from benchmarks.image_training import MODEL, OPTIMIZER
from benchmarks.inputs import MANY
from benchmarks.measure import spread
from essp.embedded.composition import Embedded, EmbeddedOptions
from essp_common.job.spec import JobSpec
from essp_common.runtime.config import Settings
from essp_common.runtime.cores import cpu_count
from essp_engine.learning.torchvision_compat import torchvision

_MODELS = (("resnet50", "resnet50"), ("vit_b_16", "vit_b"))
"""Of torchvision, and what figures call them."""
_BATCH, _FRAMES, _STRIDE, _SIDE = 32, 3, 8, 224
_VISITS = 64
"""Of a window."""
_PER_VISIT = 32
_TRAINED_S, _LIMIT_S = 7.0, 2.5
_LOOK_S = 0.5
_STEPS = 8
"""That a save may make longer; as many before them and after them are those that they are compared with."""
_SAVES = 8
"""In a round: one step of many is late for a reason that has nothing to do with them."""

Batches = Iterable[tuple[Tensor, Tensor]]
"""Frames `(B, T, H, W, C)` uint8 and labels, on the GPU."""


def gpu_busy(scale: Scale) -> Iterator[Figure]:
    """Clips a second that a network learns from / that it would, if all of them lay on the GPU already."""
    if not _there("gpu_busy"):
        return
    job = NullJob(scale.catalog(MANY), size=_SIDE, frames=_FRAMES, stride=2 if scale.quick else _STRIDE)
    for name, figure in _MODELS:
        step = _Steps(name)
        limit = _rate(step, _resident(), 16, _LIMIT_S)
        for per_visit, ending in ((_PER_VISIT, ""), (8, ".k8")):
            rate = _rate(step, _loaded(job, per_visit), 2 * _VISITS * per_visit // _BATCH, _TRAINED_S)
            yield _share(f"gpu_busy.{figure}{ending}", rate, limit, Aim(least=0.9) if not ending else None)
        if name == "resnet50":
            workers = cpu_count()
            rate = _rate(step, _by_data_loader(job, workers), workers, batches=2 * workers)
            yield _share(f"gpu_busy.{figure}.dataloader", rate, limit, None)
            del step
            yield _share(f"gpu_busy.{figure}.trainer", _trained(job, name), limit, None)


def gpu_stall(scale: Scale) -> Iterator[Figure]:
    """How much longer a save of a trainer makes a loop on a GPU, in ms; and that / the same by `torch.save`."""
    if not _there("gpu_stall"):
        return
    scale.root.mkdir(parents=True, exist_ok=True)
    for name, figure in _MODELS:
        with tempfile.TemporaryDirectory(dir=scale.root) as folder:
            stalls = _stalls(_Steps(name), Path(folder), 1 if scale.quick else scale.rounds)
        plain = statistics.median(stalls.plain)
        detail: dict[str, float | str] = {
            "torch_save_ms": round(plain, 1),
            "launches_ms": round(statistics.median(stalls.launches), 2),
            "no_save_ms": round(statistics.median(stalls.none), 2),
            "quarters_ms": ", ".join(f"{quarter:.2f}" for quarter in statistics.quantiles(stalls.ours)),
        }
        found = spread(stalls.ours)
        yield Figure(f"gpu_stall.{figure}", found.median, "ms", Aim(most=1.0), found.low, found.high, detail)
        yield Figure(f"gpu_stall.{figure}.torch_save", found.median / plain, "ratio", Aim(most=0.05))


def _there(figure: str) -> bool:
    if not torch.cuda.is_available():
        print(f"{figure}: left out, there is no GPU here", file=sys.stderr)
    return torch.cuda.is_available()


def _share(name: str, rate: _Rate, limit: _Rate, aim: Aim | None) -> Figure:
    detail: dict[str, float | str] = {
        "clips_s": round(rate.clips_s),
        "limit_clips_s": round(limit.clips_s),
        "cores": round(rate.cores, 1),
        "own_cores": round(rate.own_cores, 2),
        "gpu": torch.cuda.get_device_name(),
        "cpus": cpu_count(),
    }
    return Figure(name, rate.clips_s / limit.clips_s, "share", aim, detail=detail)


class _Steps:
    """Steps of a network on single frames, as a plain loop makes them: SGD with momentum, in bfloat16."""

    def __init__(self, name: str) -> None:
        torch.backends.cudnn.benchmark = True
        model: nn.Module = getattr(torchvision.models, name)(weights=None, num_classes=101)
        self.model = model.to("cuda").to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = torch.optim.SGD(self.model.parameters(), 1e-3, momentum=0.9, fused=True)
        self.before_update: Callable[[], None] = lambda: None

    def __call__(self, frames: Tensor, labels: Tensor) -> None:
        """One step, launched."""
        clips, times = frames.shape[:2]
        pictures = frames.flatten(0, 1).permute(0, 3, 1, 2).float().sub_(114).div_(57)
        with torch.autocast("cuda", torch.bfloat16):
            scores = self.model(pictures).view(clips, times, -1).mean(dim=1)
            loss = functional.cross_entropy(scores, labels)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.before_update()
        self.optimizer.step()

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Weights and momentum, in place."""
        momentum = {
            name: self.optimizer.state[parameter]["momentum_buffer"]
            for name, parameter in self.model.named_parameters()
        }
        return {MODEL: self.model.state_dict(), OPTIMIZER: momentum}


@dataclass(frozen=True, slots=True)
class _Moment:
    """What had been used up to then."""

    wall_s: float
    own_s: float
    cores_s: float
    """CPU time of all cores."""

    @classmethod
    def now(cls) -> _Moment:
        fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
        idle, waiting = int(fields[3]), int(fields[4])
        busy = sum(map(int, fields[:8])) - idle - waiting
        return cls(time.perf_counter(), time.process_time(), busy / os.sysconf("SC_CLK_TCK"))


@dataclass(frozen=True, slots=True)
class _Rate:
    """How fast clips were learned from."""

    clips_s: float
    own_cores: float
    """That this process kept busy."""
    cores: float
    """That all processes kept busy."""

    @classmethod
    def between(cls, clips: int, begin: _Moment, end: _Moment) -> _Rate:
        wall_s = end.wall_s - begin.wall_s
        return cls(clips / wall_s, (end.own_s - begin.own_s) / wall_s, (end.cores_s - begin.cores_s) / wall_s)


def _rate(step: _Steps, given: Batches, warm: int, seconds: float = math.inf, batches: float = math.inf) -> _Rate:
    """The rate over the batches after the first `warm` ones, for `seconds` or `batches`, whichever ends first."""
    clips, begin = 0, _Moment.now()
    for number, (frames, labels) in enumerate(given):
        if number == warm:
            torch.cuda.synchronize()
            clips, begin = 0, _Moment.now()
        elif number > warm and (number - warm == batches or time.perf_counter() - begin.wall_s > seconds):
            break
        step(frames, labels)
        clips += len(labels)
    torch.cuda.synchronize()
    return _Rate.between(clips, begin, _Moment.now())


def _resident() -> Batches:
    random = np.random.default_rng(0)
    shape = (_BATCH, _FRAMES, _SIDE, _SIDE, 3)
    made = [torch.from_numpy(random.integers(0, 256, shape, dtype=np.uint8)).cuda() for _ in range(4)]
    return cycle((frames, torch.zeros(_BATCH, dtype=torch.long, device="cuda")) for frames in made)


def _loaded(job: NullJob, per_visit: int) -> Batches:
    from essp import Clip, Loader, Sampling

    loader = Loader(
        job.catalog,
        clip=Clip(job.frames, job.stride, job.size),
        batch_size=_BATCH,
        sampling=Sampling("pooled", clips_per_epoch=1_000_000, clips_per_visit=per_visit, window=_VISITS * per_visit),
        device="cuda",
    )
    with loader:
        for batch in loader:
            yield batch.frames, batch.labels.pin_memory().to("cuda", non_blocking=True)


def _by_data_loader(job: NullJob, workers: int) -> Batches:
    """What a user would write instead, with the very clips of the same plan without reuse."""
    from torch.utils.data import DataLoader

    count = 4 * workers * _BATCH
    videos = peers.ClipDataset(clips_of(job, count), job.size, "rgb", count)
    loader: DataLoader[Tensor] = DataLoader(
        videos,  # type: ignore[arg-type]
        batch_size=_BATCH,
        num_workers=workers,
        pin_memory=True,
    )
    labels = torch.zeros(_BATCH, dtype=torch.long, device="cuda")
    for frames in loader:
        yield frames.to("cuda", non_blocking=True), labels


def _trained(job: NullJob, model: str) -> _Rate:
    """The rate of ESSP's trainer, which makes its views on the GPU and saves checkpoints."""
    window = _VISITS * _PER_VISIT
    with tempfile.TemporaryDirectory(prefix="essp-benchmark-") as folder:
        spec = JobSpec.model_validate(
            {
                "name": "busy",
                "output": f"file://{folder}",
                "epochs": 1,
                "data": {"catalog": f"file://{job.catalog}", "test": None},
                "clip": {
                    "frames": job.frames,
                    "stride": job.stride,
                    "resize": {"mode": "exact", "height": 256, "width": 256},
                },
                "sampling": {
                    "kind": "pooled",
                    "clips_per_epoch": 1_000_000,
                    "clips_per_visit": _PER_VISIT,
                    "window": window,
                    "clips_per_video": 1,
                },
                "streams": {"rgb": {"feature": "rgb", "params": {"frames": job.frames}}},
                "trainers": {
                    "rgb": {
                        "stream": "rgb",
                        "model": model,
                        "batch_size": _BATCH,
                        "device": "cuda",
                        "amp": True,
                        "augment": {"crop": _SIDE},
                        "checkpoint": {"every": 8192},
                    }
                },
                "limits": {"budget": "8GiB"},
            }
        )
        with Embedded(spec, Settings(), EmbeddedOptions(fresh=True)) as embedded:
            before, begin = _until(embedded, 2 * window, 0.0)
            after, end = _until(embedded, 2 * window, begin.wall_s + _TRAINED_S)
    return _Rate.between(after - before, begin, end)


def _until(embedded: Embedded, clips: int, time_s: float) -> tuple[int, _Moment]:
    """Wait until `clips` are done and `time_s` has come. Returns how many are done then, and the moment."""
    while True:
        if embedded.ended(_LOOK_S):
            raise RuntimeError(f"the job ended: {embedded.status().reason}")
        [trainer] = embedded.status().trainers
        now = _Moment.now()
        if trainer.clips_done >= clips and now.wall_s >= time_s:
            return trainer.clips_done, now


@dataclass(frozen=True, slots=True)
class _Stalls:
    """Milliseconds by which saves made the steps after them longer."""

    ours: list[float]
    launches: list[float]
    """What the host needed to launch ours."""
    plain: list[float]
    """The same by `torch.save`."""
    none: list[float]
    """Where nothing was saved: what else goes on in the machine."""


def _stalls(step: _Steps, folder: Path, rounds: int) -> _Stalls:
    batches = iter(_resident())
    saver = Saver(folder, parallel=True)
    moving = [(MODEL, name) for name, _ in step.model.named_buffers()]
    found = _Stalls([], [], [], [])

    def ours() -> None:
        began_s = time.perf_counter()
        saver.save(step.tensors(), moving)
        found.launches.append(1000 * (time.perf_counter() - began_s))

    def longer(save: Callable[[], None]) -> float:
        """By how much the steps after a save take longer, together, than as many of the steps around them (median)."""
        saver.finish()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(3 * _STEPS + 1)]  # type: ignore[no-untyped-call]
        step(*next(batches))
        for number, event in enumerate(events):
            event.record()
            if number == _STEPS:
                save()
            step(*next(batches))
        torch.cuda.synchronize()
        took = [one.elapsed_time(other) for one, other in pairwise(events)]
        around = took[:_STEPS] + took[2 * _STEPS :]
        return float(sum(took[_STEPS : 2 * _STEPS]) - _STEPS * statistics.median(around))

    try:
        step(*next(batches))
        step.before_update = saver.wait_for_copy
        longer(ours)  # the first one begins the memory and the child
        found.launches.clear()
        for _ in range(rounds):
            for _ in range(_SAVES):
                found.ours.append(longer(ours))
                found.none.append(longer(lambda: None))
            found.plain.append(longer(lambda: torch_save(step.tensors(), folder)))
    finally:
        saver.close()
    return found
