"""COCO annotations (`instances_train2017.json`) and their images.

Each box becomes a record, cut out of its image, with its category as the label; or each image becomes one, with the
category of its largest object. Categories keep their order, and those without a box are classes too, so that training
and validation sets number them alike.

Boxes of crowds are counted and left out. Wrong entries are named and left out: a box without area or outside its image,
or of an unknown image or category. A box that crosses the border of its image is clipped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from essp.records.archives import Archive, open_archive
from essp.records.items import Box, Item, Source
from essp_common.errors import BadFrames, ConfigError, NotFound
from essp_common.objects.documents import read_json
from essp_common.objects.keys import is_plain
from essp_common.objects.port import ObjectStore
from essp_common.quantities import counted
from essp_common.wiring import Stores

Read = Callable[[str], bytes]
_FAULTY = (KeyError, ValueError)
_ASKED_FOR = 20
"""Number of images that are searched for in a folder to decide whether it is the right one."""
_FAR = 2**31
"""Coordinates beyond this are invalid."""
_UNUSED = frozenset(("segmentation", "keypoints", "caption", "rle", "counts"))
"""Most of the file; never kept in memory."""


@dataclass(frozen=True, slots=True)
class _Image:
    file: str
    size: tuple[int, int] | None
    """Height and width, if the annotations give them."""


@dataclass(frozen=True, slots=True)
class _Object:
    name: str
    label: str
    box: Box
    area: float


def coco(uri: str, stores: Stores, images: str, whole: bool, opened: ExitStack) -> Source:
    """Read the annotations at `uri`. Raises `ConfigError` if they are not COCO annotations.

    `images`: URI of their folder or archive; if empty, the usual places near the annotations are searched. `whole`: one
    record per image instead of one per box. Images in an archive stay open as long as `opened`.
    """
    content = _content(uri, stores)
    problems: dict[str, str] = {}
    classes = _categories(uri, content)
    files = _images(content["images"], problems)
    crowds, objects = _objects(content["annotations"], files, classes, problems)
    if not objects:
        wrong = "".join(f"; {what}: {why}" for what, why in list(problems.items())[:1])
        raise ConfigError(
            f"{uri} has no box that can be used; {crowds:,} are of crowds, and {len(problems):,} entries "
            f"are wrong{wrong}",
            code="empty",
        )
    read = _reading(uri, stores, images, [files[key].file for key in objects], opened)
    items: list[Item] = []
    for key in sorted(objects, key=lambda one: files[one].file):
        image = files[key]
        reading = partial(read, image.file)
        if whole:
            largest = max(objects[key], key=lambda one: one.area)
            items.append(Item(image.file, largest.label, reading))
        else:
            items += [Item(f"{image.file} {one.name}", one.label, reading, one.box) for one in objects[key]]
    left_out = f"; {counted(crowds, 'box')} of crowds left out" if crowds else ""
    what = "images, each with the category of its largest object" if whole else f"boxes in {len(objects):,} images"
    return Source(
        f"annotations of COCO: {what}{left_out}",
        tuple(items),
        classes=tuple(classes.values()),
        problems=problems,
        unit="image" if whole else "box",
        cut=not whole,
    )


def _content(uri: str, stores: Stores) -> Mapping[str, list[Any]]:
    store, key = stores.resolve(uri)
    try:
        content: Any = read_json(store.get(key), _kept)
    except ValueError as error:
        raise ConfigError(f"{uri} is not a JSON file: {error}", code="unreadable") from error
    lists = content if isinstance(content, dict) else {}
    for name in ("images", "annotations", "categories"):
        if not isinstance(lists.get(name), list):
            raise ConfigError(
                f"{uri} lacks the list {name!r} of COCO's annotations; give a file like instances_*.json, or for a "
                "list of images a CSV file with the columns path and label",
                code="unreadable",
            )
    return lists


def _kept(entry: dict[str, Any]) -> dict[str, Any]:
    for name in _UNUSED & entry.keys():
        del entry[name]
    return entry


def _categories(uri: str, content: Mapping[str, list[Any]]) -> dict[int, str]:
    """Id -> name, in the order of the ids. Errors are not skipped here, because labels depend on every entry."""
    found: dict[int, str] = {}
    for place, entry in enumerate(content["categories"]):
        try:
            key, name = _whole(_entry(entry)["id"]), _text(entry["name"])
        except _FAULTY as error:
            raise ConfigError(
                f"{uri}: categories[{place}] has no id and name: {_said(error)}", code="unreadable"
            ) from error
        if key in found or name in found.values():
            raise ConfigError(f"{uri}: categories[{place}]: {name!r} with the id {key} comes twice", code="unreadable")
        found[key] = name
    return dict(sorted(found.items()))


def _images(entries: list[Any], problems: dict[str, str]) -> dict[int, _Image]:
    found: dict[int, _Image] = {}
    for place, entry in enumerate(entries):
        try:
            key, file = _whole(_entry(entry)["id"]), _text(entry["file_name"])
            size = (_whole(entry["height"]), _whole(entry["width"])) if "height" in entry and "width" in entry else None
            if key in found:
                raise ValueError(f"the id {key} is already used by {found[key].file}")
            found[key] = _Image(file, size)
        except _FAULTY as error:
            problems[f"images[{place}]"] = _said(error)
    return found


def _objects(
    entries: list[Any], images: Mapping[int, _Image], classes: Mapping[int, str], problems: dict[str, str]
) -> tuple[int, dict[int, list[_Object]]]:
    """The number of crowds, and the objects of each image."""
    crowds = 0
    found: dict[int, list[_Object]] = {}
    for place, entry in enumerate(entries):
        name = f"annotations[{place}]"
        try:
            crowd = _entry(entry).get("iscrowd", 0)
            name = f"box {entry['id']}" if isinstance(entry.get("id"), int) else name
            if crowd not in (0, 1, None):
                raise ValueError(f"iscrowd is {_short(crowd)}, and not 0 or 1")
            if crowd:
                crowds += 1
                continue
            key, category = _whole(entry["image_id"]), _whole(entry["category_id"])
            if key not in images:
                raise ValueError(f"there is no image {key}")
            if category not in classes:
                raise ValueError(f"there is no category {category}")
            box, area = _box(entry["bbox"], images[key].size)
        except _FAULTY as error:
            problems[name] = _said(error)
            continue
        found.setdefault(key, []).append(_Object(name, classes[category], box, area))
    return crowds, found


def _box(numbers: Any, size: tuple[int, int] | None) -> tuple[Box, float]:
    """The pixels that COCO's `[x, y, width, height]` touches, and its area."""
    fine = isinstance(numbers, list) and len(numbers) == 4
    # NaN also fails this comparison
    if not fine or not all(type(one) in (int, float) and abs(one) < _FAR for one in numbers):
        raise ValueError(f"{_short(numbers)} is not a box")
    left, top, width, height = numbers
    if width <= 0 or height <= 0:
        raise ValueError(f"{_short(numbers)} has no area")
    if width < 1 and height < 1:
        raise ValueError(f"{_short(numbers)} is smaller than a pixel; coordinates are pixels, not parts of the image")
    box = Box(math.floor(top), math.floor(left), math.ceil(top + height), math.ceil(left + width), size)
    return clipped(box, *size) if size is not None else box, width * height


def clipped(box: Box, height: int, width: int) -> Box:
    """The part of the box inside an image of this size. Raises `ValueError` if there is none."""
    inside = replace(
        box, top=max(0, box.top), left=max(0, box.left), bottom=min(height, box.bottom), right=min(width, box.right)
    )
    if inside.top >= inside.bottom or inside.left >= inside.right:
        raise ValueError(f"it lies outside of its image of {height}x{width}")
    return inside


def _reading(uri: str, stores: Stores, images: str, wanted: list[str], opened: ExitStack) -> Read:
    """A function that reads an image by its name in the annotations."""
    if images.lower().endswith((".zip", ".tar")):
        archive = opened.enter_context(open_archive(*stores.resolve(images), images.lower().endswith(".zip")))
        return partial(_read_member, archive, _by_name(archive))
    beside = uri.rpartition("/")[0]
    split = PurePosixPath(uri).stem.partition("_")[2]
    above = beside.rpartition("/")[0]
    likely = [f"{beside}/{split}", beside]
    if "://" in above:  # nothing above the root of a store belongs to that store
        likely = [f"{above}/{split}", f"{above}/images/{split}", f"{above}/images", *likely, above]
    for folder in (images,) if images else dict.fromkeys(likely):
        store = stores.under(folder)
        if images or any(_has(store, name) for name in wanted[:_ASKED_FOR]):
            return store.get
    raise ConfigError(
        f"{uri} is of images such as {wanted[0]}, and they are neither in {likely[0]} nor next to it; "
        "say where they are: --images FOLDER",
        field="--images",
        code="not_found",
    )


def _has(store: ObjectStore, name: str) -> bool:
    try:
        store.head(name)
    except NotFound:
        return False
    return True


def _by_name(archive: Archive) -> dict[str, list[str]]:
    """Name without folders -> the members with this name."""
    found: dict[str, list[str]] = {}
    for name in archive.names:
        found.setdefault(PurePosixPath(name).name, []).append(name)
    return found


def _read_member(archive: Archive, members: Mapping[str, list[str]], name: str) -> bytes:
    """The only member of this name; among several, the one whose path ends with the full name."""
    held = members.get(PurePosixPath(name).name, [])
    fitting = held if len(held) < 2 else [member for member in held if f"/{member}".endswith(f"/{name}")]
    if len(fitting) != 1:
        several = f"several files of this name: {', '.join(held[:3])}"
        raise BadFrames(f"the archive of images has {several if held else 'no such file'}")
    return archive.read(fitting[0])


def _entry(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{_short(value)} is not an object")
    return value


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{_short(value)} is not a whole number")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or not is_plain(value):
        raise ValueError(f"{_short(value)} is not a text")
    return value


def _said(error: Exception) -> str:
    return f"it lacks {error}" if isinstance(error, KeyError) else str(error)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else text[:57] + "..."
