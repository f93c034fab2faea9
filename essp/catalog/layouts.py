"""All supported layouts of data sets, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Mapping

from essp.catalog.action_sets import CCV, HMDB51, HOLLYWOOD2, KTH, TWO_LEVEL
from essp.catalog.folder_source import FOLDERS, UCF101
from essp.catalog.foreign_lists import KINETICS
from essp.catalog.hugging_face import PARQUET_OR_ARROW
from essp.catalog.json_lists import ACTIVITYNET, SOMETHING
from essp.catalog.layout import Kind, Layout
from essp.catalog.lerobot import LEROBOT
from essp.catalog.mcap import MCAP
from essp.catalog.mmaction2 import MMACTION2
from essp.catalog.shards import WEBDATASET
from essp.catalog.video_folder import VIDEO_FOLDER

_ALL = (
    LEROBOT,
    KINETICS,
    ACTIVITYNET,
    SOMETHING,
    WEBDATASET,
    MCAP,
    VIDEO_FOLDER,
    PARQUET_OR_ARROW,
    UCF101,
    HMDB51,
    HOLLYWOOD2,
    CCV,
    KTH,
    MMACTION2,
    TWO_LEVEL,
    FOLDERS,
)
LAYOUTS: Mapping[Kind, Layout] = {layout.name: layout for layout in _ALL}
