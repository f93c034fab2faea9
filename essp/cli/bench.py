"""`essp bench`: measure input pipelines, training and checkpoints on the user's own machine, stores and data."""

from __future__ import annotations

import typer

from essp.cli import bench_app, bench_checkpoint, bench_io

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.callback()
def _about() -> None:
    """Measure reading, training and saving on this machine and its stores."""


app.command("io")(bench_io.main)
app.command("app")(bench_app.main)
app.command("checkpoint")(bench_checkpoint.main)
