// Jobs side by side: the curves of all their trainings in the same charts, where each is, and what came of it.

import { ask, decoded, jobPath } from "./api.js";
import { COLOURS, legend, lines } from "./chart.js";
import { el, table } from "./dom.js";
import { charts, resultRows, state } from "./job.js";
import { FIGURES, UNKNOWN, counted, judgedBy, number, percent, phaseTitle } from "./words.js";

export const MOST = 8; // jobs; more curves tell nothing

/** The address of the comparison of these jobs. */
export const comparison = names => `#/compare/${names.slice(0, MOST).map(encodeURIComponent).join("+")}`;

/** The jobs that an address compares; null: it compares none. */
export function compared(hash) {
  const found = /^#\/compare\/(.+)$/.exec(hash);
  return found ? [...new Set(found[1].split("+").map(decoded))].slice(0, MOST) : null;
}

/** What the API knows of these jobs. `unknown`: names of which it knows none; the others are shown all the same. */
export async function loadComparison(names) {
  const asked = await Promise.all(names.map(known)), there = found => found !== null;
  return { found: asked.filter(there), unknown: names.filter((_, place) => !there(asked[place])) };
}

/** A job and its curves; null: there is none of this name. */
async function known(name) {
  try {
    return { job: await ask(jobPath(name)), curves: await ask(jobPath(name, "/curves")) };
  } catch (error) {
    if (error.status === 404) return null;
    throw error;
  }
}

/** The trainings of all jobs as those of one, under the names of both, and the lines of each figure. */
export function joined(found) {
  const judged = judgedBy(found.flatMap(({ job }) => job.trainers));
  const trainers = [], all = { loss: [], [judged]: [] };
  for (const { job, curves } of found) {
    for (const figure of Object.keys(all))
      for (const line of lines(job, curves, figure)) {
        const colour = (trainers.length + job.trainers.findIndex(trainer => trainer.name === line.trainer)) % COLOURS;
        all[figure].push({ ...line, trainer: `${job.name} ${line.trainer}`, colour });
      }
    trainers.push(...job.trainers.map(trainer => ({ ...trainer, name: `${job.name} ${trainer.name}` })));
  }
  return { trainers, judged, phases: found.flatMap(({ job }) => job.phases), all };
}

/** Figures by video of each job, as one table: a row for each model of each job. */
export function resultsOf(found) {
  const each = found.map(({ job }) => ({ name: job.name, ...resultRows(job.result?.metrics || {}) }));
  const columns = [...new Set(each.flatMap(one => one.columns))];
  const rows = each.flatMap(({ name, columns: own, rows: models }) => models.map(([who, ...figures]) => [name, who, ...columns.map(column => figures[own.indexOf(column)] ?? UNKNOWN)]));
  return { columns, rows };
}

/** The page. */
export function drawComparison({ found, unknown }) {
  const { trainers, judged, phases, all } = joined(found), called = FIGURES[judged], results = resultsOf(found);
  const rows = found.flatMap(({ job }) => job.trainers.map(trainer => {
    const checked = trainer.reports.filter(report => report.purpose === "validation").at(-1)?.metrics || {};
    return [el("a", { href: `#/jobs/${encodeURIComponent(job.name)}` }, job.name), state(job), trainer.name, trainer.model, trainer.final ? "done" : trainer.purpose ? phaseTitle(trainer.purpose, trainer.epoch) : UNKNOWN,
      number(checked.loss, 3), percent(checked[judged]), percent(checked[`video_${judged}`])];
  }));
  return [
    el("div", { class: "head" }, el("h2", {}, `${counted(found.length, "job")} side by side`)),
    unknown.length ? el("p", { class: "note" }, `There is no job ${unknown.join(", ")}.`) : null,
    section("Curves", ...(all.loss.length ? [legend({ trainers }), charts({ phases }, all)] : [el("p", { class: "empty" }, "No trainer has reported yet.")])),
    results.rows.length ? section("Results, by video", table("results by video", ["job", "model", ...results.columns], results.rows, [0, 1])) : null,
    rows.length ? section("Trainers", table("trainers", ["job", "state", "trainer", "model", "phase", "validation loss", `${called} by clip`, `${called} by video`], rows, [0, 1, 2, 3, 4])) : null,
  ];
}

const section = (title, ...children) => el("section", {}, el("h2", {}, title), ...children);
