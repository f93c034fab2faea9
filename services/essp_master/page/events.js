// The events of a job in plain words, newest first, with filters by kind and text.

import { at, el, redraw } from "./dom.js";
import { count, duration, number, percent, phaseTitle } from "./words.js";

const GROUPS = {
  course: ["state", "phase", "finished", "consumer", "change"], results: ["report"], checkpoints: ["checkpoint"], problems: ["failure", "warning", "condition"],
};
const TITLES = { course: "course", results: "results", checkpoints: "checkpoints", problems: "problems" };
const STEP = 200;
const without = new Set(); // groups that the user has hidden
let wanted = ""; // text that an event must contain
let most = STEP;

/** The group of an event. */
export const groupOf = event => Object.keys(GROUPS).find(group => GROUPS[group].includes(event.kind)) || "course";

/** An event in words: reports with their main figures, checkpoints without their address. */
export function eventWords({ kind, message, data }) {
  if (kind === "report") return `${data.trainer}: ${phaseTitle(data.purpose, data.epoch)}: ${figures(data.metrics)}`;
  if (kind === "checkpoint" && data.uri) return `${data.trainer}: saved ${data.final ? "its last checkpoint" : "a checkpoint"}${step(data.uri)}`;
  if (kind === "state") return message.slice(message.indexOf(": ") + 2);
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

/** The events that pass the filters, newest first. */
export const chosen = (events, left_out, text) => {
  const part = text.toLowerCase();
  return events.filter(event => !left_out.has(groupOf(event)) && (!part || eventWords(event).toLowerCase().includes(part))).reverse();
};

/** The list with its filters. `gap`: number of old events that are no longer kept. */
export function eventList(events, gap) {
  const found = chosen(events, without, wanted);
  const chips = Object.keys(GROUPS).map(group => el("button",
    { type: "button", class: "chip", "data-key": group, "data-group": group, "aria-pressed": String(!without.has(group)), onclick: toggle },
    `${TITLES[group]} ${count(events.filter(event => groupOf(event) === group).length)}`));
  const search = el("input", { type: "search", "aria-label": "only events with this text", placeholder: "Filter", oninput: narrow });
  const items = found.slice(0, most).map(event => el("li", { class: `is-${event.kind}`, "data-key": String(event.id) },
    at(event.time), el("span", {}, eventWords(event))));
  return el("div", { "data-key": "events" },
    el("div", { class: "filters" }, chips, search),
    found.length ? el("ol", { class: "events", tabindex: "0", "aria-label": "events, newest first" }, items)
      : el("p", { class: "empty" }, events.length ? "No events match these filters." : "No events: this master has not seen the job run."),
    found.length > most ? el("button", { type: "button", onclick: more }, `Show ${count(Math.min(STEP, found.length - most))} older ones`) : null,
    gap > 0 ? el("p", { class: "note" }, `${count(gap)} older events are no longer available.`) : null);
}

function toggle(event) {
  const { group } = event.currentTarget.dataset;
  if (!without.delete(group)) without.add(group);
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

/** Shows the newest events again, for example of another job. */
export function resetEvents() {
  most = STEP;
  wanted = "";
}
