// What the workers of each pool do and use: cores, memory, disk, GPUs.

import { ask } from "./api.js";
import { el, table } from "./dom.js";
import { UNKNOWN, count, number, percent, size } from "./words.js";

const LOW = 0.05; // share of a disk below which little is left
export const ONE_PROCESS = "one process";

export const loadUsage = () => ask("v1/usage");

/** Whether a pool works for a job: its trainers, the extractors of its features, and pools that all jobs share. */
export function worksFor(pool, job) {
  if (pool.startsWith("trainer.")) return job.trainers.some(({ name }) => pool === `trainer.${job.name}.${name}`);
  const made = pool.startsWith("extractor.") ? pool.slice("extractor.".length).split("+") : null;
  return made ? Object.values(job.streams).some(feature => made.includes(feature)) : true;
}

/** `1.5 of 4`. */
const cores = pool => (pool.cores == null ? UNKNOWN : `${number(pool.cpu_cores)} of ${Number(pool.cores.toFixed(1))}`);

/** The table of pools, without columns that have no values. */
export function usageTable(usage, job = null) {
  const pools = usage.pools.filter(pool => !job || worksFor(pool.pool, job));
  const disks = new Map(usage.processes.flatMap(process => (process.disk_bytes && process.disk_free_bytes < LOW * process.disk_bytes ? process.pools.map(pool => [pool, true]) : [])));
  const columns = [
    ["pool", pool => pool.pool], ["up", pool => count(pool.workers)], ["busy", pool => percent(pool.busy, 0)], ["clips/s", pool => number(pool.clips_per_s)], ["queued", pool => count(pool.queue)],
    ["cores", cores], ["memory", pool => size(pool.memory_bytes)],
    ["disk free", pool => (pool.disk_free_bytes == null ? UNKNOWN : el("span", { class: disks.has(pool.pool) ? "wrong" : null }, size(pool.disk_free_bytes)))],
    ["GPUs", pool => (pool.gpus ? count(pool.gpus) : UNKNOWN)], ["GPU busy", pool => percent(pool.gpu_busy, 0)],
    ["GPU memory", pool => (pool.gpu_memory_bytes == null ? UNKNOWN : `${size(pool.gpu_memory_bytes)} of ${size(pool.gpu_memory_limit_bytes)}`)], ["power", pool => (pool.gpu_watts == null ? UNKNOWN : `${number(pool.gpu_watts, 0)} W`)],
  ].map(([head, cell]) => [head, pools.map(cell)]).filter(([, cells]) => cells.some(cell => cell !== UNKNOWN));
  if (!pools.length) return el("p", { class: "empty" }, "No worker reports what it uses.");
  return table("usage of pools", columns.map(([head]) => head), pools.map((_, k) => columns.map(([, cells]) => cells[k])), [0], pools.map(pool => pool.pool));
}
