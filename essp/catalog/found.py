"""The content of a source: its videos and its other files, listed once, for all code that recognises data sets.

Nothing is listed before it is needed: a list of URIs may be at the top of a store of millions of objects, or on a web
server, which cannot be listed.
"""

from __future__ import annotations

import sys
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from essp.catalog.copies import Copies
from essp.catalog.entry import Entry
from essp.catalog.spool import Spool, in_order, joined
from essp.frame_folders import Pictures, has_gaps, main_series, series_by_folder
from essp_common.errors import ConfigError
from essp_common.objects import documents
from essp_common.objects.documents import read_json, text_of
from essp_common.objects.frames import FRAME_RATE, Series, as_one
from essp_common.objects.keys import escaped, is_hidden, is_key, is_plain, stem_and_suffix
from essp_common.objects.port import ObjectInfo, ObjectStore
from essp_common.quantities import counted
from essp_common.wiring import Stores

READ_SUFFIXES = frozenset(
    f".{name}"
    for name in (
        *("264", "3g2", "3gp", "apng", "asf", "avi", "divx", "f4v", "flv", "gif", "h264", "ivf", "m2t", "m2ts", "m4v"),
        *("mkv", "mov", "mp4", "mp4v", "mpe", "mpeg", "mpg", "mts", "mxf", "ogm", "ogv", "qt", "ts", "vob", "webm"),
        "wmv",
    )
)
"""Suffixes of video files that can be read."""
VIDEO_SUFFIXES = READ_SUFFIXES | {
    f".{name}" for name in ("265", "h265", "hevc", "m1v", "m2v", "nut", "rm", "rmvb", "y4m")
}
"""Suffixes of all video files. If a file without one of `READ_SUFFIXES` has the content that its name says, its row has
an error with the remedy."""

_MOST_LISTS = 64


class Frames(NamedTuple):
    """A folder of frames."""

    info: ObjectInfo
    """What is known about the video that they are, with the key of the folder."""
    key: str
    """The key of the video."""
    length: int
    """How many frames there are."""
    gaps: bool
    """Whether numbers are missing in the names."""
    problem: str = ""

    @classmethod
    def of(cls, folder: str, pictures: Pictures) -> Frames:
        """The frames among the pictures of a folder."""
        main = main_series(pictures)
        series = main or next(iter(pictures))
        one = as_one(series, pictures[series])
        names = few(sorted(f"{each.begin}*.{each.kind}" for each in pictures))
        problem = "" if main else f"doubled: the folder has several series of pictures ({names}); name one in a list"
        return cls(
            ObjectInfo(folder, one.size_bytes, one.etag),
            series.key,
            len(pictures[series]),
            has_gaps(pictures[series]),
            problem,
        )


FrameCounts = Callable[[Sequence[Entry]], Sequence[int]]
"""Returns the number of frames of each of some files; 0: unknown."""


def unopened(entries: Sequence[Entry]) -> Sequence[int]:
    """The numbers of frames, without opening the videos."""
    return [0] * len(entries)


class Found:
    """A folder, or a list and its folder. Paths are keys below the folder."""

    def __init__(
        self,
        uri: str,
        store: ObjectStore,
        split: int,
        given: str = "",
        camera: str = "",
        frame_counts: FrameCounts = unopened,
        stores: Stores | None = None,
    ) -> None:
        """`store`: the store of the folder. `split`: the division to use. `given`: the list that the source names;
        empty: the source names the folder. `camera`: the camera to use; empty: all. `stores`: where other files may
        be that lists name."""
        self.uri = uri
        self.store = store
        self.split = split
        self.given = given
        self.camera = camera
        self.stores = stores or Stores(())
        self.frame_counts = frame_counts
        """Opens videos, for a list that is ambiguous otherwise."""
        self.rate = FRAME_RATE
        """Frames per second of folders of frames."""
        self.tolerance_s: float | None = None
        """How far the frames of an episode may be from their timestamps; None: the nearest frames are taken."""
        self.copies: Copies | None = None
        """Where the cameras of recordings are copied to."""
        self.notes: list[str] = []
        """What users should know about how lists were read."""
        self._documents: dict[str, Any] = {}
        self._by_ends: dict[tuple[int, bool], dict[str, list[ObjectInfo]]] = {}
        self._doubtful: set[str] = set()
        """Videos that a name may refer to."""

    @cached_property
    def _files(self) -> tuple[Spool[ObjectInfo], Spool[ObjectInfo]]:
        """The files that are videos by name, and all others."""
        videos, others = Spool(ObjectInfo), Spool(ObjectInfo)
        for info in self.store.list():
            if not is_hidden(info.key):
                (videos if is_video(info.key) else others).add(info)
        return videos, others

    @cached_property
    def videos(self) -> Collection[ObjectInfo]:
        """The files that are videos by name; without any such file, the folders of frames, by the key of the folder.
        In order of keys."""
        return self._files[0] or tuple(frames.info for _, frames in sorted(self.frames.items()))

    @cached_property
    def frames(self) -> Mapping[str, Frames]:
        """The folders of frames, by key, if no file is a video by name."""
        videos, others = self._files
        folders = {} if videos else series_by_folder(others, self.rate)
        return {folder: Frames.of(folder, pictures) for folder, pictures in folders.items() if folder}

    @cached_property
    def others(self) -> tuple[str, ...]:
        """All other files."""
        files = (info.key for info in self._files[1])
        return tuple(key for key in files if not (key.rpartition("/")[0] in self.frames and Series.of_picture(key)))

    def uri_of(self, info: ObjectInfo) -> str:
        """The URI of one of `videos`."""
        return self.store.uri(self.frames[info.key].key if info.key in self.frames else info.key)

    def names_video(self, path: str) -> bool:
        """Whether a path in a list is the name of a video, or of a folder of frames."""
        return is_video(path) or bool(self.frames and self._ending(path))

    @property
    def lists(self) -> tuple[str, ...]:
        """The files that may be lists: the list that the source names, or all files that are not videos."""
        return (self.given,) if self.given else self.others

    def with_suffix(self, suffix: str) -> list[str]:
        """The files with this suffix that may be lists. Very many files are assumed to be something else."""
        keys = [key for key in self.lists if key.lower().endswith(suffix)]
        return keys if len(keys) <= _MOST_LISTS else []

    def named(self, *names: str) -> str | None:
        """The one file with such a name (in lower case), in any folder."""
        return next((key for key in self.lists if PurePosixPath(key).name.lower() in names), None)

    def text(self, key: str) -> str:
        """The content of a text file. Raises `ConfigError` if it is not UTF-8 text."""
        try:
            return text_of(self.store.get(key))
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"{self.store.uri(key)} is not UTF-8 text (byte {error.start}); save it as UTF-8"
            ) from error

    def lines(self, key: str) -> list[str]:
        """The non-empty lines of a text file, in any encoding."""
        return [line for line in lines_of(text_of(self.store.get(key), "replace")) if line]

    def json(self, key: str) -> Any:
        """The content of a JSON file, read once. Raises `ConfigError` if it is not JSON."""
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
            found.setdefault(composed(self._stem(info.key)), []).append(info)
        return found

    @cached_property
    def _folder(self) -> str:
        """How absolute paths to files in this folder begin."""
        return self.store.uri("-").removeprefix("file://").removesuffix("-")

    def called(self, *names: str) -> ObjectInfo | None:
        """The one video with the first of these names (without suffix) that any video has. None if no video or several
        videos have it."""
        fitting = next((held for name in names if (held := self._called(name))), [])
        return fitting[0] if len(fitting) == 1 else None

    def _called(self, name: str) -> list[ObjectInfo]:
        near = self._by_stem.get(composed(name), [])
        return [info for info in near if self._stem(info.key) == name] or near

    def _stem(self, key: str) -> str:
        """The name of a video without its suffix."""
        path = PurePosixPath(key)
        return path.name if key in self.frames else path.stem

    def matching(self, paths: Iterable[str]) -> dict[str, ObjectInfo]:
        """The one video that each path of a list means, for the paths that mean exactly one. Its key is the path, or
        ends with it.

        For a path without such a video, it is the only video that no other path means and that differs only in its
        suffix: data sets are published as `.avi` and kept as `.mp4`. A note reports this.
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
                f"{counted(len(alone), 'video')} listed with another suffix than the file has, such as {alone[0][0]}: "
                f"{alone[0][1]} is used, because it is the only video with this name"
            )
        return found

    def _ending(self, path: str, suffixed: bool = True) -> list[ObjectInfo]:
        """The videos whose key is this path; if no key is, the videos whose key ends with it. Names in other Unicode
        forms count only if no exact name does, and without `suffixed`, names with another suffix."""
        listed = _parts(path.removeprefix(self._folder).lstrip("/"), suffixed)
        near = self._ends(len(listed), suffixed).get(composed("/".join(listed)), ())
        if not near and "\\" in path:  # a Windows path
            return self._ending(path.replace("\\", "/"), suffixed)
        parts = [(info, _parts(info.key, suffixed)) for info in near]
        same = [(info, own) for info, own in parts if own[-len(listed) :] == listed] or parts
        return [info for info, own in same if len(own) == len(listed)] or [info for info, _ in same]

    def _ends(self, depth: int, suffixed: bool) -> Mapping[str, Sequence[ObjectInfo]]:
        """The videos by the last `depth` parts of their keys. In a large set all may be called `rgb.mp4`, each in its
        folder, so names alone are not enough."""
        if (depth, suffixed) not in self._by_ends:
            found = self._by_ends[depth, suffixed] = defaultdict[str, list[ObjectInfo]](list)
            for info in self.videos:
                found[composed("/".join(_parts(info.key, suffixed)[-depth:]))].append(info)
        return self._by_ends[depth, suffixed]

    def entry(self, info: ObjectInfo, class_name: str = "", split: str = "", **more: Any) -> Entry:
        """The entry of an existing video."""
        if info.key in self.frames and (problem := self.frames[info.key].problem):
            more["error"] = more.get("error") or problem
        class_name = sys.intern(class_name)  # a million videos have few classes
        return Entry(info.key, self.uri_of(info), class_name, split, info.size_bytes, info.etag, **more)

    def missing(
        self, name: str, list_key: str, class_name: str = "", split: str = "", called: Sequence[str] = ()
    ) -> Entry:
        """The entry of a listed video that does not exist or is ambiguous.

        `called`: the names without suffix that were searched for; by default the end of its path.
        """
        held = [info for stem in called for info in self._called(stem)] or self._ending(name)
        cures = filter(None, map(self._in_other_case, called or (name,)))
        error = f"missing: {list_key} names it, but there is no such file below {self._folder}{next(cures, '')}"
        if held:
            self._doubtful.update(info.key for info in held)
            error = (
                f"doubled: {list_key} names it, but it may be any of {few([info.key for info in held])}; keep one of "
                "them"
            )
        return Entry(name, self.store.uri(name) if is_key(name) else "", class_name, split, error=error)

    @cached_property
    def _by_folded_name(self) -> Mapping[str, Sequence[str]]:
        """The videos by name in lower case, with and without suffix."""
        found = defaultdict[str, list[str]](list)
        for info in self.videos:
            path = PurePosixPath(info.key)
            for name in {path.name.casefold(), path.stem.casefold()}:
                found[name].append(info.key)
        return found

    def _in_other_case(self, name: str) -> str:
        """What to rename, if one video has this name except for upper and lower case; empty: nothing."""
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
        return f"; rename {what} {own_part} to {listed_part}"

    def unlisted(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """The videos that no entry means or may mean."""

        def uri(found: Entry | ObjectInfo) -> str:
            return found.uri if isinstance(found, Entry) else self.uri_of(found)

        streams = in_order(Entry, entries, uri), in_order(ObjectInfo, self.videos, uri)
        for listed, videos in joined(uri, *streams):
            for info in () if listed else videos:
                if info.key not in self._doubtful:
                    yield self.entry(info, error="unlisted: no list names it")


def is_video(key: str) -> bool:
    """Whether a file is a video by name."""
    return stem_and_suffix(key)[1].lower() in VIDEO_SUFFIXES


def lines_of(text: str) -> list[str]:
    """The lines of a text, without blanks around them. Only the usual line ends separate lines."""
    return [line.strip() for line in documents.lines_of(text)]


def plain(entry: Entry) -> Entry:
    """The entry. If it has a text that a catalog cannot hold, the entry gets an error instead."""
    spans = (name for _, name in entry.spans)
    texts = (entry.id, entry.class_name, entry.split, entry.group, *entry.labels, *spans)
    odd = next((text for text in texts if not (is_plain(text) or (text == entry.id and escaped(text) == text))), None)
    if odd is None:
        return entry
    name, class_name, split = map(escaped, texts[:3])
    error = entry.error or f"name: {odd[:100]!r} has unreadable characters; use another name"
    return Entry(name, "", class_name, split, error=escaped(error))


def _parts(path: str, suffixed: bool) -> tuple[str, ...]:
    """The folders and name of a file; without `suffixed`, its stem instead of its name."""
    found = PurePosixPath(path)
    return (found if suffixed or not found.name else found.with_suffix("")).parts


def composed(name: str) -> str:
    """The composed Unicode form of a name: macOS stores `é` as `e` and its accent, other systems as one character."""
    return unicodedata.normalize("NFC", name)


def few(names: Sequence[str]) -> str:
    """The first few names, for messages."""
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
