"""Whole videos as a few frames with their times, as a vision-language model takes them, whatever their frame rates.

python frames_at_a_rate.py catalog.parquet --every-s 1 --max-frames 16
"""

import argparse
from pathlib import Path

import essp


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("catalog")
    parser.add_argument("--every-s", type=float, default=1.0)
    parser.add_argument("--max-frames", type=int, default=16)
    parser.add_argument("--size", type=int, default=224)
    options = parser.parse_args()

    clip = essp.Clip(every_s=options.every_s, max_frames=options.max_frames, size=options.size)
    each_once = essp.Sampling(kind="uniform")
    with essp.Loader(options.catalog, clip=clip, batch_size=4, sampling=each_once, validation_fraction=0) as loader:
        for batch in loader:
            for video, frames, times_s in zip(batch.meta["video"], batch.frames, batch.meta["times_s"], strict=True):
                distinct = len(set(times_s))  # of a short video, the last frame is repeated
                shown = ", ".join(f"{second:.2f}" for second in times_s[:distinct])
                print(f"{video}: {tuple(frames[:distinct].shape)} at {shown} s")

    row = essp.open_catalog(options.catalog).rows[0]
    data = Path(row.uri.removeprefix("file://")).read_bytes()
    middle_s = row.start_s + row.duration_s / 2
    print(f"in the middle of {row.id}: {essp.decode(data, at_s=middle_s).shape}")


if __name__ == "__main__":
    main()
