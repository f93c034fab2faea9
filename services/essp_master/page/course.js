// The course of a job over time, as lines of charts: rates, waiting, resources of workers, learning rates.

import { COLOURS } from "./chart.js";

/** The charts: title, figures, unit. `least`, `most`: the axis includes them. */
export const CHARTS = [
  { title: "Clips per second", figures: ["clips_per_s", "pool_clips_per_s"], unit: "number", least: 0 },
  { title: "Trainers wait for clips", figures: ["data_wait"], unit: "share", least: 0, most: 1 },
  { title: "Memory reserved for clips", figures: ["outstanding_bytes"], unit: "bytes", least: 0 },
  { title: "Clips queued", figures: ["queue"], unit: "number", least: 0 },
  { title: "Cores in use", figures: ["cpu_cores"], unit: "number", least: 0 },
  { title: "Memory of workers", figures: ["memory_bytes"], unit: "bytes", least: 0 },
  { title: "GPU busy", figures: ["gpu_busy"], unit: "share", least: 0, most: 1 },
  { title: "GPU memory", figures: ["gpu_memory_bytes"], unit: "bytes", least: 0 },
  { title: "GPU power, W", figures: ["gpu_watts"], unit: "number", least: 0 },
];
const OF_JOB = "job";
const GAP = 3; // stretches without a value after which a line is interrupted

/** Names and colours of trainers, pools and the job itself in these charts. A trainer and its workers have the colour of
 * its curves; the others get the next ones. */
export function namesOf(job, timeline) {
  const trainers = job.trainers.map(({ name }) => name), before = `trainer.${job.name}.`;
  const named = new Map(trainers.map((name, colour) => [name, { name, colour }]));
  for (const of of new Set(["", ...timeline.series.map(series => series.of)])) {
    const trainer = of.startsWith(before) ? of.slice(before.length) : null;
    if (trainer && named.has(trainer)) named.set(of, { name: `trainer ${trainer}`, colour: named.get(trainer).colour });
    else if (!named.has(of)) named.set(of, { name: of || OF_JOB, colour: new Set([...named.values()].map(({ colour }) => colour)).size });
  }
  return named;
}

/** The lines of these figures over time. `gap` of a line: seconds without a value that interrupt it. */
export function overTime(job, timeline, figures) {
  const names = namesOf(job, timeline);
  const found = timeline.series.filter(series => figures.includes(series.figure)).map(series => ({ ...series, ...names.get(series.of) }));
  return found.sort((a, b) => a.colour - b.colour).map(series => ({
    trainer: series.name, purpose: "course", colour: series.colour % COLOURS, gap: GAP * timeline.every_s,
    points: series.values.flatMap((y, k) => (y == null ? [] : [{ x: timeline.times[k], y }])),
  })).filter(line => line.points.length);
}

const valuesOf = (timeline, figure, of) => timeline.series.find(series => series.figure === figure && series.of === of)?.values || [];

/** The learning rates of a job's trainers, over epochs or over time. */
export function rates(job, timeline, byTime) {
  return job.trainers.map(({ name }, colour) => {
    const epochs = valuesOf(timeline, "epoch", name);
    const points = valuesOf(timeline, "lr", name).flatMap((y, k) => (y == null || (!byTime && epochs[k] == null) ? [] : [{ x: byTime ? timeline.times[k] : epochs[k], y }]));
    return { trainer: name, purpose: "course", colour: colour % COLOURS, points: byTime ? points : forward(points) };
  }).filter(line => line.points.length);
}

/** The points that still count. A trainer that fell back to a checkpoint repeats a part, which replaces the earlier points. */
function forward(points) {
  let least = Infinity;
  return points.reduceRight((kept, point) => {
    if (point.x < least) kept.unshift(point);
    least = Math.min(least, point.x);
    return kept;
  }, []);
}

/** A function from a place in epochs to the time when the trainer was there; null before the first known time. */
export function momentsOf(timeline, trainer) {
  const known = forward(valuesOf(timeline, "epoch", trainer).flatMap((x, k) => (x == null ? [] : [{ x, t: timeline.times[k] }])));
  return epoch => {
    const after = known.findIndex(point => point.x >= epoch - 1e-9);
    if (!known.length || (after === 0 && known[0].x - epoch > 1e-9)) return null;
    if (after < 0) return known.at(-1).t;
    if (after === 0) return known[0].t;
    const before = known[after - 1], next = known[after];
    return before.t + (next.t - before.t) * (epoch - before.x) / (next.x - before.x || 1);
  };
}

/** Converts lines over epochs to lines over time. `begin`: the time that counts as zero. */
export function byClock(lines, timeline, begin = 0) {
  const moments = new Map();
  return lines.map(line => {
    const name = line.of ?? line.trainer;
    if (!moments.has(name)) moments.set(name, momentsOf(timeline, name));
    const when = moments.get(name);
    const points = line.points.flatMap(point => {
      const t = when(point.x);
      return t == null ? [] : [{ ...point, x: t - begin }];
    });
    return { ...line, points };
  }).filter(line => line.points.length);
}
