// The list of jobs: cards of active ones with their bottlenecks, and a table of all with filters.

import { ask, jobPath } from "./api.js";
import { sparkline } from "./chart.js";
import { MOST as COMPARED, comparison } from "./compare.js";
import { at, el, redraw, table } from "./dom.js";
import { actions, courseWords, limit, state, why } from "./job.js";
import { FIGURES, UNKNOWN, count, counted, duration, number, percent, share } from "./words.js";

const MOST = 200;
const CARDS = 6;
const STEP = 50; // rows shown at first, and added at each click
const UNDER_WAY = ["running", "pending", "paused", "queued"]; // active states, the most interesting first
const GROUPS = { all: () => true, active: job => UNDER_WAY.includes(job.state), queued: job => job.state === "queued", completed: job => job.state === "completed", failed: job => job.state === "failed", stopped: job => job.state === "stopped" };
const WHOLE = ["active", "queued"]; // groups that are complete, however many jobs there are
let group = "all";
let wanted = "";
let rowsShown = STEP;
const picked = new Set(); // names of jobs to compare

/** The newest jobs, all active ones, and the full status of a few active ones. */
export async function loadJobs() {
  const { jobs, next_page_token: more } = await ask(`v1/jobs?page_size=${MOST}`);
  if (more) {
    const names = new Set(jobs.map(job => job.name));
    let token = "";
    do {
      const { jobs: present, next_page_token: next } = await ask(`v1/jobs?page_size=${MOST}${UNDER_WAY.map(state => `&state=${state}`).join("")}${token}`);
      jobs.push(...present.filter(job => !names.has(job.name)));
      token = next && `&page_token=${encodeURIComponent(next)}`;
    } while (token);
  }
  const present = UNDER_WAY.flatMap(state => jobs.filter(job => job.state === state)).slice(0, CARDS);
  const shown = await Promise.all(present.map(job => ask(jobPath(job.name))));
  return { jobs, shown, more: Boolean(more) };
}

/** The page. */
export function drawJobs({ jobs, shown, more }, act) {
  if (!jobs.length) return [el("div", { class: "blank" }, el("h2", {}, "No jobs yet"),
    el("p", {}, "A job defines the videos, the inputs of the models, and how to train them."),
    el("p", {}, el("a", { class: "button", href: "#/new" }, "Write a job"), " or start one from a terminal: ", el("code", {}, "essp job start job.yaml")))];
  return [el("div", { class: "cards" }, shown.map(job => card(job, act))), el("section", { "data-key": "all" }, el("h2", {}, "All jobs"), filters(jobs, more), compare(jobs), list(jobs), more ? el("p", { class: "note" }, `The newest ${count(MOST)} and all active jobs; for all jobs: essp job ls`) : null)];
}

const link = name => el("a", { href: `#/jobs/${encodeURIComponent(name)}` }, name);

function card(job, act) {
  return el("article", { "data-key": `card ${job.name}` },
    el("div", { class: "head" }, el("h3", {}, link(job.name)), state(job), el("span", { class: "grow" }), actions(job, act)),
    el("progress", { value: share(job.progress), max: 1, "aria-label": `clips done by ${job.name}` }),
    el("p", {}, courseWords(job)),
    limit(job));
}

/** The jobs of a group whose names contain this text. */
export const narrowed = (jobs, name, text) => jobs.filter(job => GROUPS[name](job) && job.name.toLowerCase().includes(text.toLowerCase()));

/** The name of a group with its number of jobs. `more`: older jobs that have ended are not in the list. */
export const groupWords = (jobs, name, more) => `${name} ${count(jobs.filter(GROUPS[name]).length)}${more && !WHOLE.includes(name) ? " or more" : ""}`;

function filters(jobs, more) {
  const chips = Object.keys(GROUPS).map(name => el("button",
    { type: "button", class: "chip", "data-key": name, "data-name": name, "aria-pressed": String(name === group), onclick: choose }, groupWords(jobs, name, more)));
  return el("div", { class: "filters" }, chips, el("input", { type: "search", "aria-label": "only jobs whose name contains this text", placeholder: "Filter by name", value: wanted || null, oninput: narrow }));
}

function choose(event) {
  group = event.currentTarget.dataset.name;
  redraw();
}

function narrow(event) {
  wanted = event.currentTarget.value;
  redraw();
}

/** The columns of the table. `key`: the value to sort by; null sorts last. `text`: left-aligned. `down`: sorted in descending order at first. */
const COLUMNS = [
  { head: "job", text: true, key: job => job.name, cell: job => el("span", { class: "pick" }, pick(job.name), link(job.name)) },
  { head: "team", text: true, key: job => job.team || null, cell: job => job.team || UNKNOWN, shown: jobs => jobs.some(job => job.team) },
  { head: "kind", text: true, key: job => job.kind, cell: job => job.kind },
  { head: "state", text: true, key: job => UNDER_WAY.indexOf(job.state) + 1 || UNDER_WAY.length + 1, cell: job => state(job) },
  { head: "done", down: true, key: job => (job.total ? share(job) : null), cell: job => percent(job.total ? share(job) : null) },
  { head: "result", down: true, key: job => job.headline?.value ?? null, cell: result, shown: jobs => jobs.some(job => job.headline) },
  { head: "loss", down: false, key: job => job.losses?.at(-1) ?? null, cell: loss, shown: jobs => jobs.some(job => job.losses?.length) },
  { head: "clips/s", down: true, key: job => (job.state === "running" ? job.clips_per_s : null), cell: job => (job.state === "running" ? number(job.clips_per_s) : UNKNOWN) },
  { head: "to go", key: job => job.eta_s, cell: job => duration(job.eta_s) },
  { head: "took", down: true, key: job => job.elapsed_s ?? null, cell: job => duration(job.elapsed_s ?? null) },
  { head: "failed clips", down: true, key: job => job.failed, cell: job => count(job.failed) },
  { head: "started", text: true, down: true, key: job => job.created, cell: job => at(job.created) },
  { head: "priority", down: true, key: job => job.priority, cell: job => count(job.priority), shown: jobs => jobs.some(job => job.priority) },
  { head: "why", text: true, key: job => why(job) || null, cell: why, shown: jobs => jobs.some(why) },
];
const sorting = { head: "started", down: true };

/** The main result, such as `85.0 %`; its tooltip names the split. */
function result(job) {
  if (!job.headline) return UNKNOWN;
  const { figure, of, split, value } = job.headline;
  return el("span", { title: `${FIGURES[figure]} of ${of} on ${split}`, class: split === "test" ? null : "note" }, `${percent(value)}${split === "test" ? "" : " val."}`);
}

function loss(job) {
  if (!job.losses?.length) return UNKNOWN;
  const last = number(job.losses.at(-1), 3);
  return job.losses.length > 1 ? el("span", { class: "loss" }, sparkline(job.losses, `training loss, now ${last}`), last) : last;
}

/** Jobs sorted by a column; unknown values come last in both directions. */
export function sorted(jobs, head, down) {
  const { key } = COLUMNS.find(column => column.head === head) || COLUMNS[0];
  const compared = (a, b) => (a === b ? 0 : a == null ? 1 : b == null ? -1 : (typeof a === "string" ? a.localeCompare(b) : a - b) * (down ? -1 : 1));
  return [...jobs].sort((a, b) => compared(key(a), key(b)));
}

function sortBy(head) {
  const { down = false } = COLUMNS.find(column => column.head === head);
  sorting.down = sorting.head === head ? !sorting.down : down;
  sorting.head = head;
  redraw();
}

const heading = ({ head }) => ({ words: head, sort: sorting.head === head ? (sorting.down ? "descending" : "ascending") : null,
  content: el("button", { type: "button", class: "sort", "data-key": `sort ${head}`, "data-name": head, onclick: event => sortBy(event.currentTarget.dataset.name) }, head) });

/** The choice of a column in narrow windows, which show no table heads. */
function sorter(columns) {
  return el("label", { class: "narrow", "data-key": "sorter" }, "Sort by ", el("select", { onchange: event => sortBy(event.currentTarget.value) },
    columns.map(({ head }) => el("option", { value: head, selected: head === sorting.head }, head))));
}

function list(jobs) {
  const found = sorted(narrowed(jobs, group, wanted), sorting.head, sorting.down);
  if (!found.length) return el("p", { class: "empty" }, "No jobs match these filters.");
  const columns = COLUMNS.filter(({ shown }) => !shown || shown(found)), listed = found.slice(0, rowsShown);
  const rows = listed.map(job => columns.map(({ cell }) => cell(job)));
  const text = columns.flatMap((column, k) => (column.text ? [k] : []));
  const left = found.length - rows.length;
  return el("div", {}, sorter(columns), table("jobs", columns.map(heading), rows, text, listed.map(job => job.name)),
    left ? el("button", { type: "button", onclick: showMore }, `Show ${count(Math.min(STEP, left))} more of ${count(left)}`) : null);
}

const pick = name => el("input", { type: "checkbox", "data-key": `pick ${name}`, "data-name": name, "aria-label": `compare ${name}`, checked: picked.has(name), onchange: toggle });

function toggle(event) {
  const { name } = event.currentTarget.dataset;
  if (event.currentTarget.checked) picked.add(name);
  else picked.delete(name);
  redraw();
}

/** The link to the comparison of the ticked jobs; null if there are fewer than two. */
function compare(jobs) {
  const names = jobs.map(job => job.name).filter(name => picked.has(name));
  return names.length > 1 ? el("a", { class: "button", href: comparison(names) }, names.length > COMPARED ? `Compare the first ${COMPARED} of ${count(names.length)} jobs` : `Compare ${counted(names.length, "job")}`) : null;
}

function showMore() {
  rowsShown += STEP;
  redraw();
}
