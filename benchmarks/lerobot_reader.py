"""What runs in each environment (`lerobot_environment.py`): records a data set, reads it, trains on it.

    python lerobot_reader.py record FOLDER aloha|droid|small     # by LeRobot itself
    python lerobot_reader.py measure FOLDER READER HOW BATCHES   # a line of JSON; HOW: item, batch, stream, shared
    python lerobot_reader.py dump FOLDER READER FILE             # items, for a comparison
    python lerobot_reader.py train FOLDER READER STEPS           # LeRobot's ACT policy on a CPU

READER is `torchcodec` or `pyav` (LeRobot's class with this backend), `lance` (lerobot-lancedb, of a folder that it has
converted) or `essp`. All give float32, unless READER ends with `-uint8`. `shared` is `essp.Loader` (uint8): several
loops, as of several training runs, take the batches of one pool of decoders. Its CPU is the sum over all processes, for
each sample of a loop.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

_KINDS = {
    "aloha": (50, 60, 30, 480, 640, ("top", "wrist")),
    "droid": (100, 80, 15, 180, 320, ("left", "right", "wrist")),
    "small": (3, 30, 30, 96, 128, ("top", "wrist")),
}
"""Episodes, frames of each, frames a second, height, width and cameras."""
_JOINTS = 14
_NOISE = 2
"""Of a camera's sensor, in 1/256."""
_BATCH = 32
_VISIT = 16
_WARM = 2
"""Batches, and of `stream` windows, that are not counted: until memory is used again."""
_LOOPS = 8
"""Of `shared`."""
_SHARED_WARM, _SHARED_BATCHES = 20, 40
"""Batches of each loop, from when on memory is used again."""
_WINDOWS = 4
"""Of `stream`, that are counted: a window is decoded ahead, so parts of one say nothing."""


def record(folder: str, kind: str) -> None:
    """Record a data set with LeRobot's defaults: AV1, a keyframe in two frames, all episodes in one file."""
    import numpy as np
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    episodes, frames, fps, height, width, cameras = _KINDS[kind]
    image: dict[str, Any] = {"dtype": "video", "shape": (height, width, 3), "names": ["height", "width", "channels"]}
    joints: dict[str, Any] = {"dtype": "float32", "shape": (_JOINTS,), "names": None}
    features = {f"observation.images.{camera}": image for camera in cameras}
    features |= {"observation.state": joints, "action": joints}
    made = LeRobotDataset.create(
        f"benchmarks/{kind}", fps, features, root=folder, robot_type="arm", use_videos=True, streaming_encoding=True
    )
    generator = np.random.default_rng(0)
    scenes = {camera: _texture(2 * height, 2 * width, seed) for seed, camera in enumerate(cameras)}
    hand = _texture(height // 4, width // 4, len(cameras))
    for episode in range(episodes):
        places = np.cumsum(generator.normal(0, 1, (frames, _JOINTS)), 0).astype(np.float32)
        for step in range(frames):
            frame: dict[str, Any] = {"observation.state": places[step], "action": places[min(step + 1, frames - 1)]}
            for number, camera in enumerate(cameras):
                top, left = height // 2, width // 2
                if camera == "wrist":  # the others stand still
                    top, left = (int(side + 3 * places[step, axis]) for side, axis in ((top, 0), (left, 1)))
                top, left = top % height, left % width
                picture = scenes[camera][top : top + height, left : left + width].astype(np.int16)
                down, right = (int(abs(places[step, axis + number]) * 9) for axis in (6, 9))
                down, right = down % (height - height // 4), right % (width - width // 4)
                picture[down : down + height // 4, right : right + width // 4] = hand
                noise = generator.normal(0, _NOISE, picture.shape)
                frame[f"observation.images.{camera}"] = np.clip(picture + noise, 0, 255).astype(np.uint8)
            made.add_frame(frame | {"task": f"task {episode % 4}"})
        made.save_episode()
    made.finalize()


def _texture(height: int, width: int, seed: int) -> Any:
    """A picture with detail of all sizes."""
    import numpy as np
    from PIL import Image

    generator = np.random.default_rng(seed)
    total = np.zeros((height, width, 3), np.float32)
    for cells in (4, 16, 64, 256):
        noise = generator.integers(0, 256, (max(cells * height // width, 1), cells, 3), dtype=np.uint8)
        total += np.asarray(Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC), np.float32) / (
            cells**0.4
        )
    total -= total.min()
    return (total * (255 / total.max())).astype(np.uint8)


def opened(folder: str, reader: str, **arguments: Any) -> Any:
    """The data set by one of the readers."""
    name, _, kind = reader.partition("-")
    if kind:
        arguments["return_uint8"] = True
    if name == "essp":
        from essp.lerobot import LeRobotDataset

        return LeRobotDataset("benchmarks/set", root=folder, **arguments)
    if name == "lance":
        from lerobot_lancedb import LanceDBDataset

        return LanceDBDataset("benchmarks/set", root=folder, **arguments)
    from lerobot.datasets.lerobot_dataset import LeRobotDataset as Theirs

    return Theirs("benchmarks/set", root=folder, video_backend=name, **arguments)


def _batches(data: Any, how: str) -> Iterator[dict[str, Any]]:
    """Batches of a global shuffle; of `stream`, in its own order."""
    from torch.utils.data import default_collate as collate

    if how == "batch" and "essp" in type(data).__module__:
        from essp.lerobot import collate
    while how == "stream":
        yield from data.stream(batch_size=_BATCH, clips_per_visit=_VISIT)
    order = list(range(len(data)))
    generator = random.Random(0)
    while True:
        generator.shuffle(order)
        for begin in range(0, len(order) - _BATCH + 1, _BATCH):
            chosen = order[begin : begin + _BATCH]
            yield collate(data.__getitems__(chosen) if how == "batch" else [data[index] for index in chosen])


def measure(folder: str, reader: str, how: str, count: str) -> None:
    """Print the CPU of a sample in one thread of torch, the time to the first batch, and the memory."""
    import torch

    if how == "shared":
        return shared(folder)
    torch.set_num_threads(1)
    data = opened(folder, reader)
    batches = _batches(data, how)
    memory = []
    warm, wanted = _WARM, int(count)
    if how == "stream":
        window = -(-data.stream(clips_per_visit=_VISIT).window // _BATCH)
        warm, wanted = _WARM * window, _WINDOWS * window
    for number in range(warm + wanted):
        next(batches)
        if not number:
            first_s, first_cpu_s = _age_s(), time.process_time()
        if number == warm - 1:
            begun = resource.getrusage(resource.RUSAGE_SELF)
        if not number % max(wanted // 10, 1):
            memory.append(_memory_mib())
    ended, samples = resource.getrusage(resource.RUSAGE_SELF), wanted * _BATCH
    user_ms, system_ms = (
        1000 * (getattr(ended, name) - getattr(begun, name)) / samples for name in ("ru_utime", "ru_stime")
    )
    print(
        json.dumps(
            {
                "user_ms": user_ms,
                "system_ms": system_ms,
                "first_s": first_s,
                "first_cpu_s": first_cpu_s,
                "memory_mib": memory,
            }
        )
    )


def shared(folder: str) -> None:
    """Print the CPU of a sample of one of `_LOOPS` loops, in all processes together."""
    from concurrent.futures import ThreadPoolExecutor
    from threading import Barrier

    import torch

    from essp import Clip, Limits, Loader, Sampling, Targets, open_catalog
    from essp.catalog.build import build

    torch.set_num_threads(1)
    catalog = Path(f"{folder}.parquet")
    if not catalog.exists():
        build(f"lerobot://{folder}", f"file://{catalog}", ["file:///"])
    rows = open_catalog(catalog).rows
    sizes = {row.view: (row.height, row.width) for row in rows[:_LOOPS]}
    first = Loader(
        catalog,
        clip={view: Clip(frames=1, size=size) for view, size in sizes.items()},
        batch_size=_BATCH,
        sampling=Sampling(kind="exhaustive", clips_per_visit=_VISIT),
        limits=Limits(decoders=2, loops=_LOOPS),
        validation_fraction=0,
        targets=Targets(series={"action": [0.0], "observation.state": [0.0]}),
    )
    used = [0.0, 0.0]
    warm, end = (Barrier(_LOOPS, partial(_note_cpu, used, place)) for place in (0, 1))

    def take(loader: Any) -> None:
        for number, _ in zip(range(_SHARED_WARM + _SHARED_BATCHES), loader, strict=False):
            if number == _SHARED_WARM - 1:
                warm.wait()
        end.wait()

    with first, ThreadPoolExecutor(_LOOPS) as pool:
        loaders = [first, *(first.another() for _ in range(_LOOPS - 1))]
        list(pool.map(take, loaders))
        for loader in loaders[1:]:
            loader.close()
    milliseconds = 1000 * (used[1] - used[0]) / (_LOOPS * _SHARED_BATCHES * _BATCH)
    print(json.dumps({"user_ms": milliseconds, "system_ms": 0.0, "loops": _LOOPS}))


def _note_cpu(used: list[float], place: int) -> None:
    used[place] = _all_cpu_s()


def _all_cpu_s() -> float:
    """Processor time of this process and of all processes that it has started, also of those that have ended."""
    import psutil

    own = psutil.Process()
    return sum(sum(each.cpu_times()[:4]) for each in (own, *own.children(recursive=True)))


def _age_s() -> float:
    """Time since this process was started, before Python loaded anything; to 10 ms."""
    begun = int(Path("/proc/self/stat").read_text(encoding="ascii").rpartition(") ")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - begun / os.sysconf("SC_CLK_TCK")


def _memory_mib() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() >> 20


def dump(folder: str, reader: str, file: str) -> None:
    """Save items of all kinds of windows, and what the data set says of itself."""
    import torch

    info = json.loads((Path(folder) / "meta/info.json").read_text(encoding="utf-8"))
    cameras = [name for name, feature in info["features"].items() if feature["dtype"] in ("video", "image")]
    step = 1 / info["fps"]
    windows = {cameras[0]: [-2 * step, -step, 0.0], cameras[-1]: [0.0], "action": [k * step for k in range(-3, 8)]}
    found: dict[str, Any] = {}
    for deltas in (None, windows):
        for episodes in (None, [2, 0]):
            data = opened(folder, reader, delta_timestamps=deltas, episodes=episodes)
            generator = random.Random(1)
            count = len(data)
            chosen = sorted({0, 1, count - 2, count - 1, *(generator.randrange(count) for _ in range(12))})
            name = f"{deltas is not None} {episodes}"
            found[name] = {index: data[index] for index in chosen}
            stats = {f: {n: torch.as_tensor(v).double() for n, v in of.items()} for f, of in data.meta.stats.items()}
            found[f"{name} facts"] = {
                "frames": (count, data.num_frames, data.num_episodes, data.fps),
                "names": (list(data.features), data.meta.camera_keys, list(data.meta.tasks.index)),
                "stats": stats,
            }
    torch.save(found, file)


def train(folder: str, reader: str, steps: str) -> None:
    """Train a small ACT policy of LeRobot, as it is, on the data set; print the losses."""
    import types

    import av
    import torch

    if not hasattr(av, "option"):  # PyAV 18 no longer has what LeRobot 0.6 names in an annotation
        vars(av)["option"] = types.SimpleNamespace(Option=object)
    from lerobot.configs.types import FeatureType
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.act.modeling_act import ACTPolicy
    from lerobot.policies.act.processor_act import make_act_pre_post_processors
    from lerobot.utils.feature_utils import dataset_to_policy_features

    torch.manual_seed(0)
    facts = opened(folder, reader)
    features = dataset_to_policy_features(facts.meta.features)
    outputs = {name: feature for name, feature in features.items() if feature.type is FeatureType.ACTION}
    config = ACTConfig(
        input_features={name: feature for name, feature in features.items() if name not in outputs},
        output_features=outputs,
        chunk_size=8,
        n_action_steps=8,
        dim_model=64,
        n_heads=4,
        dim_feedforward=128,
        n_encoder_layers=1,
        pretrained_backbone_weights=None,
        device="cpu",
    )
    policy = ACTPolicy(config)
    policy.train()
    prepare, _ = make_act_pre_post_processors(config, dataset_stats=facts.meta.stats)
    data = opened(folder, reader, delta_timestamps={"action": [k / facts.fps for k in config.action_delta_indices]})
    loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.AdamW(policy.parameters(), 1e-3)
    losses: list[float] = []
    while len(losses) < int(steps):
        for batch in loader:
            loss, _ = policy.forward(prepare(batch))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if len(losses) == int(steps):
                break
    print(json.dumps(losses))


if __name__ == "__main__":
    commands: dict[str, Callable[..., None]] = {"record": record, "measure": measure, "dump": dump, "train": train}
    commands[sys.argv[1]](*sys.argv[2:])
