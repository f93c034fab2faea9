// Creates and updates elements. Text is never parsed as markup, so names of jobs and videos may contain anything.

import { UNKNOWN, fullMoment, moment } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";

/** An element. Attributes that begin with `on` are listeners; null and false leave an attribute out. */
export const el = (tag, attributes = {}, ...children) => filled(document.createElement(tag), attributes, children);

/** An SVG element. */
export const svg = (tag, attributes = {}, ...children) => filled(document.createElementNS(SVG, tag), attributes, children);

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value != null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter(child => child != null).map(child => (child instanceof Node ? child : String(child))));
  return made;
}

/**
 * A table. `label`: its name for screen readers. `heads`: words, or `{ words, content, sort }`, where `sort` is how the
 * table is sorted by this column. `rows`: lists of cells. `text`: numbers of the columns that are left-aligned. `keys`:
 * identify rows whose order may change. In a narrow window each row is a block, and each cell has its head next to it.
 */
export function table(label, heads, rows, text = [0], keys = []) {
  const side = k => (text.includes(k) ? "text" : null);
  const head = heads.map((cell, k) => el("th", { class: side(k), scope: "col", "aria-sort": cell.sort }, cell.content ?? cell));
  const body = rows.map((row, n) => el("tr", { "data-key": keys[n] }, row.map((cell, k) => el("td", { class: cell === UNKNOWN ? `${side(k) || ""} unknown` : side(k), "data-head": heads[k].words ?? heads[k] }, cell))));
  const made = el("table", { "aria-label": label }, el("thead", {}, el("tr", {}, head)), el("tbody", {}, body));
  return el("div", { class: "scroll", role: "region", "aria-label": label, tabindex: "0" }, made);
}

/** A time of day; its tooltip has the date and the time zone. */
export const at = time => el("time", { datetime: time, title: fullMoment(time) }, moment(time));

/** Sets the text of an element only if it differs: screen readers read live regions aloud at each change. */
export function say(part, words) {
  if (part.textContent !== words) part.textContent = words;
}

/** Draws the current view again, for example after a filter has changed. */
export const redraw = () => document.dispatchEvent(new Event("redraw"));

/**
 * Turns `old` into `made` by changing only what differs, so that focus, selection and scroll position are kept.
 *
 * Children with a `data-key` are matched by it. An element that stays keeps its listeners, so these may use only the key
 * and the element's `data`, which is copied. An element marked `data-own` updates itself and is left alone. An empty
 * element with a key and `data-keep` stands for the present one, which is not drawn again.
 */
export function morph(old, made) {
  if (old.nodeName !== made.nodeName || old.nodeType !== made.nodeType || key(old) !== key(made)) return old.replaceWith(made);
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== made.data) old.data = made.data;
    return;
  }
  if (made.hasAttribute("data-keep")) return;
  if ("data" in made) old.data = made.data;
  if (old.matches("[data-own]")) return;
  for (const { name } of [...old.attributes]) if (!made.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  for (const { name, value } of made.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  fill(old, [...made.childNodes]);
}

/** Makes these the children of `old`, changing only what differs. */
export function fill(old, wanted) {
  const kept = new Map([...old.children].filter(key).map(child => [key(child), child]));
  let place = old.firstChild;
  for (const child of wanted) {
    const match = key(child) ? kept.get(key(child)) : place && !key(place) ? place : null;
    if (!match) {
      old.insertBefore(child, place);
      continue;
    }
    if (match === place) place = place.nextSibling;
    else old.insertBefore(match, place);
    morph(match, child);
  }
  while (place) {
    const after = place.nextSibling;
    place.remove();
    place = after;
  }
}

const key = node => (node.nodeType === Node.ELEMENT_NODE && node.getAttribute("data-key")) || "";
