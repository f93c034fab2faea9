"""Where a data set lies: a folder, a URI, or LeRobot's own folders of this machine."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from essp.api.arguments import name_of, uri_of
from essp.uris import as_uri
from essp_common.errors import ConfigError
from essp_common.objects.port import ObjectStore
from essp_common.runtime.config import Settings
from essp_common.wiring import Stores

_INFO = "meta/info.json"


class _Homes(BaseSettings):
    """Where LeRobot and `huggingface_hub` keep data sets."""

    model_config = SettingsConfigDict(extra="ignore", frozen=True)

    hf_home: Path = Field(Path("~/.cache/huggingface"))
    hf_lerobot_home: Path | None = None

    @property
    def of_lerobot(self) -> Path:
        return (self.hf_lerobot_home or self.hf_home / "lerobot").expanduser()

    @property
    def of_hub(self) -> Path:
        return (self.hf_home / "hub").expanduser()


def root_of(repo_id: object, root: object) -> str:
    """The URI of a data set's folder. Raises `ConfigError` if there is none.

    Without `root`, it is where LeRobot looks: `$HF_LEROBOT_HOME/REPO_ID`, and the newest snapshot in the caches of the
    Hub. Nothing is downloaded.
    """
    name = name_of("repo_id", repo_id)
    if root is not None:
        return uri_of("root", root)
    homes = _Homes()
    cached = f"datasets--{name.replace('/', '--')}/snapshots"
    found = [homes.of_lerobot / name]
    for hub in (homes.of_lerobot / "hub", homes.of_hub):
        snapshots = [path for path in (hub / cached).glob("*") if (path / _INFO).is_file()]
        found += sorted(snapshots, key=lambda path: (path / _INFO).stat().st_mtime, reverse=True)
    for folder in found:
        if (folder / _INFO).is_file():
            return as_uri(str(folder))
    raise ConfigError(
        f"{name} is not on this machine ({found[0]}); run: hf download {name} --repo-type dataset --local-dir FOLDER, "
        "and give root=FOLDER",
        field="root",
        code="not_found",
    )


def store_of(uri: str) -> ObjectStore:
    """The store of a folder. Raises `ConfigError` if it is in no store of ESSP_STORES."""
    return Stores(Settings().stores).under(uri, videos=True)
