#!/bin/sh
# The last step of an image: put in ESSP itself, take out what only builds need, check what must not be there.
#   VERSION=... finish.sh [without-torch]
set -eu
pip --python /opt/essp/bin/python install --quiet --no-deps --no-index --force-reinstall /essp/*.whl
pip uninstall --quiet --yes --root-user-action=ignore wheel setuptools pip
for tool in cc gcc g++ clang make ld; do
    if command -v "$tool"; then
        echo "a build tool is left in the image" >&2
        exit 1
    fi
done
if [ "${1:-}" = without-torch ] && find / -xdev \( -type d -iname 'torch*' -o -iname 'libtorch*' \) -print | grep .; then
    echo "torch is on disk" >&2
    exit 1
fi
python - <<'CHECK'
import importlib.util

import boto3
import pyarrow.compute
import pyarrow.parquet
import zstandard

boto3.client("s3", region_name="us-east-1")
boto3.client("sts", region_name="us-east-1")
zstandard.decompress(zstandard.compress(b"x"))
pyarrow.parquet.ParquetFile  # `trim.sh` has left what these load
if importlib.util.find_spec("kubernetes"):
    import kubernetes.client
    import kubernetes.config
if importlib.util.find_spec("tensorboard"):
    import tensorboard.compat.proto.event_pb2
    import tensorboard.summary.writer.record_writer
CHECK
if [ "$(essp --version)" != "essp ${VERSION:-}" ]; then
    echo "--build-arg VERSION=${VERSION:-} has to be that of the package, which says: $(essp --version)" >&2
    exit 1
fi
