# Stands in for versity/versitygw where no registry can be reached: moto's S3, in memory.
ARG BASE=python:3.11-slim-bookworm
FROM ${BASE}
COPY constraints.txt /constraints.txt
RUN apt-get update && apt-get install --yes --no-install-recommends wget && rm -rf /var/lib/apt/lists/* \
 && pip install --quiet --constraint /constraints.txt 'moto[server,s3]'
COPY tests/compose/stand_ins/s3.py /s3.py
ENV PYTHONDONTWRITEBYTECODE=1
ENTRYPOINT ["python3", "/s3.py"]
