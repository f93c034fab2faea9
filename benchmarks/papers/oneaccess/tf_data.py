"""Epochs of tf.data over images, in the Python of an environment with TensorFlow, which need not have ESSP.

    python tf_data.py tfrecord PIXELS.npy FILE.tfrecord BATCH    # 32x32 pixels, in batches; the file is made if missing
    python tf_data.py jpeg FOLDER 32 BATCH                       # JPEG files, decoded and cropped to this side

Prints JSON: seconds and processor seconds of an epoch, batches, and TensorFlow's version. Files are shuffled whole;
TFRecords in a buffer of 1,000, as webdataset here. All that can be done in parallel is (`AUTOTUNE`).
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import numpy as np
import tensorflow as tf

_SHUFFLED = 1000


def main(kind: str, source: str, place: str, batch: str) -> None:
    """Measure one epoch, after a batch that warms up."""
    made = tfrecords if kind == "tfrecord" else files
    for _ in made(source, place, int(batch)).take(1):
        pass
    began, cpu = time.perf_counter(), _cpu_s()
    batches = sum(1 for _ in made(source, place, int(batch)))
    took = {"s": time.perf_counter() - began, "cpu_s": _cpu_s() - cpu}
    print(json.dumps(took | {"batches": batches, "version": tf.__version__}))


def tfrecords(pixels: str, file: str, batch: int) -> Any:
    """Batches of images (B, 32, 32, 3) uint8 and labels from a TFRecord file of their pixels."""
    if not Path(file).exists():
        with tf.io.TFRecordWriter(f"{file}.partial") as writer:
            for number, image in enumerate(np.load(pixels)):
                data = tf.train.Feature(bytes_list=tf.train.BytesList(value=[image.tobytes()]))
                label = tf.train.Feature(int64_list=tf.train.Int64List(value=[number % 10]))
                features = tf.train.Features(feature={"image": data, "label": label})
                writer.write(tf.train.Example(features=features).SerializeToString())
        Path(f"{file}.partial").rename(file)
    wanted = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}

    def read(examples: Any) -> tuple[Any, Any]:
        found = tf.io.parse_example(examples, wanted)
        return tf.reshape(tf.io.decode_raw(found["image"], tf.uint8), [-1, 32, 32, 3]), found["label"]

    rows = tf.data.TFRecordDataset(file).shuffle(_SHUFFLED).batch(batch)
    return rows.map(read, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def files(folder: str, side: str, batch: int) -> Any:
    """Batches (B, side, side, 3) uint8 from JPEG files, scaled (bilinear) to cover the square, the centre cropped."""
    paths = sorted(map(str, Path(folder).glob("*.jpg")))
    wanted = int(side)

    def read(path: Any) -> Any:
        image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
        height, width = tf.shape(image)[0], tf.shape(image)[1]
        if height == wanted and width == wanted:
            return image
        least = tf.minimum(height, width)
        size = tf.stack([height * wanted // least, width * wanted // least])
        scaled = tf.image.resize_with_crop_or_pad(tf.image.resize(image, size), wanted, wanted)
        return tf.cast(tf.clip_by_value(scaled, 0, 255), tf.uint8)

    names = tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths))
    return names.map(read, num_parallel_calls=tf.data.AUTOTUNE).batch(batch).prefetch(tf.data.AUTOTUNE)


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main(*sys.argv[1:])
