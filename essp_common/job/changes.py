"""What users may change while a job runs, and how a change affects the job.

    trainers.NAME.optimizer.{lr, schedule, unit, warmup, steps, gamma}   from the next update of that trainer
    aggregation.strategies                                               when the trained streams are fused
    epochs                                                               more of them, from the next run of the job
    trainers.NEW..., streams.NEW...                                      one more, from the next run of the job

The last two need a new run: the epochs and trainers of a run are fixed, so the master ends it and starts another one
(docs/decisions/0066).

The job as it was started is never modified: the digest in its checkpoints and the file in its output refer to it.
Changes are numbered from 1 and stored separately: in the history, in each command of the master, and, for a trainer, in
each of its checkpoints, together with the position from which they apply. What a trainer does at a position depends
only on the job and on the earlier changes, so a resumed training repeats the same steps.

Pure. Values travel as JSON, in the form of their fields.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple, Self, TypeVar

from pydantic import ValidationError

from essp_common.errors import ConfigError
from essp_common.field_paths import joined, parts_of
from essp_common.job.documents import read_yaml
from essp_common.job.fields import MOST_EPOCHS
from essp_common.job.spec import AggregationSpec, JobSpec
from essp_common.job.trainer_spec import RATE, OptimizerSpec
from essp_common.pb.v1.messages_pb2 import TRAIN, Change, PhasePlan, TrainingPlace
from essp_common.validation import problems

STRATEGIES = "aggregation.strategies"
EPOCHS = "epochs"
MOST_CHANGES = 1000
"""Changes of one job: every command carries all of them."""
_MOST_BYTES = 16 * 1024
"""The values of one change."""

SectionT = TypeVar("SectionT", OptimizerSpec, AggregationSpec)


class Place(NamedTuple):
    """A place in the training: before a clip of an epoch."""

    epoch: int
    clip: int

    def message(self) -> TrainingPlace:
        """As a message."""
        return TrainingPlace(epoch=self.epoch, clip=self.clip)

    @classmethod
    def of(cls, message: TrainingPlace) -> Self:
        """The place in a message."""
        return cls(message.epoch, message.clip)

    def __str__(self) -> str:
        begins = f"epoch {self.epoch + 1}"
        return f"clip {self.clip} of {begins}" if self.clip else begins


BEGINNING = Place(0, 0)


def place_at(phases: Sequence[PhasePlan], position: tuple[int, int]) -> Place:
    """The place of the clip to be trained next at a position (phase, index)."""
    phase_index, index = position
    for plan in phases[phase_index:]:
        if plan.purpose == TRAIN and index < plan.clips:
            return Place(plan.epoch, index)
        index = 0
    return Place(sum(plan.purpose == TRAIN for plan in phases), 0)


def changeable(spec: JobSpec) -> list[str]:
    """The fields of a job that may change while it runs; encoders and probes have no learning rate."""
    if not spec.trainers:
        return []
    stepping = [name for name, trainer in spec.trainers.items() if trainer.has_rate]
    rates = [f"{_optimizer(name)}.{field}" for name in stepping for field in RATE]
    return [*rates, STRATEGIES]


def concerns(fields: Iterable[str], trainer: str) -> bool:
    """Whether a change of these fields affects a trainer."""
    return any(field.startswith(_optimizer(trainer) + ".") for field in fields)


def parse_changes(text: str) -> dict[str, Any]:
    """Dotted field -> value, from a part of a job file in YAML or JSON.

    Raises `ConfigError`.
    """
    document = read_yaml(text, "the change")
    if not isinstance(document, dict) or not document:
        raise ConfigError(
            "the change: is a mapping of the fields to change, as in "
            '{"trainers": {"rgb": {"optimizer": {"lr": 0.001}}}}',
            code="type",
        )
    return {joined(names): value for names, value in leaves_of(document)}


def changed(spec: JobSpec, fields: Mapping[str, Any]) -> JobSpec:
    """The job with these values. Raises `ConfigError` for fields that cannot change while a job runs, and for invalid
    values."""
    known = changeable(spec)
    for field in fields:
        if field not in known:
            raise ConfigError(
                f"cannot be changed while the job runs; {_instead(field, known)}", field=field, code="unsupported"
            )
    if sum(len(json.dumps(value, default=str)) for value in fields.values()) > _MOST_BYTES:
        raise ConfigError(
            f"these values have more than {_MOST_BYTES} bytes as JSON; change fewer of them at once", code="range"
        )
    trainers = dict(spec.trainers)
    for name, trainer in spec.trainers.items():
        if new := _of_section(fields, _optimizer(name)):
            optimizer = _with(trainer.optimizer, new, _optimizer(name))
            trainers[name] = trainer.model_copy(update={"optimizer": optimizer})
    aggregation = spec.aggregation
    if new := _of_section(fields, "aggregation"):
        aggregation = _with(aggregation, new, "aggregation")
    return spec.model_copy(update={"trainers": trainers, "aggregation": aggregation})


def of_next_run(spec: JobSpec, fields: Iterable[str]) -> set[str]:
    """Those of these fields that need a new run: more epochs, new trainers, and their streams.

    A new trainer counts only if its stream is given; otherwise its name is assumed to be misspelled.
    """
    given = list(fields)
    new = {parts[1] for parts in map(parts_of, given) if len(parts) == 3 and parts[::2] == ("trainers", "stream")}
    groups = {"trainers": new - spec.trainers.keys(), "streams": _names("streams", given) - spec.streams.keys()}
    return {
        field
        for field in given
        if spec.trainers and (field == EPOCHS or any(_names(group, [field]) & groups[group] for group in groups))
    }


def next_run(spec: JobSpec, fields: Mapping[str, Any]) -> JobSpec:
    """The job of the next run: `spec` with these `fields` (see `of_next_run`) added, either already accepted or
    requested.

    Raises `ConfigError` for fewer epochs, and for an invalid trainer or stream.
    """
    document = spec.model_dump(mode="json")
    for field, value in fields.items():
        *path, last = parts_of(field)
        section = document
        for name in path:
            if not isinstance(section.get(name), dict):
                section[name] = {}
            section = section[name]
        section[last] = value
    if EPOCHS in fields:
        _check_epochs(spec.epochs, fields[EPOCHS])
    try:
        after = JobSpec.model_validate(document)
    except ValidationError as error:
        raise ConfigError.together(problems(error, JobSpec)) from error
    learned = {trainer.stream for trainer in after.trainers.values()}
    for stream in after.streams.keys() - spec.streams.keys() - learned:
        raise ConfigError(
            f"no trainer learns from it; give one, too (trainers.NAME.stream={stream})",
            field=f"streams.{stream}",
            code="conflict",
        )
    return after


def gains(before: JobSpec, after: JobSpec) -> str:
    """What a job gains with its next run, in words: more epochs, new trainers."""
    new = [name for name in after.trainers if name not in before.trainers]
    epochs = f"{after.epochs} {EPOCHS} instead of {before.epochs}" if after.epochs != before.epochs else ""
    trainers = f"the trainer{'s' if len(new) > 1 else ''} {' and '.join(new)}" if new else ""
    return " and ".join(filter(None, (epochs, trainers)))


def _check_epochs(present: int, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_EPOCHS:
        raise ConfigError(
            f"{value!r} is not a number of epochs; give {present + 1} to {MOST_EPOCHS}", field=EPOCHS, code="type"
        )
    if value < present:
        raise ConfigError(
            f"the job has {present}, and can be given more, not fewer: its trainers may be beyond epoch "
            f"{value} already; stop it when it has trained enough, or let trainers stop early (trainers.NAME.stop)",
            field=EPOCHS,
            code="range",
        )


def differences(before: JobSpec, after: JobSpec) -> dict[str, tuple[str, str]]:
    """The changeable fields in which two specifications of a job differ -> their values in both, as JSON."""
    values = [{field: _value(spec, field) for field in changeable(before)} for spec in (before, after)]
    return {field: (value, values[1][field]) for field, value in values[0].items() if value != values[1][field]}


def values_of(change: Change) -> dict[str, Any]:
    """Dotted field -> its new value in a change."""
    return {field: json.loads(value) for field, value in sorted(change.fields.items())}


def after_all(spec: JobSpec, changes: Iterable[Change]) -> JobSpec:
    """The job as it was started, with all changes since applied. Raises `ConfigError` for changes of another job."""
    for change in changes:
        spec = changed(spec, values_of(change))
    return spec


def optimizer_after(optimizer: OptimizerSpec, trainer: str, fields: Mapping[str, Any]) -> OptimizerSpec:
    """The optimizer of a trainer after a change of these fields. Raises `ConfigError`."""
    return _with(optimizer, _of_section(fields, _optimizer(trainer)), _optimizer(trainer))


def in_words(change: Change, trainer: str = "") -> str:
    """The effect of a change in words: each field with its new and its old value. `trainer`: only fields of this
    one."""
    return ", ".join(
        f"{field} {value} instead of {change.before[field]}"
        for field, value in sorted(change.fields.items())
        if not trainer or concerns([field], trainer)
    )


def _instead(field: str, known: Sequence[str]) -> str:
    """The fields that can be changed, for the message about `field`."""
    if not known:
        return "a job without trainers has nothing that can"
    near = get_close_matches(field, known, n=1)
    meant = f" (did you mean {near[0]}?)" if near else ""
    return (
        f"what can: trainers.NAME.optimizer.FIELD, with {', '.join(RATE)}; {STRATEGIES}; more {EPOCHS}; and one "
        f"trainer more, with its stream{meant}"
    )


def _names(group: str, fields: Iterable[str]) -> set[str]:
    """The names in `trainers` or `streams` that occur in these fields."""
    return {parts[1] for field in fields if len(parts := parts_of(field)) > 1 and parts[0] == group}


def _optimizer(trainer: str) -> str:
    return f"trainers.{trainer}.optimizer"


def value_text(value: Any) -> str:
    """The value of a field as written in a job file."""
    return value if isinstance(value, str) else json.dumps(value)


def _of_section(fields: Mapping[str, Any], section: str) -> dict[str, Any]:
    """The fields of a section, without its name."""
    return {
        field.removeprefix(f"{section}."): value for field, value in fields.items() if field.startswith(f"{section}.")
    }


def _with(section: SectionT, fields: Mapping[str, Any], where: str) -> SectionT:
    try:
        return type(section).model_validate({**section.model_dump(mode="json"), **fields})
    except ValidationError as error:
        raise ConfigError.together([part.within(where) for part in problems(error, type(section))]) from error


def _value(spec: JobSpec, field: str) -> str:
    section = spec.aggregation if field == STRATEGIES else spec.trainers[parts_of(field)[1]].optimizer
    return json.dumps(section.model_dump(mode="json")[field.rpartition(".")[2]])


def leaves_of(document: Mapping[str, Any], where: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the names and the value of each field of a document. A list is a value; so is an empty section."""
    for name, value in document.items():
        if isinstance(value, Mapping) and value:
            yield from leaves_of(value, (*where, name))
        else:
            yield (*where, name), value
