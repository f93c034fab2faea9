#!/usr/bin/env bash
# The demonstration completes while what it needs is taken away: decoders are killed, stopped and scaled, the master is
# killed and restarted, the broker is cut off, killed and restarted. Then its audit is clean.
#
#   tests/compose/chaos.sh [--stand-ins]    --stand-ins: where the images of third parties cannot be pulled
#
# Each disturbance comes while the training is under way, and the next one once it has gone on. Needs docker, the images
# (make images) and 8 GiB of memory; removes what it started.
set -euo pipefail
cd "$(dirname "$0")/../.."
export ESSP_DEMO_VIDEOS=${ESSP_DEMO_VIDEOS:-6} ESSP_DEMO_EPOCHS=${ESSP_DEMO_EPOCHS:-6} ESSP_DEMO_CLIPS=${ESSP_DEMO_CLIPS:-640}
export COMPOSE_PROJECT_NAME=essp-chaos ESSP_API_PORT=${ESSP_API_PORT:-18081} ESSP_S3_PORT=${ESSP_S3_PORT:-17071}
. tests/compose/common.sh
stand_ins=no
[ "${1:-}" != --stand-ins ] || { stand_ins=yes; tests/compose/stand_ins.sh; }
log=$(mktemp)
trap 'compose --profile demo down --volumes --remove-orphans >/dev/null 2>&1; rm -f "$log"' EXIT

# A field of the job, by a path such as progress.done; nothing while the master is away or does not know it.
field() {
    curl --silent --fail --max-time 5 --header "Authorization: Bearer ${ESSP_API_TOKEN:-local-only}" \
        "http://127.0.0.1:$ESSP_API_PORT/v1/jobs/demo" 2>/dev/null |
        python3 -c 'import functools, json, sys; print(functools.reduce(lambda d, k: d[k], sys.argv[1].split("."), json.load(sys.stdin)))' "$1" 2>/dev/null || true
}
# Wait until the training has gone on by so many clips since it was last seen to.
seen=0
goes_on() {
    local now
    for _ in $(seq 300); do
        [ "$(field state)" != failed ] || fail "the job failed: $(field reason)"
        now=$(field progress.done)
        [ "${now:-0}" -lt $((seen + $1)) ] || { seen=$now; echo "at $now of $(field progress.total) clips"; return; }
        [ "$(field state)" != completed ] || fail "the job was over before this was tried; raise ESSP_DEMO_EPOCHS"
        sleep 1
    done
    compose logs --tail 30 master decoder >&2
    fail "nothing has moved for five minutes"
}

# Run a command while nothing is on its way to the broker, if that is the stand-in: Tansu 0.6 counts a message before it
# writes it, so one that it is killed over is lost, and taken for a duplicate when it comes again. Kafka needs no care.
in_silence() {
    local clients=""
    [ $stand_ins = no ] || clients=$(docker ps --quiet --filter "label=com.docker.compose.project=$COMPOSE_PROJECT_NAME" |
        grep --invert-match "$(compose ps --quiet kafka | cut -c1-12)")
    [ -z "$clients" ] || { docker pause $clients >/dev/null; sleep 2; }
    "$@" >/dev/null 2>&1
    [ -z "$clients" ] || docker unpause $clients >/dev/null
}

say "services, two decoders, the demonstration"
compose up --detach --scale decoder=2 >/dev/null 2>&1
compose run --rm -T demo >"$log" 2>&1 &
demo=$!
goes_on 200
say "a decoder is killed"
docker kill "$(compose ps --quiet decoder | head -1)" >/dev/null
goes_on 200
say "all decoders stop, and start again"
compose stop decoder 2>/dev/null
sleep 5
compose start decoder >/dev/null 2>&1
goes_on 200
say "four decoders, then one"
compose up --detach --no-recreate --scale decoder=4 decoder >/dev/null 2>&1
goes_on 200
compose up --detach --no-recreate --scale decoder=1 decoder >/dev/null 2>&1
goes_on 200
say "the master is killed"
docker kill "$(compose ps --quiet master)" >/dev/null
compose up --detach --no-recreate master >/dev/null 2>&1
goes_on 200
say "the master is restarted"
compose restart master >/dev/null 2>&1
goes_on 200
say "the broker does not answer for 20 s"
docker pause "$(compose ps --quiet kafka)" >/dev/null
sleep 20
docker unpause "$(compose ps --quiet kafka)" >/dev/null
goes_on 200
say "the broker is killed"
in_silence docker kill "$(compose ps --quiet kafka)"
sleep 5
compose up --detach --no-recreate kafka >/dev/null 2>&1
goes_on 200
say "the broker is restarted"
in_silence compose restart kafka
goes_on 200
say "the demonstration ends"
wait $demo || { tail -40 "$log"; fail "the demonstration ended with an error"; }
tail -8 "$log"
say "its audit"
compose run --rm -T essp audit demo
say "done"
