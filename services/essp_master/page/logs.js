// Recent log lines of workers, newest first: of all pools, or about one job.

import { ask } from "./api.js";
import { at, el, redraw } from "./dom.js";
import { count } from "./words.js";

const HELD = 5000;
const FIRST = 1000; // lines of the first request
const STEP = 200;
const GROUPS = { INFO: "information", WARNING: "warnings", ERROR: "errors" };
const without = new Set(); // levels that the user has hidden
let pool = ""; // pool whose lines are shown; empty: all
let wanted = ""; // text that a line must contain
let most = STEP;

/** A function that loads the lines about a job (empty: all lines); each call reads only new ones. */
export function watchLogs(job) {
  const lines = [];
  const about = job ? `&job=${encodeURIComponent(job)}` : "";
  pool = wanted = "";
  most = STEP;
  return async () => {
    const last = lines.at(-1)?.id || 0;
    lines.push(...await ask(`v1/logs?after=${last}&most=${last ? HELD : FIRST}${about}`));
    lines.splice(0, lines.length - HELD);
    return { logsOf: job, lines };
  };
}

/** The group of a level. */
export const levelGroup = level => (level === "CRITICAL" ? "ERROR" : level);

/** The lines that pass the filters, newest first. */
export const chosenLines = (lines, left_out, from, text) => {
  const part = text.toLowerCase();
  return lines.filter(line => !left_out.has(levelGroup(line.level)) && (!from || line.pool === from)
    && (!part || `${line.worker} ${line.event} ${line.error}`.toLowerCase().includes(part))).reverse();
};

/** The page. */
export function drawLogs({ logsOf, lines }) {
  const found = chosenLines(lines, without, pool, wanted);
  const chips = Object.keys(GROUPS).map(group => el("button",
    { type: "button", class: "chip", "data-key": group, "data-group": group, "aria-pressed": String(!without.has(group)), onclick: toggle },
    `${GROUPS[group]} ${count(lines.filter(line => levelGroup(line.level) === group).length)}`));
  const pools = [...new Set(lines.map(line => line.pool))].sort();
  const choice = el("select", { "aria-label": "only this pool", onchange: choose },
    el("option", { value: "", selected: !pool }, "all pools"), pools.map(name => el("option", { value: name, selected: name === pool }, name)));
  const search = el("input", { type: "search", "aria-label": "only lines with this text", placeholder: "Filter", oninput: narrow });
  return [el("section", { "data-key": "logs" },
    el("h2", {}, logsOf ? `Logs about ${logsOf}` : "Logs"),
    logsOf ? el("p", { class: "note" }, el("a", { href: `#/jobs/${encodeURIComponent(logsOf)}` }, "The job"), " · ", el("a", { href: "#/logs" }, "all lines")) : null,
    el("div", { class: "filters" }, chips, choice, search),
    found.length ? el("ol", { class: "events lines", tabindex: "0", "aria-label": "lines, newest first" }, found.slice(0, most).map(line => shown(line, !logsOf)))
      : el("p", { class: "empty" }, lines.length ? "No lines match these filters." : "No log lines since this master started."),
    found.length > most ? el("button", { type: "button", onclick: more }, `Show ${count(Math.min(STEP, found.length - most))} older ones`) : null,
    el("p", { class: "note" }, "The newest lines since this master started. To keep all lines, collect the output of the processes."))];
}

function shown(line, named) {
  const about = named && line.job ? [" · ", el("a", { href: `#/logs/${encodeURIComponent(line.job)}` }, line.job)] : null;
  return el("li", { class: `level-${levelGroup(line.level)}`, "data-key": String(line.id) },
    at(line.time),
    el("div", {}, el("div", {}, line.event), el("div", { class: "note" }, `${line.worker}, ${line.pool}`, about),
      line.error ? el("details", {}, el("summary", {}, line.error.trimEnd().split("\n").at(-1)), el("pre", {}, line.error)) : null));
}

function toggle(event) {
  const { group } = event.currentTarget.dataset;
  if (!without.delete(group)) without.add(group);
  redraw();
}

function choose(event) {
  pool = event.currentTarget.value;
  redraw();
}

function narrow(event) {
  wanted = event.currentTarget.value;
  redraw();
}

function more() {
  most += STEP;
  redraw();
}
