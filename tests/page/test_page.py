"""The master's page: what it computes, by Node, and what it shows of a real master, by a Chromium without a window.

Each is skipped only where the program it needs is not installed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from essp_common import topics
from essp_common.cache.port import clip_key
from essp_common.job.status import JobState
from essp_common.pb.v1.messages_pb2 import TRAIN, FrameCodec, LogLine, LogLines, Made, Progress
from essp_common.runtime.troubles import Kind
from essp_engine.video import codec
from essp_master.api.local_api import LocalApi
from essp_master.config import MasterSettings
from tests.harness import launcher
from tests.harness.serving import Served
from tests.harness.waiting import LONGEST_S, until
from tools.page_pictures import PROGRAMS, Browser, browser, chromium, give_token
from tools.page_states import HOUR_S, play_hour

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "services" / "essp_master" / "page"
TOKEN = "swordfish"
TYPE = "{{ const t = document.querySelector('textarea'); t.value = {}; t.dispatchEvent(new Event('input')); }}"
LOOK = "document.dispatchEvent(new Event('visibilitychange'))"
"""Has the page ask the master at once."""
needs_chromium = pytest.mark.skipif(chromium() is None, reason=f"none of {', '.join(PROGRAMS)} is installed")


@pytest.mark.lane("test")
@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_what_the_page_computes(tmp_path: Path) -> None:
    for script in (*PAGE.glob("*.js"), Path(__file__).with_name("page_logic.mjs")):
        shutil.copy(script, tmp_path)
    (tmp_path / "package.json").write_text('{"type": "module"}', encoding="utf-8")
    done = subprocess.run(["node", "page_logic.mjs"], cwd=tmp_path, capture_output=True, text=True, timeout=LONGEST_S)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def page() -> Iterator[Browser]:
    program = chromium()
    assert program is not None
    with browser(program) as opened:
        yield opened


@needs_chromium
def test_a_job_is_watched_paused_and_resumed(tmp_path: Path, page: Browser) -> None:
    with Served(tmp_path, api_token=TOKEN) as served:
        page.troubles.clear()
        page.look(420, 900, "dark")
        page.open(served.url)
        assert "token" in page.evaluate("document.querySelector('#login-words').textContent")
        give_token(page, served.url, TOKEN)
        page.open(f"{served.url}/#/")
        assert "No jobs yet" in page.evaluate("document.body.innerText")

        served.client.headers["Authorization"] = f"Bearer {TOKEN}"
        assert served.start().status_code == 202
        name = served.job.name
        served.master.conditions.add(lambda: {(Kind.STORAGE_FULL, "<b>pool</b>"): "<img src=x> is full"})
        served.master.look()
        frames = codec.encode(np.full((3, 16, 16, 3), 200, np.uint8), FrameCodec(name="raw"))
        served.adapters.cache.put(clip_key(name, TRAIN, 0, 2, 0), frames, ["trainer.rgb"], 60)
        served.fleet.report(Progress(made=Made(purpose=TRAIN, indices=[2], bytes=[len(frames)], seconds=0.1)))
        served.master.step(0)
        page.wait(f"document.body.innerText.includes({json.dumps(name)})")
        page.open(f"{served.url}/#/jobs/{name}")
        page.wait("document.querySelector('.flow') && document.querySelector('.limit')")
        page.wait("document.querySelector('.previews img')?.naturalWidth === 16")
        page.wait("document.querySelector('.previews').innerText.includes('no clip of stream diff was made')")
        assert "train, epoch 1, clip 3: " in page.evaluate("document.querySelector('.previews img').alt")
        for part in (".events", "#conditions"):
            assert "<b>pool</b>: <img src=x> is full" in page.evaluate(f"document.querySelector('{part}').innerText")
        assert page.evaluate("document.querySelectorAll('.events b, .events img, #conditions img').length") == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= 420
        other = served.job.model_copy(update={"name": "other", "output": f"{served.job.output}-2"})
        served.master.start(other)
        page.open(f"{served.url}/#/")
        page.wait("document.querySelectorAll('.pick input').length === 2")
        assert page.evaluate("document.querySelectorAll('a.button').length") == 0
        page.evaluate("document.querySelectorAll('.pick input').forEach(box => box.click())")
        page.wait("document.querySelector('a.button')?.innerText === 'Compare 2 jobs'")
        page.evaluate("document.querySelector('a.button').click()")
        page.wait("document.querySelector('.head h2')?.innerText === '2 jobs side by side'")
        page.wait(f"document.querySelector('table').innerText.includes({json.dumps(name)})")
        assert page.evaluate("document.documentElement.scrollWidth") <= 420
        page.open(f"{served.url}/#/jobs/{name}")
        for action, state in (("pause", JobState.PAUSED), ("resume", JobState.RUNNING)):
            page.wait(f"document.querySelector('button.{action}')")
            page.evaluate(f"document.querySelector('button.{action}').click()")
            page.wait(f"document.querySelector('.head .state.{state}')")
            assert served.master.status(name).state is state
        assert page.troubles == []


@needs_chromium
def test_the_address_of_a_run_opens_its_page_and_shows_its_token_to_nobody(tmp_path: Path, page: Browser) -> None:
    """At once, and before there is a job."""
    with Served(tmp_path) as served, LocalApi(MasterSettings(), "127.0.0.1", 0) as api:
        page.troubles.clear()
        served.start()
        page.open(api.address)
        page.wait("document.body.innerText.includes('no job is under way here')")
        page.troubles.clear()  # that answer is one
        with api.serving(served.master):
            page.evaluate(LOOK)
            page.wait(f"document.querySelector('main').innerText.includes({json.dumps(served.job.name)})")
            assert page.evaluate("location.href") == api.address.partition("#")[0] + "#/"
            page.open(f"{page.evaluate('location.href')}jobs/{served.job.name}")
            page.wait("document.querySelector('button.pause')")
            page.evaluate("document.querySelector('button.pause').click()")
            page.wait("document.querySelector('.head .state.paused')")
        assert page.troubles == []


@needs_chromium
def test_a_running_training_is_changed(tmp_path: Path, page: Browser) -> None:
    with Served(tmp_path) as served:
        page.troubles.clear()
        page.look(420, 900, "light")
        served.start()
        name = served.job.name
        page.open(f"{served.url}/#/jobs/{name}")
        page.wait("document.querySelector('.changing input[type=text]')")
        page.evaluate(
            "{ const field = document.querySelector('.changing input[type=text]');"
            " field.value = 'trainers.rgb.optimizer.lr=0.5'; field.dispatchEvent(new Event('change')); }"
        )
        page.wait("document.querySelector('.events').innerText.includes('lr 0.5 instead of 0.01')")
        assert [change.fields for change in served.master.status(name).changes] == [{"trainers.rgb.optimizer.lr": 0.5}]
        page.look(718, 900, "light")  # what Chromium prints on A4
        page.call("Emulation.setEmulatedMedia", media="print")
        inner = "[...document.querySelectorAll('table, .events')].map(it => it.getBoundingClientRect().right)"
        assert page.evaluate(f"Math.max(...{inner})") <= 718
        assert page.evaluate("document.querySelector('.changing input').checkVisibility()") is False
        page.call("Emulation.setEmulatedMedia", media="")
        assert page.troubles == []


KEEP_FILES = """{ window.files = []; const real = URL.createObjectURL; HTMLAnchorElement.prototype.click = function () {
    files.push(this.download); };
    URL.createObjectURL = blob => { (window.blobs ??= []).push(blob); return real(blob); }; }"""
"""Notes what the page would have the browser save."""
WIDE = "document.documentElement.scrollWidth"


@needs_chromium
def test_an_hour_of_a_job_is_read_in_charts_that_can_be_taken_along(tmp_path: Path, page: Browser) -> None:
    with Served(tmp_path) as served:
        page.troubles.clear()
        page.look(1440, 900, "dark")
        served.start()
        name = served.job.name
        play_hour(served.master, served.adapters, served.job, time.time() - HOUR_S)
        page.open(f"{served.url}/#/jobs/{name}")
        page.wait("document.querySelectorAll('.chart svg').length >= 12")
        titles = page.evaluate(
            "[...document.querySelectorAll('figcaption > span:first-child')].map(it => it.innerText)"
        )
        assert {"Loss", "Learning rate", "Clips per second", "Trainers wait for clips", "GPU busy"} <= set(titles)
        assert {"Validation (top-1, by video)", "Accuracy (mAP, by clip)", "Memory of workers"} <= set(titles)
        assert not page.evaluate("document.querySelector('.changing input').checkVisibility()"), "it is folded away"
        rate = "document.querySelector('[data-key=\"Clips per second\"] g.course')"
        assert page.evaluate(f"{rate}.querySelectorAll('polyline').length") == 2, "a gap where no master ran"
        usage = page.evaluate("document.querySelector('table[aria-label=\"usage of pools\"]').innerText")
        assert "139 GiB" in usage
        loss = "document.querySelector('[data-key=Loss]')"
        assert page.evaluate(f"{loss}.querySelector('svg').getAttribute('aria-label')").startswith("Loss over epochs")
        page.evaluate("document.querySelector('[data-key=time]').click()")
        page.evaluate("document.querySelector('[data-key=log]').click()")
        page.evaluate(
            "{ const slide = document.querySelector('input[type=range]'); slide.value = 0.5;"
            " slide.dispatchEvent(new Event('input')); }"
        )
        page.wait(f"{loss}.querySelector('svg').getAttribute('aria-label').startsWith('Loss over time of day')")
        page.wait(f"{loss}.querySelectorAll('.raw').length === 2")
        page.evaluate(KEEP_FILES)
        for kind in ("CSV", "PNG"):
            page.evaluate(f"{loss}.querySelector('[data-key=\"{kind} Loss\"]').click()")
        page.wait("window.files.length === 2")
        assert page.evaluate("files") == ["loss.csv", "loss.png"]
        table = page.evaluate("blobs[0].text()").splitlines()
        assert table[0] == "series,time,value"
        assert re.fullmatch(r"rgb train,20\d\d-\d\d-\d\dT[\d:.]+Z,[\d.]+", table[1])
        drawn = "createImageBitmap(blobs.at(-1)).then(it => [it.width, it.height])"
        wide, high = page.evaluate(drawn)
        assert wide > 600
        assert high == 500
        page.evaluate("document.querySelector('[data-key=settings]').open = true")
        fields = "[...document.querySelectorAll('table[aria-label=settings] td:first-child')].map(it => it.innerText)"
        chosen = page.evaluate(fields)
        assert "trainers.rgb.batch_size" in chosen
        page.evaluate("document.querySelector('[data-key=whole]').click()")
        page.wait(f"({fields}).length > {len(chosen)}")
        assert "trainers.rgb.optimizer.lr" in page.evaluate(fields)
        page.look(420, 900, "light")
        page.wait(f"{loss}.querySelector('svg').getBoundingClientRect().width < 400")
        assert page.evaluate(WIDE) <= 420
        assert page.troubles == []


@needs_chromium
def test_the_page_of_a_finished_job_shows_the_hour_that_its_output_keeps(tmp_path: Path, page: Browser) -> None:
    """`essp page`: what the master recorded, and wrote at the end of the job, without that master."""
    begin_s, log = time.time() - HOUR_S, tmp_path / "page.log"
    with Served(tmp_path) as served:
        served.start()
        name = served.job.name
        play_hour(served.master, served.adapters, served.job, begin_s)
        served.complete()
        served.master.drain()
        served.master.run()
    shown = launcher.start(["page", served.job.output], os.environ, log)
    try:
        until(lambda: "#token=" in log.read_text(), "it prints its address")
        page.troubles.clear()
        page.open(re.search(r"http\S+", log.read_text())[0])  # type: ignore[index]
        page.wait(f"document.querySelector('.pick')?.innerText.includes({json.dumps(name)})")
        page.open(f"{page.evaluate('location.href')}jobs/{name}")
        rate = "document.querySelector('[data-key=\"Clips per second\"]')"
        for width, scheme in ((1440, "dark"), (420, "light")):
            page.look(width, 900, scheme)
            page.wait(f"{rate}?.getBoundingClientRect().right < {width}")
            assert page.evaluate("document.querySelectorAll('.chart svg').length") >= 12
            assert page.evaluate(WIDE) <= width
        first, last = page.evaluate(f"(({{from, to}}) => [from, to])({rate}.data.frame)")
        assert (first, last > begin_s + HOUR_S - 10) == (pytest.approx(begin_s, abs=10), True)
        assert page.evaluate(f"{rate}.querySelectorAll('polyline').length") >= 2, "a gap where no master ran"
        assert page.evaluate("document.querySelector('table[aria-label=\"what workers used\"]').innerText")
        assert page.evaluate("document.querySelectorAll('.actions button').length") == 0
        assert page.troubles == []
    finally:
        shown.send_signal(signal.SIGINT)
        shown.wait(LONGEST_S)


@needs_chromium
def test_jobs_are_sorted_and_compared_by_their_settings(tmp_path: Path, page: Browser) -> None:
    with Served(tmp_path) as served:
        page.troubles.clear()
        page.look(1440, 900, "light")
        served.start()
        name = served.job.name
        play_hour(served.master, served.adapters, served.job, time.time() - HOUR_S)
        more = {"name": "another", "output": f"{served.job.output}-2", "epochs": 3}
        served.master.start(served.job.model_copy(update=more))
        page.open(f"{served.url}/#/")
        names = "[...document.querySelectorAll('.pick a')].map(it => it.innerText).join()"
        page.wait(f"{names} === 'another,{name}'")
        assert page.evaluate("document.querySelector('.spark').getAttribute('aria-label')").startswith("training loss")
        for head, order in (("job", f"another,{name}"), ("job", f"{name},another"), ("result", f"{name},another")):
            page.evaluate(f"document.querySelector('[data-key=\"sort {head}\"]').click()")
            page.wait(f"{names} === '{order}'")
        assert page.evaluate("document.querySelector('th[aria-sort]').innerText").startswith("result")
        box = "document.querySelector('.filters input')"
        page.evaluate(f"{box}.value = 'anoth'; {box}.dispatchEvent(new Event('input')); location.hash = '#/pools'; 0")
        page.wait("document.querySelector('table[aria-label=\"usage of pools\"]')")
        page.evaluate("location.hash = '#/'; 0")
        page.wait(f"{names} === 'another' && {box}.value === 'anoth'")
        page.open(f"{served.url}/#/compare/{name}+another")
        page.wait("document.querySelector('table[aria-label=\"settings that differ\"]')")
        rows = page.evaluate(
            "[...document.querySelectorAll('table[aria-label=\"settings that differ\"] tr')].map(it => it.innerText)"
        )
        assert [row.split() for row in rows] == [["field", name, "another"], ["epochs", "2", "3"]]
        page.evaluate("{ const time = document.querySelector('[data-key=time]'); time.click(); }")
        page.wait(
            "document.querySelector('.chart svg').getAttribute('aria-label').startsWith('Loss over since its start')"
        )
        page.look(420, 900, "dark")
        page.open(f"{served.url}/#/")
        page.wait("document.querySelector('.narrow select')?.checkVisibility()")
        assert page.evaluate(WIDE) <= 420
        page.open(f"{served.url}/#/pools")
        page.wait("document.querySelector('table[aria-label=\"usage of pools\"]')")
        assert page.evaluate(WIDE) <= 420
        assert page.troubles == []


@needs_chromium
def test_a_call_is_tried_in_the_description_of_the_api(tmp_path: Path, page: Browser) -> None:
    with Served(tmp_path, api_token=TOKEN) as served:
        served.client.headers["Authorization"] = f"Bearer {TOKEN}"
        served.start()
        page.troubles.clear()
        page.look(420, 900, "dark")
        page.call("Page.navigate", url=f"{served.url}/docs")
        page.wait("document.querySelector('.opblock')")
        assert page.evaluate(WIDE) <= 420
        page.evaluate(
            f"document.querySelector('#token').value = {json.dumps(TOKEN)};"
            "document.querySelector('#login button').click()"
        )
        assert page.evaluate("document.querySelector('#state').textContent") == "calls carry your token"
        page.evaluate("document.querySelector('#operations-jobs-pause_job button').click()")
        page.wait("document.querySelector('.opblock.is-open .execute')")
        page.wait("document.querySelector('.opblock.is-open input:enabled')")
        page.evaluate(
            "{ const field = document.querySelector('.opblock.is-open input');"
            " Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set"
            f".call(field, {json.dumps(served.job.name)}); const told = {{bubbles: true}};"
            " field.dispatchEvent(new Event('input', told)); field.dispatchEvent(new FocusEvent('focusout', told)); }"
        )
        page.evaluate("document.querySelector('.opblock.is-open .execute').click()")
        page.wait(
            "document.querySelector('.live-responses-table tbody .response-col_status')?.innerText.includes('200')"
        )
        assert served.master.status(served.job.name).state is JobState.PAUSED
        assert page.troubles == []


@needs_chromium
def test_a_priority_is_set_and_what_workers_say_is_read(tmp_path: Path, page: Browser) -> None:
    with Served(tmp_path, queue_budget=2**30) as served:
        page.troubles.clear()
        page.look(420, 900, "light")
        served.start()
        name = served.job.name
        page.open(f"{served.url}/#/jobs/{name}")
        page.wait("document.querySelector('input[type=number]')?.value === '0'")
        page.evaluate(
            "{ const field = document.querySelector('input[type=number]'); field.value = 7;"
            " field.dispatchEvent(new Event('change')); }"
        )
        page.wait("document.querySelector('input[type=number]').getAttribute('value') === '7'")
        assert served.master.status(name).priority == 7
        page.wait("document.querySelector('.events').innerText.includes('priority 7 instead of 0')")
        said = [LogLine(time=1e9, level="ERROR", event="<b>lost</b>", job=name, error="Traceback\nValueError: <i>")]
        for message in (LogLines(pool="decoder", lines=said), LogLines(pool="trainer.x", lines=[LogLine(event="hm")])):
            served.adapters.bus.publish(topics.PROGRESS, b"", Progress(worker="w1", logs=message).SerializeToString())
        served.master.step(1)
        page.evaluate(f"document.querySelector('a[href=\"#/logs/{name}\"]').click()")
        page.wait("document.querySelectorAll('.lines li').length === 1")
        assert "<b>lost</b>\nw1, decoder\nValueError: <i>" in page.evaluate("document.body.innerText")
        page.evaluate("document.querySelector('header a[href=\"#/logs\"]').click()")
        page.wait("document.querySelectorAll('.lines li').length === 2")
        page.evaluate("document.querySelector('button[data-group=ERROR]').click()")
        page.wait("document.querySelectorAll('.lines li').length === 1")
        page.evaluate("document.querySelector('button[data-group=ERROR]').click()")
        page.evaluate(
            "{ const pool = document.querySelector('.filters select'); pool.value = 'decoder';"
            " pool.dispatchEvent(new Event('change')); }"
        )
        page.wait("document.querySelector('.lines').innerText.includes('lost')")
        assert page.evaluate("document.querySelectorAll('.lines li').length") == 1
        assert page.evaluate("document.documentElement.scrollWidth") <= 420
        assert page.troubles == []


@needs_chromium
def test_a_master_that_goes_away_and_comes_back(tmp_path: Path, page: Browser) -> None:
    with Served(tmp_path) as served:
        page.troubles.clear()
        page.look(1280, 900, "light")
        page.open(f"{served.url}/#/jobs/100%")
        page.wait("document.querySelector('main h2')?.innerText === 'Not found'")
        served.start()
        page.open(f"{served.url}/#/")
        page.wait("document.querySelector('#state').textContent === 'live'")
        _offline(page, True)
        page.evaluate(LOOK)
        page.wait("/^not live: as of [0-9:]+$/.test(document.querySelector('#state').textContent)")
        assert "Trying again" in page.evaluate("document.querySelector('#trouble').innerText")
        assert served.job.name in page.evaluate("document.querySelector('main').innerText"), "what was told stays"
        _offline(page, False)
        page.evaluate(LOOK)
        page.wait("document.querySelector('#state').textContent === 'live'")
        assert page.evaluate("document.querySelector('#trouble').hidden")

        page.open(f"{served.url}/#/new")
        page.evaluate("{ const real = setTimeout; window.setTimeout = (then, ms) => real(then, ms / 50); }")
        _offline(page, True)
        page.evaluate(TYPE.format(json.dumps(served.job.model_dump_json())))
        page.wait("document.querySelector('#verdict').innerText.includes('does not answer')")
        _offline(page, False)
        page.wait("!document.querySelector('button[type=submit]').disabled")
        assert page.troubles == []


@needs_chromium
def test_an_answer_that_comes_after_the_token_was_forgotten_is_not_shown(tmp_path: Path, page: Browser) -> None:
    with Served(tmp_path, api_token=TOKEN) as served:
        served.client.headers["Authorization"] = f"Bearer {TOKEN}"
        served.start()
        give_token(page, served.url, TOKEN)
        page.open(f"{served.url}/#/")
        page.wait("document.querySelector('.pick')")
        page.evaluate(
            "{ const real = fetch; window.fetch = async (path, how) => { const answer = await real(path, how);"
            f" if (path === 'v1/jobs/{served.job.name}') window.asked = true;"
            " if (path === 'v1/conditions') await new Promise(go => window.letGo = go); return answer; }; }"
        )
        page.evaluate(LOOK)
        page.wait("window.letGo && window.asked")
        page.evaluate(
            "{ document.querySelector('#leave').click(); window.told = '';"
            " new MutationObserver(() => told += document.querySelector('main').innerText)"
            ".observe(document.querySelector('main'), { childList: true, subtree: true }); letGo(); }"
        )
        page.wait("!document.querySelector('#login').hidden")
        assert served.job.name not in page.evaluate("told")
        assert page.evaluate("document.querySelectorAll('.pick').length") == 0
        assert page.evaluate("document.title") == "ESSP"


@needs_chromium
def test_what_is_read_aloud_and_has_the_focus_stays_as_it_is(tmp_path: Path, page: Browser) -> None:
    with Served(tmp_path) as served:
        page.troubles.clear()
        page.look(1280, 900, "light")
        served.start()
        troubles = {(Kind.STORAGE_FULL, "pool"): "is full"}
        served.master.conditions.add(lambda: troubles)
        served.master.look()
        page.open(f"{served.url}/#/")
        page.wait("document.querySelector('#conditions p') && document.querySelector('.pick input')")
        page.evaluate(
            "{ window.kept = [document.querySelector('#conditions p'), document.querySelector('#state').firstChild];"
            " document.querySelector('.pick input').focus(); window.most = window.now = 0;"
            " const real = fetch; window.fetch = async (path, how) => {"
            " if (path === 'v1/conditions') most = Math.max(most, ++now);"
            " try { return await real(path, how); } finally { if (path === 'v1/conditions') now--; } }; }"
        )
        troubles[(Kind.STORAGE_FULL, "other")] = "is full, too"
        served.master.look()
        served.master.start(served.job.model_copy(update={"name": "second", "output": f"{served.job.output}-2"}))
        page.evaluate(f"{LOOK}; {LOOK}; {LOOK}")
        page.wait("document.querySelectorAll('.pick input').length === 2")
        assert page.evaluate("most") == 1, "one look at a time"
        assert page.evaluate("document.querySelectorAll('#conditions p').length") == 2
        assert (
            page.evaluate(
                "[...document.querySelectorAll('#conditions p'), document.querySelector('#state').firstChild]"
                ".filter(part => kept.includes(part)).length"
            )
            == 2
        )
        assert page.evaluate("document.activeElement.dataset.name") == served.job.name
        page.evaluate("document.querySelector('nav a[href=\"#/pools\"]').focus(); location.hash = '#/pools'")
        page.wait("document.activeElement === document.querySelector('main')")
        assert page.troubles == []


@needs_chromium
def test_a_job_is_checked_as_one_types(tmp_path: Path, page: Browser) -> None:
    with Served(tmp_path) as served:
        page.open(f"{served.url}/#/new")
        spec = served.job.model_dump_json()
        page.evaluate("document.querySelector('.fields').open = true; sessionStorage.clear()")
        page.open(f"{served.url}/#/new")
        page.wait("document.querySelector('.fields') && !document.querySelector('[aria-busy]')")
        filled = "const f = document.querySelector('[aria-label={}]'); f.value = {}; "
        filled += "f.dispatchEvent(new Event('input', {{bubbles: true}})); 0"
        page.evaluate("{" + filled.format("Name", "'night'") + "}")
        assert page.evaluate("document.querySelector('textarea').value").startswith("name: night\n")
        page.wait("document.querySelector('#verdict').innerText.includes('output')")
        page.evaluate(TYPE.format("'name: mine'"))
        page.evaluate("{" + filled.format("Epochs", "7") + "}")
        assert page.evaluate("document.querySelector('textarea').value") == "name: mine", "what people wrote stays"
        page.evaluate("document.querySelector('form p.note button').click()")
        assert "\nepochs: 7\n" in page.evaluate("document.querySelector('textarea').value")
        page.evaluate(TYPE.format(json.dumps("name: x\nepochs: many")))
        page.wait("document.querySelector('#verdict').innerText.includes('epochs must be a whole number')")
        assert "line 2" in page.evaluate("document.querySelector('#verdict').innerText")
        assert page.evaluate("document.querySelector('button[type=submit]').disabled")
        page.evaluate(TYPE.format(json.dumps(spec)))
        page.wait("!document.querySelector('button[type=submit]').disabled")
        page.evaluate("const ask = fetch, asked = []; fetch = (...a) => (asked.push(a[0]), ask(...a)); 0")
        page.evaluate("dispatchEvent(new Event('resize'))")
        assert not [path for path in page.evaluate("asked") if "validate" in path], "a new size is no new text"
        page.evaluate("document.querySelector('button[type=submit]').click()")
        page.wait("location.hash.startsWith('#/jobs/') && document.querySelector('.flow')")
        assert served.master.status(served.job.name).state is JobState.RUNNING


def _offline(page: Browser, away: bool) -> None:
    """Have the master be out of reach, or in reach again."""
    page.call("Network.enable")
    page.call("Network.emulateNetworkConditions", offline=away, latency=0, downloadThroughput=-1, uploadThroughput=-1)
