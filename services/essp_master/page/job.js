// The page of one job: progress, bottleneck, curves, flow, course over time, results and events.

import { ask, jobPath } from "./api.js";
import { changeMarks, chart, hiddenNames, legend, lines, options, toolbar } from "./chart.js";
import { CHARTS, byClock, momentsOf, overTime, rates } from "./course.js";
import { at, el, table } from "./dom.js";
import { eventList, filters } from "./events.js";
import { partsOf } from "./fields.js";
import { fills, flow } from "./flow.js";
import { drawPreviews } from "./previews.js";
import { CLOCK, EPOCHS } from "./scales.js";
import { drawSettings } from "./settings.js";
import { loadUsage, usageTable } from "./usage.js";
import { FIGURES, UNKNOWN, count, counted, duration, judgedBy, number, percent, phaseTitle, share, size, sweepWords } from "./words.js";

const EVENTS = 5000; // as many as the master keeps
const COURSE_MS = 4000, COURSE_MOST_MS = 30_000; // how often the course is read; less often if its stretches are long
export const NO_TIMELINE = { every_s: 0, times: [], series: [], totals: [] };

/** A function that loads a job; it can be called again and again. Events are read only when there are new ones. */
export function watchJob(name) {
  let events = [], usage = null, shown = null;
  const course = watchCourse(name);
  filters.reset();
  return async () => {
    const job = await ask(jobPath(name));
    if (job.last_event && job.last_event < events.at(-1)?.id) events = []; // a new master numbers events by its own clock, which may be behind
    const last = events.at(-1)?.id || 0;
    if (job.last_event && job.last_event !== last) events.push(...await ask(jobPath(name, `/log?after=${last}`)));
    events.splice(0, events.length - EVENTS);
    const found = await course(job);
    if (found.timeline !== shown) {
      usage = over(job) ? null : await loadUsage();
      shown = found.timeline;
    }
    return { job, events, usage, ...found };
  };
}

/**
 * A function that loads the curves, the course and the settings of a job, given its status. Each is read only when it may
 * have changed: those of a job that has ended are in its output, and each request reads them from there.
 */
export function watchCourse(name) {
  let curves = [], drawn = "", timeline = NO_TIMELINE, settings = null, set = "", due = 0;
  return async job => {
    const at = job.trainers.map(trainer => [trainer.purpose, trainer.epoch, trainer.clips_done].join()).join(";");
    if (job.trainers.length && at !== drawn) {
      curves = await ask(jobPath(name, "/curves"));
      drawn = at;
    }
    const runs = `${job.created} ${job.phases.length}`;
    if (runs !== set) {
      settings = await settingsOf(name);
      set = runs;
    }
    if (Date.now() >= due) {
      timeline = await ask(jobPath(name, "/timeline"));
      due = Date.now() + (job.ended ? COURSE_MOST_MS : Math.min(COURSE_MOST_MS, Math.max(COURSE_MS, 1000 * timeline.every_s)));
    }
    return { curves, timeline, settings };
  };
}

/** The settings of a job; null if they are no longer known. */
async function settingsOf(name) {
  try {
    return await ask(jobPath(name, "/settings"));
  } catch (error) {
    if (error.status === 404 || error.status === 422) return null;
    throw error;
  }
}

/** The page. */
export function drawJob({ job, events, curves, timeline = NO_TIMELINE, usage = null, settings = null }, act) {
  const problems = job.failures.length ? section("Failed clips", failures(job)) : null;
  const all = curvesOf(job, curves);
  all.lr = rates(job, timeline, false);
  const failed = job.state === "failed", completed = job.state === "completed";
  const made = section("Results", ...outcome(job));
  return [
    el("div", { class: "head" }, el("h2", {}, job.name), state(job), el("span", { class: "grow" }), actions(job, act)),
    progressOf(job),
    limit(job),
    changing(job, act),
    el("div", { class: "sides" },
      el("div", {},
        failed ? problems : null,
        completed ? made : null,
        job.trainers.length ? section("Curves", ...(all.loss.length || all.lr.length ? [legend(job), toolbar(timeline.times.length > 1), charts(job, ...placed(job, all, timeline))] : [el("p", { class: "empty" }, "No trainer has reported yet.")])) : null,
        completed || job.state === "stopped" ? null : section("Flow", flow(job), fills(job)),
        usage ? section("Workers", usageTable(usage, job)) : null,
        overall(job, timeline),
        drawPreviews(job),
        job.trainers.length ? section("Trainers", trainers(job), ...stops(job)) : null,
        drawSettings(settings, job.changes)),
      el("div", {},
        completed ? null : made,
        failed ? null : problems,
        section("Events", eventList(events, events.length ? events[0].id - job.first_event : 0),
          el("p", { class: "note" }, el("a", { href: `#/logs/${encodeURIComponent(job.name)}` }, "Logs of this job"))))),
  ];
}

/** Whether the job does not run any more. One that was interrupted has no end. */
const over = job => ["completed", "failed", "stopped"].includes(job.state);

/** The state of a job as a badge. */
export const state = job => el("span", { class: `state ${job.state}` }, job.queue ? `${job.state} ${job.queue.position}` : job.state);

/** Why a job waits, has failed or was stopped; empty if there is no reason. */
export const why = job => (job.awaits.length ? `waits for workers: ${job.awaits.join(", ")}` : job.queue ? job.queue.reason : job.reason);

/** Buttons for the actions that the job's state allows. */
export function actions(job, act) {
  const possible = { running: ["pause", "stop"], paused: ["resume", "stop"], queued: ["pause", "stop"], pending: ["stop"] }[job.state] || [];
  return el("span", { class: "actions" }, possible.map(action => el("button",
    { type: "button", class: action, "data-key": `${action} ${job.name}`, onclick: () => act(job.name, action) }, action)));
}

const section = (title, ...children) => el("section", { "data-key": title }, el("h3", {}, title), ...children);

/** Progress in words; of a running job also its rate and remaining time. */
export function courseWords(job) {
  const { progress } = job, now = job.phases[progress.current];
  const parts = [progress.total ? `${percent(share(progress))} of ${count(progress.total)} clips` : "no clips yet"];
  if (now && job.state !== "completed") parts.push(phaseTitle(now.purpose, now.epoch));
  if (job.state === "running") {
    parts.push(`${number(progress.clips_per_s)} clips/s`);
    parts.push(progress.eta_s == null ? "remaining time unknown" : `${duration(progress.eta_s)} to go`);
  }
  parts.push(over(job) ? `took ${duration(job.elapsed_s)}` : `${duration(job.elapsed_s)} so far`);
  return parts.join(" · ");
}

/** The field for the job's priority. A new value from the master replaces the field. */
function priority(job, act) {
  const set = event => event.currentTarget.reportValidity() && act(job.name, "priority", event.currentTarget.valueAsNumber);
  return el("p", { "data-key": `priority ${job.name} ${job.priority}` }, el("label", {}, "Priority in the queue ",
    el("input", { type: "number", min: -1000, max: 1000, step: 1, required: true, value: job.priority, onchange: set })), el("span", { class: "note" }, " higher goes first"));
}

/** `FIELD=VALUE` as part of a job document; null if it is not of this form. */
export function asChange(text) {
  const found = /^\s*((?:"(?:[^"\\]|\\.)*"|[^"=\s])+)\s*=\s*(.*\S)\s*$/.exec(text), names = found && partsOf(found[1]);
  if (!names) return null;
  let value = found[2];
  try {
    value = JSON.parse(value);
  } catch {
    // a string
  }
  return names.reduceRight((inner, name) => ({ [name]: inner }), value);
}

/** The field that gives a field of a running job another value. */
function change(job, act) {
  const set = event => {
    const wanted = asChange(event.currentTarget.value);
    event.currentTarget.setCustomValidity(wanted ? "" : "Write FIELD=VALUE.");
    if (event.currentTarget.reportValidity()) act(job.name, "change", wanted);
  };
  return el("p", { "data-key": `change ${job.name} ${job.changes.length}` }, el("label", {}, "Change ",
    el("input", { type: "text", size: 36, placeholder: `trainers.${job.trainers[0].name}.optimizer.lr=0.001`, onchange: set })), el("span", { class: "note" }, " takes effect with the next update"));
}

/** The fields that change a job that has not ended. */
function changing(job, act) {
  const parts = [job.priority == null ? null : priority(job, act), job.trainers.length ? change(job, act) : null].filter(Boolean);
  return over(job) || !parts.length ? null : el("details", { class: "changing", "data-key": "changing" }, el("summary", {}, "Change this job"), parts);
}

function progressOf(job) {
  return el("div", { class: "course" }, el("progress", { value: share(job.progress), max: 1, "aria-label": "clips done" }),
    el("p", {}, courseWords(job)),
    job.queue || job.reason ? el("p", { class: job.state === "failed" ? "wrong" : "" }, job.queue ? `Position ${job.queue.position} in the queue: ${job.queue.reason}.` : job.reason) : null,
    el("p", { class: "note" }, `${job.kind} job${job.team ? ` of team ${job.team}` : ""}, started `, at(job.created), ...(job.ended ? [", ended ", at(job.ended)] : [])));
}

/** The bottleneck; null if the job does not run. */
export function limit(job) {
  if (job.state !== "running") return null;
  return el("p", { class: "limit", "data-key": "limit" }, el("b", {}, job.awaits.length ? "Not started " : "Bottleneck "), job.bottleneck ? job.bottleneck.words : "Unknown: no rates reported yet.");
}

const toThree = value => String(Number(value.toPrecision(3)));
const asShare = value => `${Number((100 * value).toFixed(1))} %`;
const UNITS = { number: toThree, share: asShare, bytes: value => size(value).replace(".0 ", " ") };

/** The lines of a job's trainers by figure: loss, the metric they are judged by, by clip and by video, and mAP. */
export function curvesOf(job, curves, judged = judgedBy(job.trainers)) {
  const all = { loss: lines(job, curves, "loss"), [judged]: lines(job, curves, judged), [`video_${judged}`]: lines(job, curves, `video_${judged}`) };
  if (judged !== "mAP") all.mAP = lines(job, curves, "mAP");
  return all;
}

/** The lines over epochs or over time, as the user wants; with the marks of changes, and the axis. */
function placed(job, all, timeline) {
  const changes = changeMarks(job);
  if (!options.byTime || timeline.times.length < 2) return [all, changes, EPOCHS];
  const timed = Object.fromEntries(Object.entries(all).map(([figure, found]) => [figure, figure === "lr" ? rates(job, timeline, true) : byClock(found, timeline)]));
  const marks = changes.map(mark => ({ ...mark, x: momentsOf(timeline, mark.trainer)(mark.x) })).filter(mark => mark.x != null);
  return [timed, marks, CLOCK];
}

const NARROWEST = 375, BETWEEN = 15; // of charts, in pixels; page.css has them in rem

/** The width of each of `many` charts, which are placed next to each other where there is room. */
function widthOfCharts(many) {
  const wide = (document.querySelector(".charts") || document.querySelector("main")).clientWidth;
  const beside = Math.max(1, Math.min(many, Math.floor((wide + BETWEEN) / (NARROWEST + BETWEEN))));
  return Math.round((wide - BETWEEN * (beside - 1)) / beside);
}

/** The charts of the loss and of the other figures in `all`. */
export function charts(job, all, changes = [], axis = EPOCHS) {
  const to = Math.max(1, ...job.phases.filter(phase => phase.purpose === "train").map(phase => phase.epoch + 1));
  const { loss, lr = [], ...shares } = all;
  const made = [
    { title: "Loss", all: loss, format: toThree },
    ...Object.entries(shares).filter(([figure, found]) => found.length || (figure in FIGURES && figure !== "mAP")).map(([figure, found]) => ({ title: chartTitle(figure, job), all: found, format: asShare, least: 0 })),
    ...(lr.length ? [{ title: "Learning rate", all: lr, format: toThree, least: 0 }] : []),
  ];
  const width = widthOfCharts(made.length);
  return el("div", { class: "charts" }, made.map(one => chart({ ...one, width, to, axis, changes })));
}

const chartTitle = (figure, job) => (figure.startsWith("video_") ? `Validation (${FIGURES[figure.slice(6)]}, by ${job.unit || "video"})` : `Accuracy (${FIGURES[figure]}, by clip)`);

let course = {}; // what the charts over time were drawn from

/** The charts of the job's course. They are drawn again only if something has changed, since they are most of the page. */
function overall(job, timeline) {
  if (timeline.times.length < 2) return null;
  const title = "Over time", hidden = hiddenNames(), shown = CHARTS.filter(({ figures }) => timeline.series.some(series => figures.includes(series.figure)));
  const width = widthOfCharts(shown.length);
  const same = course.timeline === timeline && course.width === width && course.hidden === hidden;
  if (same && document.querySelector(`[data-key="${title}"]`)) return el("section", { "data-key": title, "data-keep": true });
  course = { timeline, width, hidden };
  const made = shown.map(({ title, figures, unit, least, most }) => [overTime(job, timeline, figures), { title, format: UNITS[unit], least, most, binary: unit === "bytes" }]).filter(([found]) => found.length);
  return section(title, el("div", { class: "charts" }, made.map(([found, how]) => chart({ ...how, all: found, width, axis: CLOCK, curved: false, keys: true }))), ...totals(timeline));
}

/** The resources that workers used over the whole job. */
function totals(timeline) {
  const known = timeline.totals.filter(total => total.peak_memory_bytes != null);
  if (!known.length) return [];
  const columns = [["pool", total => total.pool], ["cores, mean", total => number(total.cpu_cores)], ["busy", total => percent(total.busy, 0)], ["peak memory", total => size(total.peak_memory_bytes)],
    ["GPU busy", total => percent(total.gpu_busy, 0)], ["peak GPU memory", total => size(total.peak_gpu_memory_bytes)], ["energy of GPUs", total => energy(total.gpu_joules)]].filter(([, cell]) => known.some(total => cell(total) !== UNKNOWN));
  return [el("h4", {}, "Over the whole job"), table("what workers used", columns.map(([head]) => head), known.map(total => columns.map(([, cell]) => cell(total))))];
}

/** `1.2 kWh`. */
const energy = joules => (joules == null ? UNKNOWN : joules < 3.6e6 ? `${number(joules / 3600, joules < 36_000 ? 1 : 0)} Wh` : `${number(joules / 3.6e6)} kWh`);

function trainers(job) {
  const judged = judgedBy(job.trainers), called = FIGURES[judged];
  const rows = job.trainers.map(trainer => {
    const within = trainer.clips_done && !trainer.final; // it has figures of its current phase
    const checked = trainer.reports.filter(report => report.purpose === "validation").at(-1)?.metrics || {};
    return [el("span", {}, trainer.name, " ", el("span", { class: "note" }, sweepWords(trainer))), trainer.stream, trainer.model, trainer.final ? "done" : trainer.purpose ? phaseTitle(trainer.purpose, trainer.epoch) : UNKNOWN,
      number(within ? trainer.loss : null, 3), percent(within ? trainer.top1 : null), number(checked.loss, 3), percent(checked[judged]), percent(checked[`video_${judged}`]), saved(trainer)];
  });
  return table("trainers", ["trainer", "stream", "model", "phase", "loss", "top-1", "validation loss", `${called} by clip`, `${called} by ${job.unit}`, "newest checkpoint"], rows, [0, 1, 2, 3]);
}

/** A line for each trainer that has stopped before the last epoch. */
export const stops = job => job.trainers.filter(trainer => trainer.stopped).map(trainer => el("p", { class: "note", "data-key": `stopped ${trainer.name}` }, `${trainer.name} ${trainer.stopped.words}.`));

function saved(trainer) {
  const found = /\/checkpoints\/0*([0-9]+)-/.exec(trainer.checkpoint || "");
  return found ? `after ${counted(Number(found[1]), "clip")}` : trainer.checkpoint ? "saved" : UNKNOWN;
}

function outcome(job) {
  const parts = [];
  if (job.result) parts.push(...results(job.result.metrics, job.unit));
  const places = [["output", job.output]];
  if (job.result) places.push([{predict: "predictions", extract: "features"}[job.kind] ?? "model", job.result.uri]);
  if (job.kind === "train" && job.state === "completed") places.push(["report, once created", `${job.output.replace(/\/$/, "")}/report/report.html`]);
  for (const trainer of job.trainers) if (trainer.checkpoint) places.push([`checkpoint of ${trainer.name}`, trainer.checkpoint]);
  parts.push(el("dl", { class: "places" }, places.map(([what, uri]) => el("div", {}, el("dt", {}, what), el("dd", {}, address(uri))))));
  const next = commands(job);
  if (next.length) parts.push(el("dl", { class: "places" }, next.map(([what, command]) => el("div", {}, el("dt", {}, what), el("dd", {}, el("code", {}, command))))));
  return parts;
}

/** An address. Browsers open only web addresses from a page; a click selects any other, for copying. */
function address(uri) {
  return /^https?:\/\//.test(uri) ? el("a", { href: uri }, uri) : el("code", { title: "click to select" }, uri);
}

/** A word of a command, quoted for a shell: users copy commands. */
const shellWord = word => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

/** Commands for what a user may want to do next. */
export function commands(job) {
  if (job.kind === "train" && job.state === "completed")
    return [job.unit === "record" ? ["classify an image", `essp predict IMAGE --model ${shellWord(job.output)}`] : ["classify a video", `essp predict VIDEO --model ${shellWord(job.output)}`], ["create the report", `essp report ${shellWord(job.output)}`]];
  if (job.state === "stopped" || job.state === "failed") {
    const what = job.trainers.some(trainer => trainer.checkpoint) ? "resume" : "start it again";
    return [[what, `essp job start ${shellWord(job.output)}`], [`${what} without a master`, `essp run ${shellWord(job.output)}`]];
  }
  return [];
}

/** Metrics such as `validation.fused.top1` as a table: a row for each model, the fused one last, and a column for each figure of each split. */
export function resultRows(metrics) {
  const rows = new Map(), columns = [];
  for (const [name, value] of Object.entries(metrics)) {
    const parts = name.split(".");
    if (parts.length < 3 || !(parts.at(-1) in FIGURES)) continue;
    const column = `${parts[0]} ${FIGURES[parts.at(-1)]}`, who = parts.slice(1, -1).join(".");
    if (!columns.includes(column)) columns.push(column);
    rows.set(who, { ...rows.get(who), [column]: value });
  }
  columns.sort((a, b) => order(a) - order(b));
  return { columns, rows: [...rows].sort(([a], [b]) => (a === "fused") - (b === "fused")).map(([who, figures]) => [who, ...columns.map(column => percent(figures[column]))]) };
}

const order = column => ["validation", "test"].indexOf(column.split(" ")[0]) * 10 + Object.values(FIGURES).indexOf(column.split(" ")[1]);

function results(metrics, unit) {
  const { columns, rows } = resultRows(metrics);
  return rows.length ? [table(`results by ${unit}`, [`by ${unit}`, ...columns], rows)] : [];
}

function failures(job) {
  const rows = job.failures.map(({ stage, kind, count: times, examples }) => [stage, kind.replaceAll("_", " "), count(times),
    el("ul", {}, examples.map(({ video, reason }) => el("li", {}, `${video}: ${reason}`)))]);
  return table("failed clips", ["stage", "kind", "count", "examples"], rows, [0, 1, 3]);
}
