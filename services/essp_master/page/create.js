// The form for a new job in YAML. It is validated while the user types, with the same checks as at its start.

import { ask } from "./api.js";
import { el } from "./dom.js";
import { DEFAULTS, fieldsForm, jobText, partsOf } from "./fields.js";
import { counted } from "./words.js";

const PAUSE_MS = 500; // pause after the last keystroke before it is validated
const AGAIN_MS = 5000; // retry while the master cannot answer
const DRAFT = "draft";

/** The line (from 0) of a field like `trainers.rgb.batch_size` in a YAML text, or of the nearest section above it; -1 if there is neither. */
export function lineOf(text, field) {
  const all = text.split("\n");
  let found = -1, depth = -1;
  for (const part of partsOf(field) ?? []) {
    const start = new RegExp(`^(\\s*(?:- )?)(["']?)${part.replace(/[^\w]/g, "\\$&")}\\2\\s*:`);
    let at = -1;
    for (let k = found + 1; k < all.length && at < 0; k++) {
      if (!all[k].trim() || all[k].trim().startsWith("#")) continue;
      const indent = all[k].search(/\S/);
      if (indent <= depth) break;
      if (start.test(all[k])) at = k;
    }
    if (at < 0) return found;
    found = at;
    depth = all[at].search(/\S/);
  }
  return found;
}

/** The page, which updates itself. `open`: shows a job. */
export function drawCreate(open) {
  const text = el("textarea", { id: "job", rows: "32", spellcheck: "false", autocomplete: "off", wrap: "off", "aria-describedby": "verdict" });
  const verdict = el("div", { id: "verdict", class: "verdict", role: "status", "aria-live": "polite" });
  const start = el("button", { type: "submit", disabled: true }, "Start");
  const fresh = el("input", { type: "checkbox" }), file = el("input", { type: "file", accept: ".yaml,.yml,.json" });
  const edited = el("p", { class: "note", hidden: true }, "You have edited the text below. ", el("button", { type: "button", class: "chip", onclick: () => write(true) }, "Replace it with the text for these fields"));
  let waiting = 0, round = 0, fields = DEFAULTS, written = jobText(DEFAULTS);

  async function check() {
    const mine = ++round;
    start.disabled = true;
    verdict.replaceChildren(el("p", { class: "note", "aria-busy": "true" }, "Checking ..."));
    try {
      const found = await ask(`v1/jobs:validate?fresh=${fresh.checked}`, { method: "POST", body: text.value });
      if (mine !== round) return;
      start.disabled = false;
      verdict.replaceChildren(el("p", { class: "right" }, `Ready to start: ${found.name}, ${counted(found.clips, "clip")} in total${found.trainers.length ? `, trainers ${found.trainers.join(", ")}` : ""}.`),
        ...found.removes ? [el("p", { class: "warning" }, `Note: starting removes ${counted(found.removes.objects, "object")} of job ${found.removes.job} from this output, and keeps ${counted(found.removes.kept.length, "other file")}.`)] : [],
        ...found.warnings.map(warning => el("p", { class: "warning" }, `Note: ${warning}`)));
    } catch (error) {
      if (mine !== round) return;
      verdict.replaceChildren(...wrong(error));
      if (!error.status || error.status === 503) waiting = setTimeout(() => text.isConnected && check(), AGAIN_MS);
    }
  }

  function wrong(error) {
    if (!error.errors?.length) return [el("p", { class: "wrong" }, error.message)];
    return [el("p", {}, `${counted(error.errors.length, "error")} to fix:`), el("ul", {}, error.errors.map(({ field, detail }) => {
      const line = lineOf(text.value, field);
      return el("li", { class: "wrong" }, line < 0 ? null : [el("button", { type: "button", class: "chip", onclick: () => show(line) }, `line ${line + 1}`), " "], el("b", {}, field), ` ${detail}`);
    }))];
  }

  function show(line) {
    const all = text.value.split("\n"), begin = all.slice(0, line).join("\n").length + (line ? 1 : 0);
    text.focus();
    text.setSelectionRange(begin, begin + all[line].length);
    text.scrollTop = Math.max(0, line - 4) * text.scrollHeight / all.length;
  }

  function soon() {
    sessionStorage.setItem(DRAFT, text.value);
    round++; // the text has changed since this request
    start.disabled = true;
    clearTimeout(waiting);
    waiting = setTimeout(check, PAUSE_MS);
  }

  /** Writes the job that the fields describe, unless the user has edited the text. */
  function write(anew) {
    edited.hidden = anew || text.value === written;
    if (!edited.hidden) return;
    text.value = written = jobText(fields);
    soon();
  }

  async function begin(event) {
    event.preventDefault();
    start.disabled = true;
    try {
      const job = await ask(`v1/jobs?fresh=${fresh.checked}`, { method: "POST", body: text.value });
      sessionStorage.removeItem(DRAFT);
      open(job.name);
    } catch (error) {
      verdict.replaceChildren(...wrong(error));
      start.disabled = false;
    }
  }

  text.value = sessionStorage.getItem(DRAFT) ?? written;
  text.addEventListener("input", soon);
  fresh.addEventListener("change", check);
  file.addEventListener("change", async () => {
    if (!file.files.length) return;
    text.value = await file.files[0].text();
    soon();
  });
  check();
  return [el("form", { "data-own": true, "data-key": "create", class: "create", onsubmit: begin },
    el("div", { class: "head" }, el("h2", {}, "New job"), el("span", { class: "grow" }), el("label", { class: "file" }, "Load a file ", file)),
    fieldsForm(found => { fields = found; write(false); }), edited,
    el("div", { class: "editor" }, el("label", { for: "job", class: "unseen" }, "The job, as YAML"), text, verdict),
    el("div", { class: "head" }, start, el("label", {}, fresh, " start over, and remove the results of earlier runs")))];
}
