// Scales of charts: tick marks at round values, and their labels.

const MINUTE = 60, HOUR = 3600, DAY = 86400;
const STEPS = [1, 2, 5, 10, 15, 30, MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 30 * DAY];

/** About `wanted` round values that enclose `low` and `high`. */
export function ticks(low, high, wanted = 5) {
  if (!(high > low)) return [low];
  const rough = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find(factor => factor * power >= rough * 0.999);
  const first = Math.floor(low / step + 1e-9), last = Math.ceil(high / step - 1e-9);
  return Array.from({ length: last - first + 1 }, (_, k) => Number(((first + k) * step).toPrecision(12)));
}

/** Ticks of a logarithmic axis that encloses two positive values: powers of ten, with values between them if there are few. */
export function logTicks(low, high) {
  const first = Math.floor(Math.log10(low) + 1e-9), last = Math.ceil(Math.log10(high) - 1e-9);
  const factors = last - first <= 2 ? [1, 2, 5] : [1];
  const all = Array.from({ length: last - first + 1 }, (_, k) => factors.map(factor => factor * 10 ** (first + k))).flat();
  const from = all.filter(value => value <= low * 1.0001).at(-1) ?? all[0], to = all.find(value => value >= high * 0.9999) ?? all.at(-1);
  const kept = all.filter(value => value >= from && value <= to).map(value => Number(value.toPrecision(6)));
  return kept.length > 1 ? kept : [kept[0] / 2, kept[0], kept[0] * 2];
}

/** Round times between two times, in seconds. `offset`: of the time zone. */
export function timeTicks(from, to, wanted, offset = 0) {
  const step = STEPS.find(each => (to - from) / each <= wanted) ?? STEPS.at(-1);
  const found = [];
  for (let at = Math.ceil((from + offset) / step) * step - offset; at <= to; at += step) found.push(at);
  return found;
}

/** The range of values. `cut`: number of outliers far above the others, which are left out because they would flatten the
 * rest. At most one in fifty is an outlier: the largest of a few values may be what a network has learned. */
export function range(values) {
  const sorted = values.filter(Number.isFinite).sort((a, b) => a - b);
  if (!sorted.length) return { low: 0, high: 1, cut: 0 };
  const low = sorted[0], common = sorted[Math.ceil(0.98 * sorted.length) - 1];
  const limit = low + 3 * (common - low || Math.abs(low) || 1);
  const inside = sorted.filter(value => value <= limit);
  return { low, high: inside.at(-1), cut: sorted.length - inside.length };
}

/** The horizontal axis over epochs. */
export const EPOCHS = { kind: "epochs", name: "epochs", tick: String, words: x => `after ${Number(x.toFixed(2))} epochs`, head: "epoch" };
/** The horizontal axis over the time of day. */
export const CLOCK = { kind: "time", name: "time of day", tick: (x, span) => clock(x, span), words: x => clock(x, 0, true), head: "time" };
/** The horizontal axis over the time since a job began. */
export const ELAPSED = { kind: "elapsed", name: "since its start", tick: x => passed(x), words: x => `after ${passed(x)}`, head: "seconds" };

/** `14:05`; with the day if the axis spans days. */
function clock(seconds, span, whole = false) {
  const at = new Date(1000 * seconds), time = at.toLocaleTimeString("en-GB"), day = at.toLocaleDateString("en-CA");
  if (whole) return `${day} ${time}`;
  if (span > 2 * DAY) return day.slice(5);
  return span > DAY ? `${day.slice(8)}. ${time.slice(0, 5)}` : span < 5 * MINUTE ? time : time.slice(0, 5);
}

/** `1:05 h`, `5 min`, `30 s`. */
export function passed(seconds) {
  if (seconds < MINUTE) return `${Math.round(seconds)} s`;
  if (seconds < HOUR) return `${Math.round(seconds / MINUTE)} min`;
  if (seconds < 2 * DAY) return `${Math.floor(seconds / HOUR)}:${String(Math.floor((seconds % HOUR) / MINUTE)).padStart(2, "0")} h`;
  return `${(seconds / DAY).toFixed(1)} d`;
}

/** The points smoothed by an exponential moving average; a `weight` of 0 changes nothing. */
export function smoothed(points, weight) {
  if (!weight) return points;
  let mean = 0, sum = 0;
  return points.map(point => {
    mean = weight * mean + (1 - weight) * point.y;
    sum = weight * sum + 1 - weight;
    return { ...point, y: mean / sum };
  });
}
