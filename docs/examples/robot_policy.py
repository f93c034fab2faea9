"""Imitate a robot from its data set: predict its next actions from cameras and state; after a kill, it resumes.

essp catalog build lerobot://data/aloha --out aloha.parquet
python robot_policy.py aloha.parquet observation.images.top observation.images.wrist

essp catalog build runs/ --out runs.parquet  # MCAP recordings
python robot_policy.py runs.parquet /top/image /wrist/image --state /arm/state.position --action /arm/command.position
"""

import argparse
from pathlib import Path
from typing import Any

import essp
import torch
from torch import nn


class Policy(nn.Module):
    """The next actions, `(B, horizon, action)`, from pictures `(B, cameras, H, W, 3)` uint8 and states `(B, state)`."""

    def __init__(self, cameras: int, state: int, action: int, horizon: int) -> None:
        super().__init__()
        self.eyes = nn.Sequential(
            nn.Conv2d(3, 32, 5, stride=3), nn.ReLU(), nn.Conv2d(32, 64, 5, stride=3), nn.ReLU(), nn.AdaptiveAvgPool2d(4)
        )
        self.head = nn.Sequential(
            nn.Linear(cameras * 64 * 16 + state, 256), nn.ReLU(), nn.Linear(256, horizon * action)
        )
        self.horizon = horizon

    def forward(self, pictures: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        seen = self.eyes(pictures.flatten(0, 1).permute(0, 3, 1, 2) / 127.5 - 1)
        features = torch.cat([seen.flatten(1).unflatten(0, pictures.shape[:2]).flatten(1), states], dim=1)
        return self.head(features).unflatten(1, (self.horizon, -1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("catalog")
    parser.add_argument("cameras", nargs="+", help="views of the catalog")
    parser.add_argument("--state", default="observation.state", help="series of the catalog")
    parser.add_argument("--action", default="action", help="series of the catalog")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--horizon", type=int, default=16, help="actions that are foretold")
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--checkpoint", type=Path, default=Path("robot_policy.pt"))
    options = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    fps = essp.open_catalog(options.catalog).rows[0].fps
    arguments: dict[str, Any] = {
        "clip": dict.fromkeys(options.cameras, essp.Clip(frames=1, size=options.size)),
        "batch_size": options.batch_size,
        # Each frame once per epoch; 32 frames are decoded in one pass, and mixed with those of other episodes.
        "sampling": essp.Sampling(kind="exhaustive", clips_per_visit=32),
        "validation_fraction": 0,
        "targets": essp.Targets(
            series={options.action: [step / fps for step in range(options.horizon)], options.state: [0.0]}
        ),
        "device": device,
    }
    loader = essp.Loader(options.catalog, **arguments)
    with essp.Loader(options.catalog, **arguments | {"batch_size": 1, "device": "cpu"}) as one:
        values = next(iter(one)).targets.values

    state, action = values[options.state].shape[-1], values[options.action].shape[-1]
    policy = Policy(len(options.cameras), state, action, options.horizon).to(device)
    optimizer = torch.optim.AdamW(policy.parameters(), 1e-4)
    if options.checkpoint.exists():
        saved = torch.load(options.checkpoint, map_location=device, weights_only=True)
        policy.load_state_dict(saved["policy"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])

    for epoch in range(loader.epoch, options.epochs):
        for step, batch in enumerate(loader):
            pictures = torch.stack([frames[:, 0] for frames in batch.frames.values()], dim=1)
            targets = batch.targets.to(device)
            foretold = policy(pictures, targets.values[options.state][:, 0].float())
            errors = nn.functional.smooth_l1_loss(foretold, targets.values[options.action].float(), reduction="none")
            inside = ~targets.is_pad[options.action]  # an episode's last frames have fewer actions before them
            loss = errors[inside].mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 100 == 99:
                save(options.checkpoint, policy, optimizer, loader)
        save(options.checkpoint, policy, optimizer, loader)
        print(f"epoch {epoch + 1}: loss {loss.item():.4f}")


def save(path: Path, policy: nn.Module, optimizer: torch.optim.Optimizer, loader: essp.Loader) -> None:
    """Weights and the loop's state, together; a kill leaves the old file or the new one."""
    state = {"policy": policy.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state | {"loader": loader.state_dict()}, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


if __name__ == "__main__":
    main()
