"""Train on several views of each event, such as two cameras, with a network for each; after a kill, it resumes.

essp catalog build events.csv --out events.parquet      # columns path:left, path:right, label
python two_views.py events.parquet left right
"""

import argparse
from pathlib import Path

import essp
import torch
from torch import nn
from torchvision.models import resnet18


def network_input(frames: torch.Tensor) -> torch.Tensor:
    """`(B, T, H, W, 3)` uint8 -> `(B T, 3, H, W)` float32."""
    return frames.flatten(0, 1).permute(0, 3, 1, 2) / 127.5 - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("catalog")
    parser.add_argument("views", nargs="+", help="views of the catalog")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--checkpoint", type=Path, default=Path("two_views.pt"))
    options = parser.parse_args()

    clips = {view: essp.Clip(frames=4, stride=4, size=options.size) for view in options.views}
    loader = essp.Loader(options.catalog, clip=clips, batch_size=options.batch_size, validation_fraction=0)
    networks = nn.ModuleList(resnet18(num_classes=len(loader.classes)) for _ in loader.views)
    optimizer = torch.optim.SGD(networks.parameters(), 0.01, momentum=0.9)
    if options.checkpoint.exists():
        saved = torch.load(options.checkpoint)
        networks.load_state_dict(saved["networks"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])

    for epoch in range(loader.epoch, options.epochs):
        for batch in loader:
            scores = [
                network(network_input(batch.frames[view])).unflatten(0, (len(batch), -1)).mean(1)
                for view, network in zip(loader.views, networks, strict=True)
            ]
            loss = nn.functional.cross_entropy(sum(scores), batch.labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        state = {"networks": networks.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
        torch.save(state, options.checkpoint.with_suffix(".new"))
        options.checkpoint.with_suffix(".new").replace(options.checkpoint)  # a kill leaves the old file or the new one
        print(f"epoch {epoch + 1}: loss {loss:.3f}")


if __name__ == "__main__":
    main()
