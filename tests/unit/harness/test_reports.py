"""A failed test is reported, whatever is in its message."""

from __future__ import annotations

from tests.harness.reports import encodable


def test_only_what_cannot_be_encoded_is_changed() -> None:
    report = {"longrepr": ("a.py", "sent \ud800"), "sections": [("out", "\U0001f600")], "duration": 0.5, "when": None}
    assert encodable(report) == {**report, "longrepr": ("a.py", "sent \\ud800")}
