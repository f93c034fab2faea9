"""A check as a whole: each file is read once, nothing that a file does ends it, what was found is never lost."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from essp.catalog.build import BuildOptions, build
from essp.catalog.check.findings import Finding
from essp.catalog.check.page import render
from essp.catalog.check.run import Check, CheckOptions, Report
from essp.catalog.progress import Progress
from essp.cli.catalog import app
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import write_catalog
from essp_common.catalog.rows import VideoRow
from essp_common.wiring import open_store
from essp_engine.decoding.probing import ProbeOptions
from essp_engine.video.synthetic import Encoding, Picture, drifting, write_video
from tests.harness.photographs import photograph
from tests.harness.refused import refused

pytestmark = pytest.mark.processes

FAKE = CheckOptions(
    probe=ProbeOptions(workers=1, timeout_s=60.0, probe="tests.harness.check_reading:read", confined=False)
)


def check(folder: Path, options: CheckOptions = FAKE) -> Check:
    return Check(f"file://{folder}/c.parquet", f"file://{folder}/c.check.html", [f"file://{folder}"], options)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A catalog of eight files, which are texts that the fake reader knows how to read."""
    rows = []
    for number in range(8):
        (tmp_path / f"{number}.mp4").write_text(f"{30 + number}", encoding="ascii")
        row = VideoRow(f"{number}", f"file://{tmp_path}/{number}.mp4", "run", "train", 2, "e")
        facts = {"frame_count": 30 + number, "last_frame": 29 + number, "width": 8, "height": 8, "seekable": True}
        rows.append(replace(row, **facts))  # type: ignore[arg-type]
    write_catalog(open_store(f"file://{tmp_path}"), "c.parquet", Catalog(rows))
    return tmp_path


def readings(folder: Path) -> Counter[str]:
    return Counter({p.name.removesuffix(".readings"): len(p.read_text().split()) for p in folder.glob("*.readings")})


def told(report: Report) -> dict[str, str]:
    return {finding.subject: f"{finding.kind}: {finding.what}" for finding in report.findings}


def test_hostile_files_are_findings_and_harm_no_other(texts: Path) -> None:
    (texts / "2.mp4").write_text("crash")
    (texts / "3.mp4").write_text("damaged")
    (texts / "5.mp4").write_text("35 but not really")
    one = check(texts)
    one.read()
    found = told(one.report())
    assert set(found) == {"2", "3", "5"}
    assert found["2"].startswith("unreadable: crashed: ")
    assert found["3"] == "unreadable: damaged: a block of it is broken"
    assert found["5"].startswith("unreadable: error: ValueError")
    assert readings(texts)["0.mp4"] == 1


def test_a_file_that_takes_too_much_processor_time_is_a_finding(texts: Path) -> None:
    (texts / "2.mp4").write_text("busy")
    busy = replace(FAKE, probe=replace(FAKE.probe, timeout_s=0.5, patience=1000))
    one = check(texts, busy)
    one.read()
    assert told(one.report())["2"].startswith("unreadable: timeout: ")
    again = check(texts, busy)
    again.read()
    assert readings(texts)["2.mp4"] == 1, "not tried again unchanged"


@pytest.mark.parametrize(("count", "folded"), [(6, 0), (10, 4)])
def test_many_findings_of_a_kind_are_folded(count: int, folded: int) -> None:
    findings = [Finding("damaged", f"{number}.mp4", "frame 3", (f"{number}.mp4",)) for number in range(count)]
    page = render(Report("file:///c.parquet", count, count, count, count, True, findings, {}, 1.0))
    open_part, _, rest = page.partition("<details>")
    assert [part.count("<article>") for part in (open_part, rest)] == [count - folded, folded]
    assert (f"<summary>{folded} more</summary>" in page) == bool(folded)


def test_an_interrupted_check_has_what_it_found_and_goes_on(texts: Path) -> None:
    (texts / "1.mp4").write_text("damaged")

    def interrupt(now: Progress) -> None:
        if now.files_done == 5:
            raise KeyboardInterrupt

    one = check(texts)
    with pytest.raises(KeyboardInterrupt):
        one.read(interrupt)
    report = one.report()
    assert (report.files, report.files_total, report.complete) == (5, 8, False)
    assert list(told(report)) == ["1"]
    page = render(report)
    assert "Interrupted: 3 files were not read" in page
    one.write(page.encode())
    seen: list[Progress] = []
    again = check(texts)
    again.read(seen.append)
    assert (seen[-1].files_done, seen[-1].reused) == (3, 5)
    assert again.report().complete
    again.write(b"page")
    # Of the other three, one may have been in the hands of each worker when the interrupt came.
    assert sorted(readings(texts).values())[:5] == [1] * 5
    assert [p.name for p in texts.glob("c.check*")] == ["c.check.html"], "the journal is gone"


def test_a_file_that_has_changed_since_is_read_again(texts: Path) -> None:
    check(texts).read()
    rows = [
        VideoRow(**{**{f: getattr(row, f) for f in row.__slots__}, "etag": "new"}) if row.id == "4" else row
        for row in Catalog(check(texts)._rows).rows
    ]
    write_catalog(open_store(f"file://{texts}"), "c.parquet", Catalog(rows))
    check(texts).read()
    assert readings(texts) == Counter({f"{number}.mp4": 2 if number == 4 else 1 for number in range(8)})


def test_some_of_the_videos(texts: Path) -> None:
    limited, sampled = (check(texts, replace(FAKE, **some)) for some in ({"limit": 3}, {"sample": 3}))  # type: ignore[arg-type]
    assert [row.id for row in limited._rows] == ["0", "1", "2"]
    ids = [row.id for row in sampled._rows]
    assert len(ids) == 3
    assert ids == sorted(ids) == [row.id for row in check(texts, replace(FAKE, sample=3))._rows]
    assert len(check(texts, replace(FAKE, sample=99))._rows) == 8


def test_a_page_that_cannot_be_written_is_refused_before_anything_is_read(texts: Path) -> None:
    with refused("--page", "refused"):
        Check(f"file://{texts}/c.parquet", f"file://{texts}/0.mp4/page.html", [f"file://{texts}"], FAKE)


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.kinds: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.addresses += [found[name] or "" for name in ("src", "href", "srcset", "action") if name in found]
        if tag == "section":
            self.kinds.append(found.get("data-kind") or "")


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of two classes: a sound video, one with a cut, one that begins black, a copy in the test split."""
    root = tmp_path_factory.mktemp("faulty")

    def write(name: str, pictures: list[Picture]) -> Path:
        (root / "videos" / name).parent.mkdir(parents=True, exist_ok=True)
        return write_video(root / "videos" / name, pictures, Encoding(gop=25))

    def scene(seed: int, count: int = 40) -> list[Picture]:
        return list(drifting(photograph(128, 96, seed), count, velocity=(2, 1)))

    write("train/run/sound.mp4", scene(1))
    write("train/run/cut.mp4", scene(2) + scene(3))
    write("train/walk/<b>black.mp4", [np.zeros((96, 128, 3), np.uint8)] * 30 + scene(4))
    copied = write("train/walk/copied.mp4", scene(5))
    (root / "videos/test/walk").mkdir(parents=True)
    (root / "videos/test/walk/copy.mp4").write_bytes(copied.read_bytes())
    build(f"file://{root}/videos", f"file://{root}/c.parquet", [f"file://{root}"], BuildOptions(probe=ProbeOptions(1)))
    return root


def test_the_command_tells_and_writes_a_page(faulty: Path) -> None:
    done = CliRunner().invoke(app, ["check", str(faulty / "c.parquet"), "--workers", "1", "--json"])
    assert done.exit_code == 1, done.output
    figures = json.loads(done.stdout)
    assert figures["counts"] == {"leak": 1, "black": 1, "cut": 1}
    assert figures["page"] == f"file://{faulty}/c.check.html"
    leak, black, cut = figures["findings"]
    assert leak["videos"] == ["test/walk/copy.mp4", "train/walk/copied.mp4"]
    assert (black["subject"], black["frames"]) == ("train/walk/<b>black.mp4", [0, 29])
    assert (cut["subject"], cut["frames"]) == ("train/run/cut.mp4", [39, 40])

    text = (faulty / "c.check.html").read_text()
    page = _Page(text)
    assert page.kinds == ["leak", "black", "cut"], "the gravest first"
    assert len(page.addresses) == 4 + 4 + 1 + 2, "a strip of each copy, one frame that is black, both sides of the cut"
    assert all(address.startswith("data:image/jpeg;base64,") for address in page.addresses)
    assert not re.search(r"url\(|@import|https?://", text), "nothing outside it"
    assert "&lt;b&gt;black.mp4" in text
    assert "<b>black" not in text


def test_packets_alone_tell_of_copies(faulty: Path) -> None:
    page = str(faulty / "fast.html")
    done = CliRunner().invoke(app, ["check", str(faulty / "c.parquet"), "--fast", "--page", page, "--workers", "1"])
    assert done.exit_code == 1
    assert "the same video in several splits" in done.stdout
    assert "cuts within" not in done.stdout
    assert "packets only" in (faulty / "fast.html").read_text()


def test_a_data_set_without_errors_has_exit_status_0(faulty: Path) -> None:
    arguments = ["--page", str(faulty / "some.html"), "--workers", "1", "--frames", "50"]
    done = CliRunner().invoke(app, ["check", str(faulty / "c.parquet"), "--limit", "1", *arguments])
    assert done.exit_code == 0, done.output
    assert "shorter than a clip" in done.stdout


def test_an_interrupted_command_leaves_its_page(faulty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Check, "read", interrupted)
    page = faulty / "stopped.html"
    done = CliRunner().invoke(app, ["check", str(faulty / "c.parquet"), "--page", str(page)])
    assert done.exit_code == 130
    assert "run the same command again" in done.stderr
    assert "Interrupted: 5 files were not read" in page.read_text()


def test_wrong_usage_is_refused(faulty: Path) -> None:
    done = CliRunner().invoke(app, ["check", str(faulty / "c.parquet"), "--limit", "1", "--sample", "1"])
    assert done.exit_code == 2
    assert "exclude" in done.stderr
