"""`essp checkpoint`: the checkpoints of a training job, and smaller copies of its model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

from essp.checkpoints.listing import Listed, at, faults, listed, trainers, weights_of
from essp.cli.console import open_console, say
from essp.folders import store_for
from essp.uris import as_uri
from essp_common.artifacts.checkpoint_files import StoredFile
from essp_common.artifacts.manifest import Manifest, ModelDescription
from essp_common.distribution import require
from essp_common.errors import ConfigError, NotFound
from essp_common.objects.port import ObjectStore
from essp_common.quantities import counted, percent, size
from essp_common.runtime.config import Settings
from essp_common.tensors.packed import Codec, Packing, Scope
from essp_common.wiring import Stores

if TYPE_CHECKING:
    from essp.checkpoints.export import Exported  # it loads torch

_MOST_LINES = 15

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="List, show, verify and compare checkpoints; export models."
)
Output = Annotated[str, typer.Argument(help="The output of a training job: a path or a URI.")]
TrainerOption = Annotated[str, typer.Option(help="Name of the trainer; may be left out if there is only one.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")]


@app.command("ls")
def ls_command(
    output: Output,
    trainer: Annotated[str, typer.Option(help="Only checkpoints of this trainer.")] = "",
    as_json: JsonOption = False,
) -> None:
    """List the checkpoints of a job. Files are not read; `verify` does that."""
    found = listed(_store(output), trainer)
    if as_json:
        typer.echo(json.dumps([_facts(each) for each in found], indent=2))
        return
    table = Table(box=None, pad_edge=False)
    for column, right in (("TRAINER", False), ("STEP", True), ("EPOCH", True), ("SIZE", True), ("WRITTEN", False)):
        table.add_column(column, justify="right" if right else "left")
    table.add_column("")
    for each in found:
        written = "" if each.created is None else each.created.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        epoch = "" if each.epoch is None else str(each.epoch)
        table.add_row(each.trainer, f"{each.step:,}", epoch, size(each.bytes), written, _marks(each))
    console = open_console()
    console.print(table)
    for each in found:
        if each.problem:
            say(f"{each.trainer} {each.step}: {each.problem}", console)


@app.command("show")
def show_command(
    output: Output,
    trainer: TrainerOption = "",
    step: Annotated[
        int | None, typer.Option(help="Step of the checkpoint (default: the newest intact one).", min=0)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show one checkpoint: where the training stood, its figures and files."""
    store = _store(output)
    manifest = at(store, _the(trainer, store), step)
    if as_json:
        typer.echo(manifest.model_dump_json(indent=2))
        return
    console = open_console()
    rows = Table(box=None, show_header=False, pad_edge=False)
    model, best, origin = manifest.model, manifest.best, manifest.origin
    facts: dict[str, str] = {
        "trainer": f"{manifest.trainer} of job {manifest.job}",
        "step": f"{manifest.step:,} clips, {manifest.updates:,} updates",
        "epoch": f"{manifest.epoch + 1} of {manifest.epochs}",
        "resumes at": f"phase {manifest.position.phase_index}, clip {manifest.position.index}",
        "network": f"{model.name} on {model.feature}, {counted(len(model.classes), 'class')}, {_seen(model)}",
        "began with": "random weights" if origin is None else f"{origin.uri}, SHA-256 {origin.sha256}",
        "final": _final(manifest),
        "best": "none yet" if best is None else f"step {best.step:,}, {_figures(best.metrics)}",
        "last phase": _figures(manifest.metrics) or "none was over",
        "written": "" if manifest.created is None else manifest.created.astimezone().isoformat(" ", "seconds"),
        "files": ", ".join(_file(file) for file in manifest.files),
        "rounded": _rounded(manifest),
        "stored in": store.uri(manifest.key),
    }
    for name, fact in facts.items():
        rows.add_row(Text(name, "bold"), fact)
    console.print(rows)


@app.command("verify")
def verify_command(
    output: Output,
    trainer: Annotated[str, typer.Option(help="Only checkpoints of this trainer.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Read every byte of the checkpoints and compare it with its hash; exit status 1 if something is damaged.

    Checkpoints that a running job is writing or removing at the same time are skipped.
    """
    store = _store(output)
    found = listed(store, trainer)
    console = open_console(stderr=True)
    bad: dict[str, str] = {}
    whole: list[Listed] = []
    passed: list[str] = []
    for number, each in enumerate(found, start=1):
        if console.is_terminal:
            console.print(f"reading {number} of {len(found)}: {size(each.bytes)}", end="\r", highlight=False)
        why = faults(store, each)
        if why:
            bad[f"{each.trainer} {each.step}"] = why
        elif why is None:
            passed.append(f"{each.trainer} {each.step}")
        else:
            whole.append(each)
    looked_at = len(bad) + len(whole)
    if as_json:
        typer.echo(json.dumps({"checkpoints": looked_at, "damaged": bad, "passed_over": passed}, indent=2))
    for name, why in {} if as_json else bad.items():
        typer.echo(f"{name}: {why}")
    for name in [] if as_json else passed:
        typer.echo(f"{name}: skipped, as it is being written, or was removed meanwhile")
    if bad:
        console.print(f"{len(bad)} of {counted(looked_at, 'checkpoint')} cannot be used")
        raise typer.Exit(1)
    if not as_json:
        typer.echo(f"{counted(looked_at, 'checkpoint')}: all whole, {size(sum(each.bytes for each in whole))} read")


@app.command("diff")
def diff_command(
    output: Output,
    first: Annotated[int, typer.Argument(help="A step, as `essp checkpoint ls` prints it.", min=0)],
    second: Annotated[int, typer.Argument(help="A second step, to compare with the first.", min=0)],
    trainer: TrainerOption = "",
    as_json: JsonOption = False,
) -> None:
    """Say how much each tensor of the weights changed between two checkpoints of a trainer."""
    from essp.checkpoints.difference import difference  # it loads torch

    store = _store(output)
    name = _the(trainer, store)
    found = difference(store, at(store, name, first), at(store, name, second), Settings().code)
    if as_json:
        typer.echo(json.dumps(asdict(found) | {"same": found.same}, indent=2))
        return
    console = open_console()
    if found.same:
        console.print(f"the weights of {first} and {second} are the same to the last bit", highlight=False)
        return
    table = Table(box=None, pad_edge=False)
    for column in ("TENSOR", "SHAPE", "CHANGE", "LARGEST", "SAME"):
        table.add_column(column, justify="left" if column == "TENSOR" else "right")
    for each in found.moved[:_MOST_LINES]:
        shape = "x".join(map(str, each.shape)) or "1"
        table.add_row(each.name, shape, percent(each.relative, 2), f"{each.largest:.3g}", percent(each.equal, 0))
    console.print(table)
    if len(found.moved) > _MOST_LINES:
        console.print(f"and {len(found.moved) - _MOST_LINES} that moved less; --json has all", highlight=False)
    for title, names in (("gone", found.missing), ("new", found.added), ("of another shape", found.reshaped)):
        if names:
            say(f"{title}: {', '.join(names)}", console)


@app.command("export")
def export_command(
    model: Annotated[str, typer.Argument(help="A model: the output of its job, or its `model` folder; path or URI.")],
    out: Annotated[str, typer.Option(help="Folder for the copy: a path or a URI.")],
    bits: Annotated[int, typer.Option(help="Bits of each weight, 2 to 16; 0: exact.", min=0, max=16)] = 0,
    scope: Annotated[
        Scope, typer.Option(help="What gets its own range: each channel, each tensor, or all together (global).")
    ] = "channel",
    codec: Annotated[Codec, typer.Option(help="Compression of the bytes.")] = "zstd",
    one_dimensional: Annotated[
        bool, typer.Option("--one-dimensional", help="Also round biases and statistics, which otherwise stay exact.")
    ] = False,
    form: Annotated[
        Literal["essp", "onnx", "torch"],
        typer.Option("--format", help="essp: a smaller copy; onnx, torch: programs for other runtimes."),
    ] = "essp",
    frame: Annotated[
        str,
        typer.Option(help="HxW of the frames that an exported program takes, as in 256x340, if videos differ in size."),
    ] = "",
    check: Annotated[
        list[str] | None,
        typer.Option(help="Videos, or folders of videos, on which to compare both models; may be repeated."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a smaller copy of a model: an exact one, or one with weights of few bits.

    Eight bits with a range for each channel take a quarter of the size and hardly change an answer. Fewer bits, or one
    range for more than a channel, change many; --check counts them. The copy works wherever a model does.
    """
    if form != "essp":
        if bits or check:
            raise ConfigError(
                f"{form}: --bits and --check are for copies (--format essp) alone", field="--format", code="conflict"
            )
        _export_programs(model, out, form, _frame(frame), as_json)
        return
    if frame:
        raise ConfigError("is for programs (--format onnx or torch) alone", field="--frame", code="conflict")
    from essp.checkpoints.export import export  # it loads torch
    from essp_common.artifacts.fused_model import open_model

    packing = Packing(bits, scope, not one_dimensional, codec)
    settings = Settings()
    stores = Stores(settings.stores)
    source, found = open_model(stores, as_uri(model))
    target = as_uri(out)
    exported = export(source, found, store_for("--out", target, stores), packing, settings.code)
    answers = _compared(model, out, check) if check else None
    share = sum(each.after_bytes for each in exported) / sum(each.before_bytes for each in exported)
    if as_json:
        facts = {"members": [asdict(each) for each in exported], "size": share, "answers": answers}
        typer.echo(json.dumps({"out": target, **facts}, indent=2))
        return
    _tell_of_export(exported, answers, out, share)


def _tell_of_export(exported: Sequence[Exported], answers: dict[str, Any] | None, out: str, share: float) -> None:
    console = open_console()
    for each in exported:
        error = "exact" if not each.error else f"off by {percent(each.error, 2)} of a tensor's largest number at most"
        console.print(
            f"{each.trainer}: {size(each.before_bytes)} -> {size(each.after_bytes)}, {error}", highlight=False
        )
    if answers is not None:
        console.print(
            f"of {answers['videos']} videos, {answers['same']} are classified alike; probabilities differ by "
            f"{answers['largest']:.3g} at most",
            highlight=False,
        )
        for video, was, now in answers["changed"][:_MOST_LINES]:
            console.print(f"  {video}: {was} -> {now}", highlight=False)
    console.print(
        f"wrote {out}: {percent(share)} of the size; use it as --model {out} or essp.load_model({out!r})",
        highlight=False,
        soft_wrap=True,
    )


def _export_programs(
    model: str, out: str, form: Literal["onnx", "torch"], frame: tuple[int, int] | None, as_json: bool
) -> None:
    if form == "onnx":
        for library in ("onnx", "onnxscript", "onnxruntime"):
            require("a program for ONNX", library)
    from essp.api.models import load_model
    from essp.checkpoints.programs import export_programs

    target = store_for("--out", as_uri(out), Stores(Settings().stores))
    written = export_programs(load_model(model), target, form, frame)
    if as_json:
        typer.echo(json.dumps(written, indent=2))
        return
    console = open_console()
    for name, member in written["networks"].items():
        shape = "x".join(map(str, member["input"]["shape"][1:]))
        console.print(
            f"{name}: {member['file']}, clips of {shape} {member['input']['dtype']}; probabilities differ by "
            f"{member['error']:.2g} from the network's at most",
            highlight=False,
            soft_wrap=True,
        )
    console.print(f"wrote {out}; model.json there says what each takes, and how their scores become one")


def _frame(text: str) -> tuple[int, int] | None:
    """Parse `256x340` into height and width. Raises `ConfigError`."""
    if not text:
        return None
    height, _, width = text.partition("x")
    if not (height.isdecimal() and width.isdecimal() and 8 <= int(height) <= 8192 and 8 <= int(width) <= 8192):
        raise ConfigError(f"{text!r} is not HxW, as in 256x340", field="--frame", code="type")
    return int(height), int(width)


def _compared(model: str, copy: str, videos: list[str]) -> dict[str, Any]:
    """Compare the predictions of both models on these videos."""
    from essp.api.prediction import predict

    pairs = list(zip(predict(videos, model), predict(videos, copy), strict=True))
    scored = [(one, other) for one, other in pairs if one.class_name and other.class_name]
    if not scored:
        raise ConfigError(f"not one of {counted(len(pairs), 'video')} could be decoded", field="--check", code="empty")
    return {
        "videos": len(scored),
        "same": sum(one.class_name == other.class_name for one, other in scored),
        "largest": max(abs(one.scores[name] - other.scores[name]) for one, other in scored for name in one.scores),
        "changed": [
            (one.video, one.class_name, other.class_name) for one, other in scored if one.class_name != other.class_name
        ],
    }


def _store(output: str) -> ObjectStore:
    return Stores(Settings().stores).under(as_uri(output))


def _the(trainer: str, store: ObjectStore) -> str:
    """The trainer that the option names, or the only one. Raises `NotFound` or `ConfigError`."""
    there = trainers(store)
    if not there:
        raise NotFound(f"{store.uri('trainers')} holds no checkpoint of a training; give the output of a training job")
    if trainer in there:
        return trainer
    if trainer:
        raise ConfigError(
            f"there is no trainer {trainer}; there are {', '.join(there)}", field="--trainer", code="unknown"
        )
    if len(there) > 1:
        raise ConfigError(f"say which; there are {', '.join(there)}", field="--trainer", code="missing")
    return there[0]


def _marks(each: Listed) -> str:
    final = "final" if each.weights_of is None else f"final: best ({each.weights_of:,})"
    marks = {"latest": each.latest, "best": each.best, final: each.final, "unusable": bool(each.problem)}
    names = [name for name, there in marks.items() if there]
    names += [f"difference to {step:,}" for step in each.needs]
    return ", ".join(names + ([f"{each.bits} bits"] if each.bits else []))


def _final(manifest: Manifest) -> str:
    if not manifest.final:
        return "no"
    step = weights_of(manifest)
    return "yes: nothing follows it" + ("" if step is None else f"; its weights are from step {step:,}, the best")


def _file(file: StoredFile) -> str:
    base = "" if file.base is None else f" (difference to {file.base.step:,})"
    return f"{file.name} {size(file.size_bytes)}{base}"


def _seen(model: ModelDescription) -> str:
    if model.encoder is None:
        return f"crop {model.crop}"
    return f"{model.encoder.pca} components, {counted(model.encoder.centres, 'centre')}"


def _rounded(manifest: Manifest) -> str:
    rounding = manifest.rounding
    now = (
        "no" if rounding is None else f"{', '.join(rounding.files)}: {rounding.bits} bits a number, by {rounding.scope}"
    )
    if not manifest.approximate:
        return now
    steps = ", ".join(f"{step:,}" for step in manifest.approximate)
    return f"{now}; the training is approximate, as it resumed from rounded numbers at {steps}"


def _facts(each: Listed) -> dict[str, Any]:
    return asdict(each) | {"created": None if each.created is None else each.created.isoformat()}


def _figures(metrics: dict[str, float]) -> str:
    wanted = ("loss", "top1", "video_top1", "mean_class")
    return ", ".join(f"{name} {metrics[name]:.3g}" for name in wanted if name in metrics)
