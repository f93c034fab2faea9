"""`essp weights`: published weights from which trainers start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from essp.cli import completions
from essp.weights.fetching import fetch_weights
from essp_common.job.registered import HUGGING_FACE
from essp_common.quantities import size

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Published weights from which trainers start.")


@app.callback()
def weights() -> None:
    """Published weights from which trainers start."""


@app.command("fetch")
def fetch_command(
    model: Annotated[
        str,
        typer.Argument(
            help="A network with weights of torchvision (`resnet18`), timm:NAME or hf:OWNER/NAME.",
            autocompletion=completions.models,
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="File to write (default: NAME.safetensors here).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print file, source and size as JSON.")] = False,
) -> None:
    """Download the published weights of a network to a file, for `weights` of a trainer.

    Only this command downloads weights: trainers read files. Check the licence of the weights at their source.
    """
    fetched = fetch_weights(model, out)
    length = fetched.file.stat().st_size
    if as_json:
        typer.echo(json.dumps({"file": str(fetched.file), "source": fetched.source, "bytes": length}))
        return
    typer.echo(f"{fetched.file}: {size(length)} from {fetched.source}. In a job:\n")
    typer.echo(f"trainers:\n  rgb: {{stream: rgb, model: {json.dumps(model)}, weights: {fetched.file}}}")
    if model.startswith(HUGGING_FACE):
        typer.echo("\nTrainers and predictors on other machines need its configuration, too: run this command there.")
