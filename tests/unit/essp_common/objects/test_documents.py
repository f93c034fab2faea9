"""Files of other programs: what Python's own readers pass over in silence is refused."""

from __future__ import annotations

import io
import tarfile

import pytest

from essp_common.errors import ConfigError
from essp_common.objects.documents import CsvFile, CsvRow, read_json, tar_members


def rows(text: str) -> list[CsvRow]:
    return list(CsvFile("u", text))


def test_rows_of_a_csv_file() -> None:
    found = rows('Path, label ,note\r\n a ,"x, ""y"""\r\n\r\nb,c,d,,\n"e\nf",g,h,i\n')
    assert [(row.line, list(row.values.values())) for row in found] == [
        (2, ["a", 'x, "y"', ""]),
        (4, ["b", "c", "d"]),
        (6, ["e\nf", "g", "h"]),
    ]
    assert [bool(row.problem) for row in found] == [False, False, True]
    assert (
        found[2].problem == "line 6 has 4 fields, and there are 3 columns; put quotes around a text with a comma in it"
    )
    assert CsvFile("u", "Path, label ,note\n").columns == ["Path", "label", "note"]
    assert rows("") == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            'path,note\na,"x\nb,y\n',
            "u is not a CSV file: line 3: unexpected end of data; a field that begins with a quote",
        ),
        ('path,note\na,"x"y\n', "line 2: ',' expected after"),
        (f"path\n{'y' * 200_000}\n", "line 2: field larger than field limit"),
        ("path,label, Label\n", "u: column 'label' is there twice; keep one of them"),
    ],
)
def test_what_would_lose_rows_or_columns_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        rows(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": {"b": 1, "c": 2, "b": 1}}', "'b' is there twice in one object"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": 1', "Expecting"),
        (b'"\xe9"', "can't decode"),
    ],
)
def test_json_that_would_lose_a_value_is_none(text: str | bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_json(text)
    assert read_json('[{"a": {"b": null}}]') == [{"a": {"b": None}}]


FILES = {"a.mp4": b"1", "folder/b.mp4": b"22", "c.txt": b""}


def tar(form: int = tarfile.PAX_FORMAT) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=form) as archive:
        for name, data in FILES.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return written.getvalue()


def names(data: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return [member.name for member in tar_members(archive)]


def sized(data: bytes, at: int, size: bytes) -> bytes:
    """With another size, of 12 bytes, in the header there, whose checksum fits."""
    header = bytearray(data[at : at + 512])
    header[124:136], header[148:156] = size, b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return data[:at] + bytes(header) + data[at + 512 :]


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_all_members_of_a_whole_archive_are_given(form: int) -> None:
    assert names(tar(form)) == list(FILES)


def test_an_archive_without_members_has_none() -> None:
    assert names(bytes(10240)) == []


def test_damage_anywhere_in_an_archive_is_found() -> None:
    whole, headers = tar(), 5 * 512
    for at in range(0, headers, 16):
        if at % 1024 < 512:  # what a member holds has no checksum
            with pytest.raises(tarfile.ReadError):
                names(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
    for end in range(0, headers + 1, 64):
        with pytest.raises(tarfile.ReadError):
            names(whole[:end])


def test_an_archive_behind_another_one_is_not_lost() -> None:
    with pytest.raises(tarfile.ReadError, match="something follows; join archives with tar -A"):
        names(tar() + tar())


@pytest.mark.parametrize("at", [0, 1024])
@pytest.mark.parametrize(
    "size", [b"\xff" * 12, b"\xff" * 10 + b"\xfe\x00", b"\x80" + b"\x7f" * 11], ids=["-1", "-512", "2**87"]
)
def test_sizes_that_cannot_be_neither_lead_in_circles_nor_further(at: int, size: bytes) -> None:
    with pytest.raises(tarfile.ReadError):
        names(sized(tar(), at, size))
