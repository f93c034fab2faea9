"""Building a catalog: nothing is lost, nothing is read twice, one bad file harms no other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest
from typer.testing import CliRunner

from essp.catalog import build as build_module
from essp.catalog import journal, spool
from essp.catalog.build import BuildOptions, Built, build
from essp.catalog.journal import Journal
from essp.catalog.progress import Progress
from essp.catalog.summary import summarize
from essp.cli.catalog import app
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import read_catalog
from essp_common.catalog.rows import VideoRow
from essp_common.catalog.targets import Span, unpack
from essp_common.errors import ConfigError, Unavailable
from essp_common.wiring import open_store
from essp_engine.decoding.probing import ProbeOptions
from essp_engine.video.synthetic import Encoding, numbered, write_video
from tests.harness.catalog_probe import PROBE, facts

pytestmark = pytest.mark.processes

FAKE = BuildOptions(probe=ProbeOptions(workers=2, timeout_s=60.0, probe=PROBE, confined=False))

ONE = replace(FAKE, probe=replace(FAKE.probe, workers=1))
"""For claims about what is read, and not about who reads it; each worker more is a Python more to start."""


FIND = BuildOptions(probe=ProbeOptions(workers=1))
"""Reads real files."""


class Interruption(BaseException):
    """What ends a build from outside."""


@pytest.fixture
def videos(tmp_path: Path) -> Path:
    """Eight sound videos of two classes."""
    for number in range(8):
        write(tmp_path / "videos" / f"class{number % 2}" / f"{number}.mp4", str(30 + number))
    return tmp_path / "videos"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="ascii")


def built(source: Path, options: BuildOptions = FAKE, progress: list[Progress] | None = None) -> Built:
    """A build of `source`, with the catalog beside it."""
    root = source.parent
    tell = progress.append if progress is not None else None
    return build(f"file://{source}", f"file://{root}/c.parquet", [f"file://{root}"], options, tell)


def stored(source: Path) -> Catalog:
    return read_catalog(open_store(f"file://{source.parent}"), "c.parquet")


def readings(source: Path) -> Counter[str]:
    """How often each file was opened."""
    return Counter({p.name.removesuffix(".readings"): len(p.read_text().split()) for p in source.rglob("*.readings")})


def errors(catalog: Catalog) -> dict[str, str]:
    return {row.id: row.error for row in catalog.rows if row.error is not None}


def test_each_video_becomes_a_row_with_its_facts(videos: Path) -> None:
    progress: list[Progress] = []
    result = built(videos, progress=progress)
    catalog = stored(videos)
    assert catalog == result.catalog
    assert catalog.source == f"file://{videos}"
    assert catalog.classes == ("class0", "class1")
    row = next(row for row in catalog.rows if row.id == "class1/3.mp4")
    expected = facts(33)
    assert all(getattr(row, name) == getattr(expected, name) for name in expected.__slots__)
    assert (row.first_frame, row.last_frame) == (0, 32)
    assert row.size_bytes == 2
    assert [p.files_done for p in progress] == list(range(9))
    assert (progress[-1].files_total, progress[-1].bytes_done, progress[-1].eta_s) == (8, 16, 0.0)


@pytest.mark.parametrize(
    ("bytes_done", "bytes_total", "left_s"),
    [(0, 2_000, None), (10, 10**12, None), (10, 2_000, None), (20, 2_000, 990), (0, 0, 990), (500, 2_000, 30)],
)
def test_the_time_that_is_left_is_told_when_it_is_known(bytes_done: int, bytes_total: int, left_s: int | None) -> None:
    """One small file beside a sparse one of a terabyte made that thousands of hours."""
    progress = Progress(1, 100, bytes_done, bytes_total, 0, 0, 10.0)
    assert progress.eta_s == left_s


def test_an_unusable_file_is_a_row_with_the_reason(videos: Path) -> None:
    write(videos / "class0" / "bad.mp4", "damaged")
    write(videos / "class0" / "odd.mp4", "not a number")
    result = built(videos)
    assert errors(result.catalog) == {
        "class0/bad.mp4": "damaged: a block of it is broken",
        "class0/odd.mp4": "error: ValueError: invalid literal for int() with base 10: 'not a number'",
    }
    assert len(result.catalog.view(None)) == 8


def test_a_file_with_facts_that_no_catalog_can_hold_is_a_row_and_harms_no_other(videos: Path) -> None:
    write(videos / "class0" / "odd.mp4", "impossible")
    result = built(videos)
    assert errors(result.catalog) == {"class0/odd.mp4": "damaged: keyframe_frame: [0, 0, 20] does not rise"}
    assert stored(videos) == result.catalog
    assert len(result.catalog.view(None)) == 8


def test_a_name_that_no_catalog_can_hold_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    write(tmp_path / "a.mp4", "30")
    write(tmp_path / "list.csv", f"path,label\na.mp4,{'c' * 513}\n")
    with pytest.raises(ConfigError, match=r"class_name: .* is longer than 512 bytes; use another name"):
        built(tmp_path / "list.csv", replace(FAKE, kind="csv"))
    assert not readings(tmp_path)


def test_a_catalog_that_cannot_be_written_in_the_end_costs_no_reading(
    videos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> None:
        raise Unavailable("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(build_module, "write_parts", away)
        with pytest.raises(Unavailable):
            built(videos)
    assert built(videos).read == 0


def test_a_file_that_crashes_its_reader_is_a_row_and_harms_no_other(videos: Path) -> None:
    """Whichever files a process had read before it died: only the one that kills a process of its own is blamed."""
    for name in ("a", "z"):
        write(videos / "class0" / f"{name}.mp4", "crash")
    result = built(videos)
    assert set(errors(result.catalog)) == {f"class0/{name}.mp4" for name in "az"}
    assert all("crashed" in error and "SIGSEGV" in error for error in errors(result.catalog).values())


def test_a_file_that_never_ends_is_given_up_and_harms_no_other(videos: Path) -> None:
    write(videos / "class0" / "slow.mp4", "hang")
    result = built(videos, replace(FAKE, probe=replace(FAKE.probe, timeout_s=0.5)))
    assert errors(result.catalog) == {"class0/slow.mp4": "hung: not read within 5 s"}


def test_a_file_that_takes_too_much_processor_time_is_given_up_until_it_may_take_more(videos: Path) -> None:
    """On the clock it may take longer, since other processes may be at work; the next build does not try it again."""
    write(videos / "class0" / "slow.mp4", "busy")

    def limited(timeout_s: float) -> Built:
        return built(videos, replace(ONE, probe=replace(ONE.probe, timeout_s=timeout_s, patience=1000)))

    words = "timeout: not read within {} s of processor time; --timeout-s allows more"
    assert errors(limited(0.5).catalog) == {"class0/slow.mp4": words.format(0.5)}
    assert limited(0.5).read == 0
    assert errors(limited(0.6).catalog) == {"class0/slow.mp4": words.format(0.6)}
    assert readings(videos)["slow.mp4"] == 2


def test_an_output_that_cannot_be_written_is_refused_before_anything_is_read(videos: Path) -> None:
    root = videos.parent
    (root / "file").write_text("x")
    for out, words in ((videos, "is a folder; name a file in it"), (root / "file" / "c", "cannot be written")):
        with pytest.raises(ConfigError, match=words):
            build(f"file://{videos}", f"file://{out}", [f"file://{root}"], ONE)
    assert not readings(videos)
    assert not list(root.glob("*.part-*"))


@pytest.mark.parametrize("name", ["x.txt", "catalog.csv", "c.json"])
def test_a_catalog_is_not_called_what_it_is_not(videos: Path, name: str) -> None:
    stem = name.partition(".")[0]
    with pytest.raises(ConfigError, match=rf"{name} suggests another format; write {stem}\.parquet"):
        build(f"file://{videos}", f"file://{videos}/{name}", [f"file://{videos}"], ONE)


def test_segments_are_cut_where_their_seconds_are_shown(tmp_path: Path) -> None:
    """A recording whose pictures stand still for a while: the mean rate tells nothing of where a second is."""
    (tmp_path / "v").mkdir()
    intervals = [1.0] * 20 + [50.0] + [1.0] * 9
    for name in ("a.mp4", "b.mkv"):
        write_video(tmp_path / "v" / name, numbered(60), Encoding(fps=10, gop=12, intervals=intervals))
    text = "path,label,start_s,end_s\n"
    for name in ("a.mp4", "b.mkv"):
        text += f"v/{name},early,1,2\nv/{name},still,3,6\nv/{name},late,7.5,9\nv/{name},beyond,99,100\n"
    write(tmp_path / "i.csv", text)
    catalog = build(f"file://{tmp_path}/i.csv", f"file://{tmp_path}/c", [f"file://{tmp_path}"], FIND).catalog
    for name in ("a.mp4", "b.mkv"):
        rows = {row.class_name: row for row in catalog.rows if row.uri.endswith(name)}
        shown = {label: (row.first_frame, row.last_frame) for label, row in rows.items()}
        with av.open(str(tmp_path / "v" / name)) as container:
            times = [frame.time or 0.0 for frame in container.decode(video=0)]
        late = [number for number, time in enumerate(times) if 7.5 - 1e-3 <= time < 9 - 1e-3]
        assert shown["early"] == (10, 19)
        assert shown["still"] == (20, 20), "the picture that is shown from 2.0 to 7.0 s"
        assert shown["late"] == (late[0], late[-1])
        assert "begins at 99 s" in (rows["beyond"].error or "")
        assert rows["early"].duration_s == pytest.approx(times[-1] + 0.1, abs=0.01)
        assert rows["early"].fps == pytest.approx(60 / rows["early"].duration_s, rel=1e-3)
    assert summarize(catalog).frame_rates == {"variable": 6}
    assert summarize(catalog).variable_rate == 6


def test_only_changed_files_are_read_again(videos: Path) -> None:
    write(videos / "class0" / "bad.mp4", "damaged")
    built(videos, ONE)
    write(videos / "class0" / "2.mp4", "500")
    write(videos / "class1" / "new.mp4", "60")
    (videos / "class1" / "7.mp4").unlink()
    result = built(videos, ONE)
    assert (result.read, result.reused) == (2, 7)
    assert readings(videos)["2.mp4"] == 2
    assert {name for name, count in readings(videos).items() if count > 1} == {"2.mp4"}
    ids = {row.id: row.frame_count for row in stored(videos).rows}
    assert ids["class0/2.mp4"] == 500
    assert "class1/7.mp4" not in ids
    assert errors(stored(videos)) == {"class0/bad.mp4": "damaged: a block of it is broken"}


def test_a_catalog_of_many_parts_is_that_of_one(videos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(videos / "class0" / "bad.mp4", "damaged")
    built(videos, ONE)
    whole = stored(videos)
    for module, name, number in ((build_module, "PART", 2), (spool, "_OF_A_PART", 2), (spool, "_SORTED_AT_ONCE", 3)):
        monkeypatch.setattr(module, name, number)
    again = built(videos, ONE)
    assert (again.read, again.reused, stored(videos)) == (0, 9, whole)
    (videos.parent / "c.parquet").unlink()
    assert (built(videos, ONE).read, stored(videos)) == (9, whole)


def test_what_may_have_been_the_machines_fault_is_tried_again(videos: Path) -> None:
    path = videos / "class0" / "flaky.mp4"
    write(path, "crash")
    built(videos, ONE)
    before = path.stat()
    path.write_text("55555", encoding="ascii")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    result = built(videos, ONE)
    assert (result.read, errors(result.catalog)) == (1, {})


def test_moved_labels_need_no_reading(videos: Path) -> None:
    """What a source says of its files may change without the files."""
    rows = "".join(f"class{n % 2}/{n}.mp4,{{}}\n" for n in range(8))
    for label in ("old", "new"):
        write(videos / "i.csv", "path,label\n" + rows.format(*[label] * 8))
        result = build(f"file://{videos}/i.csv", f"file://{videos}/c.parquet", [f"file://{videos}"], ONE)
        assert result.catalog.classes == (label,)
    assert result.read == 0


def test_segments_share_one_reading_of_their_file(videos: Path) -> None:
    text = "path,label,start_s,end_s\nclass0/0.mp4,a,0,0.4\nclass0/0.mp4,b,0.4,1.3\nclass0/0.mp4,c,5,6\n"
    write(videos / "i.csv", text)
    source, out = f"file://{videos}/i.csv", f"file://{videos}/c.parquet"
    for _ in range(2):
        result = build(source, out, [f"file://{videos}"], FAKE)
        found = {row.class_name: (row.first_frame, row.last_frame) for row in result.catalog.rows}
        assert found == {"a": (0, 9), "b": (10, 29), "c": (0, 29)}
        assert [error.partition(":")[0] for error in errors(result.catalog).values()] == ["segment"]
    assert readings(videos) == {"0.mp4": 1}


def test_an_interrupted_build_goes_on_where_it_stopped(videos: Path) -> None:
    def interrupt(now: Progress) -> None:
        if now.files_done == 5:
            raise Interruption

    root = videos.parent
    with pytest.raises(Interruption):
        build(f"file://{videos}", f"file://{root}/c.parquet", [f"file://{root}"], ONE, interrupt)
    assert not (root / "c.parquet").exists(), "nothing half done is to be seen"
    result = built(videos, ONE)
    assert (result.read, result.reused) == (3, 5)
    assert len(stored(videos).view(None)) == 8
    assert [p.name for p in root.glob("c.parquet*")] == ["c.parquet"], "the journal is gone"


def test_a_killed_build_goes_on_where_it_stopped(videos: Path) -> None:
    """Killed, it can save nothing more: what counts is what the journal holds already."""
    root = videos.parent
    script = f"""
import os, signal
from essp.catalog import build as b, journal
from essp_engine.decoding import probing

def kill(now):
    if now.files_done == 4:
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    journal.ROWS = 1
    options = b.BuildOptions(probe=probing.ProbeOptions(workers=1, probe={PROBE!r}, confined=False))
    b.build("file://{videos}", "file://{root}/c.parquet", ["file://{root}"], options, kill)
"""
    (root / "killed.py").write_text(script)
    here = str(Path(__file__).parents[4])
    killed = subprocess.run(
        [sys.executable, str(root / "killed.py")], env={**os.environ, "PYTHONPATH": here}, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    result = built(videos, ONE)
    assert (result.read, result.reused) == (4, 4)
    assert len(stored(videos).view(None)) == 8


def test_the_journal_saves_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "ROWS", 3)
    now = [0.0]
    store = open_store(f"file://{tmp_path}")

    def seen() -> list[str]:
        return sorted(row.id for row in Journal(store, "c"))

    current = Journal(store, "c", clock=lambda: now[0])
    for name in "ab":
        current.add(VideoRow(name, name, "", "", 1, "e"))
    assert seen() == []
    current.add(VideoRow("c", "c", "", "", 1, "e"))
    assert seen() == ["a", "b", "c"], "after so many rows"
    now[0] += journal.SECONDS
    current.add(VideoRow("d", "d", "", "", 1, "e"))
    assert seen() == ["a", "b", "c", "d"], "after so long"
    store.put("c.part-000003", b"damaged")
    assert seen() == ["a", "b", "c", "d"], "a damaged part is as good as none"
    Journal(store, "c").clear()
    assert [info.key for info in store.list()] == ["c.part-000003"], "it may be somebody's: `split` names files so"


def test_a_store_that_does_not_answer_ends_the_build_and_keeps_what_was_read(videos: Path) -> None:
    path = videos / "class1" / "zz.mp4"
    write(path, "down")
    with pytest.raises(Unavailable, match="does not answer"):
        built(videos, ONE)
    write(path, "70")
    result = built(videos, ONE)
    assert (result.read, result.reused) == (1, 8)


def test_a_store_that_goes_away_for_a_while_is_waited_for(videos: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(videos / "class0" / "a.mp4", "away")
    result = built(videos, replace(FAKE, probe=replace(FAKE.probe, store_patience_s=600.0)))
    assert not errors(result.catalog)
    assert caplog.text.count("the store does not answer; trying again for up to") == 2


def test_a_reader_that_cannot_start_ends_the_build(videos: Path) -> None:
    with pytest.raises(ConfigError, match=r"no_such_package.*pip install"):
        built(videos, replace(FAKE, probe=replace(FAKE.probe, probe="no_such_package:probe")))


def test_what_is_not_a_catalog_is_not_overwritten(videos: Path) -> None:
    write(videos.parent / "c.parquet", "somebody's work")
    with pytest.raises(ConfigError, match="not overwritten"):
        built(videos)
    assert (videos.parent / "c.parquet").read_text() == "somebody's work"


def test_videos_and_catalog_in_s3(empty_s3_url: str) -> None:
    store = open_store(empty_s3_url)
    for number in range(4):
        store.put(f"videos/train/run/{number}.mp4", str(30 + number).encode())
    store.put("videos/train/run/bad.mp4", b"crash")
    root = empty_s3_url.partition("?")[0]
    for read in (5, 1):
        result = build(f"{root}/videos", f"{root}/c.parquet", [empty_s3_url], ONE)
        assert result.read == read
    catalog = read_catalog(store, "c.parquet")
    assert {row.uri: row.frame_count for row in catalog.rows} == {
        f"{root}/videos/train/run/{name}.mp4": frames for name, frames in zip("0123", range(30, 34), strict=True)
    } | {f"{root}/videos/train/run/bad.mp4": 0}
    assert [info.key for info in store.list("c.parquet")] == ["c.parquet"]


@pytest.fixture
def real(tmp_path: Path) -> Path:
    """Two real videos of two classes, and a text that calls itself one."""
    for name in ("run/1.mp4", "walk/2.avi"):
        (tmp_path / "videos" / name).parent.mkdir(parents=True)
        codec = "mpeg4" if name.endswith("avi") else "h264"
        write_video(tmp_path / "videos" / name, numbered(30), Encoding(codec=codec, gop=10))
    write(tmp_path / "videos" / "walk" / "text.mp4", "this is not a video")
    return tmp_path


def test_the_command_builds_and_shows(real: Path) -> None:
    run = CliRunner()
    out = str(real / "c.parquet")
    done = run.invoke(app, ["build", str(real / "videos"), "--out", out, "--workers", "1", "--json"])
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    assert figures["catalog"] == f"file://{out}"
    assert figures["usable"]["videos"] == 2
    assert figures["usable"]["frames"] == 60
    assert figures["classes"] == {"run": {"train": 1}, "walk": {"train": 1}}
    shown = run.invoke(app, ["show", out, "--json"])
    assert json.loads(shown.stdout) == {name: value for name, value in figures.items() if name != "catalog"}
    table = run.invoke(app, ["show", out]).stdout
    assert "2 videos, 60 frames" in table
    assert "1 of 3 videos cannot be used" in table
    assert run.invoke(app, ["show", out, "--problems"]).stdout.startswith("not_video\twalk/text.mp4: ")


def test_an_interrupted_command_says_how_to_go_on(real: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("essp.cli.catalog.build", interrupted)
    done = CliRunner().invoke(app, ["build", str(real / "videos"), "--out", str(real / "c.parquet")])
    assert done.exit_code == 130
    assert "run the same command again" in done.stderr


def test_wrong_usage_is_refused(real: Path) -> None:
    done = CliRunner().invoke(app, ["build", str(real), "--out", str(real / "c"), "--source", "zip"])
    assert done.exit_code == 2
    assert "ucf101" in done.stderr


def test_targets_are_kept_in_frames_of_the_file(tmp_path: Path) -> None:
    write(tmp_path / "a.mp4", "30")
    write(tmp_path / "b.mp4", "30")
    np.save(tmp_path / "values.npy", np.arange(30))
    write(tmp_path / "names.txt", "\n".join(["walk"] * 10 + ["run"] * 20))
    write(tmp_path / "list.csv", "path,labels,values:x,frame_labels,take\na.mp4,u|v,values.npy,names.txt,3\n"
          "b.mp4,u,values.npy,names.txt,4\n")  # fmt: skip
    result = built(tmp_path / "list.csv")
    row = stored(tmp_path / "list.csv").rows[0]
    targets = unpack(row.targets)
    assert (targets.labels, targets.spans) == (("u", "v"), (Span(0, 9, "walk"), Span(10, 29, "run")))
    assert targets.series["x"].tolist() == list(range(30))
    assert row.meta == {"take": "3"}
    assert not errors(result.catalog)
    np.save(tmp_path / "values.npy", np.arange(29))
    assert errors(built(tmp_path / "list.csv").catalog) == {
        name: "targets: x has 29 values, but there are 30 frames" for name in ("a.mp4", "b.mp4")
    }
    write(tmp_path / "names.txt", "\n" * 30 + "run")
    np.save(tmp_path / "values.npy", np.arange(30))
    assert errors(built(tmp_path / "list.csv").catalog) == {
        name: "targets: run: begins at frame 30, but the file has 30 frames" for name in ("a.mp4", "b.mp4")
    }


def test_the_command_says_what_it_has_recognised(videos: Path) -> None:
    done = CliRunner().invoke(app, ["build", str(videos), "--out", str(videos.parent / "c.parquet")])
    assert done.stderr.startswith("recognised as folders: 8 videos in class folders")


def test_files_of_other_people_beside_the_output_are_neither_read_nor_removed(videos: Path) -> None:
    notes = videos.parent / "c.parquet.part-notes.txt"
    notes.write_text("mine")
    built(videos)
    assert notes.read_text() == "mine"
    assert stored(videos).classes == ("class0", "class1")


def test_numbers_of_frames_in_a_list_are_told_by_the_videos_each_of_which_is_read_once(videos: Path) -> None:
    lines = [f"class{number % 2}/{number}.mp4 {30 + number} {number % 2}" for number in range(8)]
    write(videos / "train.txt", "\n".join(lines[:7]))
    found = build(f"file://{videos}/train.txt", f"file://{videos.parent}/c.parquet", [f"file://{videos.parent}"], FAKE)
    assert {row.id: row.class_name for row in found.catalog.rows} == {
        f"class{number % 2}/{number}.mp4": str(number % 2) for number in range(7)
    }
    assert (found.read, found.reused) == (7, 0)
    assert set(readings(videos).values()) == {1}
    write(videos / "train.txt", "\n".join(lines))
    again = build(f"file://{videos}/train.txt", f"file://{videos.parent}/c.parquet", [f"file://{videos.parent}"], FAKE)
    assert (again.read, again.reused) == (1, 7)


def test_what_was_cut_off_is_used_if_asked(tmp_path: Path) -> None:
    """With a note of how much; and an error again without the option, whatever the catalog had before."""
    (tmp_path / "videos").mkdir()
    path = write_video(tmp_path / "videos" / "a.mkv", numbered(40, 64, 48), Encoding(gop=10))
    path.write_bytes(path.read_bytes()[: int(0.8 * path.stat().st_size)])
    asked = replace(FIND, salvage=True)
    assert "truncated" in (built(path.parent, FIND).catalog.rows[0].error or "")
    once, again = built(path.parent, asked), built(path.parent, asked)
    [row] = again.catalog.rows
    assert (once.read, again.read) == (1, 0)
    assert row.error is None
    assert 0 < row.last_frame + 1 == row.frame_count < 40
    assert [note.kind for note in summarize(again.catalog).notes] == ["salvaged"]
    assert "truncated" in (built(path.parent, FIND).catalog.rows[0].error or "")


# Quick builds, and builds that add to a catalog


@pytest.mark.usefixtures("started_children")
def test_a_quick_build_says_what_it_did_not_prove_and_the_next_build_proves_it(tmp_path: Path) -> None:
    source = tmp_path / "videos"
    (source / "a").mkdir(parents=True)
    write_video(source / "a" / "indexed.mp4", numbered(20, 32, 32), Encoding(gop=5, bframes=2))
    write_video(source / "a" / "packets.mkv", numbered(20, 32, 32), Encoding(gop=5, bframes=2))
    write_video(source / "a" / "probed.ts", numbered(20, 32, 32), Encoding(gop=5))
    write(source / "a" / "text.mp4", "no video")
    quick = replace(FIND, probe=replace(FIND.probe, quick=True))
    first = built(source, quick)
    assert (first.read, first.by_index, first.by_packets) == (4, 1, 1)
    assert {row.id: row.unproven for row in first.catalog.rows} == {
        "a/indexed.mp4": "packets order pixels damage",
        "a/packets.mkv": "order pixels damage",
        "a/probed.ts": "",
        "a/text.mp4": "",
    }
    assert [row.declared for row in first.catalog.rows] == [(32, 32), (32, 32), None, None]
    again = built(source, quick)
    assert (again.read, again.reused) == (0, 4)
    assert again.catalog == first.catalog
    proven = built(source, FIND)
    assert (proven.read, proven.reused) == (2, 2)
    (tmp_path / "c.parquet").unlink()
    alone = built(source, FIND)
    assert alone.read == 4
    assert proven.catalog == alone.catalog
    kept = built(source, quick)
    assert (kept.read, kept.catalog) == (0, alone.catalog), "what is proven stays so"


def test_a_build_that_adds_to_a_catalog_gives_what_a_new_one_would(videos: Path) -> None:
    built(videos)
    write(videos / "class0" / "new.mp4", "40")
    write(videos / "class0" / "0.mp4", "41")
    os.utime(videos / "class0" / "0.mp4", ns=(1, 1))
    (videos / "class1" / "1.mp4").unlink()
    before = readings(videos)
    more = built(videos)
    assert (more.read, more.changed, more.gone, more.reused) == (2, 1, 1, 6)
    assert (readings(videos) - before) == Counter({"0.mp4": 1, "new.mp4": 1})
    content = (videos.parent / "c.parquet").read_bytes()
    (videos.parent / "c.parquet").unlink()
    built(videos)
    assert (videos.parent / "c.parquet").read_bytes() == content
