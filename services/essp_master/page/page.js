// The page of the master: what runs, how far it is, what limits it. It reads the same API as `essp job`, and shows what
// the part behind the # of its address names.

import { ask, hasToken, jobPath, useToken } from "./api.js";
import { compared, drawComparison, loadComparison } from "./compare.js";
import { drawCreate } from "./create.js";
import { el, morph } from "./dom.js";
import { drawJob, loadJob } from "./job.js";
import { drawJobs, loadJobs } from "./jobs.js";
import { drawLogs, loadLogs } from "./logs.js";
import { drawPools, loadPools } from "./pools.js";
import { moment } from "./words.js";

const LOOK_MS = 2000;
const AGAIN_MS = 5000; // when the master did not answer
const part = id => document.getElementById(id);
let view = null; // what is shown
let data = null; // what it shows
let timer = 0;

const JOBS = { key: "#/", within: "#/", title: "Jobs", load: loadJobs, draw: drawJobs };
const POOLS = { key: "#/pools", within: "#/pools", title: "Pools", load: loadPools, draw: drawPools };
const CREATE = { key: "#/new", within: "#/new", title: "New job", load: null, draw: () => drawCreate(name => (location.hash = `#/jobs/${encodeURIComponent(name)}`)) };

/** The view that an address names; `within`: the one of the heading that it belongs to. */
function named(hash) {
  const names = compared(hash);
  if (names) return { key: hash, within: "#/", title: `${names.length} jobs`, load: () => loadComparison(names), draw: drawComparison };
  const about = /^#\/logs(?:\/([^/]+))?$/.exec(hash);
  if (about) return { key: hash, within: "#/logs", title: "Logs", load: () => loadLogs(decodeURIComponent(about[1] || "")), draw: drawLogs };
  const found = /^#\/jobs\/([^/]+)$/.exec(hash);
  if (!found) return [POOLS, CREATE].find(each => each.key === hash) || JOBS;
  const name = decodeURIComponent(found[1]);
  return { key: hash, within: "#/", title: name, load: () => loadJob(name), draw: drawJob };
}

async function act(job, action, wanted) {
  if (action === "stop" && !confirm(`Stop ${job}? Its trainers save first; starting it again goes on from there.`)) return;
  try {
    if (action === "priority") await ask(jobPath(job, "/priority"), { method: "PUT", body: JSON.stringify({ priority: wanted }), type: "application/json" });
    else if (action === "change") await ask(jobPath(job), { method: "PATCH", body: JSON.stringify(wanted), type: "application/json" });
    else await ask(jobPath(job, `:${action}`), { method: "POST" });
    tell("");
  } catch (error) {
    tell(`${action} ${job}: ${error.message}`);
  }
  look();
}

function show(children) {
  const main = part("main");
  const made = el("div", { "data-key": view.key, class: "view" }, children);
  if (main.firstElementChild) morph(main.firstElementChild, made);
  else main.append(made);
}

function draw() {
  if (data) show(view.draw(data, act));
  const running = data?.job ? `${Math.floor(100 * (data.job.progress.total ? data.job.progress.done / data.job.progress.total : 0))} % ` : "";
  document.title = `${running}${view.title} · ESSP`;
}

function tell(words) {
  part("trouble").textContent = words;
  part("trouble").hidden = !words;
}

/** Ask for a token: none was given, or the one given is not known. */
function login(error) {
  part("login").hidden = false;
  part("login-words").textContent = hasToken() ? "The master does not know this token. Give another one." : "This master shows its jobs only to those who have a token of its API.";
  part("main").replaceChildren();
  part("leave").hidden = true;
  data = null;
  if (document.activeElement === document.body) part("token").focus();
  return error;
}

async function look() {
  clearTimeout(timer);
  const looked = view;
  let next = LOOK_MS;
  try {
    const [found, conditions] = await Promise.all([looked.load ? looked.load() : {}, ask("v1/conditions")]);
    if (looked !== view) return;
    part("login").hidden = true;
    part("leave").hidden = !hasToken();
    part("conditions").replaceChildren(...conditions.map(it => el("p", { class: "wrong" }, `${it.subject}: ${it.words} (since ${moment(it.since)})`)));
    if (looked.load || !data) {
      data = found;
      draw();
    }
    part("state").textContent = "live";
    part("state").className = "live";
    if (stale) tell("");
    stale = false;
  } catch (error) {
    if (looked !== view) return;
    next = AGAIN_MS;
    part("state").textContent = error.status === 401 ? "no token" : "not live";
    part("state").className = "";
    stale = true;
    if (error.status === 401) login(error);
    else if (data) tell(error.message);
    else show([el("div", { class: "blank" }, el("h2", {}, error.status === 404 ? "Not known" : "Nothing to show"), el("p", {}, error.message), el("p", {}, el("a", { href: "#/" }, "All jobs")))]);
  }
  timer = setTimeout(() => (document.hidden ? null : look()), next);
}
let stale = false;

function go() {
  view = named(location.hash);
  data = null;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.getAttribute("href") === view.within) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  tell("");
  show([el("p", { class: "loading", "aria-busy": "true" }, "Loading ...")]);
  look();
}

part("login").addEventListener("submit", event => {
  event.preventDefault();
  useToken(part("token").value.trim());
  part("token").value = "";
  go();
});
part("leave").addEventListener("click", () => {
  useToken("");
  go();
});
addEventListener("hashchange", go);
addEventListener("resize", draw);
document.addEventListener("redraw", draw);
document.addEventListener("visibilitychange", () => document.hidden || look());
go();
