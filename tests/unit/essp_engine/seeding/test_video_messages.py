"""What the columns of a catalog say of a video, and where its clips begin, is what its row says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from essp_common.pb.v1.messages_pb2 import DecodeSeed, Seek, Video
from essp_engine.planning.plan import seek_to
from essp_engine.seeding.video_messages import VideoMessages
from tests.harness.pinned import CATALOG

VIEW = CATALOG.view(None)
MESSAGES = VideoMessages(VIEW.rows)


@given(st.integers(0, len(VIEW) - 1))
def test_a_message_says_what_the_row_says(video: int) -> None:
    row, told = VIEW.rows[video], MESSAGES.told(video)
    message = DecodeSeed.FromString(told.message)
    known = {field.name for field in Video.DESCRIPTOR.fields} - {"labels"}
    assert all(getattr(message.video, name) == getattr(row, name) for name in known)
    assert not message.video.labels, "the job learns classes"
    assert [field.name for field, _ in message.ListFields()] == ["video"]
    assert (told.key, told.last_frame) == (row.uri.encode(), row.last_frame)


@given(st.integers(0, len(VIEW) - 1), st.integers(0, 400))
def test_decoding_begins_where_it_does_by_the_row(video: int, first_frame: int) -> None:
    by_row, by_column = Seek(), Seek()
    expected = seek_to(VIEW.rows[video], first_frame, by_row)
    assert MESSAGES.seek_to(MESSAGES.told(video), first_frame, by_column) is expected
    assert by_column == by_row
