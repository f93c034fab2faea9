"""Train on optical flow, computed from the videos while the loop runs; after a kill, it resumes.

python flow.py catalog.parquet
"""

import argparse
from pathlib import Path

import essp
import torch
from torch import nn
from torchvision.models import resnet18

LENGTH = 10  # stacked flow fields: 2 * LENGTH channels, dx and dy of each


def network_input(flow: torch.Tensor) -> torch.Tensor:
    """`(B, 1, H, W, 2 L)` uint8, zero motion at 128 -> `(B, 2 L, H, W)` float32."""
    return (flow[:, 0].permute(0, 3, 1, 2).float() - 128) / 127


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("catalog")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--checkpoint", type=Path, default=Path("flow.pt"))
    options = parser.parse_args()

    flow = {"feature": "flow", "params": {"length": LENGTH}, "clip": essp.Clip(frames=LENGTH + 1, size=options.size)}
    loader = essp.Loader(options.catalog, batch_size=16, **flow)
    validation = essp.Loader(options.catalog, split="validation", batch_size=16, **flow)
    network = resnet18(num_classes=len(loader.classes))
    network.conv1 = nn.Conv2d(2 * LENGTH, 64, 7, stride=2, padding=3, bias=False)
    optimizer = torch.optim.SGD(network.parameters(), 0.01, momentum=0.9)
    if options.checkpoint.exists():
        saved = torch.load(options.checkpoint)
        network.load_state_dict(saved["network"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])

    for epoch in range(loader.epoch, options.epochs):
        network.train()
        for batch in loader:
            loss = nn.functional.cross_entropy(network(network_input(batch.frames)), batch.labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        state = {"network": network.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
        torch.save(state, options.checkpoint.with_suffix(".new"))
        options.checkpoint.with_suffix(".new").replace(options.checkpoint)  # a kill leaves the old file or the new one
        network.eval()
        with torch.inference_mode():
            right = [network(network_input(b.frames)).argmax(1) == b.labels for b in validation]
        print(f"epoch {epoch + 1}: loss {loss:.3f}, validation {torch.cat(right).float().mean():.1%}")


if __name__ == "__main__":
    main()
