// What workers have logged lately, newest first: of all pools, or about one job.

import { ask } from "./api.js";
import { at, el, redraw } from "./dom.js";
import { Filters } from "./filters.js";

const HELD = 5000;
const FIRST = 1000; // lines that are asked for at first
const GROUPS = { INFO: "information", WARNING: "warnings", ERROR: "errors" };
let pool = ""; // of which lines are wanted; empty: of all

/** Who asks for the lines about a job, and may be asked again; empty: all. Only new ones are read. */
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

/** Which lines are wanted, of a pool or of all; their text is looked for in tracebacks, too. */
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
