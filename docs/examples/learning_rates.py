"""Eight learning rates on one decode: a linear probe for each, and its validation accuracy.

    python learning_rates.py catalog.parquet

Every probe sees the same clips in the same order, so they differ in nothing but the rate.
"""

import argparse

import essp
import torch
from torch import nn
from torchvision.models import mobilenet_v3_small

RATES = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("catalog")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--size", type=int, default=112)
    options = parser.parse_args()

    clip = essp.Clip(frames=4, stride=4, size=options.size)
    loader = essp.Loader(
        options.catalog, clip=clip, batch_size=16, sampling=essp.Sampling(kind="pooled", clips_per_visit=4)
    )
    validation = essp.Loader(options.catalog, split="validation", clip=clip, batch_size=16)
    backbone = mobilenet_v3_small().features.eval()  # without pretrained weights; load your own

    def describe(frames: torch.Tensor) -> torch.Tensor:
        """`(B, T, H, W, C)` uint8 -> `(B, 576)`: the mean over frames and positions."""
        pictures = frames.flatten(0, 1).permute(0, 3, 1, 2).float() / 127.5 - 1
        with torch.no_grad():
            maps: torch.Tensor = backbone(pictures)
        return maps.mean((2, 3)).unflatten(0, frames.shape[:2]).mean(1)

    probes = {rate: nn.Linear(576, len(loader.classes)) for rate in RATES}
    optimizers = {rate: torch.optim.SGD(probe.parameters(), rate) for rate, probe in probes.items()}
    for _ in range(options.epochs):
        for batch in loader:
            described = describe(batch.frames)  # decoded and computed once
            for rate, probe in probes.items():
                loss = nn.functional.cross_entropy(probe(described), batch.labels)
                optimizers[rate].zero_grad()
                loss.backward()
                optimizers[rate].step()
    right, clips = dict.fromkeys(RATES, 0), 0
    for batch in validation:
        described = describe(batch.frames)
        clips += len(batch)
        for rate, probe in probes.items():
            right[rate] += int((probe(described).argmax(1) == batch.labels).sum())
    for rate in RATES:
        print(f"lr {rate:<6} {right[rate] / clips:.1%} of {clips} validation clips")


if __name__ == "__main__":
    main()
