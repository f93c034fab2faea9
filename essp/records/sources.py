"""Where records come from: image folders, CSV lists, archives, CIFAR's own files, COCO annotations, and catalogs of
videos.

The kind of a source is recognised by its contents; `Source.recognised` says how. Labels are known before any image is
read. Files without an image's suffix are counted, not listed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePosixPath

from essp.listed_files import LABEL_COLUMNS, PATH_COLUMNS, asked, of_windows, one_name
from essp.local_folder import left_out
from essp.records.archives import Archive, open_archive
from essp.records.cifar import cifar
from essp.records.coco import coco
from essp.records.items import Item, Source
from essp.uris import listed_uri
from essp_common.catalog.file import NotACatalog
from essp_common.catalog.split_names import SPLIT_NAMES, canonical_split
from essp_common.errors import BadFrames, ConfigError, NotFound
from essp_common.objects.documents import CsvFile, text_of
from essp_common.objects.keys import escaped, is_hidden, is_plain
from essp_common.wiring import Stores

IMAGE_SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm"))
FRAMES = 8
_WANTED = (
    "a folder with a folder for each class, a CSV file with the columns path and label, a .tar or .zip archive, "
    "annotations of COCO, or a catalog of videos"
)
"""The accepted sources, for messages."""
_LABEL_SUFFIX = ".cls"
"""webdataset: a file with the class of a sample, next to its image."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What is taken from a source."""

    within: str = ""
    """Only the images in this folder of it, such as `train`; for a catalog, in this split."""
    images: str = ""
    """COCO: URI of the folder or archive of the images; empty: search COCO's usual places."""
    whole: bool = False
    """COCO: whole images instead of the contents of boxes."""
    frames: int = FRAMES
    """Catalog: frames taken from each video."""


@contextmanager
def open_source(uri: str, stores: Stores, options: SourceOptions = SourceOptions()) -> Iterator[Source]:
    """Open the source at `uri`.

    Raises `NotFound` if nothing is there, and `ConfigError` for a source without images, several splits without a
    choice, and options that do not apply.
    """
    name = PurePosixPath(uri).name.lower()
    if (options.images or options.whole) and not name.endswith(".json"):
        raise ConfigError(
            "this and --whole are only for the annotations of COCO (a .json file)", field="--images", code="conflict"
        )
    with ExitStack() as opened:
        if name.endswith(".parquet"):
            from essp.records.clips import clips  # FFmpeg, which images need not have

            try:
                found = clips(uri, stores, options.within, options.frames, opened)
            except NotACatalog as error:
                raise ConfigError(f"{error}; give {_WANTED}", code="unsupported") from error
            yield _checked(found, uri)
            return
        if name.endswith((".csv", ".tsv")):
            found = _csv(uri, stores)
        elif name.endswith(".json"):
            found = coco(uri, stores, options.images, options.whole, opened)
        elif name.endswith((".tar", ".tar.gz", ".tgz", ".zip")):
            found = _archive(opened.enter_context(open_archive(*stores.resolve(uri), name.endswith(".zip"))))
        else:
            _refuse_file(uri, stores)
            found = _folder(uri, stores)
        yield _checked(_of_split(found, options.within), uri)


def _refuse_file(uri: str, stores: Stores) -> None:
    """Raises `ConfigError` for a single file of an unsupported kind."""
    if not PurePosixPath(uri).suffix:
        return
    try:
        store, key = stores.resolve(uri)
        store.head(key)
    except NotFound:
        return
    raise ConfigError(
        f"{uri}: files of this kind are not read, whether lists or images; give {_WANTED}", code="unsupported"
    )


def _checked(source: Source, uri: str) -> Source:
    if not source.items:
        seen = ", ".join(f"{count} {suffix}" for suffix, count in source.ignored.most_common(5)) or "nothing"
        wrong = "".join(f"; {what}: {why}" for what, why in list(source.problems.items())[:1])
        raise ConfigError(f"{uri} holds no images ({seen}){wrong}; give {_WANTED}", code="empty")
    for label in source.labels:
        if not is_plain(label):
            raise ConfigError(f"{uri}: the class {label[:80]!r} has unreadable characters; rename it")
    if not source.labels:
        return source
    without = {
        item.name: f"others have a class, and this {source.unit} has none" for item in source.items if not item.label
    }
    items = tuple(item for item in source.items if item.label)
    return replace(source, items=items, problems={**source.problems, **without})


def _of_split(source: Source, within: str) -> Source:
    """The images in one top-level folder. Images of a training set and of a test set must not be mixed."""
    if within:
        inside = tuple(item for item in source.items if item.name.startswith(within.strip("/") + "/"))
        if source.items and not inside:
            there = ", ".join(sorted({item.name.partition("/")[0] for item in source.items})[:5])
            raise ConfigError(
                f"no image is in {within}; folders are, for example: {there}", field="--within", code="unknown"
            )
        return replace(source, items=inside, recognised=f"{source.recognised}; those in {within}")
    found = {_split_folder(item.name) for item in source.items} - {""}
    if len({folder.rpartition("/")[2].lower() for folder in found}) > 1:
        raise ConfigError(
            f"it holds {' and '.join(sorted(found))}; say which one to read, as in --within {max(found)}",
            field="--within",
            code="missing",
        )
    return source


def _split_folder(name: str) -> str:
    """The folder of the split that an image is in: a top-level folder, or the one above its class folder. Empty if
    there is none."""
    folders = name.split("/")[:-1]
    for place, folder in enumerate(folders):
        if folder.lower() in SPLIT_NAMES and (place == 0 or place < len(folders) - 1):
            return "/".join(folders[: place + 1])
    return ""


def _folder(uri: str, stores: Stores) -> Source:
    store = stores.under(uri)
    infos = [info for info in store.list() if not is_hidden(info.key)]
    problems = left_out(uri, IMAGE_SUFFIXES).problems
    if not (infos or problems):
        raise NotFound(f"there are no files at {uri}; give {_WANTED}")
    unpacked = cifar(Archive({info.key: info.size_bytes for info in infos}, store.get))
    if unpacked is not None:
        return unpacked
    items, ignored = [], Counter[str]()
    for info in infos:
        path = PurePosixPath(info.key)
        if path.suffix.lower() not in IMAGE_SUFFIXES:
            ignored[path.suffix or "without a suffix"] += 1
            continue
        items.append(Item(info.key, _class_of(path), partial(store.get, info.key)))
    return Source("images in folders, each named after a class", tuple(items), ignored, problems=problems)


def _csv(uri: str, stores: Stores) -> Source:
    store, key = stores.resolve(uri)
    try:
        rows = CsvFile(uri, text_of(store.get(key)))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{uri} is not a CSV file in UTF-8: {error}", code="unreadable") from error
    there = [name.lower() for name in rows.columns]
    where, what = (next((name for name in names if name in there), None) for names in (PATH_COLUMNS, LABEL_COLUMNS))
    if where is None or what is None:
        lacking = "path" if where is None else "label"
        has = ", ".join(map(escaped, rows.columns)) or "none"
        raise ConfigError(
            f"{uri} lacks the column {lacking!r}; it needs path and label, and has: {has}", code="missing"
        )
    folder = uri.rpartition("/")[0]
    items: list[Item] = []
    seen: dict[str, tuple[int, str]] = {}
    problems: dict[str, str] = {}
    splits: defaultdict[str, set[str]] = defaultdict(set)
    for row in rows:
        for name in row.values.keys() - {where, what}:
            splits[name].add(canonical_split(row.values[name]))
        path, label = row.values[where], row.values[what]
        if row.problem or not path:
            problems[f"line {row.line}"] = row.problem or "it names no file"
            continue
        line, other = seen.setdefault(one_name(path, folder), (row.line, label))
        if line != row.line:
            said = f"it is listed as {other!r}, too" if other != label else "it counts once"
            problems[f"line {row.line}"] = f"{path} is the file of line {line}; {said}"
            continue
        items.append(Item(of_windows(path), label, partial(_get, stores, listed_uri(path, folder))))
    for name, found in splits.items():
        if len(found) > 1 and (name == "split" or found <= SPLIT_NAMES):
            several = " and ".join(map(repr, sorted(found)))
            raise ConfigError(
                f"{uri}: its column {name} has {several}; write a file for each, and build a data set of each",
                code="conflict",
            )
    return Source(f"a CSV file with the columns {where} and {what}", tuple(items), problems=problems)


def _get(stores: Stores, uri: str) -> bytes:
    return asked(uri, stores, lambda store, key: store.get(key))[1]


def _archive(archive: Archive) -> Source:
    names = [name for name in archive.names if not is_hidden(name.removeprefix("./"))]
    found = cifar(archive)
    if found is not None:
        return found
    labels: dict[str, str] = {}
    problems: dict[str, str] = {}
    for one in names:
        if one.endswith(_LABEL_SUFFIX):
            try:
                labels[one[: -len(_LABEL_SUFFIX)]] = archive.read(one).decode("utf-8").strip()
            except (UnicodeDecodeError, BadFrames) as error:
                problems[one] = f"it cannot be read: {error}"
    items, ignored = [], Counter[str]()
    for one in names:
        path = PurePosixPath(one)
        if path.suffix.lower() not in IMAGE_SUFFIXES:
            if path.suffix != _LABEL_SUFFIX:
                ignored[path.suffix or "without a suffix"] += 1
            continue
        label = labels.get(one[: -len(path.suffix)], "") if labels or problems else _class_of(path)
        if not label and labels:
            problems[one] = f"others have a {_LABEL_SUFFIX} file, and no file with a class lies next to it"
            continue
        items.append(Item(one, label, partial(archive.read, one)))
    what = f"an archive with a {_LABEL_SUFFIX} file for each image" if labels else "an archive of folders"
    return Source(what, tuple(items), ignored, problems=problems)


def _class_of(path: PurePosixPath) -> str:
    return path.parent.name
