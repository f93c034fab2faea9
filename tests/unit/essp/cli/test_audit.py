"""`essp audit` of a job that a master runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from essp.account import Account, account_of
from essp.cli import audit as cli
from essp_common.errors import NotFound, Unavailable
from essp_common.pb.v1.messages_pb2 import HistorySegment
from tests.harness.command_line import essp
from tests.harness.serving import Served


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path) as made:
        yield made


def test_what_happens_while_a_history_is_read_is_no_violation(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    served.master.start(served.job)

    def slowly(segments: Iterable[HistorySegment]) -> Account:
        served.complete()
        return account_of(segments)

    monkeypatch.setattr(cli, "account_of", slowly)
    done = essp("audit", served.job.name, "--server", served.url, "--json")
    findings = {finding["invariant"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert findings["API = truth"]["violations"] == []
    assert findings["conservation"]["checked"].startswith("44 clips")


def test_what_is_neither_a_folder_nor_a_job_is_called_so(served: Served) -> None:
    """Also where no master is there to ask: a path may have been meant."""
    for server, kind in ((served.url, NotFound), ("http://127.0.0.1:1", Unavailable)):
        with pytest.raises(kind, match="nope is neither a folder here"):
            essp("audit", "nope", "--server", server)
