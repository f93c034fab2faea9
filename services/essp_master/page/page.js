// The page of the master: what runs, how far it is, what holds it up. Reads the same API as `essp job`; keeps nothing but
// the token, and that for as long as the tab is open.
"use strict";

const LOOK_MS = 2000;
const shown = id => document.getElementById(id);
const seen = new Map(); // job -> id of the newest event that is shown

/** An element with attributes and children; text is never read as markup. */
function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value);
  }
  made.append(...children.map(child => (child instanceof Node ? child : document.createTextNode(child))));
  return made;
}

async function ask(path, method = "GET") {
  const token = sessionStorage.getItem("token");
  const answer = await fetch(path, { method, headers: token ? { Authorization: `Bearer ${token}` } : {} });
  const body = await answer.json();
  shown("who").hidden = answer.status !== 401;
  if (!answer.ok) throw new Error(body.detail || answer.statusText);
  return body;
}

const percent = share => (share == null ? "–" : `${(100 * share).toFixed(1)} %`);
const number = (value, digits = 1) => (value == null ? "–" : value.toFixed(digits));
const size = bytes => `${(bytes / 2 ** 20).toFixed(0)} MiB`;

function duration(seconds) {
  if (seconds == null) return "–";
  const minutes = Math.round(seconds / 60);
  return minutes < 1 ? `${Math.round(seconds)} s` : minutes < 90 ? `${minutes} min` : `${(minutes / 60).toFixed(1)} h`;
}

function table(heads, rows) {
  const cells = (row, tag) => el("tr", {}, ...row.map(cell => el(tag, {}, cell)));
  return el("div", { class: "scroll" },
    el("table", {}, el("thead", {}, cells(heads, "th")), el("tbody", {}, ...rows.map(row => cells(row, "td")))));
}

/** The course of a trainer's validation loss. */
function course(reports) {
  const losses = reports.filter(r => r.purpose === "validation" && "loss" in r.metrics).map(r => r.metrics.loss);
  if (losses.length < 2) return "–";
  const low = Math.min(...losses), high = Math.max(...losses), width = 120, height = 24;
  const point = (loss, k) => [k / (losses.length - 1) * width, 1 + (high - loss) / (high - low || 1) * (height - 2)];
  const points = losses.map((loss, k) => point(loss, k).map(x => x.toFixed(1)).join(",")).join(" ");
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("width", width);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `validation loss from ${number(losses[0], 3)} to ${number(losses.at(-1), 3)}`);
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  line.setAttribute("points", points);
  svg.append(line);
  return svg;
}

function action(job, name) {
  const act = async () => {
    if (name === "stop" && !confirm(`Stop ${job}? Its trainers save first.`)) return;
    await ask(`v1/jobs/${encodeURIComponent(job)}:${name}`, "POST").catch(tell);
    look();
  };
  return el("button", { type: "button", onclick: act }, name);
}

/** How far a job is, and, while it runs, how fast and how long yet. */
function progressLine(job, done) {
  const { progress, credits } = job, now = job.phases[progress.current];
  const parts = [progress.total ? `${percent(done)} of ${progress.total.toLocaleString()} clips` : "no clips yet"];
  if (now) parts.push(`${now.purpose}${now.purpose === "train" || now.purpose === "validation" ? ` ${now.epoch + 1}` : ""}`);
  if (job.state === "running") {
    parts.push(`${number(progress.clips_per_s)} clips/s`);
    if (progress.eta_s != null) parts.push(`${duration(progress.eta_s)} to go`);
    parts.push(`on the way ${size(credits.outstanding_bytes)} of ${size(credits.budget_bytes)}`);
  }
  return parts.join(" · ");
}

/** What a training made: top-1 by video, fused. */
function resultLine(job) {
  const figures = job.result ? job.result.metrics : {};
  const shown = ["validation", "test"].filter(split => `${split}.fused.top1` in figures);
  return shown.map(split => `${split} ${percent(figures[`${split}.fused.top1`])}`).join(", ");
}

function jobCard(job) {
  const done = job.progress.total ? job.progress.done / job.progress.total : 0;
  const actions = { running: ["pause", "stop"], paused: ["resume", "stop"] }[job.state] || [];
  const result = resultLine(job);
  const trainers = job.trainers.map(t => [
    t.name, t.final ? "done" : t.purpose ? `${t.purpose} ${t.epoch + 1}` : "–", number(t.clips_per_s), number(t.loss, 3), percent(t.top1),
    percent(t.data_wait_ratio), course(t.reports),
  ]);
  const held = job.trainers.filter(t => t.waits_for).map(t => el("p", { class: "note" }, `${t.name} waits for ${t.waits_for}: it is as far ahead as limits.lead allows`));
  const lines = job.failures.map(f => el("p", { class: "wrong" }, `${f.count} × ${f.stage}: ${f.kind}, as ${f.examples[0]?.video}: ${f.examples[0]?.reason}`));
  return el("article", {},
    el("div", {}, el("h3", {}, job.name), el("span", { class: `state ${job.state}` }, job.state), el("span", { class: "grow note" }, job.output), ...actions.map(name => action(job.name, name))),
    el("progress", { value: done, max: 1, "aria-label": "clips done" }),
    el("div", { class: "note" }, progressLine(job, done)),
    ...(job.reason ? [el("p", { class: job.state === "failed" ? "wrong" : "" }, job.reason)] : []),
    ...(result ? [el("p", {}, `fused, top-1 by video: ${result}`)] : []),
    ...(trainers.length ? [table(["trainer", "at", "clips/s", "loss", "top-1", "waits for data", "validation loss"], trainers)] : []),
    ...held,
    ...lines);
}

function poolTable(pools) {
  if (!pools.length) return el("p", { class: "note" }, "No worker has said anything yet.");
  const rows = pools.map(p => [p.name, String(p.replicas), String(p.ready), percent(p.busy), p.saturation || "–", [p.reason, p.held_up && `not up: ${p.held_up}`].filter(Boolean).join("; ")]);
  const made = table(["pool", "wanted", "up", "busy", "is", "because"], rows);
  made.querySelectorAll("td:nth-child(n+5), th:nth-child(n+5)").forEach(cell => cell.classList.add("text"));
  return made;
}

/** What keeps ESSP from working, one line each. */
function conditionList(conditions) {
  return conditions.map(c => el("p", { class: "wrong" }, `${c.subject}: ${c.words} (since ${new Date(c.since).toLocaleTimeString()})`));
}

async function follow(job) {
  const stream = shown("events");
  const last = seen.get(job.name) || 0;
  if (job.last_event <= last) return;
  seen.set(job.name, job.last_event);
  const answer = await ask(`v1/jobs/${encodeURIComponent(job.name)}/log?after=${last}`);
  for (const event of answer.slice(-200))
    stream.prepend(el("li", {}, el("time", {}, event.time.slice(11, 19)), `${job.name}: ${event.message}`));
  while (stream.children.length > 500) stream.lastChild.remove();
}

const tell = error => { shown("state").textContent = error.message; };

async function look() {
  try {
    shown("conditions").replaceChildren(...conditionList(await ask("v1/conditions")));
    const page = await ask("v1/jobs?page_size=20");
    const jobs = await Promise.all(page.jobs.map(job => ask(`v1/jobs/${encodeURIComponent(job.name)}`)));
    shown("jobs").replaceChildren(...(jobs.length ? jobs.map(jobCard) : [el("p", { class: "note" }, "No job yet: essp job start job.yaml")]));
    await Promise.all(jobs.map(follow));
    shown("pools").replaceChildren(poolTable(await ask("v1/pools").catch(() => [])));
    shown("state").textContent = `${jobs.filter(j => j.state === "running").length} running, as of ${new Date().toLocaleTimeString()}`;
  } catch (error) { tell(error); }
}

shown("who").addEventListener("submit", event => {
  event.preventDefault();
  sessionStorage.setItem("token", shown("token").value);
  look();
});
look();
setInterval(look, LOOK_MS);
