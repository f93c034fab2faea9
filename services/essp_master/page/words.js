// Quantities as text. Unknown values are a dash.

export const UNKNOWN = "–";

// Created once: creating one takes longer than using it a hundred times.
const TIME = { hour: "2-digit", minute: "2-digit", second: "2-digit" };
const CLOCK = new Intl.DateTimeFormat("en-GB", TIME), DAY = new Intl.DateTimeFormat("en-CA"), ZONED = new Intl.DateTimeFormat("en-GB", { ...TIME, timeZoneName: "short" }), NUMBER = new Intl.NumberFormat("en");

/** `12.3 %`; only 1 is `100.0 %`, however little is missing, as in `essp_common/quantities.py`. */
export function percent(share, digits = 1) {
  if (share == null) return UNKNOWN;
  const missing = 10 ** -digits, nearly = 100 * share > 100 - missing && share < 1 - 1e-12;
  return `${(nearly ? 100 - missing : 100 * share).toFixed(digits)} %`;
}
export const number = (value, digits = 1) => (value == null ? UNKNOWN : value.toFixed(digits));
export const count = value => (value == null ? UNKNOWN : NUMBER.format(value));

/** Display names of figures. */
export const FIGURES = { top1: "top-1", top5: "top-5", mAP: "mAP" };

/** The figure by which trainers are compared: top-1, or mAP for videos with several labels. */
export const judgedBy = trainers => (trainers.some(({ reports }) => reports.some(({ metrics }) => "mAP" in metrics && !("mean_class" in metrics))) ? "mAP" : "top1");

/** `1 clip`, `2 clips`. */
export const counted = (value, thing) => `${count(value)} ${thing}${value === 1 ? "" : "s"}`;

/** Bytes in the largest binary unit that gives a number of at least one, as in `essp_common/quantities.py`. */
export function size(bytes) {
  if (bytes == null) return UNKNOWN;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let k = 0;
  for (; bytes >= 1024 && k < units.length - 1; k++) bytes /= 1024;
  return `${k === 0 || bytes >= 100 ? bytes.toFixed(0) : bytes.toFixed(1)} ${units[k]}`;
}

/** `40 s`, `12 min`, `3.5 h`, `2.1 d`. */
export function duration(seconds) {
  if (seconds == null) return UNKNOWN;
  if (seconds < 10) return `${Number(seconds.toFixed(1))} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const minutes = seconds / 60;
  if (minutes < 90) return `${Math.round(minutes)} min`;
  return minutes < 48 * 60 ? `${(minutes / 60).toFixed(1)} h` : `${(minutes / 1440).toFixed(1)} d`;
}

/** A time of day, with its date if it is not today. */
export function moment(time) {
  const at = new Date(time);
  const clock = CLOCK.format(at);
  return at.toDateString() === new Date().toDateString() ? clock : `${DAY.format(at)} ${clock}`;
}

/** A date and time with the browser's time zone. */
export const fullMoment = time => `${DAY.format(new Date(time))} ${ZONED.format(new Date(time))}`;

/** `train, epoch 3`, counted from one. */
export const phaseTitle = (purpose, epoch) => (purpose === "train" || purpose === "validation" ? `${purpose}, epoch ${epoch + 1}` : purpose);

/** Display name of a consumer of clips: `trainer rgb`, `predictor rgb`, `loop mine`. */
export function consumerTitle(consumer) {
  const dot = consumer.indexOf(".");
  const kind = consumer.slice(0, dot), name = consumer.slice(dot + 1);
  return `${kind === "consumer" ? "loop" : kind} ${name}`;
}

/** The values of a member of a sweep: `optimizer.lr 0.03, dropout 0.5`. */
export const sweepWords = trainer => Object.entries(trainer.sweep || {}).map(([field, value]) => `${field} ${value}`).join(", ");

/** The fraction of a job that is done. */
export const share = ({ done, total }) => (total ? done / total : 0);
