"""What lies at a source: its videos and its other files, listed once, for whoever has to tell what data set it is.

Nothing is listed before somebody asks: a list of URIs may lie at the top of a store of millions of objects, or on a web
server, which cannot be listed.
"""

from __future__ import annotations

import io
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

from essp.catalog.entry import Entry
from essp_common.errors import ConfigError
from essp_common.objects.documents import read_json, text_of
from essp_common.objects.keys import escaped, is_hidden, is_key, is_plain
from essp_common.objects.port import ObjectInfo, ObjectStore
from essp_common.quantities import counted

READ_SUFFIXES = frozenset(
    f".{name}"
    for name in (
        *("264", "3g2", "3gp", "apng", "asf", "avi", "divx", "f4v", "flv", "gif", "h264", "ivf", "m2t", "m2ts", "m4v"),
        *("mkv", "mov", "mp4", "mp4v", "mpe", "mpeg", "mpg", "mts", "mxf", "ogm", "ogv", "qt", "ts", "vob", "webm"),
        "wmv",
    )
)
"""Of files that are videos and can be read."""
VIDEO_SUFFIXES = READ_SUFFIXES | {
    f".{name}" for name in ("265", "h265", "hevc", "m1v", "m2v", "nut", "rm", "rmvb", "y4m")
}
"""Of files that are videos; others than `READ_SUFFIXES` that hold what their names say are rows with an error, which
tells what to do."""

_MOST_LISTS = 64

FrameCounts = Callable[[Sequence[Entry]], Sequence[int]]
"""The number of frames of each of some files; 0: it cannot be told."""


def unopened(entries: Sequence[Entry]) -> Sequence[int]:
    """The numbers of frames of videos that nobody opens."""
    return [0] * len(entries)


class Found:
    """A folder, or a list and the folder in which it lies. Paths are keys below the folder."""

    def __init__(
        self,
        uri: str,
        store: ObjectStore,
        split: int,
        given: str = "",
        camera: str = "",
        frame_counts: FrameCounts = unopened,
    ) -> None:
        """`store`: of the folder. `split`: which of several divisions is meant. `given`: the list that was named as the
        source; empty: the folder was. `camera`: the one that is wanted; empty: all."""
        self.uri = uri
        self.store = store
        self.split = split
        self.given = given
        self.camera = camera
        self.frame_counts = frame_counts
        """Opens videos, for a list that is understood in no other way."""
        self.tolerance_s = 1e-4
        """How far the frames of an episode may be from their timestamps: by default as far as in LeRobot."""
        self.notes: list[str] = []
        """What a user should know of how lists were read."""
        self._documents: dict[str, Any] = {}
        self._by_ends: dict[tuple[int, bool], dict[str, list[ObjectInfo]]] = {}
        self._doubtful: set[str] = set()
        """Videos of which one may be meant by a name."""

    @cached_property
    def _shown(self) -> tuple[ObjectInfo, ...]:
        return tuple(info for info in self.store.list() if not is_hidden(info.key))

    @cached_property
    def videos(self) -> tuple[ObjectInfo, ...]:
        """The files that are videos by their names."""
        return tuple(info for info in self._shown if is_video(info.key))

    @cached_property
    def others(self) -> tuple[str, ...]:
        """All other files."""
        return tuple(info.key for info in self._shown if not is_video(info.key))

    @property
    def lists(self) -> tuple[str, ...]:
        """The files that may be lists: the one that was named, or all that are no videos."""
        return (self.given,) if self.given else self.others

    def with_suffix(self, suffix: str) -> list[str]:
        """The files with this suffix that may be lists. Where there are very many, they are something else."""
        keys = [key for key in self.lists if key.lower().endswith(suffix)]
        return keys if len(keys) <= _MOST_LISTS else []

    def named(self, *names: str) -> str | None:
        """The one file of such a name (in small letters), wherever it lies."""
        return next((key for key in self.lists if PurePosixPath(key).name.lower() in names), None)

    def text(self, key: str) -> str:
        """A text file. Raises `ConfigError` if it is none."""
        try:
            return text_of(self.store.get(key))
        except UnicodeDecodeError as error:
            raise ConfigError(f"{self.store.uri(key)} is not UTF-8 text (byte {error.start}); save it so") from error

    def lines(self, key: str) -> list[str]:
        """The lines of a text file that are not empty, whatever its letters are encoded in."""
        return [line for line in lines_of(text_of(self.store.get(key), "replace")) if line]

    def json(self, key: str) -> Any:
        """A JSON file, read once. Raises `ConfigError` if it is none."""
        if key not in self._documents:
            try:
                self._documents[key] = read_json(self.text(key))
            except ValueError as error:
                raise ConfigError(f"{self.store.uri(key)} is not JSON: {error}") from error
        return self._documents[key]

    @cached_property
    def _by_stem(self) -> dict[str, list[ObjectInfo]]:
        found: dict[str, list[ObjectInfo]] = {}
        for info in self.videos:
            found.setdefault(composed(PurePosixPath(info.key).stem), []).append(info)
        return found

    @cached_property
    def _folder(self) -> str:
        """How absolute paths begin of what lies there."""
        return self.store.uri("-").removeprefix("file://").removesuffix("-")

    def called(self, *names: str) -> ObjectInfo | None:
        """The one video with the first of these names, without its suffix, that any video has; None if none has one, or
        several have it."""
        fitting = next((held for name in names if (held := self._called(name))), [])
        return fitting[0] if len(fitting) == 1 else None

    def _called(self, name: str) -> list[ObjectInfo]:
        near = self._by_stem.get(composed(name), [])
        return [info for info in near if PurePosixPath(info.key).stem == name] or near

    def matching(self, paths: Iterable[str]) -> dict[str, ObjectInfo]:
        """The one video that each of these paths of a list means, of those that mean one: its key is the path, or ends
        with it.

        Of a path that no video has, it is the only one that no other path means and that differs in its suffix alone:
        sets are published as `.avi` and kept as `.mp4`. That is noted.
        """
        wanted = dict.fromkeys(paths)
        fitting = {path: self._ending(path) for path in wanted}
        found = {path: held[0] for path, held in fitting.items() if len(held) == 1}
        taken = {info.key for held in fitting.values() for info in held}
        others: dict[str, list[str]] = {}
        for path in (path for path, held in fitting.items() if not held and is_video(path)):
            near = [info for info in self._ending(path, suffixed=False) if info.key not in taken]
            if len(near) == 1:
                found[path] = near[0]
                others.setdefault(near[0].key, []).append(path)
        for path in (path for claimed in others.values() if len(claimed) > 1 for path in claimed):
            del found[path]
        if alone := [(claimed[0], key) for key, claimed in others.items() if len(claimed) == 1]:
            self.notes.append(
                f"{counted(len(alone), 'video')} listed under another suffix than the file has, such as {alone[0][0]}, "
                f"for which {alone[0][1]} is taken: it is the only one of this name"
            )
        return found

    def _ending(self, path: str, suffixed: bool = True) -> list[ObjectInfo]:
        """The videos whose key is this path; if there is none, those whose key ends with it. Names that are written in
        other forms of the same letters count where no other does, and without `suffixed`, those with another suffix."""
        listed = _parts(path.removeprefix(self._folder).lstrip("/"), suffixed)
        near = self._ends(len(listed), suffixed).get(composed("/".join(listed)), ())
        if not near and "\\" in path:  # of Windows
            return self._ending(path.replace("\\", "/"), suffixed)
        parts = [(info, _parts(info.key, suffixed)) for info in near]
        same = [(info, own) for info, own in parts if own[-len(listed) :] == listed] or parts
        return [info for info, own in same if len(own) == len(listed)] or [info for info, _ in same]

    def _ends(self, depth: int, suffixed: bool) -> Mapping[str, Sequence[ObjectInfo]]:
        """The videos by so many last parts of their keys. In a large set all may be called `rgb.mp4`, each in a folder
        of its own, so names alone would not do."""
        if (depth, suffixed) not in self._by_ends:
            found = self._by_ends[depth, suffixed] = defaultdict[str, list[ObjectInfo]](list)
            for info in self.videos:
                found[composed("/".join(_parts(info.key, suffixed)[-depth:]))].append(info)
        return self._by_ends[depth, suffixed]

    def entry(self, info: ObjectInfo, class_name: str = "", split: str = "", **more: Any) -> Entry:
        """Of a video that is there."""
        return Entry(info.key, self.store.uri(info.key), class_name, split, info.size_bytes, info.etag, **more)

    def missing(
        self, name: str, list_key: str, class_name: str = "", split: str = "", called: Sequence[str] = ()
    ) -> Entry:
        """Of a video that a list names, and that is not there, or not the only one that may be meant.

        `called`: the names without a suffix under which it was looked for; else by the end of its path.
        """
        held = [info for stem in called for info in self._called(stem)] or self._ending(name)
        cures = filter(None, map(self._in_other_case, called or (name,)))
        error = f"missing: {list_key} names it, but there is no such file below {self._folder}{next(cures, '')}"
        if held:
            self._doubtful.update(info.key for info in held)
            error = f"doubled: {list_key} names it, and it may be {few([info.key for info in held])}; leave one of them"
        return Entry(name, self.store.uri(name) if is_key(name) else "", class_name, split, error=error)

    @cached_property
    def _by_folded_name(self) -> Mapping[str, Sequence[str]]:
        """The videos by their names in small letters, with and without their suffixes."""
        found = defaultdict[str, list[str]](list)
        for info in self.videos:
            path = PurePosixPath(info.key)
            for name in {path.name.casefold(), path.stem.casefold()}:
                found[name].append(info.key)
        return found

    def _in_other_case(self, name: str) -> str:
        """What to rename, where one video is called like that but for upper and lower case; empty: nothing."""
        listed = PurePosixPath(name).parts
        near = []
        for key in self._by_folded_name.get(listed[-1].casefold(), ()) if listed else ():
            own = PurePosixPath(key).parts[-len(listed) :]
            if own[-1].casefold() != listed[-1].casefold():
                own = (*own[:-1], PurePosixPath(key).stem)
            if own != listed and [part.casefold() for part in own] == [part.casefold() for part in listed]:
                near.append(own)
        if len(near) != 1:
            return ""
        own_part, listed_part = next(pair for pair in zip(near[0], listed, strict=True) if pair[0] != pair[1])
        what = "the file" if own_part == near[0][-1] else "the folder"
        return f"; rename {what} {own_part}, which is there, to {listed_part}"

    def unlisted(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """The videos that none of these entries is, or may be."""
        named = {entry.uri for entry in entries}
        for info in self.videos:
            if info.key not in self._doubtful and self.store.uri(info.key) not in named:
                yield self.entry(info, error="unlisted: it lies there, and no list names it")


def is_video(key: str) -> bool:
    """Whether a file is a video by its name."""
    return PurePosixPath(key).suffix.lower() in VIDEO_SUFFIXES


def lines_of(text: str) -> list[str]:
    """The lines of a text, without blanks around them; none begins at any but the ends of lines that files have."""
    return [line.strip() for line in io.StringIO(text, newline=None)]


def plain(entry: Entry) -> Entry:
    """The entry; one with a text that no catalog can hold as a problem."""
    spans = (name for _, name in entry.spans)
    texts = (entry.id, entry.class_name, entry.split, entry.group, *entry.labels, *spans)
    odd = next((text for text in texts if not (is_plain(text) or (text == entry.id and escaped(text) == text))), None)
    if odd is None:
        return entry
    name, class_name, split = map(escaped, texts[:3])
    error = entry.error or f"name: {odd[:100]!r} has characters that nobody can read; use another name"
    return Entry(name, "", class_name, split, error=escaped(error))


def _parts(path: str, suffixed: bool) -> tuple[str, ...]:
    """Folders and name of a file, or without `suffixed` its stem."""
    found = PurePosixPath(path)
    return (found if suffixed or not found.name else found.with_suffix("")).parts


def composed(name: str) -> str:
    """The one form of a name: macOS takes letters apart that other systems keep as one, `é` as `e` and its accent."""
    return unicodedata.normalize("NFC", name)


def few(names: Sequence[str]) -> str:
    """Some names, for messages."""
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
