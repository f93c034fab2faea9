// The flow of a job as a drawing: seeds, decoders, extractors and consumers, with their rates and queues.

import { el, svg } from "./dom.js";
import { UNKNOWN, consumerTitle, count, counted, number, percent, phaseTitle, size } from "./words.js";

/**
 * The content of the drawing as plain data: `{ seeds, decoders, streams, consumers }`. A box is `{ part, title, figures,
 * note }`, and a figure is a label with its value. Each stream has its own box and its consumers' boxes; `consumers` are
 * those of all streams.
 */
export function flowOf(job) {
  const pools = new Map(job.pools.map(pool => [pool.name, pool]));
  const now = job.phases[job.progress.current];
  const taking = consumers(job, now);
  return {
    seeds: {
      part: "budget", title: "Clips issued",
      figures: [["at", now ? phaseTitle(now.purpose, now.epoch) : "end"], ["issued", now ? `${count(now.issued)} of ${count(now.clips)}` : UNKNOWN],
        ["in flight", counted(job.credits.outstanding_clips, "clip")]],
      note: job.state === "running" && job.credits.waiting ? "waits for consumers" : "",
    },
    decoders: workers("decoder", "Decoders", pools.get("decoder"), job.backlog.decoder),
    streams: Object.entries(job.streams).map(([stream, feature]) => ({
      stream, box: made(job, stream, feature, pools), consumers: taking.filter(box => box.stream === stream),
    })),
    consumers: taking.filter(box => box.stream == null),
  };
}

function made(job, stream, feature, pools) {
  const part = `extractor.${feature}`;
  if (!(stream in job.backlog) && !pools.has(part)) return { part, title: stream, figures: [], note: "the decoded frames" };
  return workers(part, stream === feature ? stream : `${stream}: ${feature}`, pools.get(part), job.backlog[stream]);
}

function workers(part, title, pool, queue = 0) {
  if (!pool) return { part, title, figures: [["queued", counted(queue, "clip")]], note: queue ? "no worker has produced a clip yet" : "nothing to do yet" };
  const cost = pool.seconds_per_clip == null ? UNKNOWN : `${number(1000 * pool.seconds_per_clip)} ms per clip`;
  return {
    part, title, rate: pool.clips_per_s,
    figures: [["rate", `${number(pool.clips_per_s)} clips/s`], ["work", cost], ["queued", counted(pool.queue, "clip")], ["workers", count(pool.workers)]],
    note: "",
  };
}

function consumers(job, now) {
  if (job.kind === "train") return job.trainers.map(trainer => ({
    part: `trainer.${trainer.name}`, stream: trainer.stream, title: `Trainer ${trainer.name}`, rate: trainer.clips_per_s,
    figures: [["rate", trainer.clips_per_s == null ? UNKNOWN : `${number(trainer.clips_per_s)} clips/s`],
      ["waits for clips", trainer.data_wait_ratio == null ? UNKNOWN : `${percent(trainer.data_wait_ratio)} of its time`],
      ["ready", trainer.queue == null ? UNKNOWN : counted(trainer.queue, "clip")]],
    note: trainer.final ? "done" : trainer.stopped ? trainer.stopped.words : trainer.fit ? trainer.fit.words : trainer.waits_for ? `waits for ${trainer.waits_for}: it is as far ahead as limits.lead allows` : "",
  }));
  return Object.entries(now ? now.done : job.phases.at(-1)?.done || {}).map(([consumer, done]) => {
    const stream = consumer.startsWith("predictor.") ? consumer.slice("predictor.".length) : null;
    return {
      part: "consumers", stream: stream in job.streams ? stream : null, title: consumerTitle(consumer), rate: job.progress.clips_per_s,
      figures: [["done", `${count(done)} of ${count((now || job.phases.at(-1)).clips)}`]], note: "",
    };
  });
}

/** Marks of parts: the job waits for their first worker, or they limit the rate. */
export function marks(job) {
  const trainer = `trainer.${job.name}.`;
  const parts = job.awaits.map(pool => (pool.startsWith(trainer) ? `trainer.${pool.slice(trainer.length)}` : pool === "predictor" ? "consumers" : pool));
  if (parts.length) return new Map(parts.map(part => [part, "no worker yet"]));
  return new Map(job.bottleneck?.part ? [[job.bottleneck.part, "limits the rate"]] : []);
}

/** The drawing. */
export function flow(job) {
  const found = flowOf(job), live = job.state === "running", marked = marks(job);
  const box = it => el("div", { class: `box${marked.has(it.part) ? " limits" : ""}`, "data-key": it.title },
    el("h4", {}, it.title, marked.has(it.part) ? el("span", { class: "badge" }, marked.get(it.part)) : null),
    it.figures.length ? el("dl", {}, it.figures.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))) : null,
    it.note ? el("p", { class: "note" }, it.note) : null);
  const rows = found.streams.length;
  const own = found.streams.map(({ box: feature, consumers: takers }) => el("div", { class: "row" }, box(feature),
    found.consumers.length ? null : pipes(1, 1, live && takers.some(it => it.rate)), found.consumers.length ? null : el("div", { class: "takers" }, takers.map(box))));
  return el("div", { class: `flow${found.consumers.length ? " joined" : ""}`, role: "group", "aria-label": "Flow of clips, from left to right" },
    box(found.seeds), pipes(1, 1, live && found.decoders.rate), box(found.decoders), pipes(1, rows, live && found.decoders.rate),
    el("div", { class: "rows" }, own),
    found.consumers.length ? [pipes(rows, 1, live && job.progress.clips_per_s), el("div", { class: "takers" }, found.consumers.map(box))] : null);
}

/** Lines that connect the middles of `from` rows with those of `to` rows. */
function pipes(from, to, moving) {
  const middle = (k, rows) => (k + 0.5) / rows * 100;
  const drawn = [];
  for (let a = 0; a < from; a++)
    for (let b = 0; b < to; b++)
      drawn.push(svg("path", { d: `M0 ${middle(a, from)} C50 ${middle(a, from)} 50 ${middle(b, to)} 100 ${middle(b, to)}` }));
  return svg("svg", { class: `pipes${moving ? " moving" : ""}`, viewBox: "0 0 100 100", preserveAspectRatio: "none", "aria-hidden": "true" }, drawn);
}

/** How full the job's budget and the frame cache are. */
export function fills(job) {
  const { credits, cache } = job, limit = job.bottleneck?.part;
  const fill = (part, title, used, all, more) => el("div", { class: `fill${limit === part ? " limits" : ""}`, "data-key": part },
    el("span", {}, title), el("progress", { value: Math.min(used, all), max: all || 1, "aria-label": title }),
    el("span", { class: "note" }, `${size(used)} of ${size(all)}${more}`));
  const waits = cache?.full_count ? `, workers waited for space ${counted(cache.full_count, "time")}` : "";
  return el("div", { class: "fills" },
    fill("budget", "Job budget", credits.outstanding_bytes, credits.budget_bytes, ""),
    cache && (cache.limit_bytes ? fill("cache", "Frame cache, all jobs", cache.used_bytes, cache.limit_bytes, waits)
      : el("div", { class: "fill" }, el("span", {}, "Frame cache, all jobs"), el("span", { class: "note" }, `${size(cache.used_bytes)}, no limit${waits}`))));
}
