"""`job.yaml` in an output: the job as it ran, for people to read, compare and run again.

`spec.json` is what ESSP itself reads. A user may keep a file of that name there, so it is written and
removed only if there is none, or one that is still as ESSP wrote it: its first line has the digest of the rest.
"""

from __future__ import annotations

import hashlib
import re

import yaml

from essp_common.errors import NotFound
from essp_common.job.spec import JobSpec
from essp_common.objects.port import ObjectStore

JOB = "job.yaml"
_HEAD = "# The job as it ran, written by ESSP; `essp run` takes this file, or its folder. {digest}\n"
_HEADED = re.compile(rb"# [^\n]*written by ESSP[^\n]* ([0-9a-f]{16})\n")


def write_copy(output: ObjectStore, spec: JobSpec) -> None:
    """Write the job to its output, unless a file of the user is there."""
    if _is_free(output):
        fields = spec.model_dump(mode="json", exclude_unset=True)
        text = yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, width=120)
        output.put(JOB, (_HEAD.format(digest=_digest(text.encode())) + text).encode())


def is_copy(output: ObjectStore) -> bool:
    """Whether an output has this file, as ESSP wrote it."""
    try:
        text = output.get(JOB)
    except NotFound:
        return False
    head = _HEADED.match(text)
    return head is not None and head[1].decode() == _digest(text[head.end() :])


def _is_free(output: ObjectStore) -> bool:
    try:
        output.head(JOB)
    except NotFound:
        return True
    return is_copy(output)


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:16]
