"""Write features to files, for your own program: an array per video, with the columns of the catalog.

python export_features.py catalog.parquet features --feature hog
"""

import argparse
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import essp
import numpy as np


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("catalog")
    parser.add_argument("out", type=Path)
    parser.add_argument("--feature", default="hog", choices=essp.features())
    parser.add_argument("--frames", type=int, default=16, help="from the beginning of each video")
    parser.add_argument("--short-side", type=int, default=128)
    options = parser.parse_args()

    def export(number: int, row: essp.VideoRow) -> str:
        try:
            clip = essp.decode(row, frames=options.frames, short_side=options.short_side)
            feature = essp.compute_feature(clip, options.feature)
        except essp.BadVideo as error:
            return f"{row.id}: {error}"
        file = options.out / f"{number:06}.npz"
        np.savez(file, feature=feature, video=row.id, split=row.split, label=row.class_name)
        return f"{file.name}: {row.id}, {feature.dtype} {feature.shape}"

    options.out.mkdir(parents=True, exist_ok=True)
    rows = essp.open_catalog(options.catalog).rows
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for line in pool.map(export, range(len(rows)), rows):
            print(line)


if __name__ == "__main__":
    main()
