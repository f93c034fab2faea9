"""The jobs of the demonstration, as files that a user would write: one that trains, one that classifies."""

from __future__ import annotations

import json

MARKS = ("# The demonstration's job: ", "# Classifies the videos that no training has seen, ")
"""The first lines of the two files."""
TEMPLATE = """\
# The demonstration's job: two streams, each of which sees only half of what tells the classes apart.
name: demo
output: {output}
epochs: {epochs}

data:
  catalog: {catalog}

clip:
  frames: 6                     # a flow stack of 5 needs 6
  resize: {{mode: crop, height: 128, width: 128}}

sampling:
  kind: class_balanced
  seed: 0
  clips_per_epoch: {clips_per_epoch}
  clips_per_video: 2

streams:
  rgb: {{feature: rgb}}
  flow: {{feature: flow, params: {{method: dis, length: 5}}}}

trainers:
  rgb:
    stream: rgb
    model: small
    batch_size: 16
    dropout: 0.2
    optimizer: {{lr: 0.05, steps: {steps}, weight_decay: 0.005}}
    augment: {{crop: 112, scales: [1.0, 0.875], flip: false}}    # left and right are different classes
  flow:
    stream: flow
    model: small
    batch_size: 16
    dropout: 0.2
    optimizer: {{lr: 0.05, steps: {steps}, weight_decay: 0.005}}
    augment: {{crop: 112, scales: [1.0, 0.875], flip: false}}

limits:
  budget: 64MiB
  coupled: true               # all share the same cores: nothing is won by leaving a trainer behind
"""


PREDICTION = """\
# Classifies the videos that no training has seen, with the model that the demonstration's job made. Clip and streams
# are those of the model, which leaves out a stream that the fusion found to be of no use.
name: demo-predict
output: {output}

data:
  catalog: {catalog}

sampling:
  kind: uniform
  clips_per_video: 2

predictor:
  model: {model}

limits:
  budget: 64MiB
"""


def job_text(root: str, epochs: int, clips_per_epoch: int) -> str:
    """The training job for the set at the URI `root`."""
    steps = [max(1, epochs // 2), max(1, epochs * 3 // 4)]
    return TEMPLATE.format(
        output=_quoted(f"{root}/run"),
        catalog=_quoted(f"{root}/catalog.parquet"),
        epochs=epochs,
        clips_per_epoch=clips_per_epoch,
        steps=steps,
    )


def prediction_text(root: str) -> str:
    """The prediction job for the set at the URI `root`."""
    return PREDICTION.format(
        output=_quoted(f"{root}/predict"),
        catalog=_quoted(f"{root}/unseen.parquet"),
        model=_quoted(f"{root}/run/model"),
    )


def _quoted(uri: str) -> str:
    """The URI quoted for YAML, because folder names may contain `: `."""
    return json.dumps(uri, ensure_ascii=False)
