"""What children know and may do that read untrusted videos."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from essp_common.runtime import confinement
from essp_engine.decoding.probing import ProbeOptions, Prober
from essp_engine.decoding.sandbox import Sandbox
from essp_engine.decoding.settings import DecodingSettings

pytestmark = [
    pytest.mark.processes,
    pytest.mark.usefixtures("started_children"),
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="nothing shows a process's environment"),
]

SECRETS = (
    *("AWS_SECRET_ACCESS_KEY", "AZURE_CLIENT_SECRET", "ESSP_API_TOKEN", "ESSP_BUS_PASSWORD", "ESSP_CACHE"),
    *("HTTPS_PROXY", "MLFLOW_TRACKING_PASSWORD", "SOMEBODYS_TOKEN"),
)


@dataclass(frozen=True)
class Known:
    """What a child sees."""

    first: str
    """Its environment when it started."""
    present: list[str]
    """Names of secrets that it knows now."""
    parents: bool
    """Whether it can read the memory of its parent."""
    writes: bool
    """Whether it can write to a file that is there."""


def known(path: str) -> Known:
    """The probe of these tests."""
    started = Path("/proc/self/environ").read_text()
    return Known(
        first=started,
        present=[name for name in SECRETS if name in os.environ],
        parents=_succeeds(f"/proc/{os.getppid()}/mem", os.O_RDONLY),
        writes=_succeeds(path, os.O_WRONLY) or _truncates(path),
    )


def _truncates(path: str) -> bool:
    try:
        os.truncate(path, 1)
    except PermissionError:
        return False
    return True


def _succeeds(path: str, flags: int) -> bool:
    try:
        os.close(os.open(path, flags))
    except PermissionError:
        return False
    return True


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in SECRETS:
        monkeypatch.setenv(name, "s3cret")
    (tmp_path / "a.mp4").write_bytes(b"video")
    return tmp_path / "a.mp4"


@pytest.mark.parametrize(
    ("roots", "present"),
    [
        ([], []),
        (["s3://bucket"], ["AWS_SECRET_ACCESS_KEY", "HTTPS_PROXY"]),
        (["fsspec+own://host"], [name for name in SECRETS if not name.startswith("ESSP_")]),
    ],
)
def test_a_reader_knows_the_secrets_of_its_stores_alone_and_does_not_show_them(
    file: Path, roots: list[str], present: list[str]
) -> None:
    options = ProbeOptions(probe=f"{__name__}:known")
    with Prober([f"file://{file.parent}", *roots], options) as prober:
        (outcome,) = prober.read([f"file://{file}"])
    assert outcome.error is None
    assert "s3cret" not in outcome.facts["first"]
    assert outcome.facts["present"] == present


def test_a_decoders_child_shows_no_secret(file: Path) -> None:
    with closing(Sandbox(DecodingSettings(stores=(f"file://{file.parent}", "s3://bucket")).sandbox())) as sandbox:
        sandbox.start()
        started = Path(f"/proc/{sandbox.pid}/environ").read_text()
    assert "PATH=" in started
    assert "s3cret" not in started


def _has_landlock() -> bool:
    """Asked in a child, since nobody gets rid of it again."""
    if sys.platform != "linux" or (pid := os.fork()):
        return sys.platform == "linux" and os.waitpid(pid, 0)[1] == 0
    confinement.confine()
    os._exit(0 if not _succeeds("/dev/null", os.O_WRONLY) else 1)


def test_a_reader_can_neither_write_nor_read_its_parents_memory(file: Path) -> None:
    """Where the kernel has no Landlock, it reads all the same."""
    with Prober([f"file://{file.parent}"], ProbeOptions(probe=f"{__name__}:known")) as prober:
        (outcome,) = prober.read([f"file://{file}"])
    assert outcome.error is None
    confined = _has_landlock()
    assert outcome.facts["writes"] is not confined
    assert not (confined and outcome.facts["parents"])


@pytest.mark.parametrize("programs", [False, True])
def test_only_clients_of_stores_may_run_a_program(programs: bool) -> None:
    """As `credential_process` of AWS, which says the credentials."""
    script = (
        "import os, subprocess; from essp_common.runtime import confinement\n"
        f"confinement.confine(programs={programs})\n"
        "try: os._exit(subprocess.call(['/bin/sh', '-c', 'exit 7']))\n"
        "except PermissionError: os._exit(13)"
    )
    refused = _has_landlock() and not programs
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == (13 if refused else 7)
