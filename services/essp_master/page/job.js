// The page of one job: what it is at, what limits it, its curves, its flow, what came of it, and what happened.

import { ask, jobPath } from "./api.js";
import { changeMarks, chart, legend, lines } from "./chart.js";
import { at, el, table } from "./dom.js";
import { eventList, resetEvents } from "./events.js";
import { partsOf } from "./fields.js";
import { fills, flow } from "./flow.js";
import { drawPreviews } from "./previews.js";
import { FIGURES, UNKNOWN, count, counted, duration, judgedBy, number, percent, phaseTitle, share } from "./words.js";

const EVENTS = 5000; // as many as the master holds

/** Who asks what the API knows of a job, and may be asked again. Events and curves are read only when there are new ones. */
export function watchJob(name) {
  let events = [], curves = [], drawn = "";
  resetEvents();
  return async () => {
    const job = await ask(jobPath(name));
    if (job.last_event && job.last_event < events.at(-1)?.id) events = []; // the clock of another master is behind
    const last = events.at(-1)?.id || 0;
    if (job.last_event && job.last_event !== last) events.push(...await ask(jobPath(name, `/log?after=${last}`)));
    events.splice(0, events.length - EVENTS);
    const at = job.trainers.map(trainer => [trainer.purpose, trainer.epoch, trainer.clips_done].join()).join(";");
    if (job.trainers.length && at !== drawn) {
      curves = await ask(jobPath(name, "/curves"));
      drawn = at;
    }
    return { job, events, curves };
  };
}

/** The page. */
export function drawJob({ job, events, curves }, act) {
  const problems = job.failures.length ? section("Failed clips", failures(job)) : null;
  const judged = judgedBy(job.trainers);
  const all = { loss: lines(job, curves, "loss"), [judged]: lines(job, curves, judged) };
  const failed = job.state === "failed", completed = job.state === "completed";
  const made = section("Results", ...outcome(job));
  return [
    el("div", { class: "head" }, el("h2", {}, job.name), state(job), el("span", { class: "grow" }), actions(job, act)),
    course(job, act),
    limit(job),
    el("div", { class: "sides" },
      el("div", {},
        failed ? problems : null,
        completed ? made : null,
        job.trainers.length ? section("Curves", ...(all.loss.length ? [legend(job), charts(job, all, changeMarks(job))] : [el("p", { class: "empty" }, "No trainer has reported yet.")])) : null,
        completed ? null : section("Flow", flow(job), fills(job)),
        drawPreviews(job),
        job.trainers.length ? section("Trainers", trainers(job), ...stops(job)) : null),
      el("div", {},
        completed ? null : made,
        failed ? null : problems,
        section("Events", eventList(events, events.length ? events[0].id - job.first_event : 0),
          el("p", { class: "note" }, el("a", { href: `#/logs/${encodeURIComponent(job.name)}` }, "Logs of this job"))))),
  ];
}

/** A state of a job, as a mark. */
export const state = job => el("span", { class: `state ${job.state}` }, job.queue ? `${job.state} ${job.queue.position}` : job.state);

/** Why it waits, has failed or was stopped; empty: there is nothing to say. */
export const why = job => (job.awaits.length ? `waits for workers: ${job.awaits.join(", ")}` : job.queue ? job.queue.reason : job.reason);

/** The buttons for what can be done with a job now. */
export function actions(job, act) {
  const possible = { running: ["pause", "stop"], paused: ["resume", "stop"], queued: ["pause", "stop"], pending: ["stop"] }[job.state] || [];
  return el("span", { class: "actions" }, possible.map(action => el("button",
    { type: "button", class: action, "data-key": `${action} ${job.name}`, onclick: () => act(job.name, action) }, action)));
}

const section = (title, ...children) => el("section", { "data-key": title }, el("h3", {}, title), ...children);

/** How far it is, and while it runs how fast, and how long yet. */
export function courseWords(job) {
  const { progress } = job, now = job.phases[progress.current];
  const parts = [progress.total ? `${percent(share(progress))} of ${count(progress.total)} clips` : "no clips yet"];
  if (now && job.state !== "completed") parts.push(phaseTitle(now.purpose, now.epoch));
  if (job.state === "running") {
    parts.push(`${number(progress.clips_per_s)} clips/s`);
    parts.push(progress.eta_s == null ? "remaining time unknown" : `${duration(progress.eta_s)} to go`);
  }
  parts.push(job.ended ? `took ${duration(job.elapsed_s)}` : `${duration(job.elapsed_s)} so far`);
  return parts.join(" · ");
}

/** Its priority in the queue, which can be changed. Another one that comes from the master takes the field's place. */
function priority(job, act) {
  const set = event => event.currentTarget.reportValidity() && act(job.name, "priority", event.currentTarget.valueAsNumber);
  return el("p", { "data-key": `priority ${job.name} ${job.priority}` }, el("label", {}, "Priority in the queue ",
    el("input", { type: "number", min: -1000, max: 1000, step: 1, required: true, value: job.priority, onchange: set })), el("span", { class: "note" }, " higher goes first"));
}

/** What `FIELD=VALUE` says as a part of a job; null: it says nothing. */
export function asChange(text) {
  const found = /^\s*((?:"(?:[^"\\]|\\.)*"|[^"=\s])+)\s*=\s*(.*\S)\s*$/.exec(text), names = found && partsOf(found[1]);
  if (!names) return null;
  let value = found[2];
  try {
    value = JSON.parse(value);
  } catch {
    // a word
  }
  return names.reduceRight((inner, name) => ({ [name]: inner }), value);
}

/** A field of a running training that people give another value. */
function change(job, act) {
  const set = event => {
    const wanted = asChange(event.currentTarget.value);
    event.currentTarget.setCustomValidity(wanted ? "" : "Write FIELD=VALUE.");
    if (event.currentTarget.reportValidity()) act(job.name, "change", wanted);
  };
  return el("p", { "data-key": `change ${job.name} ${job.changes.length}` }, el("label", {}, "Change ",
    el("input", { type: "text", size: 36, placeholder: `trainers.${job.trainers[0].name}.optimizer.lr=0.001`, onchange: set })), el("span", { class: "note" }, " takes effect with the next update"));
}

function course(job, act) {
  return el("div", { class: "course" }, el("progress", { value: share(job.progress), max: 1, "aria-label": "clips done" }),
    el("p", {}, courseWords(job)),
    job.queue || job.reason ? el("p", { class: job.state === "failed" ? "wrong" : "" }, job.queue ? `Position ${job.queue.position} in the queue: ${job.queue.reason}.` : job.reason) : null,
    job.priority == null || job.ended ? null : priority(job, act),
    job.trainers.length && !job.ended ? change(job, act) : null,
    el("p", { class: "note" }, `${job.kind} job${job.team ? ` of team ${job.team}` : ""}, started `, at(job.created), ...(job.ended ? [", ended ", at(job.ended)] : [])));
}

/** What limits the rate; null of a job that does not run. */
export function limit(job) {
  if (job.state !== "running") return null;
  return el("p", { class: "limit", "data-key": "limit" }, el("b", {}, job.awaits.length ? "Not started " : "Bottleneck "), job.bottleneck ? job.bottleneck.words : "Unknown: no rates reported yet.");
}

/** The charts of loss, and of what else `all` has lines of, beside or below each other. */
export function charts(job, all, changes = []) {
  const wide = (document.querySelector(".charts") || document.querySelector("main")).clientWidth, width = Math.round(wide >= 780 ? (wide - 16) / 2 : wide);
  const epochs = Math.max(1, ...job.phases.filter(phase => phase.purpose === "train").map(phase => phase.epoch + 1));
  const { loss, ...shares } = all;
  return el("div", { class: "charts" },
    chart({ title: "Loss", all: loss, width, format: value => String(Number(value.toPrecision(3))), epochs, changes }),
    Object.entries(shares).map(([figure, found]) => chart({ title: `Accuracy (${FIGURES[figure]}, by clip)`, all: found, width, format: value => `${Number((100 * value).toFixed(1))} %`, least: 0, epochs, changes })));
}

function trainers(job) {
  const judged = judgedBy(job.trainers), called = FIGURES[judged];
  const rows = job.trainers.map(trainer => {
    const within = trainer.clips_done && !trainer.final; // it has a figure of the phase that it is at
    const checked = trainer.reports.filter(report => report.purpose === "validation").at(-1)?.metrics || {};
    return [trainer.name, trainer.stream, trainer.model, trainer.final ? "done" : trainer.purpose ? phaseTitle(trainer.purpose, trainer.epoch) : UNKNOWN,
      number(within ? trainer.loss : null, 3), percent(within ? trainer.top1 : null), number(checked.loss, 3), percent(checked[judged]), percent(checked[`video_${judged}`]), saved(trainer)];
  });
  return table("trainers", ["trainer", "stream", "model", "phase", "loss", "top-1", "validation loss", `${called} by clip`, `${called} by ${job.unit}`, "newest checkpoint"], rows, [0, 1, 2, 3]);
}

/** What there is to say of trainers that have stopped before the last epoch. */
export const stops = job => job.trainers.filter(trainer => trainer.stopped).map(trainer => el("p", { class: "note", "data-key": `stopped ${trainer.name}` }, `${trainer.name} ${trainer.stopped.words}.`));

function saved(trainer) {
  const found = /\/checkpoints\/0*([0-9]+)-/.exec(trainer.checkpoint || "");
  return found ? `after ${counted(Number(found[1]), "clip")}` : trainer.checkpoint ? "saved" : UNKNOWN;
}

function outcome(job) {
  const parts = [];
  if (job.result) parts.push(...results(job.result.metrics, job.unit));
  const places = [["output", job.output]];
  if (job.result) places.push([job.kind === "predict" ? "predictions" : "model", job.result.uri]);
  if (job.kind === "train" && job.state === "completed") places.push(["report, once created", `${job.output.replace(/\/$/, "")}/report/report.html`]);
  for (const trainer of job.trainers) if (trainer.checkpoint) places.push([`checkpoint of ${trainer.name}`, trainer.checkpoint]);
  parts.push(el("dl", { class: "places" }, places.map(([what, uri]) => el("div", {}, el("dt", {}, what), el("dd", {}, address(uri))))));
  const next = commands(job);
  if (next.length) parts.push(el("dl", { class: "places" }, next.map(([what, command]) => el("div", {}, el("dt", {}, what), el("dd", {}, el("code", {}, command))))));
  return parts;
}

/** An address; a browser opens only those of the web from here, others are marked with one click, to be copied. */
function address(uri) {
  return /^https?:\/\//.test(uri) ? el("a", { href: uri }, uri) : el("code", { title: "click to select" }, uri);
}

/** A word of a command as a shell takes it, whatever is in it: people copy commands. */
const shellWord = word => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

/** What people may want to do next, as commands. */
export function commands(job) {
  if (job.kind === "train" && job.state === "completed")
    return [job.unit === "record" ? ["classify an image", `essp predict IMAGE --model ${shellWord(job.output)}`] : ["classify a video", `essp predict VIDEO --model ${shellWord(job.output)}`], ["create the report", `essp report ${shellWord(job.output)}`]];
  if (job.state === "stopped" || job.state === "failed") return [[job.trainers.some(trainer => trainer.checkpoint) ? "resume from the checkpoints" : "start it again", "essp job start job.yaml"]];
  return [];
}

/** `validation.fused.top1` and so on, as a table: a row for each model, the fused one last; columns for the figures of each split. */
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
