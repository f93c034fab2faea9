// The master's page: its views, which the part of the address after # selects, and the loop that keeps them up to date.
// It reads the same API as `essp job`.

import { ask, decoded, hasToken, jobPath, tokenOfAddress, useToken } from "./api.js";
import { compared, drawComparison, watchComparison } from "./compare.js";
import { drawCreate } from "./create.js";
import { el, fill, morph, say } from "./dom.js";
import { drawJob, watchJob } from "./job.js";
import { drawJobs, loadJobs } from "./jobs.js";
import { drawLogs, watchLogs } from "./logs.js";
import { drawPools, loadPools } from "./pools.js";
import { lookAtStreams } from "./previews.js";
import { moment, percent, share } from "./words.js";

const LOOK_MS = 2000;
const AGAIN_MS = 5000; // after the master did not answer
const part = id => document.getElementById(id);
let view = null; // the current view
let data = null; // its data
let asking = null; // the view whose data is being loaded
let again = false; // whether to load it again at once
let heard = null; // when the master last answered
let timer = 0;

const JOBS = { key: "#/", within: "#/", title: "Jobs", load: loadJobs, draw: drawJobs };
const POOLS = { key: "#/pools", within: "#/pools", title: "Pools", load: loadPools, draw: drawPools };
const CREATE = { key: "#/new", within: "#/new", title: "New job", load: null, draw: () => drawCreate(name => (location.hash = `#/jobs/${encodeURIComponent(name)}`)) };

/** The view that an address names. `within`: its entry in the navigation. `beside`: loads more after its data. */
function named(hash) {
  const names = compared(hash);
  if (names) return { key: hash, within: "#/", title: `${names.length} jobs`, load: watchComparison(names), draw: drawComparison };
  const about = /^#\/logs(?:\/([^/]+))?$/.exec(hash);
  if (about) return { key: hash, within: "#/logs", title: "Logs", load: watchLogs(decoded(about[1] || "")), draw: drawLogs };
  const found = /^#\/jobs\/([^/]+)$/.exec(hash);
  if (!found) return [POOLS, CREATE].find(each => each.key === hash) || JOBS;
  const name = decoded(found[1]);
  return { key: hash, within: "#/", title: name, load: watchJob(name), draw: drawJob, beside: ({ job }) => lookAtStreams(job) };
}

async function act(job, action, wanted) {
  if (action === "stop" && !confirm(`Stop ${job}? Its trainers save first; if you start it again, it resumes from there.`)) return;
  try {
    if (action === "priority") await ask(jobPath(job, "/priority"), { method: "PUT", body: JSON.stringify({ priority: wanted }), type: "application/json" });
    else if (action === "change") await ask(jobPath(job), { method: "PATCH", body: JSON.stringify(wanted), type: "application/json" });
    else if (action.endsWith(" pool")) await ask(`v1/pools/${encodeURIComponent(job)}:${action.split(" ")[0]}`, { method: "POST" });
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
  const running = data?.job ? `${percent(share(data.job.progress), 0)} ` : "";
  document.title = `${running}${view.title} · ESSP`;
}

function tell(words) {
  say(part("trouble"), words);
  part("trouble").hidden = !words;
}

/** Asks for a token, because there is none or the master does not accept it. */
function login() {
  part("login").hidden = false;
  part("login-words").textContent = hasToken() ? "The master does not accept this token. Enter another one." : "This master requires an API token.";
  part("main").replaceChildren();
  part("conditions").replaceChildren();
  part("leave").hidden = true;
  document.title = "ESSP";
  tell("");
  data = null;
  if ([document.body, part("main")].includes(document.activeElement)) part("token").focus();
}

/** Shows whether the page is live. Screen readers read each change aloud. */
function live(words) {
  say(part("state"), words);
  part("state").className = words === "live" ? words : "";
}

/** Loads and draws the view, and repeats that. Each view has at most one request at a time. */
async function look() {
  clearTimeout(timer);
  again = asking === view;
  if (again) return;
  const looked = asking = view;
  const next = await lookOnce(looked);
  if (looked !== view) return;
  asking = null;
  timer = setTimeout(() => (document.hidden ? null : look()), again ? 0 : next);
}

/** Loads and draws the view once. Returns the milliseconds until the next time. */
async function lookOnce(looked) {
  try {
    const [found, conditions] = await Promise.all([looked.load ? looked.load() : {}, ask("v1/conditions")]);
    if (looked !== view) return 0;
    part("login").hidden = true;
    part("leave").hidden = !hasToken();
    fill(part("conditions"), conditions.map(it => el("p", { class: "wrong", "data-key": `${it.kind} ${it.subject}` }, `${it.subject}: ${it.words} (since ${moment(it.since)})`)));
    looked.beside?.(found);
    if (looked.load || !data) {
      data = found;
      draw();
    }
    if (part("state").className !== "live") tell("");
    live("live");
    heard = Date.now();
    return LOOK_MS;
  } catch (error) {
    if (looked !== view) return 0;
    refused(error);
    return AGAIN_MS;
  }
}

/** Says why nothing, or nothing newer, is shown. */
function refused(error) {
  live(error.status === 401 ? "no token" : data && heard ? `not live: as of ${moment(heard)}` : "not live");
  const words = error.status ? error.message : `${error.message} Trying again ...`;
  if (error.status === 401) login();
  else if (data) tell(words);
  else show([el("div", { class: "blank" }, el("h2", {}, error.status === 404 ? "Not found" : "Nothing to show"), el("p", {}, words), el("p", {}, el("a", { href: "#/" }, "All jobs")))]);
}

function go() {
  tokenOfAddress();
  view = { ...named(location.hash) }; // a new object for each visit, so that late answers to an earlier one are dropped
  data = null;
  document.title = `${view.title} · ESSP`;
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
addEventListener("hashchange", () => {
  go();
  part("main").focus({ preventScroll: true }); // keyboard and screen reader continue in the new view
});
const drawAgain = () => view.load && draw(); // a view that loads nothing updates itself
addEventListener("resize", drawAgain);
document.addEventListener("redraw", drawAgain);
document.addEventListener("visibilitychange", () => document.hidden || look());
go();
