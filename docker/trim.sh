#!/bin/sh
# Part of each step that installs libraries: takes out what no process of ESSP ever loads, in the very layer that brought
# it. What is taken out is named; `finish.sh` loads what is left.
set -eu
cd /opt/essp/lib/python3*/site-packages
# Arrow: RPC and its own clients of object stores, with what is for compiling against it.
rm -rf pyarrow/libarrow_flight* pyarrow/_flight* pyarrow/_substrait* \
    pyarrow/libarrow_s3* pyarrow/_s3fs* pyarrow/_gcsfs* pyarrow/_azurefs* pyarrow/_hdfs* pyarrow/_orc* \
    pyarrow/include pyarrow/tests pyarrow/src
# Kubernetes: the same client once more, for asyncio.
rm -rf kubernetes/aio
# Zstandard: the backend for other interpreters than CPython.
rm -f zstandard/_cffi*
# AWS: the descriptions of all services but S3 and those that log in.
if [ -d botocore/data ]; then
    for service in botocore/data/*/; do
        case $(basename "$service") in
            s3 | sts | sso | sso-oidc | signin) ;;
            *) rm -rf "$service" ;;
        esac
    done
fi
# TensorBoard: its page and what serves it; the master only writes files.
rm -rf tensorboard_data_server tensorboard/webfiles.zip
# Tests that wheels bring along.
find . -type d -name tests \( -path '*numpy*' -o -path './scipy/*' -o -path './sklearn/*' \) -prune -exec rm -rf {} +
