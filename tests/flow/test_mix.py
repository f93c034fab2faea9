"""`essp.Mix` and `essp.to_hf_iterable`: several loaders as one, and a loader as a data set, from any position."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

import essp
from essp.api.epochs import Epochs
from essp.catalog.build import build
from essp.catalog.merging import merge
from essp_common.wiring import Stores
from tests.harness.loops import CLIP, loader, taken
from tests.harness.refused import refused


@pytest.fixture
def pair(catalog: Path) -> Iterator[tuple[essp.Loader, essp.Loader]]:
    """Loaders of three and of two batches."""
    with loader(catalog, seed=1) as one, loader(catalog, clips_per_epoch=4, batch_size=2, seed=2) as two:
        yield one, two


def _seen(batches: Any) -> list[Any]:
    return [(batch.meta["loader"][0], taken([batch])) for batch in batches]


def test_a_mix_shows_the_batches_of_its_loaders_in_their_order(pair: tuple[essp.Loader, essp.Loader]) -> None:
    mix = essp.Mix(dict(zip(pair, (0.7, 0.3), strict=True)), batches=20, seed=5)
    assert len(mix) == 20
    seen = _seen(mix)
    assert len(seen) == 20
    assert 9 <= Counter(place for place, _ in seen)[0] <= 19
    for place, alone in enumerate(pair):
        own = [clips for which, clips in seen if which == place]
        alone.set_epoch(0)
        expected = [taken([batch]) for batch in (*alone, *alone, *alone, *alone, *alone, *alone)]
        assert own == expected[: len(own)]


def test_a_mix_resumes_with_the_next_batch(pair: tuple[essp.Loader, essp.Loader]) -> None:
    weights: dict[Epochs, float] = dict(zip(pair, (3, 1), strict=True))
    mix = essp.Mix(weights, batches=6)
    seen, states = [], [mix.state_dict()]
    for _ in range(2):
        for batch in mix:
            seen += _seen([batch])
            states.append(mix.state_dict())
    for done in (0, 4, 6, 9):
        again = essp.Mix(weights, batches=6)
        again.load_state_dict(states[done])
        assert again.epoch == done // 6
        rest = [*_seen(again), *(_seen(again) if done < 6 else ())]
        assert rest == seen[done:]
        assert again.state_dict() == states[12]


def test_an_epoch_that_is_left_loses_no_clip(pair: tuple[essp.Loader, essp.Loader]) -> None:
    mix = essp.Mix(dict.fromkeys(pair, 1.0), batches=8)
    seen = _seen(islice(iter(mix), 3))
    mix.close()
    seen += _seen(mix)
    assert mix.epoch == 2
    for place in range(2):
        clips = [clip for which, clips in seen if which == place for clip in clips]
        assert [clip[:2] for clip in clips] == sorted(clip[:2] for clip in clips)
        assert len(set(clips)) == len(clips)


def test_ranks_draw_the_same_loaders_and_share_their_clips(catalog: Path) -> None:
    seen, states = [], []
    for rank in range(2):
        options: dict[str, Any] = {"batch_size": 2, "clips_per_epoch": 8, "rank": rank, "world_size": 2}
        with loader(catalog, seed=1, **options) as one, loader(catalog, seed=2, **options) as two:
            mix = essp.Mix({one: 0.5, two: 0.5})
            seen.append(_seen(DataLoader(mix, batch_size=None)))
            states.append(mix.state_dict())
    assert states[0] == states[1]
    assert [place for place, _ in seen[0]] == [place for place, _ in seen[1]]
    clips = [[(place, clip[:2]) for place, taken in own for clip in taken] for own in seen]
    assert not set(clips[0]) & set(clips[1])
    assert len(clips[0]) == len(clips[1]) == 8


def test_labels_are_those_of_all_loaders(catalog: Path, tmp_path: Path) -> None:
    rows = essp.open_catalog(catalog).rows
    names = essp.open_catalog(catalog).classes
    text = "path,label,split\n" + "".join(
        f"{row.uri},{'other ' if row.class_name == names[0] else ''}{row.class_name},train\n" for row in rows
    )
    (tmp_path / "l.csv").write_text(text)
    build(f"file://{tmp_path}/l.csv", f"file://{tmp_path}/c.parquet", ("file:///",))
    with loader(catalog) as one, loader(tmp_path / "c.parquet") as two:
        mix = essp.Mix({one: 1, two: 1})
        assert mix.classes == tuple(sorted({*names, f"other {names[0]}"}))
        for batch in mix:
            assert [mix.classes[label] for label in batch.labels] == batch.meta["class_name"]


def test_what_cannot_be_mixed_is_refused(catalog: Path, pair: tuple[essp.Loader, essp.Loader]) -> None:
    one, two = pair
    for wrong, code in (({}, "type"), ([one], "type"), ({"a": 1.0}, "type"), ({one: "a"}, "type")):
        with refused("loaders", code):
            essp.Mix(wrong)  # type: ignore[arg-type]
    for weight in (0, -1, float("nan"), float("inf")):
        with refused("loaders", "range"):
            essp.Mix({one: weight})
    with loader(catalog, clip=essp.Clip(frames=4, size=32)) as small, refused("loaders", "conflict"):
        essp.Mix({one: 1, small: 1})
    with loader(catalog, transform=lambda frames, random: frames[:2]) as short, refused("loaders", "conflict"):
        list(essp.Mix({one: 1, short: 1}, batches=20))
    mix = essp.Mix({one: 1, two: 1})
    with refused("state", "type"):
        mix.load_state_dict({"epoch": 0})
    with refused("state", "conflict"):
        mix.load_state_dict(essp.Mix({one: 1, two: 2}).state_dict())
    with refused("state", "conflict"):
        mix.load_state_dict({**mix.state_dict(), "loaders": [two.state_dict(), one.state_dict()]})


# --- Hugging Face ---


def test_a_data_set_of_hugging_face_has_the_clips_of_a_loader_from_any_position(catalog: Path) -> None:
    def kept(examples: Any) -> list[Any]:
        names = ("epoch", "index", "video", "first_frame")
        return [(*(example[name] for name in names), int(example["frames"].sum())) for example in examples]

    with loader(catalog) as clips:
        expected = taken([*clips, *clips])
        clips.set_epoch(0)
        data = essp.to_hf_iterable(clips)
        first = next(iter(data))
        assert isinstance(first["frames"], np.ndarray)
        assert (first["frames"].shape, clips.classes[first["label"]]) == ((4, 40, 40, 3), first["class_name"])
        clips.set_epoch(0)
        seen, states = [], []
        for example in data:
            seen += kept([example])
            states.append(data.state_dict())
        assert seen == expected[:10]
        for done in (1, 5, 8):
            again = essp.to_hf_iterable(clips)
            again.load_state_dict(states[done - 1])
            assert kept(again) == expected[done:10]
        darker = data.map(lambda example: {"frames": example["frames"] // 2}).take(3)
        assert [clip[:4] for clip in kept(darker)] == [clip[:4] for clip in expected[10:13]]


def test_only_loaders_become_data_sets() -> None:
    with refused("loader", "type"):
        essp.to_hf_iterable([1])  # type: ignore[arg-type]


def test_a_loader_and_a_job_mix_the_data_sets_of_one_catalog(catalog: Path, tmp_path: Path) -> None:
    both = tmp_path / "both.parquet"
    merge({"one": f"file://{catalog}", "two": f"file://{catalog}"}, f"file://{both}", Stores(("file:///",)))
    mix = {"column": "dataset", "shares": {"one": 1, "two": 9}}
    sampling = essp.Sampling(mix=mix, clips_per_epoch=40, seed=3)
    with essp.Loader(both, clip=CLIP, batch_size=10, sampling=sampling) as mixed:
        whole = [video for batch in mixed for video in batch.meta["video"]]
        mixed.set_epoch(0)
        first = next(iter(mixed)).meta["video"]
    assert list(first) == whole[:10]
    counts = Counter(video.partition("/")[0] for video in whole)
    assert 28 <= counts["two"] <= 39, counts
    with refused("sampling.mix", "conflict"):
        essp.Sampling(kind="uniform", mix=mix)
    with (
        refused("sampling.mix.shares", "missing"),
        essp.Loader(
            both, clip=CLIP, sampling=essp.Sampling(mix={"column": "dataset", "shares": {"one": 1, "three": 1}})
        ),
    ):
        pass
