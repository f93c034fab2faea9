// A form with the usual fields of a job, which writes its YAML, for users who do not know job files yet.

import { el } from "./dom.js";

export const DEFAULTS = {
  name: "my-job", catalog: "s3://essp/catalog.parquet", output: "s3://essp/runs/my-job",
  epochs: 10, streams: ["rgb", "flow"], model: "small", frames: 11, side: 84, batch: 32, rate: 0.01,
};
const MODELS = ["small", "resnet18", "resnet50", "mobilenet_v3_small", "r3d_18", "r2plus1d_18", "s3d", "mvit_v2_s", "swin3d_t"];
const CLIP_MODELS = /3d|2plus1d|mc3|mvit/;
const WORDS = new Set(["true", "false", "null", "yes", "no", "on", "off", "y", "n"]);

const NAME = /"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"|[^\s".=:]+/g;

/** The names in a field path such as `trainers.a.optimizer.layers."layer1.0"`, as in `essp_common/field_paths.py`; null if it is not a path. */
export function partsOf(place) {
  const names = place.match(NAME) ?? [];
  return names.length && names.join(".") === place ? names.map(name => (name.startsWith('"') ? JSON.parse(name) : name)) : null;
}

/** A text as a YAML value, quoted where YAML would read something else. */
export const quoted = text => (/^[A-Za-z][\w./:-]*$/.test(text) && !text.endsWith(":") && !WORDS.has(text.toLowerCase()) ? text : JSON.stringify(text));

/** The short side to which frames are scaled for crops of this side. */
const scaled = side => Math.round(side * 8 / 7);

/** The job as YAML. */
export function jobText({ name, catalog, output, epochs, streams, model, frames, side, batch, rate }) {
  const params = { rgb: CLIP_MODELS.test(model) ? `{frames: ${frames}}` : "{frames: 1}", flow: `{method: dis, length: ${frames - 1}}` };
  const trainers = streams.map(stream => `  ${stream}:
    stream: ${stream}
    model: ${quoted(model)}
    batch_size: ${batch}
    optimizer: {lr: ${rate}}
    augment: {crop: ${side}}
`);
  return `name: ${quoted(name)}
output: ${quoted(output)} # checkpoints, model and report go below this
epochs: ${epochs}

data:
  catalog: ${quoted(catalog)} # made by: essp catalog build

clip:
  frames: ${frames}
  resize: {mode: crop, height: ${scaled(side)}, width: ${scaled(side)}}

streams:
${streams.map(stream => `  ${stream}: {feature: ${stream}, params: ${params[stream]}}\n`).join("")}
trainers:
${trainers.join("")}`;
}

/** The form. `changed` is called with its fields. */
export function fieldsForm(changed) {
  const inputs = {
    name: text("Name", { required: true }), catalog: text("Catalog, written by essp catalog build", { required: true }),
    output: text("Output: folder for checkpoints, model and report", { required: true }),
    model: text("Network", { required: true, list: "models" }), epochs: whole("Epochs", 1), frames: whole("Frames per clip", 2),
    side: whole("Side of the training crop, pixels", 16), batch: whole("Clips per batch", 1),
    rate: el("input", { type: "number", step: "any", min: 0, value: DEFAULTS.rate, "aria-label": "Learning rate" }),
  };
  for (const [name, input] of Object.entries(inputs)) input.value = DEFAULTS[name];
  const streams = ["rgb", "flow"].map(name => el("input", { type: "checkbox", checked: true, value: name }));
  const told = () => changed({
    ...Object.fromEntries(Object.entries(inputs).map(([name, input]) => [name, input.type === "number" ? input.valueAsNumber || input.min : input.value])),
    streams: streams.filter(box => box.checked).map(box => box.value),
  });
  return el("details", { class: "fields" }, el("summary", {}, "Fill in the usual fields"),
    el("div", { oninput: told }, Object.values(inputs).map(input => el("label", {}, input.getAttribute("aria-label"), input)),
      el("fieldset", {}, el("legend", {}, "Streams"), streams.map((box, k) => el("label", {}, box, [" frames (rgb)", " motion (optical flow)"][k])))),
    el("datalist", { id: "models" }, MODELS.map(model => el("option", { value: model }))));
}

const text = (label, more) => el("input", { type: "text", "aria-label": label, autocomplete: "off", spellcheck: "false", ...more });
const whole = (label, min) => el("input", { type: "number", min, step: 1, "aria-label": label, required: true });
