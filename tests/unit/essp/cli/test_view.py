"""What people see of a job: the live dashboard, plain lines, JSON lines, and the table at the end."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from essp.cli.dashboard import dashboard, duration, results
from essp.cli.view import JsonView, LiveView, PlainView, open_view
from essp_common.job.status import FitStatus, JobEvent, JobStatus, StopStatus
from essp_common.job.usage import GpuUsage, ProcessUsage, Usage
from essp_common.quantities import size
from tests.harness.statuses import WHEN, status

METRICS = {
    "weight.rgb": 0.4,
    "weight.flow": 0.6,
    **{
        f"{split}.{name}.{figure}": value
        for split in ("validation", "test")
        for name, value in (("rgb", 0.25), ("flow", 0.33), ("fused", 0.987))
        for figure in ("top1", "top5", "mAP", "log_loss")
    },
}


def completed(**changes: Any) -> JobStatus:
    result = {"uri": "file:///runs/demo/model/manifest.json", "metrics": METRICS}
    return status(state="completed", result=result, failures=[], **changes)


def text(renderable: Any, width: int = 110) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(renderable)
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def test_a_fusion_that_is_worse_than_a_member_says_so() -> None:
    assert "alone has a better" not in text(results(completed()))
    worse = {**METRICS, "test.flow.top1": 0.99}
    result = {"uri": "file:///runs/demo/model/manifest.json", "metrics": worse}
    shown = " ".join(text(results(status(state="completed", result=result, failures=[]))).split())
    assert "flow alone has a better top-1 than the fused model (test)" in shown


def test_a_report_that_is_made_anyway_is_not_asked_for() -> None:
    assert "essp report" in text(results(completed()))
    assert "essp report" not in text(results(completed(), reported=True))


def lines_of(rendered: str, *words: str) -> list[list[str]]:
    """The words of every line that has all of `words`."""
    return [line.split() for line in rendered.splitlines() if all(word in line for word in words)]


def test_what_workers_use_is_shown_as_long_as_they_work() -> None:
    gpu = GpuUsage(id="g", name="H200", busy=0.5, memory_bytes=2**31, memory_limit_bytes=2**37, watts=312)
    one, two, new = (
        ProcessUsage(
            host="a", process=number, workers=(), pools=("decoder",), cpu_cores=cores, cores=4, memory_bytes=2**30,
            memory_limit_bytes=2**32, disk_free_bytes=0, disk_bytes=0, gpus=gpus,
        )
        for number, (cores, gpus) in enumerate([(1.25, ()), (0.5, (gpu,)), (None, ())])
    )  # fmt: skip
    for processes, words in (
        ((one, new), "used: 1.2 cores · 1.0 GiB of memory"),
        ((one, two), "used: 1.8 cores · 2.0 GiB of memory · 1 GPU 50 % busy · 2.0 GiB on it · 312 W"),
    ):
        shown = [
            line.strip("│ ")
            for line in text(dashboard(status(), usage=Usage(pools=(), processes=processes))).splitlines()
        ]
        assert words in shown
    assert "used:" not in text(dashboard(status(), usage=Usage(pools=(), processes=(new,)))), "nothing is known yet"
    assert "used:" not in text(dashboard(completed(), usage=Usage(pools=(), processes=(one,))))


def test_members_of_a_sweep_are_shown_with_their_values() -> None:
    first, *others = completed().trainers
    members = (first.model_copy(update={"sweep": {"optimizer.lr": "0.1"}}), *others)
    for shown in (dashboard(status().model_copy(update={"trainers": members})), results(completed(trainers=members))):
        assert lines_of(text(shown, 120), "rgb (optimizer.lr 0.1)")
        assert not lines_of(text(shown, 120), "flow (")


def test_a_trainer_that_waits_for_the_slowest_is_shown() -> None:
    first, *others = status().trainers
    shown = text(
        dashboard(status().model_copy(update={"trainers": (first.model_copy(update={"waits_for": "flow"}), *others)}))
    )
    assert f"{first.name} waits for flow: it is as far ahead as limits.lead allows" in shown
    assert "waits for flow" not in text(dashboard(status()))


def test_what_a_trainer_learns_between_two_phases_is_shown_on_a_terminal_and_in_a_log() -> None:
    words = "learns centres: step 25 of at most 100, at most 1 min 15 s left"
    first, *others = status().trainers
    fit = FitStatus(what="centres", done=25, most=100, left_s=75.0, words=words)
    now = status().model_copy(update={"trainers": (first.model_copy(update={"fit": fit}), *others)})
    assert f"{first.name} {words}" in text(dashboard(now))
    err = io.StringIO()
    PlainView(Console(file=io.StringIO()), Console(file=err, width=200)).show(now)
    assert f"{first.name} {words}" in err.getvalue()


def test_a_trainer_that_stopped_early_is_named_while_the_job_runs_and_at_its_end() -> None:
    words = "stopped early, after epoch 3: its last epoch was no better than epoch 2"
    first, *others = status().trainers
    stopped = first.model_copy(update={"stopped": StopStatus(epoch=2, best=1, words=words)})
    now = status().model_copy(update={"trainers": (stopped, *others)})
    assert f"{first.name} {words}" in text(dashboard(now))
    assert f"{first.name} {words}" in text(results(now))
    said = io.StringIO()
    with PlainView(Console(file=io.StringIO()), Console(file=said)) as view:
        for _ in range(3):
            view.show(now)
    assert said.getvalue().count(f"{first.name}: {words}") == 1
    assert "stopped early" not in text(dashboard(status())) + text(results(status()))


def test_dashboard_tells_how_far_the_job_is() -> None:
    shown = text(dashboard(status()))
    assert "demo running" in shown
    assert "60.0 % · 240 of 400 clips · 2:10 to go" in shown
    assert "elapsed 1:23 · 12.3 clips/s" in shown
    assert "train, epoch 2 (3 of 4) · 40 of 100 clips" in shown, "the slowest consumer counts"


def test_without_a_terminal_the_dashboard_is_as_wide_as_what_it_shows() -> None:
    """A pipe has no width (`open_console`), so a frame as wide as it would be a line of thousands of columns."""
    wide, fitting = (text(dashboard(status(), expand), 10_000).splitlines() for expand in (True, False))
    assert len(wide[0]) == 10_000
    assert {len(line) for line in fitting} == {len(fitting[0])}
    assert max(len(line.strip(" │")) for line in wide[1:-1]) < len(fitting[0]) < 200
    assert "demo running" in fitting[0]
    assert "elapsed 1:23 · 12.3 clips/s" in fitting[-1]


def test_dashboard_names_the_bottleneck() -> None:
    found = {"part": "decoder", "words": "The decoders limit the rate."}
    assert found["words"] in text(dashboard(status(bottleneck=found)))


def test_dashboard_shows_pools_cache_and_streams() -> None:
    shown = text(dashboard(status()))
    assert "frame cache 30.0 MiB of 256 MiB · 33 keys · 2 times full" in shown
    assert "on the way 32.0 MiB of 64.0 MiB · waits for trainers" in shown
    (pool,) = lines_of(shown, "decoder", "12.3")
    assert pool[1:-1] == ["decoder", "2", "1,240", "55.5", "12.3", "0.7", "5"]
    (rgb,) = lines_of(shown, "rgb", "1.234")
    assert rgb[1:-1] == ["rgb", "train", "2", "48", "25.0", "1.234", "50.0", "%", "3.1", "%", "6", "33.3", "%"]
    (failure,) = lines_of(shown, "truncated")
    assert "a/[b].mp4:" in failure, "brackets in names are not markup"


@pytest.mark.parametrize("width", [40, 60, 80, 110, 200])
def test_dashboard_fits_any_width(width: int) -> None:
    assert max(len(line) for line in text(dashboard(status()), width).splitlines()) <= width


def test_dashboard_fits_a_terminal_of_80_by_24() -> None:
    """A job with both kinds of workers: no line of figures is broken in two."""
    decoder = status().pools[0]
    flow = decoder.model_copy(update={"name": "extractor.flow"})
    shown = text(dashboard(status().model_copy(update={"pools": (decoder, flow)})), 80).splitlines()
    assert len(shown) <= 24
    assert [line.split()[-2] for line in shown[1:5]] == ["go", "clips", "full", "trainers"]


def test_a_long_name_leaves_room_for_the_figures() -> None:
    trainers = [t.model_copy(update={"name": f"{t.name}-of-a-name-that-is-much-too-long"}) for t in status().trainers]
    shown = text(dashboard(status().model_copy(update={"name": "x" * 63, "trainers": tuple(trainers)})), 80)
    assert max(map(len, shown.splitlines())) <= 80
    assert lines_of(shown, "1.234", "3.1")


def test_dashboard_of_a_failed_job_says_why() -> None:
    assert "nobody knows" in text(dashboard(status(state="failed", reason="nobody knows")))


def test_dashboard_of_a_job_that_has_not_begun() -> None:
    progress = {"done": 0, "total": 0, "clips_per_s": 0.0, "eta_s": None, "current": 0}
    shown = text(dashboard(status(state="pending", progress=progress, phases=[], pools=[], trainers=[], cache=None)))
    assert "demo pending" in shown
    assert "0.0 % · no clips yet" in shown
    assert "to go" not in shown


def test_who_asks_for_a_job_that_is_complete_sees_its_figures_and_where_the_model_is() -> None:
    shown = text(dashboard(completed(), expand=False))
    (fused,) = lines_of(shown, "fused")
    assert fused[1:-1] == ["fused", *["98.7", "%"] * 6]
    assert "/runs/demo/model" in shown
    assert "/runs/demo/model" not in text(dashboard(status()))


def test_a_trainer_that_has_said_nothing_yet_takes_one_line() -> None:
    trainers = [trainer.model_copy(update={"purpose": None}) for trainer in status().trainers]
    shown = text(dashboard(status().model_copy(update={"trainers": tuple(trainers)})), 80)
    assert "epoch" not in " ".join(lines_of(shown, "trainer", "top-1")[0])
    assert [line[1:3] for line in lines_of(shown, "starts")] == [[trainer.name, "starts"] for trainer in trainers]


def test_results_are_a_table_of_streams_and_their_fusion() -> None:
    shown = text(results(completed()))
    (flow,) = lines_of(shown, "flow")
    assert flow[:4] == ["flow", "0.600", "33.0", "%"]
    (fused,) = lines_of(shown, "fused")
    assert fused == ["fused", *["98.7", "%"] * 6]
    assert "essp predict VIDEO --model /runs/demo\n" in shown


def test_where_nothing_can_be_classified_a_job_is_named_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The image for commands has no torch, and nobody can install it there."""
    monkeypatch.setattr("essp.cli.dashboard.find_spec", lambda name: None)
    shown = text(results(completed()))
    assert "essp predict" not in shown
    assert "predictor: {model: /runs/demo/model}" in shown


def test_results_without_a_validation_split_show_the_test_split_only() -> None:
    metrics = {name: value for name, value in METRICS.items() if not name.startswith("validation.")}
    shown = text(results(status(state="completed", result={"uri": "u", "metrics": metrics}, failures=[])))
    assert "val." not in shown
    (fused,) = lines_of(shown, "fused")
    assert fused == ["fused", *["98.7", "%"] * 3]


def test_results_of_records_speak_of_records_and_images() -> None:
    shown = text(results(completed().model_copy(update={"unit": "record"})))
    assert "by record" in shown
    assert "essp predict IMAGE --model" in shown
    assert "by video" not in shown


def test_results_have_no_column_of_a_figure_that_there_is_not() -> None:
    metrics = {name: value for name, value in METRICS.items() if not name.endswith(".top5")}
    shown = text(results(status(state="completed", result={"uri": "u", "metrics": metrics}, failures=[])))
    assert "top-5" in text(results(completed()))
    assert "top-5" not in shown
    (fused,) = lines_of(shown, "fused")
    assert fused == ["fused", *["98.7", "%"] * 4]


def test_results_of_a_failed_job_say_why() -> None:
    shown = text(results(status(state="failed", reason="more than 20 % of the clips could not be decoded")))
    assert "failed: more than 20 % of the clips could not be decoded" in shown
    assert lines_of(shown, "truncated", "3")


def consoles(terminal: bool) -> tuple[Console, Console]:
    out, err = io.StringIO(), io.StringIO()
    kind = {"TERM": "xterm"} if terminal else {}
    return (
        Console(file=out, width=110, color_system=None),
        Console(file=err, width=110, force_terminal=terminal, color_system=None, _environ=kind),
    )


def written(console: Console) -> str:
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def test_without_a_terminal_lines_come_at_an_interval_and_when_something_happened() -> None:
    out, err = consoles(terminal=False)
    with open_view(out=out, err=err) as view:
        assert isinstance(view, PlainView)
        trainers = [trainer.model_copy(update={"reports": ()}) for trainer in status().trainers]
        view.show(status(elapsed_s=80.0, trainers=trainers))
        for elapsed in (81.0, 89.9, 90.0, 95.0):
            view.show(status(elapsed_s=elapsed))
        event = JobEvent(id=8, time=WHEN, kind="failure", message="a.mp4: damaged", data={})
        view.show(status(elapsed_s=96.0), [event])
        view.result(completed(elapsed_s=97.0))
    shown = written(err).splitlines()
    assert [line.split()[0] for line in shown] == ["1:20", "1:21", "1:21", "1:30", "1:36", "1:37"]
    assert "running 60.0 %, train, epoch 2, 12.3 clips/s, about 2:10 to go, rgb loss 1.234 top-1 50.0 %" in shown[0]
    assert shown[0].endswith("3 failed")
    assert shown[1].endswith("rgb: train, epoch 1: loss 2.000, top-1 20.0 %, data wait 5.0 %")
    assert shown[2].endswith("rgb: validation, epoch 1: loss 1.500, top-1 30.0 %, by video 33.3 %")
    assert shown[4].endswith("a.mp4: damaged")
    assert "completed" in shown[5]
    assert lines_of(written(out), "fused"), "results go to stdout"


def test_what_was_done_before_is_not_told_as_new() -> None:
    out, err = consoles(terminal=False)
    with open_view(out=out, err=err) as view:
        view.show(status())
    shown = written(err).splitlines()
    assert shown[0].endswith("rgb: resumes after validation, epoch 1")
    assert len(shown) == 2


def test_json_lines_are_statuses_events_and_the_result() -> None:
    out, err = consoles(terminal=True)
    with open_view(json_lines=True, out=out, err=err) as view:
        assert isinstance(view, JsonView)
        event = JobEvent(id=8, time=WHEN, kind="phase", message="pass over", data={"epoch": 1})
        view.show(status(elapsed_s=10.0), [event])
        view.show(status(elapsed_s=10.5))
        view.show(status(elapsed_s=11.0))
        view.result(completed(elapsed_s=12.0))
    lines = [json.loads(line) for line in written(out).splitlines()]
    assert [next(iter(line)) for line in lines] == ["event", "status", "status", "result"]
    assert lines[0]["event"]["data"] == {"epoch": 1}
    assert JobStatus.model_validate(lines[1]["status"]) == status(elapsed_s=10.0)
    assert lines[3]["result"]["state"] == "completed"
    assert written(err) == ""


def test_on_a_terminal_the_dashboard_is_live_and_results_stay() -> None:
    out, err = consoles(terminal=True)
    with open_view(out=out, err=err) as view:
        assert isinstance(view, LiveView)
        view.show(status())
        view.result(completed())
    assert "train, epoch 2" in written(err)
    assert "\x1b[2K" in written(err), "the dashboard is wiped at the end"
    assert "fused" in written(out)


@pytest.mark.parametrize(("seconds", "shown"), [(0, "0:00"), (59.6, "1:00"), (3723, "1:02:03")])
def test_durations(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


@pytest.mark.parametrize(("count", "shown"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 * 2**40, "5.0 TiB")])
def test_sizes(count: int, shown: str) -> None:
    assert size(count) == shown
