# Stands in for redis where no registry can be reached: Redis 7.0 of the distribution.
ARG BASE=python:3.11-slim-bookworm
FROM ${BASE}
RUN apt-get update && apt-get install --yes --no-install-recommends redis-server && rm -rf /var/lib/apt/lists/*
WORKDIR /data
# The official image is built to listen to other containers; the distribution's is not.
ENTRYPOINT ["sh", "-c", "exec \"$@\" --protected-mode no --bind 0.0.0.0", "redis"]
CMD ["redis-server"]
