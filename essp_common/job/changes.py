"""What people may change of a job while it runs, and what a change makes of the job.

    trainers.NAME.optimizer.{lr, schedule, unit, warmup, steps, gamma}   from the next update of that trainer on
    aggregation.strategies                                               when the trained streams are fused
    epochs                                                               more of them, from the next run of the job on
    trainers.NEW..., streams.NEW...                                      one more, from the next run of the job on

The last two are no changes of the first kind: a run has the epochs and trainers that it began with, so the master ends
it and begins another one (docs/decisions/0066).

The job as it was started stays what it is: the digest in its checkpoints and the file in its output are of that one.
Changes are counted from 1 on, and kept beside it: in the history, in each command of the master, and those of a
trainer in each of its checkpoints, with the place from which on it trains with them. What a trainer does at a place
follows from the job and from the changes before that place, so a training that resumes takes the same steps again.

Pure. Values travel as JSON, as their fields have it.
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
"""Of one job: every command carries all of them."""
_MOST_BYTES = 16 * 1024
"""Of the values of one change."""

SectionT = TypeVar("SectionT", OptimizerSpec, AggregationSpec)


class Place(NamedTuple):
    """Before a clip of a training phase."""

    epoch: int
    clip: int

    def message(self) -> TrainingPlace:
        """As a message."""
        return TrainingPlace(epoch=self.epoch, clip=self.clip)

    @classmethod
    def of(cls, message: TrainingPlace) -> Self:
        """The place that a message holds."""
        return cls(message.epoch, message.clip)

    def __str__(self) -> str:
        begins = f"epoch {self.epoch + 1}"
        return f"clip {self.clip} of {begins}" if self.clip else begins


BEGINNING = Place(0, 0)


def place_at(phases: Sequence[PhasePlan], position: tuple[int, int]) -> Place:
    """The place of the clip that is trained next at a position (phase, index)."""
    phase_index, index = position
    for plan in phases[phase_index:]:
        if plan.purpose == TRAIN and index < plan.clips:
            return Place(plan.epoch, index)
        index = 0
    return Place(sum(plan.purpose == TRAIN for plan in phases), 0)


def changeable(spec: JobSpec) -> list[str]:
    """The fields of a job that may change while it runs; encoders and probes have no rate."""
    if not spec.trainers:
        return []
    stepping = [name for name, trainer in spec.trainers.items() if trainer.has_rate]
    rates = [f"{_optimizer(name)}.{field}" for name in stepping for field in RATE]
    return [*rates, STRATEGIES]


def concerns(fields: Iterable[str], trainer: str) -> bool:
    """Whether a change of these fields changes what a trainer does."""
    return any(field.startswith(_optimizer(trainer) + ".") for field in fields)


def parse_changes(text: str) -> dict[str, Any]:
    """Place of a field -> value, of a part of a job in YAML or JSON, as it stands in a job file.

    Raises `ConfigError`.
    """
    document = read_yaml(text, "the change")
    if not isinstance(document, dict) or not document:
        raise ConfigError(
            "the change: is a mapping of the fields to change, as in "
            '{"trainers": {"rgb": {"optimizer": {"lr": 0.001}}}}',
            code="type",
        )
    return {joined(names): value for names, value in _leaves(document)}


def changed(spec: JobSpec, fields: Mapping[str, Any]) -> JobSpec:
    """The job with these values. Raises `ConfigError` for fields that stay as they are while a job runs, or have no
    such values."""
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
    """Of these fields, those that a run cannot take: more epochs, trainers that it has not, and their streams.

    A trainer without a stream is none, but a name that was misspelled.
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
    """The job of the next run, which has these `fields` (`of_next_run`) more than `spec`: at present, or asked for.

    Raises `ConfigError` for fewer epochs, and for a trainer or stream that cannot be.
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
    """What a job gets with its next run, for people: `3 epochs in place of 2 and the trainer hog`."""
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
    """Dotted field -> the value that a change gives it."""
    return {field: json.loads(value) for field, value in sorted(change.fields.items())}


def after_all(spec: JobSpec, changes: Iterable[Change]) -> JobSpec:
    """The job as it was started, with all changes since. Raises `ConfigError` for changes of another job."""
    for change in changes:
        spec = changed(spec, values_of(change))
    return spec


def optimizer_after(optimizer: OptimizerSpec, trainer: str, fields: Mapping[str, Any]) -> OptimizerSpec:
    """The optimizer of a trainer after a change of these fields. Raises `ConfigError`."""
    return _with(optimizer, _of_section(fields, _optimizer(trainer)), _optimizer(trainer))


def in_words(change: Change, trainer: str = "") -> str:
    """What a change does, for people: `trainers.rgb.optimizer.lr 0.001 in place of 0.01`. `trainer`: to this one."""
    return ", ".join(
        f"{field} {value} instead of {change.before[field]}"
        for field, value in sorted(change.fields.items())
        if not trainer or concerns([field], trainer)
    )


def _instead(field: str, known: Sequence[str]) -> str:
    """What can be changed."""
    if not known:
        return "a job without trainers has nothing that can"
    near = get_close_matches(field, known, n=1)
    meant = f" (did you mean {near[0]}?)" if near else ""
    return (
        f"what can: trainers.NAME.optimizer.FIELD, with {', '.join(RATE)}; {STRATEGIES}; more {EPOCHS}; and one "
        f"trainer more, with its stream{meant}"
    )


def _names(group: str, fields: Iterable[str]) -> set[str]:
    """The names in `trainers` or `streams` of which these fields are."""
    return {parts[1] for field in fields if len(parts := parts_of(field)) > 1 and parts[0] == group}


def _optimizer(trainer: str) -> str:
    return f"trainers.{trainer}.optimizer"


def value_text(value: Any) -> str:
    """A value of a field, as people write it in a job file."""
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


def _leaves(document: Mapping[str, Any], where: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in document.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, (*where, name))
        else:
            yield (*where, name), value
