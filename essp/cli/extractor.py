"""`essp extractor`: list, describe and preview features, and run the worker that extracts them."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from essp.cli import completions
from essp.cli.console import open_console
from essp_common.errors import ConfigError
from essp_common.job.documents import read_yaml
from essp_engine.features import registry
from essp_extractor.main import main as run_worker

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="List, describe, preview and run feature extractors."
)
app.command("run")(run_worker)
_MOST_FRAMES = 2000
"""Of a preview, which has all of them in memory."""

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ParamOption = Annotated[list[str] | None, typer.Option(help="Parameter as name=value; may be repeated.")]


@app.command("ls")
def list_features(as_json: JsonFlag = False) -> None:
    """List every installed feature. One that does not load is listed with the reason."""
    rows = [_row(name) for name in registry.names()]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table("feature", "what it is", box=None, header_style="bold")
    for row in rows:
        table.add_row(row["name"], row.get("summary") or Text.assemble(("not usable:", "red"), f" {row['error']}"))
    open_console().print(table)


@app.command("describe")
def describe_feature(
    name: Annotated[
        str, typer.Argument(help="The feature (`essp extractor ls`).", autocompletion=completions.features)
    ],
    as_json: JsonFlag = False,
) -> None:
    """Say what a feature is, its parameters with their defaults, and how many frames it needs."""
    declaration = registry.describe(name)
    if as_json:
        typer.echo(json.dumps(declaration, indent=2))
        return
    typer.echo(f"{name}: {declaration['summary']}\n")
    typer.echo(f"{inspect.getdoc(registry.extractor_class(name)) or ''}\n")
    typer.echo(f"Needs clips of {declaration['frames_needed']} frames with these parameters:\n")
    for parameter, field in registry.fields_of(name).items():
        typer.echo(f"  {parameter}: {declaration['params'][parameter]}")
        typer.echo(f"      {' '.join((field.description or '').split())}")


@app.command("preview")
def preview(
    video: Annotated[Path, typer.Argument(help="A video file.", exists=True, dir_okay=False)],
    feature: Annotated[
        str, typer.Option(help="The feature (`essp extractor ls`).", autocompletion=completions.features)
    ] = "flow",
    param: ParamOption = None,
    out: Annotated[Path, typer.Option(help="A picture of a few frames (.png) or a video (.mp4).")] = Path(
        "preview.png"
    ),
    start: Annotated[int, typer.Option(help="Index of the first frame.", min=0)] = 0,
    frames: Annotated[int, typer.Option(help="Number of frames, if a video is written.", min=1, max=_MOST_FRAMES)] = 60,
    short_side: Annotated[int, typer.Option(help="Short side to which frames are scaled, in pixels.", min=8)] = 256,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Draw a feature of a video below the frames it was computed from: what the network will see, for choosing
    parameters."""
    if out.exists() and out.samefile(video):
        raise ConfigError(f"{out} is the video itself; name another file", field="--out", code="conflict")
    from essp.cli.feature_preview import Preview, write_preview

    params = dict(_parameter(text) for text in param or ())
    caption = write_preview(video, out, Preview(feature, params, start, frames, short_side))
    typer.echo(json.dumps({"file": str(out), "caption": caption}) if as_json else out)
    if caption:
        typer.echo(caption, err=True)


def _row(name: str) -> dict[str, str]:
    try:
        return {"name": name, "summary": registry.extractor_class(name).summary}
    except ConfigError as error:
        return {"name": name, "error": str(error)}


def _parameter(text: str) -> tuple[str, Any]:
    name, given, value = text.partition("=")
    if not given:
        raise ConfigError(f"{text!r}: write it as name=value, for example length=5", field="--param", code="type")
    return name.strip(), read_yaml(value, f"--param {name}")
