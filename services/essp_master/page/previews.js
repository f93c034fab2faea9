// Previews of a job's streams: pictures of clips that wait for their consumers.
//
// They are loaded separately, so that a slow frame cache never delays the page, and only while they are open.

import { Refused, ask, jobPath } from "./api.js";
import { el, redraw } from "./dom.js";
import { count, counted, phaseTitle } from "./words.js";

const LOOK_MS = 4000;
const MOST = 8; // streams
const seen = { job: "", at: 0, asking: false, open: true, streams: new Map() };

/** Loads the previews of a job, unless that has just been done. */
export async function lookAtStreams(job, now = Date.now()) {
  if (seen.job !== job.name) forget(job.name);
  if (!shows(job) || !seen.open || seen.asking || now - seen.at < LOOK_MS) return;
  seen.asking = true;
  try {
    for (const stream of Object.keys(job.streams).slice(0, MOST)) {
      const found = await looked(job.name, stream);
      if (seen.job !== job.name) return;
      const old = seen.streams.get(stream);
      seen.streams.set(stream, found.preview ? found : { ...old, words: found.words });
      redraw();
      if (old?.url && found.url) URL.revokeObjectURL(old.url);
    }
  } finally {
    seen.asking = false;
    seen.at = Date.now();
  }
}

/** The section of the page; null for a job that has ended. */
export function drawPreviews(job) {
  if (!shows(job)) return null;
  const streams = Object.keys(job.streams).slice(0, MOST);
  return el("details", { class: "card", "data-key": "previews", open: seen.open, ontoggle: toggled },
    el("summary", {}, "Preview of the streams"),
    el("div", { class: "previews" }, streams.map(stream => figure(stream, job.streams[stream], seen.streams.get(stream)))));
}

/** The caption of a preview. */
export function previewWords(preview) {
  const what = preview.shown < preview.pictures ? `${preview.shown} of ${counted(preview.pictures, "picture")}` : counted(preview.pictures, "picture");
  const of = preview.class_name ? `${preview.video} (${preview.class_name})` : preview.video;
  return `${phaseTitle(preview.purpose, preview.epoch)}, clip ${count(preview.index + 1)}: ${of}, from frame ${count(preview.first_frame)} on; ${what} of ${preview.width} x ${preview.height} pixels${preview.caption ? `; ${preview.caption}` : ""}`;
}

const shows = job => ["running", "paused"].includes(job.state);

function figure(stream, feature, found) {
  const title = stream === feature ? stream : `${stream} (${feature})`;
  if (!found?.url) return el("figure", { "data-key": stream }, el("figcaption", {}, el("b", {}, title), " ", el("span", { class: "note" }, found?.words || "Loading ...")));
  const words = previewWords(found.preview);
  return el("figure", { "data-key": `${stream} picture` },
    el("figcaption", {}, el("b", {}, title), " ", el("span", { class: "note" }, words)), el("img", { src: found.url, alt: `${title}: ${words}` }));
}

async function looked(name, stream) {
  try {
    const preview = await ask(jobPath(name, `/streams/${encodeURIComponent(stream)}/preview`));
    const bytes = Uint8Array.from(atob(preview.jpeg), character => character.charCodeAt(0));
    return { preview, url: URL.createObjectURL(new Blob([bytes], { type: "image/jpeg" })), words: "" };
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    return { words: error.message };
  }
}

function toggled(event) {
  seen.open = event.target.open;
}

function forget(name) {
  for (const { url } of seen.streams.values()) if (url) URL.revokeObjectURL(url);
  Object.assign(seen, { job: name, at: 0, streams: new Map() });
}
