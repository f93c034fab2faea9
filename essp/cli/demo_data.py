"""`essp demo-data`: the demonstration's videos, catalogs and job files for services that run elsewhere.

    URI/videos/            the set: real encoded files (essp/demo/dataset.py)
    URI/catalog.parquet    all of them, for training
    URI/unseen.parquet     the test split, for prediction
    OUT/train.yaml         the jobs, for `essp job start`
    OUT/predict.yaml

The compose file's `demo` runs it; `essp demo` is the same journey in one process. Running it again changes nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from essp.catalog.build import BuildOptions, build
from essp.demo.dataset import make_dataset
from essp.demo.job import job_text, prediction_text
from essp.demo.taken import check_catalog, check_job
from essp.folders import folder_for, store_for, written
from essp.uris import as_uri, shown
from essp_common.job.spec import parse_spec
from essp_common.runtime.config import Settings
from essp_common.runtime.temporary import TemporaryFolder
from essp_common.wiring import Stores


def main(
    uri: Annotated[str, typer.Argument(help="Folder for the videos: a path or a URI, as in s3://essp/demo.")],
    out: Annotated[Path, typer.Option(help="Folder for the job files.")] = Path("."),
    videos_per_class: Annotated[int, typer.Option(help="Number of videos in each of the 12 classes.", min=6)] = 30,
    epochs: Annotated[int, typer.Option(help="Number of training epochs.", min=1)] = 8,
    clips_per_epoch: Annotated[int, typer.Option(help="Number of clips in an epoch.", min=16)] = 960,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Make a labelled video set, put it into an object store, and write a training and a prediction job for it."""
    root = as_uri(uri).rstrip("/")
    texts = {"train": job_text(root, epochs, clips_per_epoch), "predict": prediction_text(root)}
    for name, text in texts.items():
        parse_spec(text, name)
    jobs = folder_for("--out", out)
    stores = Settings().stores
    store = store_for("URI", f"{root}/videos", Stores(stores))
    for name in texts:
        check_job(jobs / f"{name}.yaml", "--out")
    check_catalog(f"{root}/catalog.parquet", f"{root}/videos", Stores(stores), "URI")
    check_catalog(f"{root}/unseen.parquet", f"{root}/videos/test", Stores(stores), "URI")
    with TemporaryFolder("demo") as folder:
        made = make_dataset(f"{folder}/videos", videos_per_class)  # built elsewhere: make_dataset locks its folder
        files = sorted(path for path in made.glob("*/*/*") if path.is_file())
        for path in files:
            store.put_file(str(path.relative_to(made)), str(path))
    typer.echo(f"{len(files)} videos are at {root}/videos", err=True)
    build(f"{root}/videos", f"{root}/catalog.parquet", stores, BuildOptions("folders"))
    build(f"{root}/videos/test", f"{root}/unseen.parquet", stores, BuildOptions("folders"))
    for name, text in texts.items():
        path = jobs / f"{name}.yaml"
        with written(path):
            path.write_text(text, encoding="utf-8")
        if not as_json:
            typer.echo(f"essp job start {shown(as_uri(str(path)))} --wait")
    if as_json:
        typer.echo(json.dumps({"videos": f"{root}/videos", "jobs": [str(jobs / f"{name}.yaml") for name in texts]}))
