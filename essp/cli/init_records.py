"""The job file that `essp init` writes for a data set of records."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import yaml

from essp.uris import beside
from essp_common.errors import BadFrames, ConfigError
from essp_common.job.data_spec import SamplingSpec
from essp_common.job.trainer_spec import PACKAGE, PACKAGED_WEIGHTS
from essp_common.quantities import counted, size
from essp_common.records.reader import RecordReader
from essp_common.records.versions import DataSet
from essp_common.wiring import Stores

TEMPLATE = """\
# An ESSP job. Check it with `essp validate {file}`, run it with `essp run {file}`.
# {records} of {classes}, {bytes}; half of the images sampled are at least {short} pixels high and wide.

name: {name}                  # names the job in messages, cache keys and the API
output: {output}   # checkpoints, model and report go below this folder
epochs: 20

data:
  records: {uri}
{sets}  validation_fraction: 0.15   # set aside from the training records when there is no records_validation
  # versions: {{train: {version}}}      # default: the newest when the job begins, which it then keeps

clip:                         # a record is a clip of one frame
  resize: {{mode: crop, height: {height}, width: {height}}}   # crop | exact; of numbers also none | short_side

sampling:
  kind: exhaustive            # each record once an epoch, in a random order; or class_balanced: class, then record
  clips_per_visit: 1          # records next to each other in a file that are drawn together; more: longer reads
  window: {window}                 # records within which those of a file are read together; fit into limits.budget
  seed: 0                     # the same seed gives the same order, however many workers run

trainers:
  net:
{trainer}
limits:
  budget: {budget}MiB               # clips outstanding at once
  replacements: 5             # class_balanced: records of the same class tried instead of a damaged one
  dead_ratio: 0.2             # the job fails when more of its clips than this could not be decoded
"""
_TRAINER = """\
    stream: rgb
    model: {model}            # small (CPU) or a torchvision name: resnet18, resnet50, densenet121, ...
{weights}    batch_size: 32
    dropout: 0.5
    optimizer: {{lr: 0.01, unit: share, steps: [0.75], gamma: 0.1}}   # a tenth of the rate in the last quarter
    augment: {{crop: {crop}, flip: true}}   # flip: false where left and right are different classes
"""
_LOOKED_AT = 64
"""The number of images whose size is examined."""
SMALL = "small"
_MIB = 2**20
_BUDGET_MIB = 512


def reader_of(uri: str, stores: Stores) -> RecordReader | None:
    """The newest version of the data set of records at a URI; None if there is none."""
    try:
        data_set = DataSet(stores.under(uri))
        return RecordReader(data_set) if data_set.versions() else None
    except ConfigError:
        return None


def records_text(
    reader: RecordReader, uri: str, file: str, name: str, output: str, model: str, sets: Mapping[str, str]
) -> str:
    """The job file: the image size suits the records, and the crop is 7/8 of it. `sets`: further fields of `data`.

    Raises `ConfigError` for records without labels.
    """
    labelled = reader.table[reader.table["label"] >= 0]
    if not len(labelled):
        raise ConfigError(
            f"{uri}: its records have no labels, so there is nothing to train; build it from a folder for each class, "
            "or from a CSV file with the columns path and label (`essp records build`)",
            code="empty",
        )
    short = _short_side(reader)
    height = side_for(model, short)
    window = SamplingSpec.model_fields["window"].default
    room = -(-4 * window * height * height * 3 // _MIB)
    return TEMPLATE.format(
        file=file,
        name=scalar(name),
        output=scalar(beside(output, Path(file).parent)),
        uri=scalar(beside(uri, Path(file).parent)),
        sets="".join(f"  {field}: {scalar(beside(value, Path(file).parent))}\n" for field, value in sets.items()),
        version=reader.number,
        records=counted(len(reader), "record"),
        classes=counted(len(np.unique(labelled["label"])), "class"),
        bytes=size(int(reader.table["length"].sum(dtype=np.int64))),
        short=short,
        height=height,
        trainer=trainer_text(model, height),
        window=window,
        budget=max(_BUDGET_MIB, room),
    )


def scalar(text: str) -> str:
    """The YAML form of a text: quoted if it would be read as a number, a flag or more than a text."""
    return str(yaml.safe_dump(text, width=math.inf, allow_unicode=True)).removesuffix("...\n").rstrip("\n")


def side_for(model: str, short: int) -> int:
    """The side in pixels of the frames for a model, given the short side of the videos in pixels."""
    return (min(short, 128 if model == SMALL else 256) // 16) * 16 or 16


def trainer_text(model: str, side: int) -> str:
    """The settings of a trainer on `rgb`, below its name: all layers of the network learn, on crops of 7/8 of the
    side."""
    weights = f"    weights: {PACKAGE}{model}   # ImageNet\n" if model in PACKAGED_WEIGHTS else ""
    return _TRAINER.format(model=model, weights=weights, crop=max(8, side * 7 // 8))


def _short_side(reader: RecordReader) -> int:
    """The median of the shorter sides of some images, in pixels."""
    places = np.unique(np.linspace(0, len(reader) - 1, min(_LOOKED_AT, len(reader))).astype(np.int64))
    from essp.records.images import image_of  # it loads OpenCV, which catalogs do not need

    found = []
    for read, buffers in reader.read(places):
        for place, data in zip(read.tolist(), buffers, strict=True):
            entry = reader.table[place]
            shape = int(entry["height"]), int(entry["width"]), int(entry["channels"])
            try:
                found.append(min(image_of(data, int(entry["encoding"]), shape).shape[:2]))
            except BadFrames:
                continue
    if not found:
        raise ConfigError(
            "no sampled image can be decoded; `essp records verify` says what is damaged", code="unreadable"
        )
    return int(np.median(found))
