"""Ctrl-C: what saves is told of it, what keeps nothing leaves wherever it is."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import NoReturn

import pytest

from essp.cli import plan, predict
from essp.cli.interrupt import interruptible, leaving_at_once
from tests.harness.command_line import main_of
from tests.harness.fleet import make_job

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def press(number: signal.Signals) -> NoReturn:
    signal.raise_signal(number)
    pytest.fail("went on")


@pytest.mark.parametrize("number", SIGNALS)
def test_what_is_saved_is_told_in_its_own_time(number: signal.Signals, capsys: pytest.CaptureFixture[str]) -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    with interruptible("saving") as interrupted:
        assert not interrupted.is_set()
        signal.raise_signal(number)
        assert interrupted.is_set()
        assert [signal.getsignal(each) for each in SIGNALS] == before, "the second is as ever"
    assert capsys.readouterr().err == "saving\n"


@pytest.mark.parametrize("number", SIGNALS)
def test_what_keeps_nothing_is_left_at_once(number: signal.Signals, capsys: pytest.CaptureFixture[str]) -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    with pytest.raises(KeyboardInterrupt), leaving_at_once("leaving"):
        press(number)
    assert [signal.getsignal(each) for each in SIGNALS] == before
    assert capsys.readouterr().err == "leaving\n"


def test_plan_and_predict_leave_wherever_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = tmp_path / "job.json"
    job.write_text(make_job(tmp_path).model_dump_json())
    monkeypatch.setattr(plan, "measure", lambda *_: press(signal.SIGINT))
    monkeypatch.setattr(predict, "classify", lambda *_: press(signal.SIGINT))
    for command in (("plan", str(job)), ("predict", "video.mp4", "--model", str(tmp_path))):
        assert main_of(*command) == 130
        shown = capsys.readouterr()
        assert (shown.out, shown.err.strip()) == ("", "leaving; nothing is kept")
