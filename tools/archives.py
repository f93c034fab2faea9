"""Archives with the same bytes each time that they are made of the same files.

tar and gzip record when, in which order, and by whom files were packed. Here entries are sorted, have one time, belong
to user 0, and are executable or not, and nothing else. The bytes still depend on the version of zlib.
"""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path


def settle(path: Path, epoch: int) -> None:
    """Pack a .tar.gz again. `epoch`: the time of each entry, in seconds since 1970.

    Raises `ValueError` if anything in it is neither a file nor a folder.
    """
    with tarfile.open(path) as archive:
        entries = {member.name: member for member in archive}
        packed = io.BytesIO()
        # The header of gzip gets no file name, and the same time.
        with (
            gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=epoch) as compressed,
            tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as settled,
        ):
            for name in sorted(entries):
                plain = _plain(entries[name], epoch)
                settled.addfile(plain, archive.extractfile(entries[name]))
    path.write_bytes(packed.getvalue())


def _plain(member: tarfile.TarInfo, epoch: int) -> tarfile.TarInfo:
    if not (member.isfile() or member.isdir()):
        raise ValueError(f"{member.name} is neither a file nor a folder")
    plain = tarfile.TarInfo(member.name)
    plain.type, plain.size, plain.mtime = member.type, member.size, epoch
    plain.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
    return plain
