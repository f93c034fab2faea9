"""Messages of workers of the version before, in the words of this one.

A master is brought to a new version before its workers, or while they are. So what they said until then is understood,
here at the edge, and nowhere else: behind it there is one message for what was made.
"""

from __future__ import annotations

from essp_common.pb.v1.messages_pb2 import Decoded, Extracted, Made, Progress


def current(progress: Progress) -> Progress:
    """The same message as a worker of this version would have sent it."""
    match progress.WhichOneof("event"):
        case "decoded":
            made = _made(progress.decoded, "")
        case "extracted":
            made = _made(progress.extracted, progress.extracted.stream)
        case _:
            return progress
    return Progress(job=progress.job, worker=progress.worker, fence=progress.fence, made=made)


def _made(event: Decoded | Extracted, stream: str) -> Made:
    clip = event.clip
    return Made(
        purpose=clip.purpose,
        epoch=clip.epoch,
        stream=stream,
        indices=[clip.index],
        attempts=[clip.attempt],
        bytes=[event.bytes],
        seconds=event.seconds,
    )
