#!/usr/bin/env bash
# Builds images under the very names and tags that docker-compose.yml has for those of third parties, for machines that
# reach no container registry: a broker that speaks Kafka's protocol, Redis of the distribution, and moto's S3.
# Where the real ones can be pulled, don't run this: it would put the stand-ins in their place on this machine.
set -euo pipefail
cd "$(dirname "$0")/../.."
image_of() { sed -n "s|^ *image: \($1:[^ ]*\)$|\1|p" docker-compose.yml | head -1; }
build() {
    local image
    image=$(image_of "$2")
    docker build --quiet --network host --file "tests/compose/stand_ins/$1.Dockerfile" --tag "$image" . >/dev/null
    echo "stand-in $image"
}
build kafka apache/kafka
build redis redis
build s3 versity/versitygw
