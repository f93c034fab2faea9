// Charts: axes, a line for each trainer or pool, values at the pointer or by arrow keys, and downloads as PNG and CSV.

import { el, redraw, svg } from "./dom.js";
import { EPOCHS, logTicks, range, smoothed, ticks, timeTicks } from "./scales.js";
import { counted, sweepWords } from "./words.js";

const HEIGHT = 250;
const MARGIN = { left: 64, right: 14, top: 12, bottom: 36 };
export const COLOURS = 8; // colours in page.css
const MARKERS = 60; // largest number of points that get markers
const hidden = new Set(); // names of lines that the user has hidden
export const hiddenNames = () => [...hidden].join();
export const options = { byTime: false, smooth: 0, log: false }; // how the user wants to see the curves

/**
 * The lines of one figure of a job (`loss`, `top1`, `mAP`) over epochs: training and validation of each trainer.
 *
 * Within an epoch, values are means of the epoch so far. Epochs before this master have only their final values.
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

/** The places, in epochs, where trainers applied changes of the running job. */
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

/** The point nearest to `x`, among points that are ordered by x. */
export function nearest(points, x) {
  let low = 0, high = points.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle].x < x) low = middle + 1;
    else high = middle;
  }
  return low > 0 && x - points[low - 1].x < points[low].x - x ? points[low - 1] : points[low];
}

/** The trainers' names in their colours; a click hides one. */
export function legend(job) {
  const toggle = event => {
    const { name } = event.currentTarget.dataset;
    if (!hidden.delete(name)) hidden.add(name);
    redraw();
  };
  const chips = job.trainers.map((trainer, k) => el("button",
    { type: "button", class: "chip", "data-key": trainer.name, "data-name": trainer.name, "aria-pressed": String(!hidden.has(trainer.name)), onclick: toggle },
    el("span", { class: `swatch c${k % COLOURS}` }), trainer.name, " ", el("span", { class: "note" }, sweepWords(trainer))));
  return el("div", { class: "legend", "data-key": "legend" }, chips, el("span", { class: "note" }, "pale: training, mean of the epoch so far · with dots: validation"));
}

/** The controls of the curves: epochs or time, logarithmic scale, smoothing. `timed`: whether their times are known. */
export function toolbar(timed) {
  const choose = (key, value) => () => {
    options[key] = value(options[key]);
    redraw();
  };
  const chip = (name, words, pressed, onclick) => el("button", { type: "button", class: "chip", "data-key": name, "aria-pressed": String(pressed), onclick }, words);
  return el("div", { class: "toolbar", "data-key": "toolbar" },
    timed ? [chip("epochs", "by epoch", !options.byTime, choose("byTime", () => false)), chip("time", "by time", options.byTime, choose("byTime", () => true))] : [],
    chip("log", "log scale", options.log, choose("log", on => !on)),
    el("label", { "data-key": "smooth" }, "Smoothing ", el("input", { type: "range", min: 0, max: 0.95, step: 0.05, value: options.smooth, oninput: event => {
      options.smooth = event.currentTarget.valueAsNumber;
      redraw();
    } })));
}

/** A chart. `width`: in CSS pixels. `format`: value -> text. `least`, `most`: the vertical axis includes them. `to`: upper
 * limit of the horizontal axis. `curved`: the user's options apply. `keys`: show a legend. `binary`: values are bytes. */
export function chart({ title, all, width, format, least, most, to, axis = EPOCHS, changes = [], curved = true, keys = false, binary = false }) {
  const log = curved && options.log, weight = curved ? options.smooth : 0;
  const wanted = all.filter(line => !hidden.has(line.trainer)).map(line => (log ? { ...line, points: line.points.filter(point => point.y > 0) } : line)).filter(line => line.points.length);
  const head = el("figcaption", {}, el("span", {}, title));
  const figure = el("figure", { class: "chart", "data-key": title }, head);
  if (!wanted.length) {
    figure.append(el("p", { class: "empty" }, all.length ? "Nothing to show: all are hidden, or no value is above zero." : "No reports yet."));
    return figure;
  }
  const shown = wanted.flatMap(line => (weight && line.purpose === "train" ? [{ ...line, purpose: "raw" }, { ...line, points: smoothed(line.points, weight) }] : [line]));
  const frame = framed(shown, { width, least, most, to, axis, log, binary });
  if (frame.cut) head.append(el("span", { class: "note" }, ` (${counted(frame.cut, "outlier")} cut off)`));
  head.append(el("span", { class: "grow" }), take(title, "PNG", savePicture), take(title, "CSV", saveTable));
  const marks = changes.filter(mark => !hidden.has(mark.trainer) && mark.x >= frame.from && mark.x <= frame.to);
  if (keys && all.length > 1) figure.append(el("p", { class: "keys note" }, all.map(line => el("span", {}, el("span", { class: `swatch c${line.colour}` }), line.trainer))));
  figure.append(drawing(title, shown, frame, format, marks), el("div", { class: "tip", hidden: true, "data-own": true, "data-key": "tip" }));
  figure.data = { title, shown: shown.filter(line => line.purpose !== "raw"), whole: all, frame, format, axis };
  return figure;
}

const take = (title, kind, save) => el("button", { type: "button", class: "chip", "data-key": `${kind} ${title}`, "aria-label": `${title} as ${kind}`, onclick: event => save(event.currentTarget.closest("figure")) }, kind);

/** The range of several lines. Outliers are judged within each line, so a validation loss far above the training loss stays. */
export function rangeOf(lines) {
  const found = lines.map(line => ({ ...range(line.points.map(point => point.y)), purpose: line.purpose }));
  const cut = found.filter(({ purpose }) => purpose !== "raw").reduce((sum, one) => sum + one.cut, 0);
  return { low: Math.min(...found.map(({ low }) => low)), high: Math.max(...found.map(({ high }) => high)), cut };
}

function framed(shown, { width, least, most, to: end, axis, log, binary }) {
  const found = rangeOf(shown);
  const low = log ? found.low : Math.min(found.low, least ?? found.low), high = log ? found.high : Math.max(found.high, most ?? found.high);
  const unit = binary && high > 0 ? 1024 ** Math.floor(Math.log2(high) / 10) : 1;
  const rungs = log ? logTicks(low, high) : ticks(low / unit, (high > low ? high : low + 1) / unit).map(value => value * unit);
  const first = Math.min(...shown.map(line => line.points[0].x)), last = Math.max(...shown.map(line => line.points.at(-1).x));
  const epochs = axis.kind === "epochs";
  const from = epochs ? (first < 1 ? 0 : Math.floor(first)) : axis.kind === "elapsed" ? 0 : first;
  const to = epochs ? Math.min(end, Math.max(from + 1, Math.ceil(last * 1.02))) : Math.max(last, from + 1);
  const across = width - MARGIN.left - MARGIN.right, down = HEIGHT - MARGIN.top - MARGIN.bottom;
  const scale = log ? Math.log10 : value => value;
  const top = scale(rungs.at(-1)), bottom = scale(rungs[0]);
  return {
    width, rungs, from, to, axis, cut: found.cut,
    x: value => MARGIN.left + (value - from) / (to - from || 1) * across,
    y: value => MARGIN.top + (top - scale(value)) / (top - bottom || 1) * down,
    at: place => from + (place - MARGIN.left) / across * (to - from),
  };
}

/** The tick marks of the horizontal axis. */
function columnsOf({ width, from, to, axis }) {
  const wanted = Math.max(2, Math.min(10, width / 80));
  if (axis.kind === "epochs") return ticks(from, to, wanted).filter(value => Number.isInteger(value) && value >= from && value <= to);
  return timeTicks(from, to, wanted, axis.kind === "time" ? -60 * new Date(1000 * from).getTimezoneOffset() : 0);
}

/** Splits points into pieces wherever the next one is more than `gap` away. */
export function pieces(points, gap = Infinity) {
  const found = [];
  points.forEach((point, k) => {
    if (k && point.x - points[k - 1].x <= gap) found.at(-1).push(point);
    else found.push([point]);
  });
  return found;
}

function drawing(title, shown, frame, format, changes) {
  const { width, rungs, x, y, axis } = frame;
  const bottom = HEIGHT - MARGIN.bottom, columns = columnsOf(frame);
  const grid = [
    ...rungs.map(value => svg("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(value), y2: y(value) })),
    ...rungs.map(value => svg("text", { class: "tick", x: MARGIN.left - 8, y: y(value) + 4, "text-anchor": "end" }, format(value))),
    ...columns.map(value => svg("line", { class: "grid", x1: x(value), x2: x(value), y1: bottom, y2: bottom + 4 })),
    ...columns.map(value => svg("text", { class: "tick", x: x(value), y: bottom + 17, "text-anchor": "middle" }, axis.tick(value, frame.to - frame.from))),
    ...changes.map(mark => svg("line", { class: `change c${mark.colour}`, x1: x(mark.x), x2: x(mark.x), y1: MARGIN.top, y2: bottom }, svg("title", {}, mark.words))),
    svg("text", { class: "tick", x: width - MARGIN.right, y: HEIGHT - 3, "text-anchor": "end" }, axis.name),
  ];
  const place = point => `${x(point.x).toFixed(1)},${Math.max(MARGIN.top - 4, y(point.y)).toFixed(1)}`;
  const drawn = shown.map(line => svg("g", { class: `c${line.colour} ${line.purpose}`, "data-key": `${line.purpose} ${line.trainer}` },
    pieces(line.points, line.gap).map(piece => (piece.length > 1 ? svg("polyline", { points: piece.map(place).join(" ") }) : svg("circle", { r: line.purpose === "course" ? 1.5 : 3, cx: place(piece[0]).split(",")[0], cy: place(piece[0]).split(",")[1] }))),
    line.purpose === "validation" && line.points.length > 1 && line.points.length <= MARKERS
      ? line.points.map(point => svg("circle", { r: 3, cx: place(point).split(",")[0], cy: place(point).split(",")[1] })) : []));
  const told = shown.filter(line => line.purpose !== "raw").map(line => `${nameOf(line)} ${format(line.points.at(-1).y)}`).join(", ");
  return svg("svg", {
    viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", tabindex: "0", "aria-label": `${title} over ${axis.name}; newest: ${told}`,
    onpointermove: follow, onpointerleave: leave, onblur: leave, onkeydown: step,
  }, grid, drawn, svg("g", { class: "pointer", "data-own": true, "data-key": "pointer" }));
}

const nameOf = line => (line.purpose === "course" ? line.trainer : `${line.trainer} ${line.purpose}`);

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

/** Shows the values of all lines near `at`. */
function point(figure, at) {
  const { shown, frame, format, axis } = figure.data, tip = figure.querySelector(".tip");
  const places = shown.map(line => nearest(line.points, at));
  const closest = places.reduce((a, b) => (Math.abs(a.x - at) <= Math.abs(b.x - at) ? a : b));
  figure.at = closest.x;
  const x = frame.x(closest.x);
  figure.querySelector(".pointer").replaceChildren(
    svg("line", { x1: x, x2: x, y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }),
    ...places.map((place, k) => svg("circle", { class: `c${shown[k].colour}`, r: 4, cx: frame.x(place.x), cy: Math.max(MARGIN.top, frame.y(place.y)) })));
  tip.replaceChildren(el("b", {}, axis.words(closest.x)), ...shown.map((line, k) => el("div", {},
    el("span", { class: `swatch c${line.colour}` }), nameOf(line), el("span", { class: "value" }, format(places[k].y)))));
  tip.hidden = false;
  const scale = figure.querySelector("svg").getBoundingClientRect().width / frame.width;
  const left = x * scale + (x > frame.width / 2 ? -tip.offsetWidth - 14 : 14);
  tip.style.left = `${Math.max(0, left)}px`;
}

/** The values of a chart as CSV, a row for each point, as reported and not smoothed. */
export function csvOf(lines, axis) {
  const quoted = text => (/^[\w .:+-]*$/.test(text) && !/^[=+@-]/.test(text) ? text : `"${text.replaceAll('"', '""')}"`); // a spreadsheet would run a cell that begins like a formula
  const at = x => (axis.kind === "time" ? new Date(1000 * x).toISOString() : String(x));
  return [`series,${axis.head},value`, ...lines.flatMap(line => line.points.map(each => `${quoted(nameOf(line))},${at(each.x)},${each.y}`))].join("\n") + "\n";
}

function saveTable(figure) {
  const { whole, axis, title } = figure.data;
  save(new Blob([csvOf(whole, axis)], { type: "text/csv" }), title, "csv");
}

/** Saves the drawing at twice its size. Its styles are copied, since an image file has no style sheet. */
async function savePicture(figure) {
  const drawn = figure.querySelector("svg"), copy = drawn.cloneNode(true), { width } = figure.data.frame;
  copy.querySelector(".pointer").replaceChildren();
  const styled = [...drawn.querySelectorAll(":not(.pointer):not(.pointer *)")], copies = [...copy.querySelectorAll(":not(.pointer)")];
  styled.forEach((part, k) => {
    const style = getComputedStyle(part);
    for (const name of ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "opacity", "font-size", "font-family"]) copies[k].setAttribute(name, style.getPropertyValue(name));
  });
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", width);
  copy.setAttribute("height", HEIGHT);
  const picture = new Image(), canvas = el("canvas", { width: 2 * width, height: 2 * HEIGHT }), address = URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" }));
  picture.src = address;
  await picture.decode();
  URL.revokeObjectURL(address);
  const pen = canvas.getContext("2d");
  pen.fillStyle = getComputedStyle(document.body).backgroundColor;
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(picture, 0, 0, canvas.width, canvas.height);
  canvas.toBlob(made => save(made, figure.data.title, "png"));
}

function save(content, title, ending) {
  const address = URL.createObjectURL(content);
  const link = el("a", { href: address, download: `${title.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/-$/, "")}.${ending}` });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** Values as a small line without axes. */
export function sparkline(values, words) {
  const found = range(values), span = found.high - found.low, wide = 96, high = 22;
  const flat = span <= 1e-6 * Math.abs(found.high); // the rest is rounding
  const depth = value => (flat ? 0.5 : (found.high - Math.min(value, found.high)) / span);
  const place = (value, k) => `${(2 + k / (values.length - 1 || 1) * (wide - 4)).toFixed(1)},${(2 + depth(value) * (high - 4)).toFixed(1)}`;
  return svg("svg", { class: "spark", viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": words }, svg("polyline", { points: values.map(place).join(" ") }));
}
