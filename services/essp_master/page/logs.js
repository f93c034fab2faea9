// Recent log lines of workers, newest first: of all pools, or about one job.

import { ask } from "./api.js";
import { at, el, redraw } from "./dom.js";
import { Filters } from "./filters.js";

const HELD = 5000;
const FIRST = 1000; // lines of the first request
const GROUPS = { INFO: "information", WARNING: "warnings", ERROR: "errors" };
let pool = ""; // pool whose lines are shown; empty: all

/** A function that loads the lines about a job (empty: all lines); each call reads only new ones. */
export function watchLogs(job) {
  const lines = [];
  const about = job ? `&job=${encodeURIComponent(job)}` : "";
  pool = "";
  filters.reset();
  return async () => {
    const last = lines.at(-1)?.id || 0;
    lines.push(...await ask(`v1/logs?after=${last}&most=${last ? HELD : FIRST}${about}`));
    lines.splice(0, lines.length - HELD);
    return { logsOf: job, lines };
  };
}

/** The group of a level. */
const levelGroup = level => (level === "CRITICAL" ? "ERROR" : level);

/** The filters of lines, by level and text; the text is also looked for in tracebacks. */
export const filters = new Filters(GROUPS, line => levelGroup(line.level), line => `${line.worker} ${line.event} ${line.error}`, "lines");

/** The page. */
export function drawLogs({ logsOf, lines }) {
  const found = filters.wanted(lines.filter(line => !pool || line.pool === pool));
  const pools = [...new Set(lines.map(line => line.pool))].sort();
  const choice = el("select", { "aria-label": "only this pool", onchange: choose },
    el("option", { value: "", selected: !pool }, "all pools"), pools.map(name => el("option", { value: name, selected: name === pool }, name)));
  return [el("section", { "data-key": "logs" },
    el("h2", {}, logsOf ? `Logs about ${logsOf}` : "Logs"),
    logsOf ? el("p", { class: "note" }, el("a", { href: `#/jobs/${encodeURIComponent(logsOf)}` }, "The job"), " · ", el("a", { href: "#/logs" }, "all lines")) : null,
    el("div", { class: "filters" }, filters.chips(lines), choice, filters.search()),
    filters.list(found, lines, line => shown(line, !logsOf), "events lines", "No log lines since this master started."),
    filters.older(found),
    el("p", { class: "note" }, "The newest lines since this master started. To keep all lines, collect the output of the processes."))];
}

function shown(line, named) {
  const about = named && line.job ? [" · ", el("a", { href: `#/logs/${encodeURIComponent(line.job)}` }, line.job)] : null;
  return el("li", { class: `level-${levelGroup(line.level)}`, "data-key": String(line.id) },
    at(line.time),
    el("div", {}, el("div", {}, line.event), el("div", { class: "note" }, `${line.worker}, ${line.pool}`, about),
      line.error ? el("details", {}, el("summary", {}, line.error.trimEnd().split("\n").at(-1)), el("pre", {}, line.error)) : null));
}

function choose(event) {
  pool = event.currentTarget.value;
  redraw();
}
