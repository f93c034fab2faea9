"""A document with a digest of itself is read as it was written, or refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from essp_common.artifacts import checkpoint
from essp_common.artifacts.checkpoint_files import BadCheckpoint
from essp_common.artifacts.manifest import Manifest
from essp_common.artifacts.sealed import sealed, unsealed
from essp_common.errors import EsspError
from tests.harness.finished_job import FinishedJob, finished_job


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> FinishedJob:
    return finished_job(tmp_path_factory.mktemp("job"))


@pytest.fixture(scope="module")
def manifest(job: FinishedJob) -> Manifest:
    found = checkpoint.read_latest(job.store, "rgb")
    assert found is not None
    return found


def test_what_is_sealed_is_read(manifest: Manifest) -> None:
    assert unsealed(sealed(manifest), Manifest) == manifest


def test_order_spacing_and_fields_of_other_versions_do_not_matter(manifest: Manifest) -> None:
    class Newer(Manifest):
        newer: tuple[int, ...] = (1, 2)

    data = sealed(Newer(**dict(manifest)))
    backwards = json.dumps(dict(reversed(json.loads(data).items())))
    assert unsealed(data, Manifest) == unsealed(backwards.encode(), Manifest) == manifest


def test_a_character_that_was_changed_is_found(manifest: Manifest) -> None:
    data = sealed(manifest)
    for place in range(0, len(data), 3):
        damaged = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        try:
            assert unsealed(damaged, Manifest) == manifest, f"byte {place} was changed, and nobody noticed"
        except ValueError:
            continue


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b"null", b'{"sha256": 5}', b"\xff", b"[" * 100_000, b'{"a": 1e999}']
)
def test_what_is_no_such_document_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        unsealed(data, Manifest)


def test_a_number_of_a_checkpoint_that_was_changed_is_not_trained_on(tmp_path: Path) -> None:
    job = finished_job(tmp_path)
    [manifest] = tmp_path.glob("trainers/rgb/checkpoints/*/manifest.json")
    text = manifest.read_text()
    assert '"updates": 10' in text
    manifest.write_text(text.replace('"updates": 10', '"updates": 12'))
    with pytest.raises(EsspError, match="none is whole"):
        checkpoint.read_latest(job.store, "rgb")
    with pytest.raises(BadCheckpoint, match="sha256 does not match the rest"):
        checkpoint.read(job.store, "rgb", 100)
