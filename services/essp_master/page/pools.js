// The pools of workers: their sizes, the reasons for them, and what prevents a pool from reaching its size.

import { ask } from "./api.js";
import { at, el, table } from "./dom.js";
import { loadUsage, usageTable } from "./usage.js";
import { UNKNOWN, count, percent } from "./words.js";

/** The pools with their events; `none`: why there are no pools. */
export async function loadPools() {
  const usage = await loadUsage();
  try {
    return { usage, pools: await ask("v1/pools"), events: await ask("v1/pools/events"), none: "" };
  } catch (error) {
    if (error.status !== 422) throw error;
    return { usage, pools: [], events: [], none: error.message };
  }
}

const CLASSES = [["bottleneck", "trainers wait, and the pool is busy"], ["starved", "trainers wait, and the pool is idle: it gets too little input"],
  ["buffered", "no trainer waits, and its output is not consumed"], ["balanced", "any other state"]];

/** Why a pool has its size, without its class, which is shown next to it. */
const because = pool => (pool.saturation && pool.reason.startsWith(`${pool.saturation}: `) ? pool.reason.slice(pool.saturation.length + 2) : pool.reason);

/** A pool's bounds in words. */
export const ruleWords = rule => (rule.replicas == null ? `${count(rule.min)} to ${count(rule.max)}` : `fixed: ${count(rule.replicas)}`) + (rule.paused ? ", paused" : "");

/** Buttons for the actions that a pool allows; ranks of a trainer pause with their job. */
function actions(pool, act) {
  const verb = pool.rule.paused ? "resume" : "pause";
  return pool.name.startsWith("trainer.") ? "" : el("button",
    { type: "button", class: verb, "data-key": `${verb} ${pool.name}`, "aria-label": `${verb} ${pool.name}`, onclick: () => act(pool.name, `${verb} pool`) }, verb);
}

/** The page. */
export function drawPools({ usage, pools, events, none }, act) {
  const used = usage.pools.length ? el("section", { "data-key": "usage" }, el("h2", {}, "What workers do and use"), usageTable(usage)) : null;
  if (none) return [used, el("div", { class: "blank" }, el("h2", {}, "No pools"), el("p", {}, none))].filter(Boolean);
  if (!pools.length) return [el("div", { class: "blank" }, el("h2", {}, "No pools yet"), el("p", {}, "No worker has reported yet. Start one, for example with ", el("code", {}, "essp decoder"), "."))];
  const rows = pools.map(pool => [pool.name, count(pool.replicas), count(pool.ready), pool.stuck ? count(pool.stuck) : "0", percent(pool.busy), ruleWords(pool.rule), pool.saturation || UNKNOWN, because(pool), actions(pool, act)]);
  const held = pools.filter(pool => pool.held_up);
  return [
    el("section", { "data-key": "pools" }, el("h2", {}, "Pools"), held.map(pool => el("p", { class: "wrong", role: "alert" }, `${pool.name} does not start: ${pool.held_up}`)),
      table("pools", ["pool", "requested", "up", "stuck", "busy", "bounds", "state", "reason", "action"], rows, [0, 5, 6, 7, 8]),
      el("dl", { class: "places classes note" }, CLASSES.map(([name, words]) => el("div", {}, el("dt", {}, name), el("dd", {}, words))))),
    used,
    el("section", { "data-key": "changes" }, el("h3", {}, "Changes"), events.length
      ? el("ol", { class: "events", tabindex: "0", "aria-label": "changes of pools, newest first" }, [...events].reverse().map(event => el("li", {}, at(event.time), el("span", {}, event.pool ? `${event.pool}: ${event.message}` : event.message))))
      : el("p", { class: "empty" }, "No changes since this master started.")),
  ].filter(Boolean);
}
