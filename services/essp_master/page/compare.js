// Jobs side by side: settings that differ, the curves of all trainers in the same charts, progress and results.

import { ask, decoded, jobPath } from "./api.js";
import { COLOURS, legend, options, toolbar } from "./chart.js";
import { byClock, rates } from "./course.js";
import { el, table } from "./dom.js";
import { NO_TIMELINE, charts, curvesOf, resultRows, state, watchCourse } from "./job.js";
import { ELAPSED, EPOCHS } from "./scales.js";
import { differences } from "./settings.js";
import { FIGURES, UNKNOWN, counted, judgedBy, number, percent, phaseTitle } from "./words.js";

export const MOST = 8; // jobs; more curves would be unreadable

/** The address that compares these jobs. */
export const comparison = names => `#/compare/${names.slice(0, MOST).map(encodeURIComponent).join("+")}`;

/** The names of the jobs that an address compares; null if it is another view. */
export function compared(hash) {
  const found = /^#\/compare\/(.+)$/.exec(hash);
  return found ? [...new Set(found[1].split("+").map(decoded))].slice(0, MOST) : null;
}

/** A function that loads these jobs. `unknown`: names of jobs that do not exist; the others are shown anyway. */
export function watchComparison(names) {
  const courses = names.map(watchCourse), there = found => found !== null;
  return async () => {
    const asked = await Promise.all(names.map((name, place) => known(name, courses[place])));
    return { found: asked.filter(there), unknown: names.filter((_, place) => !there(asked[place])) };
  };
}

/** A job with its curves, course and settings; null if it does not exist. */
async function known(name, course) {
  try {
    const job = await ask(jobPath(name));
    return { job, ...await course(job) };
  } catch (error) {
    if (error.status === 404) return null;
    throw error;
  }
}

/** The trainers of all jobs as if they belonged to one, named `JOB TRAINER`, and the lines of each figure: over epochs, or over the time since each job began. */
export function joined(found, byTime = false) {
  const judged = judgedBy(found.flatMap(({ job }) => job.trainers));
  const trainers = [], all = {};
  for (const { job, curves, timeline = NO_TIMELINE } of found) {
    const own = { ...curvesOf(job, curves, judged), lr: rates(job, timeline, byTime) }, begin = timeline.times[0] ?? 0;
    for (const [figure, present] of Object.entries(own)) {
      all[figure] ??= [];
      const shown = !byTime ? present : figure === "lr" ? present.map(line => ({ ...line, points: line.points.map(point => ({ ...point, x: point.x - begin })) })) : byClock(present, timeline, begin);
      for (const line of shown) {
        const colour = (trainers.length + job.trainers.findIndex(trainer => trainer.name === line.trainer)) % COLOURS;
        all[figure].push({ ...line, trainer: `${job.name} ${line.trainer}`, colour });
      }
    }
    trainers.push(...job.trainers.map(trainer => ({ ...trainer, name: `${job.name} ${trainer.name}` })));
  }
  return { trainers, judged, phases: found.flatMap(({ job }) => job.phases), all };
}

/** The results by video of all jobs as one table, with a row for each model of each job. */
export function resultsOf(found) {
  const each = found.map(({ job }) => ({ name: job.name, ...resultRows(job.result?.metrics || {}) }));
  const columns = [...new Set(each.flatMap(one => one.columns))];
  const rows = each.flatMap(({ name, columns: own, rows: models }) => models.map(([who, ...figures]) => [name, who, ...columns.map(column => figures[own.indexOf(column)] ?? UNKNOWN)]));
  return { columns, rows };
}

/** The page. */
export function drawComparison({ found, unknown }) {
  const timed = found.some(({ timeline }) => timeline.times.length > 1), byTime = timed && options.byTime;
  const { trainers, judged, phases, all } = joined(found, byTime), called = FIGURES[judged], results = resultsOf(found), differ = differences(found);
  const rows = found.flatMap(({ job }) => job.trainers.map(trainer => {
    const checked = trainer.reports.filter(report => report.purpose === "validation").at(-1)?.metrics || {};
    return [el("a", { href: `#/jobs/${encodeURIComponent(job.name)}` }, job.name), state(job), trainer.name, trainer.model, trainer.final ? "done" : trainer.purpose ? phaseTitle(trainer.purpose, trainer.epoch) : UNKNOWN,
      number(checked.loss, 3), percent(checked[judged]), percent(checked[`video_${judged}`])];
  }));
  return [
    el("div", { class: "head" }, el("h2", {}, `${counted(found.length, "job")} side by side`)),
    unknown.length ? el("p", { class: "note" }, `There is no job ${unknown.join(", ")}.`) : null,
    section("Settings that differ", differ.length ? table("settings that differ", ["field", ...found.map(({ job }) => job.name)], differ.map(([field, ...values]) => [el("code", {}, field), ...values.map(value => el("code", {}, value))]), [0, ...found.map((_, k) => k + 1)], differ.map(([field]) => field))
      : el("p", { class: "empty" }, found.every(({ settings }) => settings) ? "None but name and output." : "The settings of some of these jobs are not known.")),
    section("Curves", ...(all.loss.length ? [legend({ trainers }), toolbar(timed), charts({ phases }, all, [], byTime ? ELAPSED : EPOCHS)] : [el("p", { class: "empty" }, "No trainer has reported yet.")])),
    results.rows.length ? section("Results, by video", table("results by video", ["job", "model", ...results.columns], results.rows, [0, 1])) : null,
    rows.length ? section("Trainers", table("trainers", ["job", "state", "trainer", "model", "phase", "validation loss", `${called} by clip`, `${called} by video`], rows, [0, 1, 2, 3, 4])) : null,
  ];
}

const section = (title, ...children) => el("section", {}, el("h2", {}, title), ...children);
