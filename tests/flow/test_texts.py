"""Texts of clips: which one of several is shown depends on the seed, the epoch and the clip's index alone."""

from __future__ import annotations

import logging
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import essp
from essp.catalog.build import BuildOptions, build
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import write_catalog
from essp_common.objects.directory import DirectoryStore
from tests.harness.loops import loader
from tests.harness.refused import refused

pytestmark = pytest.mark.lane("promises")

QUESTIONS, ANSWERS = [f"What is {n}?" for n in range(5)], [f"It is {n}" for n in range(5)]


@pytest.fixture(scope="module")
def told(videos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A catalog with one caption, several questions with their answers, and videos that lack some of them."""
    folder = tmp_path_factory.mktemp("told")
    files = sorted(videos.rglob("*.mp4"))[:4]
    lines = ["path;start_frame;end_frame;caption;question;answer;note"]
    for number, file in enumerate(files):
        bounds = "2;9" if number == 1 else ";"
        caption = ["A 'quoted' one, with commas", "[MUSIC] Zoë läuft", "", '["first", "", "second"]'][number]
        lists = [str(list(each)).replace("'", '"') for each in (QUESTIONS, ANSWERS)] if number != 2 else ["", " "]
        lines.append(
            f"{file};{bounds};{caption};{';'.join(map(_quoted, lists))};{number}".replace(caption, _quoted(caption))
        )
    (folder / "list.csv").write_text("\n".join(lines))
    build(f"file://{folder}/list.csv", f"file://{folder}/c.parquet", ("file:///",), BuildOptions("csv"))
    return folder / "c.parquet"


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if text else ""


def texts(batches: Any) -> list[tuple[Any, ...]]:
    """Epoch, index and video of each clip, with its texts."""
    return [
        each
        for batch in batches
        for each in zip(*(batch.meta[name] for name in ("epoch", "index", "video")), *batch.text.values(), strict=True)
    ]


def test_each_clip_has_a_text_of_its_video(told: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = {"text": ["caption", "question", "answer"], "validation_fraction": 0, "clips_per_epoch": 40}
    with caplog.at_level(logging.WARNING), loader(told, **options) as clips:
        found = texts(clips)
    shown: dict[str, set[Any]] = {}
    for _, _, video, caption, question, answer in found:
        shown.setdefault(video, set()).add(caption)
        if question is None:
            assert answer is None
        else:
            assert QUESTIONS.index(question) == ANSWERS.index(answer)
    quoted, silent, listed = ({"A 'quoted' one, with commas"}, {None}, {"first", "second"})
    assert sorted(map(str, shown.values())) == sorted(map(str, [quoted, {"[MUSIC] Zoë läuft"}, silent, listed]))
    assert {question for *_, question, _ in found} == {*QUESTIONS, None}
    assert sum("1 video of 4" in record.getMessage() for record in caplog.records) == 3


def test_texts_are_the_same_after_a_resume_for_ranks_and_for_other_batches(told: Path) -> None:
    options: dict[str, Any] = {"text": ["caption", "question"], "validation_fraction": 0, "clips_per_epoch": 12}
    with loader(told, **options) as clips:
        whole = texts(clips)
        second = texts(clips)
    assert [each[3:] for each in whole] != [each[3:] for each in second]
    with loader(told, **options) as clips:
        next(iter(clips))
        state = clips.state_dict()
    with loader(told, **options | {"batch_size": 3}) as clips:
        clips.load_state_dict(state)
        assert texts(clips) == whole[4:]
    shares = []
    for rank in range(2):
        with loader(told, **options, rank=rank, world_size=2) as clips:
            shares += texts(clips)
    assert sorted(shares) == sorted(whole)
    with loader(told, **options, seed=1) as clips:
        assert [each[3:] for each in texts(clips)] != [each[3:] for each in whole]


def test_all_texts_and_columns_of_the_catalog(told: Path) -> None:
    options = {"text": ["caption", "note", "group"], "pick": "all", "validation_fraction": 0, "clips_per_epoch": 8}
    with loader(told, **options) as clips:
        copied = pickle.dumps(clips)
        batch = next(iter(clips))
        for number, caption, note in zip(batch.meta["note"], batch.text["caption"], batch.text["note"], strict=True):
            assert note == [number]
            assert len(caption) == {"0": 1, "1": 1, "2": 0, "3": 2}[number]
        assert batch.text["group"] == [[]] * 4
        assert "text: caption, note, group" in repr(batch)
        assert pickle.loads(pickle.dumps(batch)).text == batch.text == batch.to("cpu").text  # noqa: S301
        first = texts([batch])
    with pickle.loads(copied).map(lambda batch: texts([batch])) as again:  # noqa: S301
        assert next(iter(again)) == first


def test_what_is_no_text_is_refused(told: Path, tmp_path: Path) -> None:
    with refused("targets.text", "unknown") as caught:
        loader(told, text=["captions"], validation_fraction=0)
    assert "caption" in str(caught.value)
    for extra in ('{"caption":5}', '{"caption":["a",5]}', '{"caption":{"en":"a"}}'):
        rows = tuple(replace(row, extra=extra) for row in essp.open_catalog(told).rows)
        write_catalog(DirectoryStore(str(tmp_path)), "c.parquet", Catalog(rows))
        with refused("targets.text", "type"):
            loader(tmp_path / "c.parquet", text=["caption"], validation_fraction=0)
