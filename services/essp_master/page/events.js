// The events of a job in plain words, newest first, with filters by kind and text.

import { at, el } from "./dom.js";
import { Filters } from "./filters.js";
import { count, duration, number, percent, phaseTitle } from "./words.js";

const GROUPS = {
  course: ["state", "phase", "finished", "consumer", "change"], results: ["report"], checkpoints: ["checkpoint"], problems: ["failure", "warning", "condition"],
};
const TITLES = { course: "course", results: "results", checkpoints: "checkpoints", problems: "problems" };

/** The group of an event. */
export const groupOf = event => Object.keys(GROUPS).find(group => GROUPS[group].includes(event.kind)) || "course";

/** An event in words: reports with their main figures, checkpoints without their address. */
export function eventWords({ kind, message, data }) {
  if (kind === "report") return `${data.trainer}: ${phaseTitle(data.purpose, data.epoch)}: ${figures(data.metrics)}`;
  if (kind === "checkpoint" && data.uri) return `${data.trainer}: saved ${data.final ? "its last checkpoint" : "a checkpoint"}${step(data.uri)}`;
  if (kind === "state") return message.replace(/^job [^:]*: /, "");
  if (kind === "phase") return `${phaseTitle(data.purpose, data.epoch)} is over for all`;
  if (kind === "condition" && data.over) return `${data.subject}: recovered (${data.kind})`;
  return message;
}

function figures(metrics) {
  const parts = [["loss", "loss", value => number(value, 3)], ["video_top1", "top-1 by video", percent], ["top1", "top-1", percent], ["video_mAP", "mAP by video", percent]]
    .filter(([name]) => Number.isFinite(metrics[name]) && !(name === "top1" && "video_top1" in metrics))
    .map(([name, words, say]) => `${words} ${say(metrics[name])}`);
  if (Number.isFinite(metrics.clips)) parts.push(`${count(metrics.clips)} clips in ${duration(metrics.seconds)}`);
  return parts.join(", ");
}

function step(uri) {
  const found = /\/checkpoints\/0*([0-9]+)-/.exec(uri);
  return found ? ` after ${count(Number(found[1]))} clips` : "";
}

/** Which events are wanted. */
export const filters = new Filters(TITLES, groupOf, eventWords, "events");

/** The list with its filters. `gap`: number of old events that are no longer kept. */
export function eventList(events, gap) {
  const found = filters.wanted(events);
  const shown = event => el("li", { class: `is-${event.kind}`, "data-key": String(event.id) }, at(event.time), el("span", {}, eventWords(event)));
  return el("div", { "data-key": "events" },
    el("div", { class: "filters" }, filters.chips(events), filters.search()),
    filters.list(found, events, shown, "events", "No events: this master has not seen the job run."),
    filters.older(found),
    gap > 0 ? el("p", { class: "note" }, `${count(gap)} older events are no longer available.`) : null);
}
