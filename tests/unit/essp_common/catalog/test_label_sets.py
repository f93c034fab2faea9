"""The labels of clips by spans of their video, against frame by frame."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from essp_common.catalog.label_sets import LabelledSpan, labels_at

SPANS = st.lists(st.builds(LabelledSpan, st.integers(0, 30), st.integers(0, 40), st.integers(0, 3)), max_size=6)


@given(SPANS, st.integers(0, 40), st.integers(1, 6), st.integers(1, 9), st.integers(0, 40))
def test_a_clip_has_the_labels_of_all_spans_that_hold_one_of_its_frames(
    spans: list[LabelledSpan], first_frame: int, frames: int, stride: int, last_frame: int
) -> None:
    """Also of one whose video ends before it: the last frame is shown again."""
    first_frame = min(first_frame, last_frame)
    shown = [min(first_frame + step * stride, last_frame) for step in range(frames)]
    expected = {label for begin, end, label in spans if any(begin <= frame <= end for frame in shown)}
    assert labels_at(spans, first_frame, frames, stride, last_frame) == sorted(expected)
