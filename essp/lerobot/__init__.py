"""LeRobot's data sets, read by ESSP: `essp.lerobot.LeRobotDataset` replaces LeRobot's own class.

    from essp.lerobot import LeRobotDataset  # instead of: from lerobot.datasets.lerobot_dataset import LeRobotDataset

    steps = {"observation.images.top": [-0.1, 0], "action": [k / 30 for k in range(16)]}
    data = LeRobotDataset("org/pick_cube", root="data/pick_cube", delta_timestamps=steps)
    loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True, num_workers=4)

The package `lerobot` is not needed. docs/robots.md has more.
"""

from __future__ import annotations

from essp_common.distribution import needs_extra

with needs_extra("essp.lerobot"):
    from essp.lerobot.dataset import LeRobotDataset, collate
    from essp.lerobot.depth import Distances
    from essp.lerobot.metadata import Episodes, Metadata
    from essp.lerobot.stream import Stream

__all__ = ["Distances", "Episodes", "LeRobotDataset", "Metadata", "Stream", "collate"]
