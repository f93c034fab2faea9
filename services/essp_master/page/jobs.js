// The list of jobs: those under way with what limits them, and a table of all, which can be narrowed.

import { ask, jobPath } from "./api.js";
import { MOST as COMPARED, comparison } from "./compare.js";
import { at, el, redraw, table } from "./dom.js";
import { actions, courseWords, limit, state, why } from "./job.js";
import { UNKNOWN, count, counted, duration, number, percent, share } from "./words.js";

const MOST = 200;
const CARDS = 6;
const STEP = 50; // rows that are shown at once, and more at each wish
const UNDER_WAY = ["running", "pending", "paused", "queued"]; // those of which there is most to see first
const GROUPS = { all: () => true, active: job => UNDER_WAY.includes(job.state), queued: job => job.state === "queued", completed: job => job.state === "completed", failed: job => job.state === "failed", stopped: job => job.state === "stopped" };
const WHOLE = ["active", "queued"]; // all of these are here, however many jobs there are
let group = "all";
let wanted = "";
let rowsShown = STEP;
const picked = new Set(); // jobs to be compared

/** The newest jobs and those under way, however old, and all there is to know of a few of these. */
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

/** The jobs of a group whose names have this text. */
export const narrowed = (jobs, name, text) => jobs.filter(job => GROUPS[name](job) && job.name.toLowerCase().includes(text.toLowerCase()));

/** What a group is called, with how many there are; `more`: of those that have ended, there may be more. */
export const groupWords = (jobs, name, more) => `${name} ${count(jobs.filter(GROUPS[name]).length)}${more && !WHOLE.includes(name) ? " or more" : ""}`;

function filters(jobs, more) {
  const chips = Object.keys(GROUPS).map(name => el("button",
    { type: "button", class: "chip", "data-key": name, "data-name": name, "aria-pressed": String(name === group), onclick: choose }, groupWords(jobs, name, more)));
  return el("div", { class: "filters" }, chips, el("input", { type: "search", "aria-label": "only jobs whose name contains this text", placeholder: "Filter by name", oninput: narrow }));
}

function choose(event) {
  group = event.currentTarget.dataset.name;
  redraw();
}

function narrow(event) {
  wanted = event.currentTarget.value;
  redraw();
}

function list(jobs) {
  const found = narrowed(jobs, group, wanted);
  if (!found.length) return el("p", { class: "empty" }, "No jobs match these filters.");
  const reasons = found.some(why), teams = found.some(job => job.team), priorities = found.some(job => job.priority);
  const rows = found.slice(0, rowsShown).map(job => [el("span", { class: "pick" }, pick(job.name), link(job.name)), ...(teams ? [job.team || UNKNOWN] : []), job.kind, state(job), percent(job.total ? share(job) : null), job.state === "running" ? number(job.clips_per_s) : UNKNOWN,
    duration(job.eta_s), count(job.failed), at(job.created), ...(priorities ? [count(job.priority)] : []), ...(reasons ? [why(job)] : [])]);
  const all = table("jobs", ["job", ...(teams ? ["team"] : []), "kind", "state", "done", "clips/s", "to go", "failed clips", "started", ...(priorities ? ["priority"] : []), ...(reasons ? ["why"] : [])], rows, [0, 1, 2, ...(teams ? [3] : []), 8 + teams + priorities], found.slice(0, rowsShown).map(job => job.name));
  const left = found.length - rows.length;
  return el("div", {}, all, left ? el("button", { type: "button", onclick: showMore }, `Show ${count(Math.min(STEP, left))} more of ${count(left)}`) : null);
}

const pick = name => el("input", { type: "checkbox", "data-key": `pick ${name}`, "data-name": name, "aria-label": `compare ${name}`, checked: picked.has(name), onchange: toggle });

function toggle(event) {
  const { name } = event.currentTarget.dataset;
  if (event.currentTarget.checked) picked.add(name);
  else picked.delete(name);
  redraw();
}

/** Where the jobs that were picked are side by side; null while there are not two. */
function compare(jobs) {
  const names = jobs.map(job => job.name).filter(name => picked.has(name));
  return names.length > 1 ? el("a", { class: "button", href: comparison(names) }, names.length > COMPARED ? `Compare the first ${COMPARED} of ${count(names.length)} jobs` : `Compare ${counted(names.length, "job")}`) : null;
}

function showMore() {
  rowsShown += STEP;
  redraw();
}
