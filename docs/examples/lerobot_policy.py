"""Imitate a robot from a LeRobot data set, as it lies: `essp.lerobot.LeRobotDataset` instead of LeRobot's own class.

    python lerobot_policy.py data/aloha

Batches come from `stream`, which decodes each frame about once an epoch. After a kill, the program resumes with the
very next batch.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from essp.lerobot import LeRobotDataset
from torch import nn


class Policy(nn.Module):
    """Pictures of all cameras and a state in, the next actions out."""

    def __init__(self, cameras: int, state: int, action: int, horizon: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in ((3, 32), (32, 64), (64, 128)):
            layers += [nn.Conv2d(before, after, 5, stride=4, padding=2), nn.ReLU()]
        self.eyes = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.head = nn.Sequential(nn.Linear(cameras * 512 + state, 256), nn.ReLU(), nn.Linear(256, horizon * action))
        self.horizon = horizon

    def forward(self, pictures: list[torch.Tensor], state: torch.Tensor) -> torch.Tensor:
        """`(B, 3, H, W)` of each camera and `(B, N)` -> `(B, horizon, M)`."""
        seen = [self.eyes(of) for of in pictures]
        found: torch.Tensor = self.head(torch.cat([*seen, state], dim=1))
        return found.unflatten(1, (self.horizon, -1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", help="a folder, or a URI such as s3://bucket/aloha")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--horizon", type=int, default=16, help="actions that are foretold")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--checkpoint", type=Path, default=Path("lerobot_policy.pt"))
    options = parser.parse_args()

    facts = LeRobotDataset("mine", root=options.root)
    steps = {"action": [step / facts.fps for step in range(options.horizon)]}
    data = LeRobotDataset("mine", root=options.root, delta_timestamps=steps)
    stream = data.stream(batch_size=options.batch_size)  # clips_per_visit=1 would be a global shuffle

    device = "cuda" if torch.cuda.is_available() else "cpu"
    state, action = data.features["observation.state"]["shape"][0], data.features["action"]["shape"][0]
    policy = Policy(len(data.camera_keys), state, action, options.horizon).to(device)
    optimizer = torch.optim.AdamW(policy.parameters(), 1e-4)
    if options.checkpoint.exists():
        saved = torch.load(options.checkpoint, map_location=device, weights_only=True)
        policy.load_state_dict(saved["policy"])
        optimizer.load_state_dict(saved["optimizer"])
        stream.load_state_dict(saved["stream"])

    for epoch in range(stream.epoch, options.epochs):
        for step, batch in enumerate(stream):
            pictures = [batch[camera].to(device) for camera in data.camera_keys]
            foretold = policy(pictures, batch["observation.state"].to(device))
            errors = nn.functional.smooth_l1_loss(foretold, batch["action"].to(device), reduction="none")
            loss = errors[~batch["action_is_pad"].to(device)].mean()  # past the end, the last action is repeated
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 100 == 99:
                save(options.checkpoint, policy, optimizer, stream.state_dict())
        save(options.checkpoint, policy, optimizer, stream.state_dict())
        print(f"epoch {epoch + 1}: loss {loss.item():.4f}")


def save(path: Path, policy: nn.Module, optimizer: torch.optim.Optimizer, stream: dict[str, int]) -> None:
    """Weights and position, together; a kill leaves the old file or the new one."""
    state = {"policy": policy.state_dict(), "optimizer": optimizer.state_dict(), "stream": stream}
    torch.save(state, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


if __name__ == "__main__":
    main()
