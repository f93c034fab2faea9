// The settings of one job as a table, and those in which several jobs differ.

import { el, redraw, table } from "./dom.js";
import { UNKNOWN, count } from "./words.js";

let whole = false; // whether defaults are shown, too

const BARE = /^[^\s".=:]+$/;

/** The dotted fields of a job with their values, in order; names with dots are quoted, as in `essp_common/field_paths.py`. */
export function leaves(document, where = []) {
  return Object.entries(document).flatMap(([name, value]) => {
    const names = [...where, BARE.test(name) ? name : JSON.stringify(name)];
    return value && typeof value === "object" && !Array.isArray(value) && Object.keys(value).length ? leaves(value, names) : [[names.join("."), value]];
  });
}

/** A value as in a job file. */
export const valueWords = value => (value === undefined ? UNKNOWN : typeof value === "string" ? value : JSON.stringify(value));

/** The settings, including changes made while the job ran. */
export function currentSettings(settings, changes) {
  const fields = new Map(leaves(settings.spec));
  for (const change of changes) for (const [field, value] of Object.entries(change.fields)) fields.set(field, value);
  return fields;
}

/** The table of one job. */
export function drawSettings(settings, changes) {
  if (!settings) return null;
  const changed = new Set(changes.flatMap(change => Object.keys(change.fields)));
  const all = [...currentSettings(settings, changes)];
  const chosen = all.filter(([field]) => settings.chosen.includes(field) || changed.has(field));
  const rows = (whole ? all : chosen).map(([field, value]) => [el("code", {}, field), el("code", {}, valueWords(value)), changed.has(field) ? "changed" : settings.chosen.includes(field) ? "" : "default"]);
  const marks = rows.some(([, , mark]) => mark);
  return el("details", { class: "card", "data-key": "settings" }, el("summary", {}, "Settings"),
    el("p", { class: "filters" }, el("button", { type: "button", class: "chip", "data-key": "whole", "aria-pressed": String(whole), onclick: toggle }, `with ${count(all.length - chosen.length)} defaults`)),
    table("settings", ["field", "value", ...(marks ? [""] : [])], rows.map(row => row.slice(0, marks ? 3 : 2)), [0, 1, 2], rows.map((_, k) => (whole ? all : chosen)[k][0])));
}

function toggle() {
  whole = !whole;
  redraw();
}

/** The fields in which jobs differ, with each job's value. Name and output, which always differ, are left out. */
export function differences(found) {
  const each = found.map(({ job, settings }) => (settings ? currentSettings(settings, job.changes || []) : new Map()));
  const fields = new Set(each.flatMap(fields => [...fields.keys()]));
  const rows = [];
  for (const field of fields) {
    if (field === "name" || field === "output") continue;
    const values = each.map(one => valueWords(one.get(field)));
    if (new Set(values).size > 1) rows.push([field, ...values]);
  }
  return rows;
}
