#!/usr/bin/env bash
# The compose file from start to end, as a user would: images, services, two decoders, the demonstration, a drain.
#
#   tests/compose/run.sh [--stand-ins]      --stand-ins: where the images of third parties cannot be pulled
#
# The demonstration is a small one (ESSP_DEMO_*). Needs docker and 8 GiB of memory; removes what it started.
set -euo pipefail
cd "$(dirname "$0")/../.."
export ESSP_DEMO_VIDEOS=${ESSP_DEMO_VIDEOS:-6} ESSP_DEMO_EPOCHS=${ESSP_DEMO_EPOCHS:-4} ESSP_DEMO_CLIPS=${ESSP_DEMO_CLIPS:-240}
# Beside whatever else of this compose file runs here.
export COMPOSE_PROJECT_NAME=essp-test ESSP_API_PORT=${ESSP_API_PORT:-18080} ESSP_S3_PORT=${ESSP_S3_PORT:-17070}
. tests/compose/common.sh

[ "${1:-}" != --stand-ins ] || tests/compose/stand_ins.sh
version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
images="essp-master:$version essp-video:$version essp-trainer:$version-cpu"

say "the file and its overrides"
for more in "" "-f docker-compose.dev.yml" "-f docker-compose.gpu.yml"; do
    compose -f docker-compose.yml $more config --quiet
done

say "images"
docker image ls --format 'table {{.Repository}}\t{{.Tag}}\t{{.Size}}' | grep -E 'REPOSITORY|^essp-'
for image in $images; do
    docker run --rm --read-only --tmpfs /tmp --user 10001:10001 --cap-drop ALL --security-opt no-new-privileges \
        "$image" --version
done
for image in essp-master:$version essp-video:$version; do
    found=$(docker run --rm --user 0 --entrypoint find "$image" / -xdev -type d -name 'torch*')
    [ -z "$found" ] || fail "$image holds torch: $found"
    echo "$image: no torch on disk"
done

trap 'compose --profile demo down --volumes --remove-orphans >/dev/null 2>&1' EXIT
say "services, two decoders"
compose up --detach --scale decoder=2
say "the demonstration"
compose run --rm demo
say "SIGTERM: the decoders finish what they have in hand and leave"
decoders=$(compose ps --quiet decoder)
[ "$(wc -w <<<"$decoders")" = 2 ] || fail "there are not two decoders: $decoders"
compose stop decoder
for container in $decoders; do
    docker logs "$container" 2>&1 | tail -1
    status=$(docker inspect --format '{{.State.ExitCode}}' "$container")
    [ "$status" = 0 ] || fail "a decoder ended with status $status"
done
say "trainers have left by themselves"
for trainer in trainer-rgb trainer-flow; do
    status=$(docker wait "$(compose ps --all --quiet "$trainer")")
    [ "$status" = 0 ] || fail "$trainer ended with status $status"
    echo "$trainer: 0"
done
say "done"
