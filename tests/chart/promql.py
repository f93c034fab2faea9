"""As much of Prometheus as the alerts need: their expressions over given series, and how long they have to hold.

It runs the cases of `promtool test rules`, so that they are run where promtool is not installed; where it is, both run
the same file. Rates are not extrapolated to the ends of their window, which no alert here is close enough to notice.
"""

from __future__ import annotations

import operator
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Value = Vector | float
Series = Sequence[tuple[Labels, Sequence[float]]]
"""Labels, the name among them as `__name__`, and a value for each minute from 0 on."""
Expression = Callable[[Series, int], Value]
"""What it gives of series at a minute."""

NAME = "__name__"
_LOOKBACK = 5
"""Minutes for which a series that has ended is still seen."""
_TOKEN = re.compile(
    r'\s*(\d+[mh](?!\w)|\d+(?:\.\d+)?|[a-zA-Z_]\w*|"[^"]*"|==|!=|>=|<=|[><(){}\[\],=/*])', re.DOTALL
)  # fmt: skip
_COMPARISONS = {"==": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt}
_AGGREGATIONS: Mapping[str, Callable[[Sequence[float]], float]] = {"sum": sum, "max": max, "min": min, "count": len}
_OF_RANGES = ("rate", "increase", "min_over_time")


def parse(text: str) -> Expression:
    """An expression of PromQL. Raises `ValueError` for what is not among its parts here."""
    parser = _Parser(text)
    found = parser.both()
    if parser.next is not None:
        raise ValueError(f"{text}: {parser.next!r} is not known here")
    return found


def series_of(text: str, values: str) -> tuple[Labels, list[float]]:
    """A series in the notation of `promtool`: `name{label="value"}`, `0+5x10 7x3`."""
    name, _, rest = text.partition("{")
    labels = frozenset({(NAME, name), *re.findall(r'(\w+)="([^"]*)"', rest)})
    found: list[float] = []
    for part in values.split():
        first, step, times = re.fullmatch(r"([\d.]+)(?:\+([\d.]+))?x(\d+)", part).groups()  # type: ignore[union-attr]
        found += [float(first) + float(step or 0) * number for number in range(int(times) + 1)]
    return labels, found


def firing(rules: Sequence[Mapping[str, Any]], series: Series, until: int) -> Iterator[tuple[int, list[Labels]]]:
    """The alerts that fire at each minute up to `until`: their labels, with those of their rule."""
    parsed = [(rule, parse(rule["expr"]), int(rule.get("for", "0m").removesuffix("m"))) for rule in rules]
    since: dict[tuple[str, Labels], int] = {}
    for minute in range(until + 1):
        present: dict[tuple[str, Labels], int] = {}
        fire = []
        for rule, expression, lasts in parsed:
            found = expression(series, minute)
            assert isinstance(found, dict)
            for labels in found:
                key = (rule["alert"], _without(labels, {NAME}))
                present[key] = since.get(key, minute)
                if minute - present[key] >= lasts:
                    own = {**rule["labels"], "alertname": rule["alert"], "alertstate": "firing", NAME: "ALERTS"}
                    fire.append(frozenset({**dict(key[1]), **own}.items()))
        since = present
        yield minute, fire


class _Parser:
    """Recursive descent; what binds least comes first."""

    def __init__(self, text: str) -> None:
        self._tokens = [match.group(1) for match in _TOKEN.finditer(text)]
        if "".join(self._tokens) != re.sub(r"\s", "", text):
            raise ValueError(f"{text}: not understood")
        self._place = 0

    @property
    def next(self) -> str | None:
        return self._tokens[self._place] if self._place < len(self._tokens) else None

    def take(self, wanted: str = "") -> str:
        token = self.next
        if token is None or (wanted and token != wanted):
            raise ValueError(f"{wanted or 'more'} was expected, not {token}")
        self._place += 1
        return token

    def both(self) -> Expression:
        left = self.comparison()
        while self.next == "and":
            self.take()
            self.take("on")
            names = self.names()
            left = _both(left, self.comparison(), names)
        return left

    def comparison(self) -> Expression:
        left = self.quotient()
        if self.next in _COMPARISONS:
            return _compared(_COMPARISONS[self.take()], left, self.quotient())
        return left

    def quotient(self) -> Expression:
        left = self.part()
        while self.next == "/":
            self.take()
            left = _divided(left, self.part())
        return left

    def part(self) -> Expression:
        token = self.take()
        if token[0].isdigit():
            number = float(token)
            return lambda series, minute: number
        if token in _AGGREGATIONS:
            self.take("by")
            names = self.names()
            return _aggregated(_AGGREGATIONS[token], names, self.inner())
        if token == "absent":
            inner = self.inner()
            return lambda series, minute: {} if inner(series, minute) else {frozenset(): 1.0}
        if token == "histogram_quantile":
            self.take("(")
            share = float(self.take())
            self.take(",")
            found = _quantile(share, self.both())
            self.take(")")
            return found
        if token in _OF_RANGES:
            self.take("(")
            chosen = self.chosen(self.take())
            self.take("[")
            window = _minutes(self.take())
            self.take("]")
            self.take(")")
            return _of_range(token, chosen, window)
        chosen = self.chosen(token)
        back = 0
        if self.next == "offset":
            self.take()
            back = _minutes(self.take())
        return _instant(chosen, back)

    def inner(self) -> Expression:
        self.take("(")
        found = self.both()
        self.take(")")
        return found

    def names(self) -> set[str]:
        self.take("(")
        found = {self.take()}
        while self.take() == ",":
            found.add(self.take())
        return found

    def chosen(self, name: str) -> Callable[[Labels], bool]:
        """A selector, without what stands behind it."""
        terms = [(NAME, "=", name)]
        if self.next == "{":
            self.take()
            while self.next != "}":
                terms.append((self.take(), self.take(), self.take().strip('"')))
                if self.next == ",":
                    self.take()
            self.take("}")

        def fits(labels: Labels) -> bool:
            held = dict(labels)
            return all((held.get(label, "") == value) is (sign == "=") for label, sign, value in terms)

        return fits


def _minutes(token: str) -> int:
    return int(token[:-1]) * (60 if token.endswith("h") else 1)


def _without(labels: Labels, names: set[str]) -> Labels:
    return frozenset((name, value) for name, value in labels if name not in names)


def _only(labels: Labels, names: set[str]) -> Labels:
    return frozenset((name, value) for name, value in labels if name in names)


def _instant(chosen: Callable[[Labels], bool], back: int) -> Expression:
    def evaluate(series: Series, minute: int) -> Value:
        at = minute - back
        held = ((labels, values) for labels, values in series if at >= 0 and chosen(labels))
        return {labels: values[min(at, len(values) - 1)] for labels, values in held if at < len(values) + _LOOKBACK}

    return evaluate


def _of_range(function: str, chosen: Callable[[Labels], bool], window: int) -> Expression:
    def evaluate(series: Series, minute: int) -> Value:
        found: Vector = {}
        for labels, values in series:
            held = values[max(0, minute - window) : minute + 1]
            if not chosen(labels) or len(held) < (1 if function == "min_over_time" else 2):
                continue
            grown = sum(max(0.0, later - before) for before, later in pairwise(held))
            figures = {"min_over_time": min(held), "increase": grown, "rate": grown / (window * 60)}
            found[_without(labels, {NAME})] = figures[function]
        return found

    return evaluate


def _aggregated(function: Callable[[Sequence[float]], float], names: set[str], inner: Expression) -> Expression:
    def evaluate(series: Series, minute: int) -> Value:
        groups: dict[Labels, list[float]] = defaultdict(list)
        for labels, value in _vector(inner(series, minute)).items():
            groups[_only(labels, names)].append(value)
        return {labels: float(function(values)) for labels, values in groups.items()}

    return evaluate


def _compared(compare: Callable[[float, float], bool], left: Expression, right: Expression) -> Expression:
    def evaluate(series: Series, minute: int) -> Value:
        ours, other = _vector(left(series, minute)), right(series, minute)
        if isinstance(other, float):
            return {labels: value for labels, value in ours.items() if compare(value, other)}
        theirs = {_without(labels, {NAME}): value for labels, value in other.items()}
        pairs = ((labels, value, theirs.get(_without(labels, {NAME}))) for labels, value in ours.items())
        return {labels: value for labels, value, held in pairs if held is not None and compare(value, held)}

    return evaluate


def _divided(left: Expression, right: Expression) -> Expression:
    def evaluate(series: Series, minute: int) -> Value:
        theirs = {_without(labels, {NAME}): value for labels, value in _vector(right(series, minute)).items()}
        ours = {_without(labels, {NAME}): value for labels, value in _vector(left(series, minute)).items()}
        return {labels: value / theirs[labels] for labels, value in ours.items() if theirs.get(labels)}

    return evaluate


def _both(left: Expression, right: Expression, names: set[str]) -> Expression:
    def evaluate(series: Series, minute: int) -> Value:
        theirs = {_only(labels, names) for labels in _vector(right(series, minute))}
        ours = _vector(left(series, minute))
        return {labels: value for labels, value in ours.items() if _only(labels, names) in theirs}

    return evaluate


def _quantile(share: float, inner: Expression) -> Expression:
    """Within the bucket that holds it, as if its values were spread evenly."""

    def evaluate(series: Series, minute: int) -> Value:
        groups: dict[Labels, list[tuple[float, float]]] = defaultdict(list)
        for labels, value in _vector(inner(series, minute)).items():
            groups[_without(labels, {"le"})].append((float(dict(labels)["le"]), value))
        found: Vector = {}
        for labels, buckets in groups.items():
            ordered = sorted(buckets)
            rank = share * ordered[-1][1]
            if not rank:
                continue
            place = next(number for number, (_, count) in enumerate(ordered) if count >= rank)
            if place == len(ordered) - 1:
                found[labels] = ordered[-2][0]
                continue
            low, below = ordered[place - 1] if place else (0.0, 0.0)
            high, count = ordered[place]
            found[labels] = low + (high - low) * (rank - below) / (count - below)
        return found

    return evaluate


def _vector(value: Value) -> Vector:
    assert isinstance(value, dict), "a number where series are expected"
    return value
