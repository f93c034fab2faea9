// What the page computes, without a browser: run beside copies of its modules (see test_page.py).

import assert from "node:assert/strict";
import { ask, decoded } from "./api.js";
import { changeMarks, csvOf, lines, nearest, pieces, rangeOf } from "./chart.js";
import { byClock, momentsOf, namesOf, overTime, rates } from "./course.js";
import { lineOf } from "./create.js";
import { compared, comparison, joined, resultsOf, watchComparison } from "./compare.js";
import { readable, signed } from "./docs.js";
import { eventWords, filters as eventFilters, groupOf } from "./events.js";
import { DEFAULTS, jobText, partsOf, quoted } from "./fields.js";
import { flowOf, marks } from "./flow.js";
import { asChange, commands, courseWords, resultRows, watchJob, why } from "./job.js";
import { groupWords, loadJobs, narrowed, sorted } from "./jobs.js";
import { filters as lineFilters, watchLogs } from "./logs.js";
import { previewWords } from "./previews.js";
import { CLOCK, EPOCHS, logTicks, passed, range, smoothed, ticks, timeTicks } from "./scales.js";
import { currentSettings, differences, leaves } from "./settings.js";
import { worksFor } from "./usage.js";
import { consumerTitle, duration, fullMoment, judgedBy, percent, size, sweepWords } from "./words.js";

// Axes have round values that enclose what is drawn.
assert.deepEqual(ticks(0, 1), [0, 0.2, 0.4, 0.6, 0.8, 1]);
assert.deepEqual(ticks(0.93, 4.61), [0, 1, 2, 3, 4, 5]);
assert.deepEqual(ticks(7, 7), [7]);
assert.equal(ticks(0, 1e-7)[0], 0, "of no loss, the axis does not go below it");

// All is said of all alone.
for (const [share, digits, words] of [[null, 1, "–"], [0, 1, "0.0 %"], [0.1234, 1, "12.3 %"], [0.9994, 1, "99.9 %"], [0.9996, 1, "99.9 %"], [1 - 1e-9, 1, "99.9 %"],
  [0.996, 0, "99 %"], [1, 1, "100.0 %"], [Array(7).fill(1 / 7).reduce((a, b) => a + b), 0, "100 %"], [1.25, 0, "125 %"]])
  assert.equal(percent(share, digits), words);

// One spike does not squash the curve, and is told of.
const flat = Array.from({ length: 100 }, (_, k) => 1 + k / 100);
assert.equal(range([...flat, 5000]).cut, 1);
assert.equal(range([...flat, 5000]).high, 1.99);
assert.deepEqual(range([2, 2, 2]), { low: 2, high: 2, cut: 0 });
assert.deepEqual(range([NaN]), { low: 0, high: 1, cut: 0 });

// Of few values none is an outlier: a network that learns goes from 20 % to 90 % in an epoch, and a loss falls as fast.
for (const values of [[0.2, 0.9], [2.3, 0.5], [0.1, 0.12, 0.6], [...Array(48).fill(0.02), 0.9]])
  assert.deepEqual(range(values), { low: Math.min(...values), high: Math.max(...values), cut: 0 });
assert.equal(range([...Array(49).fill(0.02), 0.9]).cut, 1);
const drawn = (purpose, values) => ({ purpose, points: values.map((y, x) => ({ x, y })) });
assert.deepEqual(rangeOf([drawn("train", flat), drawn("validation", [50])]), { low: 1, high: 50, cut: 0 });
assert.deepEqual(rangeOf([drawn("raw", [...flat, 5000]), drawn("train", [...flat, 5000])]), { low: 1, high: 1.99, cut: 1 });

// Curves lie over epochs; of an epoch that this master has not seen, the end is known.
const report = (purpose, epoch, metrics) => ({ purpose, epoch, metrics });
const phase = (purpose, epoch, clips, issued = clips) => ({ purpose, epoch, clips, issued, done: {}, skipped: 0 });
const job = {
  name: "a", kind: "train", unit: "video", state: "running", reason: "", output: "s3://b/a", created: "2026-01-01T00:00:00Z", ended: null, elapsed_s: 60,
  progress: { done: 50, total: 100, clips_per_s: 12.5, eta_s: 90, current: 2 },
  phases: [phase("train", 0, 40), phase("validation", 0, 10), phase("train", 1, 40, 20)],
  credits: { budget_bytes: 2 ** 30, outstanding_bytes: 2 ** 20, outstanding_clips: 20, waiting: true },
  streams: { rgb: "rgb", motion: "flow" }, backlog: { decoder: 3, motion: 17 },
  pools: [{ name: "decoder", workers: 2, done: 60, clips_per_s: 12, seconds_per_clip: 0.015, queue: 3 }],
  trainers: [
    { name: "one", stream: "rgb", clips_per_s: 9, data_wait_ratio: 0.5, queue: 4, waits_for: null, final: false, reports: [report("train", 0, { loss: 2 }), report("validation", 0, { loss: 3 })] },
    { name: "two", stream: "motion", clips_per_s: null, data_wait_ratio: null, queue: null, waits_for: null, final: false, reports: [] },
  ],
  bottleneck: { part: "decoder", words: "." }, awaits: [],
};
const curves = [{ trainer: "one", points: [{ epoch: 1, clips_done: 10, loss: 1.5 }, { epoch: 1, clips_done: 20, loss: 1 }] }];
assert.deepEqual(lines(job, curves, "loss"), [
  { trainer: "one", purpose: "train", colour: 0, points: [{ x: 1, y: 2 }, { x: 1.25, y: 1.5 }, { x: 1.5, y: 1 }] },
  { trainer: "one", purpose: "validation", colour: 0, points: [{ x: 1, y: 3 }] },
]);
// Of labels mAP is compared, which validation alone has.
const labels = { ...job, trainers: [{ name: "one", reports: [report("train", 0, { loss: 2, top1: 0.25 }), report("validation", 0, { loss: 3, mAP: 0.5, top1: 1 })] }] };
assert.deepEqual([labels, job].map(each => judgedBy(each.trainers)), ["mAP", "top1"]);
assert.equal(judgedBy([{ reports: [report("validation", 0, { mAP: 1, mean_class: 0.5 })] }]), "top1");
assert.deepEqual(lines(labels, curves, "mAP"), [{ trainer: "one", purpose: "validation", colour: 0, points: [{ x: 1, y: 0.5 }] }]);
assert.deepEqual(Object.keys(joined([{ job: labels, curves }]).all), ["loss", "mAP", "video_mAP", "lr"]);
const changes = [{ number: 1, fields: { "trainers.two.optimizer.lr": 0.5 }, places: { two: { epoch: 1, clip: 10 } } }, { number: 2, fields: {}, places: {} }];
assert.deepEqual(changeMarks({ ...job, changes }), [{ trainer: "two", colour: 1, x: 1.25, words: "change 1: trainers.two.optimizer.lr 0.5" }]);
assert.deepEqual(asChange(" trainers.one.optimizer.lr = 1e-3 "), { trainers: { one: { optimizer: { lr: 0.001 } } } });
assert.deepEqual(asChange('a.layers."layer1.0" = 0.1'), { a: { layers: { "layer1.0": 0.1 } } });
assert.deepEqual(["a", 'a."b.c=\\"".d', 'a.""', "a..b", 'a."b', 'a"b"', '"\\q"'].map(partsOf), [["a"], ["a", 'b.c="', "d"], ["a", ""], null, null, null, null]);
assert.deepEqual(["a=cosine", "a=[1, 2]", "lr", "=1", "a="].map(asChange), [{ a: "cosine" }, { a: [1, 2] }, null, null, null]);
assert.deepEqual([0, 1.2, 1.3, 9].map(x => nearest([{ x: 1 }, { x: 1.5 }, { x: 2 }], x).x), [1, 1, 1.5, 2]);

// Axes of time have round marks by the clock of the browser, logarithmic ones powers of ten.
assert.deepEqual(timeTicks(3600, 7200, 4), [3600, 4500, 5400, 6300, 7200]);
assert.deepEqual(timeTicks(100, 200, 4, 50), [100, 130, 160, 190]);
assert.deepEqual(logTicks(0.002, 3), [0.001, 0.01, 0.1, 1, 10]);
assert.deepEqual(logTicks(0.3, 4), [0.2, 0.5, 1, 2, 5]);
assert(logTicks(1, 1).length > 1, "one value has an axis, too");
assert.deepEqual([30, 600, 3900, 200000].map(passed), ["30 s", "10 min", "1:05 h", "2.3 d"]);

// A smoothed line begins where its values do, and follows them late; without smoothing it is the same.
const jump = [0, 0, 1, 1].map((y, x) => ({ x, y }));
assert.equal(smoothed(jump, 0), jump);
assert.deepEqual(smoothed([{ x: 0, y: 4 }], 0.9), [{ x: 0, y: 4 }]);
assert(smoothed(jump, 0.5)[2].y > 0.4 && smoothed(jump, 0.5)[3].y < 1);

// Where nobody ran the job, its lines are broken; a training that fell back counts as what it did last.
const timeline = {
  every_s: 10, times: [100, 110, 200, 210, 220], totals: [],
  series: [
    { figure: "clips_per_s", of: "", values: [1, 2, null, 4, 5] }, { figure: "data_wait", of: "two", values: [0, 0, 0, 0, 1] }, { figure: "cpu_cores", of: "trainer.a.one", values: [1, 1, 1, 1, 1] },
    { figure: "epoch", of: "one", values: [0, 1, 0.5, 1.5, 2.5] }, { figure: "lr", of: "one", values: [0.1, 0.2, 0.3, null, 0.5] },
  ],
};
const [rate] = overTime(job, timeline, ["clips_per_s"]);
assert.deepEqual([rate.trainer, rate.gap, pieces(rate.points, rate.gap).map(piece => piece.length)], ["job", 30, [2, 2]]);
assert.deepEqual(pieces([]), []);
assert.deepEqual([...namesOf(job, timeline)].map(([of, { name, colour }]) => [of, name, colour]), [["one", "one", 0], ["two", "two", 1], ["", "job", 2], ["trainer.a.one", "trainer one", 0]]);
assert.deepEqual([0, 0.25, 0.5, 1, 2, 9].map(momentsOf(timeline, "one")), [100, 150, 200, 205, 215, 220]);
assert.equal(momentsOf(timeline, "none")(1), null);
assert.deepEqual(rates(job, timeline, false).map(line => line.points), [[{ x: 0, y: 0.1 }, { x: 0.5, y: 0.3 }, { x: 2.5, y: 0.5 }]]);
assert.deepEqual(rates(job, timeline, true)[0].points.map(point => point.x), [100, 110, 200, 220]);
const [clocked] = byClock([{ trainer: "one", points: [{ x: 1, y: 7 }] }, { trainer: "two", points: [{ x: 1, y: 7 }] }], timeline, 100);
assert.deepEqual(clocked, { trainer: "one", points: [{ x: 105, y: 7 }] });

// What is taken away of a chart has each reported value, and no cell that a table calculator would run.
assert.equal(csvOf([{ trainer: "one", purpose: "train", points: [{ x: 0.5, y: 2 }] }], EPOCHS), "series,epoch,value\none train,0.5,2\n");
assert.equal(csvOf([{ trainer: "=x,\"y", purpose: "course", points: [{ x: 0, y: 2 }] }], CLOCK), "series,time,value\n\"=x,\"\"y\",1970-01-01T00:00:00.000Z,2\n");

// Settings are dotted fields; of several jobs, only what differs is shown, with what was changed since the start.
assert.deepEqual(leaves({ a: { b: 1, "c.d": [1], e: {} }, f: null }), [["a.b", 1], ['a."c.d"', [1]], ["a.e", {}], ["f", null]]);
const set = (spec, changes = []) => ({ job: { changes }, settings: { spec, chosen: [] } });
assert.deepEqual(currentSettings({ spec: { lr: 1 } }, [{ fields: { lr: 2 } }]), new Map([["lr", 2]]));
assert.deepEqual(differences([set({ name: "a", lr: 1, size: "1MiB" }), set({ name: "b", lr: 1, size: "1MiB" }, [{ fields: { lr: 3 } }]), { job: {}, settings: null }]), [["lr", "1", "3", "–"], ["size", "1MiB", "1MiB", "–"]]);

// Jobs are sorted by any column, what is not known last.
const timed = [["a", 5], ["b", null], ["c", 9]].map(([name, eta_s]) => ({ name, eta_s, state: "running" }));
assert.deepEqual([false, true].map(down => sorted(timed, "to go", down).map(it => it.name).join("")), ["acb", "cab"]);
assert.deepEqual(sorted(timed, "job", true).map(it => it.name).join(""), "cba");

// Of the pools, a job shows those that work for it.
assert.deepEqual(["decoder", "extractor.flow+hof", "extractor.hof", "trainer.a.one", "trainer.b.one", "one process"].filter(pool => worksFor(pool, job)), ["decoder", "extractor.flow+hof", "trainer.a.one", "one process"]);

// The description of the API is for a Swagger UI that knows 3.0, at the address of this master; calls are never like forms.
assert.deepEqual(readable({ openapi: "3.1.0", paths: {} }, "http://h/essp/"), { openapi: "3.0.3", paths: {}, servers: [{ url: "http://h/essp" }] });

// The flow has each stream with what makes it and who takes it; what has reported nothing yet says so.
const flow = flowOf(job);
assert.deepEqual([...marks(job)], [["decoder", "limits the rate"]]);
assert.deepEqual([...marks({ ...job, bottleneck: null })], []);
assert.deepEqual([...marks({ ...job, awaits: ["extractor.flow", "trainer.a.two", "predictor"] })],
  [["extractor.flow", "no worker yet"], ["trainer.two", "no worker yet"], ["consumers", "no worker yet"]]);
assert.deepEqual(flow.decoders.figures, [["rate", "12.0 clips/s"], ["work", "15.0 ms per clip"], ["queued", "3 clips"], ["workers", "2"]]);
assert.deepEqual(flow.streams.map(({ stream, box, consumers }) => [stream, box.note, consumers.map(it => it.part)]),
  [["rgb", "the decoded frames", ["trainer.one"]], ["motion", "no worker has produced a clip yet", ["trainer.two"]]]);
// What a trainer learns between two phases is said beside it, until the next one begins.
const fitting = { ...job, trainers: [{ ...job.trainers[0], fit: { what: "centres", done: 1, most: 100, left_s: null, words: "learns centres: step 1 of at most 100" } }, job.trainers[1]] };
assert.equal(flowOf(fitting).streams[0].consumers[0].note, "learns centres: step 1 of at most 100");
assert.equal(flow.streams[0].consumers[0].note, "");
assert.deepEqual(flow.streams[1].box.figures, [["queued", "17 clips"]]);
const feed = { ...job, kind: "feed", trainers: [], phases: [{ ...phase("train", 0, 40), done: { "consumer.mine": 7 } }], progress: { ...job.progress, current: 0 } };
assert.deepEqual(flowOf(feed).consumers.map(it => [it.title, it.figures]), [["loop mine", [["done", "7 of 40"]]]]);
assert.equal(flowOf({ ...feed, phases: [{ ...feed.phases[0], done: { "predictor.rgb": 7 } }] }).streams[0].consumers[0].title, "predictor rgb");
assert.equal(courseWords(job), "50.0 % of 100 clips · train, epoch 2 · 12.5 clips/s · 2 min to go · 1 min so far");
assert.match(courseWords({ ...job, state: "paused", progress: { ...job.progress, eta_s: null } }), /epoch 2 · 1 min so far$/);

// Jobs side by side: each training has a colour, under the names of both; results that a job has not are not known.
assert.deepEqual(compared(comparison(["a", "b c+d", "a"])), ["a", "b c+d"]);
assert.equal(compared("#/jobs/a"), null);
const trained = (name, trainers, result) => ({ curves: [], job: { name, result, phases: [{ purpose: "train", epoch: 0, clips: 10 }], trainers: trainers.map(trainer => ({ name: trainer, reports: [{ purpose: "validation", epoch: 0, metrics: { loss: 1, top1: 0.5 } }] })) } });
const both = [trained("one", ["rgb", "flow"], { metrics: { "test.fused.top1": 0.5 } }), trained("two", ["rgb"], { metrics: { "test.rgb.top1": 0.25, "test.rgb.top5": 1 } }), trained("none", [], null)];
assert.deepEqual(joined(both).all.loss.map(line => [line.trainer, line.colour]), [["one rgb", 0], ["one flow", 1], ["two rgb", 2]]);
assert.deepEqual(joined(both).trainers.map(trainer => trainer.name), ["one rgb", "one flow", "two rgb"]);
assert.deepEqual(resultsOf(both), { columns: ["test top-1", "test top-5"], rows: [["one", "fused", "50.0 %", "–"], ["two", "rgb", "25.0 %", "100.0 %"]] });

// An address that was not made by this page names what it says, and does not keep the page from being shown.
assert.deepEqual(["a%20b", "100%", "%zz"].map(decoded), ["a b", "100%", "%zz"]);
assert.deepEqual(compared("#/compare/a%+b%20c"), ["a%", "b c"]);

// What a stream carries, in words.
const preview = { purpose: "train", epoch: 1, index: 1199, video: "a/b.mp4", class_name: "run", first_frame: 30, height: 112, width: 112, pictures: 10, shown: 6 };
assert.equal(previewWords(preview), "train, epoch 2, clip 1,200: a/b.mp4 (run), from frame 30 on; 6 of 10 pictures of 112 x 112 pixels");
assert.match(previewWords({ ...preview, caption: "hue: direction" }), /112 pixels; hue: direction$/);
assert.match(previewWords({ ...preview, class_name: "", pictures: 1, shown: 1 }), /b\.mp4, from frame 30 on; 1 picture of/);

// Events in words, and left out as people want it.
const events = [
  { kind: "report", message: "", data: { trainer: "one", purpose: "validation", epoch: 0, metrics: { loss: 1.2345, top1: 0.1, video_top1: 0.5, clips: 27, seconds: 0.34, lr: 1 } } },
  { kind: "checkpoint", message: "", data: { trainer: "one", uri: "s3://b/a/trainers/one/checkpoints/0000000320-0000000001/manifest.json", final: false } },
  { kind: "failure", message: "decoder: a.mp4: <b>moov</b> is missing", data: {} },
  { kind: "state", message: "job a: failed: no room", data: { state: "failed" } },
  { kind: "state", message: "taken over from master-1, where its segment 3 says", data: { segment: 3, fence: 2 } },
];
assert.deepEqual(events.map(eventWords), [
  "one: validation, epoch 1: loss 1.234, top-1 by video 50.0 %, 27 clips in 0.3 s", "one: saved a checkpoint after 320 clips", "decoder: a.mp4: <b>moov</b> is missing",
  "failed: no room", "taken over from master-1, where its segment 3 says"]);
assert.deepEqual(events.map(groupOf), ["results", "checkpoints", "problems", "course", "course"]);
const wanted = (filters, items, without, text) => Object.assign(filters, { without: new Set(without), text }).wanted(items);
assert.deepEqual(wanted(eventFilters, events, ["course", "results"], "").map(event => event.kind), ["failure", "checkpoint"]);
assert.deepEqual(wanted(eventFilters, events, [], "MOOV").map(event => event.kind), ["failure"]);

// Results, and what to do next.
assert.deepEqual(resultRows({ "test.fused.top1": 0.5, "validation.fused.top1": 0.75, "validation.rgb.top1": 0.25, "seconds": 1 }),
  { columns: ["validation top-1", "test top-1"], rows: [["rgb", "25.0 %", "–"], ["fused", "75.0 %", "50.0 %"]] });
assert.match(commands({ ...job, state: "completed" })[0][1], /^essp predict VIDEO --model s3:/);
assert.match(commands({ ...job, state: "completed", unit: "record" })[0][1], /^essp predict IMAGE --model s3:/);
assert.equal(commands({ ...job, state: "completed", output: "file:///a b; it's $(x)" })[1][1], "essp report 'file:///a b; it'\\''s $(x)'");
assert.deepEqual(commands({ ...job, state: "stopped" }).map(([, command]) => command), ["essp job start s3://b/a", "essp run s3://b/a"]);
assert.deepEqual(narrowed([{ name: "Abc", state: "paused" }, { name: "abd", state: "failed" }], "active", "AB").map(it => it.name), ["Abc"]);
assert.deepEqual(narrowed([{ name: "a", state: "queued" }, { name: "b", state: "running" }], "queued", "").map(it => it.name), ["a"]);
assert.equal(why({ reason: "it made room for b", awaits: [], queue: { position: 2, reason: "b comes first" } }), "b comes first");
assert.equal(why({ reason: "no room", awaits: [], queue: null }), "no room");
assert.equal(why({ reason: "", awaits: ["decoder", "trainer.a.rgb"], queue: null }), "waits for workers: decoder, trainer.a.rgb");

// The line of a field, or of what is nearest above it.
const yaml = "name: x\n# trainers: no\ntrainers:\n  a:\n    stream: b\n  'b':\n    stream: rgb\nlimits: {budget: 1}\n";
assert.deepEqual(["name", "trainers", "trainers.a.stream", "trainers.b.stream", "trainers.b.model", "limits.budget", "epochs"].map(field => lineOf(yaml, field)), [0, 2, 4, 6, 5, 7, -1]);

assert.deepEqual([0.34, 40, 600, 12600, 200000, null].map(duration), ["0.3 s", "40 s", "10 min", "3.5 h", "2.3 d", "–"]);
assert.deepEqual([5, 2 ** 21, 300 * 2 ** 30, null].map(size), ["5 B", "2.0 MiB", "300 GiB", "–"]);
assert.equal(consumerTitle("trainer.a.b"), "trainer a.b");
assert.deepEqual([{}, { sweep: {} }, { sweep: { "optimizer.lr": "0.1", dropout: "0.5" } }].map(sweepWords), ["", "", "optimizer.lr 0.1, dropout 0.5"]);

// Lines of the logs: newest first, by level and text; the text is looked for in tracebacks, too.
const logged = [["INFO", "started", ""], ["WARNING", "slow", ""], ["CRITICAL", "died", "ValueError: Inner"]]
  .map(([level, event, error], id) => ({ id, level, event, error, worker: "w" }));
for (const [without, text, ids] of [[[], "", [2, 1, 0]], [["ERROR"], "", [1, 0]], [[], "inner", [2]]])
  assert.deepEqual(wanted(lineFilters, logged, without, text).map(line => line.id), ids);

// Fields become YAML: text that could be a number, a truth value or a comment is quoted.
assert.deepEqual(["s3://b/a.parquet", "a-b_c.d", "12", "Yes", "a b", "a: b", "x:", "", "ä#"].map(quoted),
  ["s3://b/a.parquet", "a-b_c.d", '"12"', '"Yes"', '"a b"', '"a: b"', '"x:"', '""', '"ä#"']);
const flowOnly = jobText({ ...DEFAULTS, streams: ["flow"], frames: 17, side: 224, name: "no" });
assert.match(flowOnly, /^name: "no"\n/);
assert.match(flowOnly, /length: 16/);
assert.match(flowOnly, /height: 256, width: 256/);
assert.doesNotMatch(flowOnly, /rgb/);
assert.match(jobText({ ...DEFAULTS, model: "r3d_18", frames: 16 }), /rgb: \{feature: rgb, params: \{frames: 16\}\}/);

// A moment with its day and time zone.
assert.match(fullMoment("2026-01-02T12:00:00Z"), /^2026-01-02 \d\d:00:00 \S+/);

// From here on the API is played: each question waits until it is answered.
globalThis.sessionStorage = { getItem: () => "swordfish" };
assert.deepEqual(signed({ method: "POST", headers: {} }).headers, { "Content-Type": "application/json", Authorization: "Bearer swordfish" });
assert.deepEqual(signed({ method: "POST", headers: { "content-type": "application/yaml" } }).headers, { "content-type": "application/yaml", Authorization: "Bearer swordfish" });
globalThis.sessionStorage = { getItem: () => null };
assert.deepEqual(signed({ method: "GET", headers: {} }).headers, {});
const open = new Map();
globalThis.fetch = path => new Promise(done => open.set(path, found => done({ ok: true, json: async () => found })));
const settled = () => new Promise(done => setImmediate(done));
async function answer(path, found) {
  await settled();
  assert(open.has(path), `${path} is not among ${[...open.keys()]}`);
  open.get(path)(found);
  open.delete(path);
  await settled();
}

// What is known of one job never comes to another, though the answer about the one is late.
const known = (name, last_event) => ({ name, last_event, phases: [], trainers: [{ purpose: "train", epoch: 0, clips_done: last_event }] });
const first = watchJob("a")();
const second = watchJob("b")();
await answer("v1/jobs/b", known("b", 2));
await answer("v1/jobs/a", known("a", 9));
await answer("v1/jobs/a/log?after=0", [{ id: 9 }]);
await answer("v1/jobs/a/curves", ["of a"]);
await answer("v1/jobs/b/log?after=0", [{ id: 2 }]);
await answer("v1/jobs/b/curves", ["of b"]);
for (const name of ["a", "b"]) {
  await answer(`v1/jobs/${name}/settings`, `settings of ${name}`);
  await answer(`v1/jobs/${name}/timeline`, { every_s: 2 });
  await answer("v1/usage", "usage");
}
const rest = name => ({ settings: `settings of ${name}`, timeline: { every_s: 2 }, usage: "usage" });
assert.deepEqual(await first, { job: known("a", 9), events: [{ id: 9 }], curves: ["of a"], ...rest("a") });
assert.deepEqual(await second, { job: known("b", 2), events: [{ id: 2 }], curves: ["of b"], ...rest("b") });
const ofA = watchLogs("a")(), ofAll = watchLogs("")();
await answer("v1/logs?after=0&most=1000", [{ id: 1 }, { id: 2 }]);
await answer("v1/logs?after=0&most=1000&job=a", [{ id: 2 }]);
assert.deepEqual([(await ofA).lines, (await ofAll).lines], [[{ id: 2 }], [{ id: 1 }, { id: 2 }]]);

// Of more jobs than are asked for, those under way are there all the same; what runs comes before what waits.
const listed = (name, state) => ({ name, state });
const loading = loadJobs();
await answer("v1/jobs?page_size=200", { jobs: [listed("new", "completed"), listed("waits", "queued")], next_page_token: "x" });
await answer("v1/jobs?page_size=200&state=running&state=pending&state=paused&state=queued", { jobs: [listed("waits", "queued")], next_page_token: "y=" });
await answer("v1/jobs?page_size=200&state=running&state=pending&state=paused&state=queued&page_token=y%3D", { jobs: [listed("old", "running")], next_page_token: null });
for (const name of ["old", "waits"]) await answer(`v1/jobs/${name}`, { name });
assert.deepEqual(await loading, { jobs: [listed("new", "completed"), listed("waits", "queued"), listed("old", "running")], shown: [{ name: "old" }, { name: "waits" }], more: true });

// Nobody is told that none has failed, where only the newest are known.
const newest = [listed("waits", "queued"), listed("old", "running")];
assert.deepEqual(["all", "queued", "failed"].map(name => groupWords(newest, name, true)), ["all 2 or more", "queued 1", "failed 0 or more"]);
assert.equal(groupWords(newest, "failed", false), "failed 0");

// A master that takes a question and never answers it is not waited for; what it is told to do is.
AbortSignal.timeout = () => AbortSignal.abort();
globalThis.fetch = async (path, { signal }) => {
  signal?.throwIfAborted();
  return { ok: true, json: async () => "done" };
};
await assert.rejects(ask("v1/jobs"), { status: 0 });
assert.equal(await ask("v1/jobs/a:stop", { method: "POST" }), "done");

// A job that there is not is named beside those that are compared; any other refusal is one of the whole view.
const refused = status => ({ ok: false, status, json: async () => ({ detail: "no" }) });
const ended = { ...known("a", 7), ended: "2026-01-01T01:00:00Z" };
const answers = path => (path.includes("/gone") ? refused(404) : path.includes("/hidden") ? refused(403) : { ok: true, json: async () => (path === "v1/jobs/a" ? ended : path) });
const asked = [];
AbortSignal.timeout = () => null;
globalThis.fetch = async path => {
  asked.push(path);
  return answers(path);
};
const comparing = watchComparison(["a", "gone"]);
const side = { found: [{ job: ended, curves: "v1/jobs/a/curves", timeline: "v1/jobs/a/timeline", settings: "v1/jobs/a/settings" }], unknown: ["gone"] };
assert.deepEqual(await comparing(), side);

// Of a job whose clips stand still, only the status is asked for again: the rest may have to be read from a store.
asked.length = 0;
assert.deepEqual(await comparing(), side);
assert.deepEqual(asked, ["v1/jobs/a", "v1/jobs/gone"]);
await assert.rejects(watchComparison(["a", "hidden"])(), { status: 403 });
