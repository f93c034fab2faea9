"""A linear probe: a frozen network computes features of each clip once, and a linear layer is trained on them.

python linear_probe.py catalog.parquet
"""

import argparse

import essp
import torch
from torch import nn
from torchvision.models import mobilenet_v3_small


def described(loader: essp.Loader, backbone: nn.Module, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """One epoch of clips: `(N, D)` float32, the mean over frames and positions, and `(N,)` labels."""
    rows, labels = [], []
    with torch.inference_mode():
        for batch in loader:
            pictures = batch.frames.to(device).flatten(0, 1).permute(0, 3, 1, 2) / 127.5 - 1
            maps = backbone(pictures).mean((2, 3))
            rows.append(maps.unflatten(0, batch.frames.shape[:2]).mean(1).cpu())
            labels.append(batch.labels)
    return torch.cat(rows), torch.cat(labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("catalog")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--clips", type=int, help="training clips that are described; default: one for each video")
    parser.add_argument("--steps", type=int, default=500)
    options = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    clips = {"catalog": options.catalog, "clip": essp.Clip(frames=8, stride=4, size=options.size), "batch_size": 16}
    sampling = essp.Sampling(kind="pooled", clips_per_visit=4, clips_per_epoch=options.clips)
    train = essp.Loader(**clips, sampling=sampling, device=device)
    validation = essp.Loader(**clips, split="validation", device=device)
    backbone = mobilenet_v3_small().features.to(device).eval()  # weights="DEFAULT" for ImageNet weights
    rows, labels = described(train, backbone, device)
    mean, std = rows.mean(0), rows.std(0) + 1e-6

    probe = nn.Linear(rows.shape[1], len(train.classes))
    optimizer = torch.optim.AdamW(probe.parameters(), 1e-2)
    for _ in range(options.steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(probe((rows - mean) / std), labels)
        loss.backward()
        optimizer.step()

    rows, labels = described(validation, backbone, device)
    right = (probe((rows - mean) / std).argmax(1) == labels).float().mean()
    print(f"validation {right:.1%} of {len(labels)} clips, loss of training {loss:.3f}")


if __name__ == "__main__":
    main()
