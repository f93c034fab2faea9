"""Distances: from the codes of a depth video to millimetres or metres, as the data set says."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch

from essp_common.errors import ConfigError

Unit = Literal["m", "mm"]
_MM = 1000.0
_MOST_CODE = 4095
"""Codes have 12 bits."""
_MOST_MM = 65535
_DEFAULTS = {"depth_min": 0.01, "depth_max": 10.0, "shift": 3.5, "use_log": True}
"""LeRobot's, in metres, for what a data set does not say."""


class Distances:
    """The distances of one depth camera.

    distances = essp.lerobot.Distances(dataset.features["observation.images.depth"], "m")
    distances.of_codes(batch.frames["observation.images.depth"])  # of an essp.Loader with clips of gray16
    """

    def __init__(self, feature: Mapping[str, Any], unit: Unit | None = None) -> None:
        """feature: what the data set says about the camera (`LeRobotDataset.features`).
        unit: `m` or `mm`: float32 in this unit, as LeRobot gives it. None: uint16, in millimetres if the data set says
            what its codes mean; otherwise the codes themselves.

        Raises `ConfigError` for a data set that says it wrongly.
        """
        info = {**(feature.get("video_info") or {}), **(feature.get("info") or {})}
        said = {name.rpartition(".")[2]: value for name, value in info.items() if value is not None}
        self.unit = unit
        self.stored_unit: Unit | None = said.get("depth_unit")
        self.known = bool(_DEFAULTS.keys() & said.keys())
        """Whether the data set says what codes mean."""
        self._table: torch.Tensor | None = None
        if unit is not None or self.known:
            self._table = _table({**_DEFAULTS, **said}, unit or "mm")
            if unit is None:
                self._table = self._table.to(torch.uint16)

    def of_codes(self, codes: torch.Tensor) -> torch.Tensor:
        """Distances from the codes of a video, integers of any shape."""
        if self._table is None:
            return codes.clone()
        return self._table[codes.to(torch.int64)]

    def of_picture(self, values: np.ndarray[Any, Any]) -> torch.Tensor:
        """`(1, H, W)` distances from a picture in the tables, whose values are in the data set's unit."""
        found = torch.from_numpy(np.array(values, np.float32))[None]
        wanted = self.unit or ("mm" if self.stored_unit else None)
        if self.stored_unit and wanted != self.stored_unit:
            found = found * _MM if self.stored_unit == "m" else found / _MM
        return found if self.unit is not None else found.round().clamp(0, _MOST_MM).to(torch.uint16)


def _table(said: Mapping[str, Any], unit: Unit) -> torch.Tensor:
    """`(65536,)` float32: the distance for each code, rounded to whole millimetres."""
    try:
        least, most, shift = (float(said[name]) for name in ("depth_min", "depth_max", "shift"))
        begin, end = (least, most)
        if said["use_log"]:
            begin, end = math.log(least + shift), math.log(most + shift)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"depth_min, depth_max and shift of a depth camera are not usable ({error})") from error
    codes = torch.arange(1 << 16, dtype=torch.float32)
    metres = codes.mul_((end - begin) / _MOST_CODE).add_(begin)
    if said["use_log"]:
        metres = metres.exp_().sub_(shift)
    metres = metres.clamp_(least, most)
    return metres if unit == "m" else metres.mul_(_MM).round_().clamp_(0.0, _MOST_MM)
