// Curves of trainings over epochs: axes, one line for each trainer, and the figures below the pointer or the arrow keys.

import { el, redraw, svg } from "./dom.js";
import { counted } from "./words.js";

const HEIGHT = 250;
const MARGIN = { left: 52, right: 14, top: 12, bottom: 36 };
export const COLOURS = 8; // of page.css
const MARKERS = 60; // of more points, none is marked
const hidden = new Set(); // trainers that people do not want to see

/** Round values from at or below `low` to at or above `high`, about `wanted` of them. */
export function ticks(low, high, wanted = 5) {
  if (!(high > low)) return [low];
  const rough = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find(factor => factor * power >= rough * 0.999);
  const first = Math.floor(low / step + 1e-9), last = Math.ceil(high / step - 1e-9);
  return Array.from({ length: last - first + 1 }, (_, k) => Number(((first + k) * step).toPrecision(12)));
}

/** The range of these values; `cut`: how many lie far above the others and are left out, as they would squash the rest. */
export function range(values) {
  const sorted = values.filter(Number.isFinite).sort((a, b) => a - b);
  if (!sorted.length) return { low: 0, high: 1, cut: 0 };
  const low = sorted[0], common = sorted[Math.floor(0.98 * (sorted.length - 1))];
  const limit = low + 3 * (common - low || Math.abs(low) || 1);
  const inside = sorted.filter(value => value <= limit);
  return { low, high: inside.at(-1), cut: sorted.length - inside.length };
}

/**
 * The lines of one figure (`loss`, `top1`, `mAP`) of a job: for each trainer its training, and its validation, over epochs.
 *
 * Within an epoch the figure is the mean so far; of epochs that this master has not seen, their end is known.
 */
export function lines(job, curves, figure) {
  const clips = new Map(job.phases.filter(phase => phase.purpose === "train").map(phase => [phase.epoch, phase.clips]));
  const found = [];
  job.trainers.forEach((trainer, colour) => {
    const points = (curves.find(curve => curve.trainer === trainer.name)?.points || [])
      .filter(point => clips.get(point.epoch) && Number.isFinite(point[figure]))
      .map(point => ({ x: point.epoch + point.clips_done / clips.get(point.epoch), y: point[figure] }));
    const seen = new Set(points.map(point => Math.ceil(point.x) - 1));
    const ends = purpose => trainer.reports
      .filter(report => report.purpose === purpose && Number.isFinite(report.metrics[figure]))
      .map(report => ({ x: report.epoch + 1, y: report.metrics[figure] }));
    const train = [...ends("train").filter(point => !seen.has(point.x - 1)), ...points].sort((a, b) => a.x - b.x);
    for (const [purpose, line] of [["train", train], ["validation", ends("validation")]])
      if (line.length) found.push({ trainer: trainer.name, purpose, colour: colour % COLOURS, points: line });
  });
  return found;
}

/** Where trainers took changes of the running job up, in epochs. */
export function changeMarks(job) {
  const clips = new Map(job.phases.filter(phase => phase.purpose === "train").map(phase => [phase.epoch, phase.clips]));
  return job.changes.flatMap(change => job.trainers.flatMap(({ name }, colour) => {
    const place = change.places[name];
    if (!place) return [];
    const x = place.epoch + (clips.get(place.epoch) ? place.clip / clips.get(place.epoch) : 0);
    const words = Object.entries(change.fields).map(([field, value]) => `${field} ${JSON.stringify(value)}`).join(", ");
    return [{ trainer: name, colour: colour % COLOURS, x, words: `change ${change.number}: ${words}` }];
  }));
}

/** The point that is nearest to `x`; the points are in order. */
export function nearest(points, x) {
  let low = 0, high = points.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle].x < x) low = middle + 1;
    else high = middle;
  }
  return low > 0 && x - points[low - 1].x < points[low].x - x ? points[low - 1] : points[low];
}

/** The names of trainers in their colours; each can be hidden. */
export function legend(job) {
  const toggle = event => {
    const { name } = event.currentTarget.dataset;
    if (!hidden.delete(name)) hidden.add(name);
    redraw();
  };
  const chips = job.trainers.map(({ name }, k) => el("button",
    { type: "button", class: "chip", "data-key": name, "data-name": name, "aria-pressed": String(!hidden.has(name)), onclick: toggle },
    el("span", { class: `swatch c${k % COLOURS}` }), name));
  return el("div", { class: "legend" }, chips, el("span", { class: "note" }, "pale: training, mean of the epoch so far · with dots: validation"));
}

/** A chart. `width`: in CSS pixels. `format`: a value in words. `least`: the axis begins no higher than there. */
export function chart({ title, all, width, format, least, most, epochs, changes = [] }) {
  const shown = all.filter(line => !hidden.has(line.trainer));
  const head = el("figcaption", {}, title);
  if (!shown.length)
    return el("figure", { class: "chart", "data-key": title }, head, el("p", { class: "empty" }, all.length ? "All trainers are hidden." : "No reports yet."));
  const frame = framed(shown, width, least, most, epochs);
  const figure = el("figure", { class: "chart", "data-key": title }, head, drawing(title, shown, frame, format, changes.filter(mark => !hidden.has(mark.trainer) && mark.x >= frame.from && mark.x <= frame.to)), el("div", { class: "tip", hidden: true, "data-own": true, "data-key": "tip" }));
  if (frame.cut) head.append(el("span", { class: "note" }, ` (${counted(frame.cut, "outlier")} cut off)`));
  figure.data = { shown, frame, format };
  return figure;
}

function framed(shown, width, least, most, epochs) {
  const found = range(shown.flatMap(line => line.points.map(point => point.y)));
  const low = Math.min(found.low, least ?? found.low), high = Math.max(found.high, most ?? found.high);
  const rungs = ticks(low, high > low ? high : low + 1);
  const from = Math.min(...shown.map(line => line.points[0].x)) < 1 ? 0 : Math.floor(Math.min(...shown.map(line => line.points[0].x)));
  const last = Math.max(...shown.map(line => line.points.at(-1).x));
  const to = Math.min(epochs, Math.max(from + 1, Math.ceil(last * 1.02)));
  const across = width - MARGIN.left - MARGIN.right, down = HEIGHT - MARGIN.top - MARGIN.bottom;
  return {
    width, rungs, from, to, cut: found.cut,
    x: value => MARGIN.left + (value - from) / (to - from || 1) * across,
    y: value => MARGIN.top + (rungs.at(-1) - value) / (rungs.at(-1) - rungs[0] || 1) * down,
    at: place => from + (place - MARGIN.left) / across * (to - from),
  };
}

function drawing(title, shown, frame, format, changes) {
  const { width, rungs, from, to, x, y } = frame;
  const bottom = HEIGHT - MARGIN.bottom;
  const columns = ticks(from, to, Math.max(2, Math.min(10, width / 80))).filter(value => Number.isInteger(value) && value >= from && value <= to);
  const grid = [
    ...rungs.map(value => svg("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(value), y2: y(value) })),
    ...rungs.map(value => svg("text", { class: "tick", x: MARGIN.left - 8, y: y(value) + 4, "text-anchor": "end" }, format(value))),
    ...columns.map(value => svg("line", { class: "grid", x1: x(value), x2: x(value), y1: bottom, y2: bottom + 4 })),
    ...columns.map(value => svg("text", { class: "tick", x: x(value), y: bottom + 17, "text-anchor": "middle" }, String(value))),
    ...changes.map(mark => svg("line", { class: `change c${mark.colour}`, x1: x(mark.x), x2: x(mark.x), y1: MARGIN.top, y2: bottom }, svg("title", {}, mark.words))),
    svg("text", { class: "tick", x: width - MARGIN.right, y: HEIGHT - 3, "text-anchor": "end" }, "epochs"),
  ];
  const place = point => `${x(point.x).toFixed(1)},${Math.max(MARGIN.top - 4, y(point.y)).toFixed(1)}`;
  const drawn = shown.map(line => svg("g", { class: `c${line.colour} ${line.purpose}`, "data-key": `${line.purpose} ${line.trainer}` },
    svg("polyline", { points: line.points.map(place).join(" ") }),
    line.points.length === 1 || (line.purpose === "validation" && line.points.length <= MARKERS)
      ? line.points.map(point => svg("circle", { r: 3, cx: place(point).split(",")[0], cy: place(point).split(",")[1] })) : []));
  const told = shown.map(line => `${line.trainer} ${line.purpose} ${format(line.points.at(-1).y)}`).join(", ");
  return svg("svg", {
    viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", tabindex: "0", "aria-label": `${title} by epoch; newest: ${told}`,
    onpointermove: follow, onpointerleave: leave, onblur: leave, onkeydown: step,
  }, grid, drawn, svg("g", { class: "pointer", "data-own": true, "data-key": "pointer" }));
}

function follow(event) {
  const box = event.currentTarget.getBoundingClientRect(), figure = event.currentTarget.closest("figure");
  point(figure, figure.data.frame.at((event.clientX - box.left) * figure.data.frame.width / box.width));
}

function step(event) {
  const direction = { ArrowLeft: -1, ArrowRight: 1 }[event.key], figure = event.currentTarget.closest("figure");
  if (event.key === "Escape") return leave(event);
  if (!direction) return;
  event.preventDefault();
  const places = [...new Set(figure.data.shown.flatMap(line => line.points.map(each => each.x)))].sort((a, b) => a - b);
  const at = figure.at == null ? places.length : places.findIndex(x => x >= figure.at);
  point(figure, places[Math.max(0, Math.min(places.length - 1, at + direction))]);
}

function leave(event) {
  const figure = event.currentTarget.closest("figure");
  figure.at = null;
  figure.querySelector(".pointer").replaceChildren();
  figure.querySelector(".tip").hidden = true;
}

/** Show the figures of all lines near `at`. */
function point(figure, at) {
  const { shown, frame, format } = figure.data, tip = figure.querySelector(".tip");
  const places = shown.map(line => nearest(line.points, at));
  const closest = places.reduce((a, b) => (Math.abs(a.x - at) <= Math.abs(b.x - at) ? a : b));
  figure.at = closest.x;
  const x = frame.x(closest.x);
  figure.querySelector(".pointer").replaceChildren(
    svg("line", { x1: x, x2: x, y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }),
    ...places.map((place, k) => svg("circle", { class: `c${shown[k].colour}`, r: 4, cx: frame.x(place.x), cy: Math.max(MARGIN.top, frame.y(place.y)) })));
  tip.replaceChildren(el("b", {}, `after ${Number(closest.x.toFixed(2))} epochs`), ...shown.map((line, k) => el("div", {},
    el("span", { class: `swatch c${line.colour}` }), `${line.trainer} ${line.purpose}`, el("span", { class: "value" }, format(places[k].y)))));
  tip.hidden = false;
  const scale = figure.querySelector("svg").getBoundingClientRect().width / frame.width;
  const left = x * scale + (x > frame.width / 2 ? -tip.offsetWidth - 14 : 14);
  tip.style.left = `${Math.max(0, left)}px`;
}
