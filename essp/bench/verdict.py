"""Determines the limiting factor of an input pipeline from its rate, the rate of raw reads, and the busy cores of both.

    cores      the cores that this process may use are busy
    device     the pipeline is nearly as fast as raw reads of the same bytes (network: from another machine)
    decoder    neither, and each thread computes most of its time: there are fewer threads than cores
    lock       neither, and more threads gain nothing while about one core is busy: Python runs one thread at a time
    turns      neither: threads alternate between reading and computing, so more of them help
    unknown    the pipeline is faster than raw reads, its bound: one of them was cached, or the rates vary

Raw reads that keep all cores busy read from memory. The cores are then the limiting factor, although the pipeline is as
fast as raw reads. Cores used by other processes are not available to this one, so the sentence mentions them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from essp_common.quantities import percent

NEAR = 0.85
"""A share from here on counts as all."""
_OWN = 0.4
"""Share of the cores from which raw reads are considered to compute rather than wait for a device."""
_NOTABLE = 0.05
"""Minimum number of cores worth mentioning."""
_SAME = 0.97
"""Rates whose ratio is above this are equal; among them, fewer threads are better."""
_BEYOND = 1.05
"""A pipeline that exceeds raw reads with as many threads by more than this factor cannot have read from the same
place."""
_GAIN = 0.1
"""Minimum gain that justifies more threads."""
_SCALES = 1.5
"""Gain from twice the threads if latency is the limiting factor. A limited bandwidth gives less."""


class Binds(StrEnum):
    """The resource that must become faster for the pipeline to do so."""

    CORES = "cores"
    DEVICE = "device"
    NETWORK = "network"
    DECODER = "decoder"
    LOCK = "lock"
    TURNS = "turns"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurement for a number of threads."""

    threads: int
    rate: float
    """Samples per second."""
    cpu_cores: float
    """Cores used by this process."""
    other_cores: float = 0.0
    """Cores used by other processes in the meantime."""


@dataclass(frozen=True, slots=True)
class Case:
    """One pipeline on one storage."""

    name: str
    unit: str
    """`image`, `clip` or `record`."""
    pipeline: Sequence[Measured]
    raw: Sequence[Measured]
    """Plain reads of the same bytes."""
    cores: int
    """Number of cores that this process may use."""
    network: bool = False
    decodes: bool = True


@dataclass(frozen=True, slots=True)
class Verdict:
    """The limiting factor, and the reason."""

    binds: Binds
    sentence: str


def judge(case: Case) -> Verdict:
    """The limiting factor of the pipeline at its fastest number of threads."""
    best, raw = fastest(case.pipeline), fastest(case.raw)
    share = best.rate / raw.rate
    binds = _binds(case, best, raw)
    reads = f"raw reads are {_times(1 / share)} as fast"
    match binds:
        case Binds.CORES:
            why = f"the cores are the limiting factor: {best.cpu_cores:.1f} of {_cores(case.cores)} are busy with it"
            why += f", {best.other_cores:.1f} with other processes" if best.other_cores >= _NOTABLE else ""
            why += f", and {reads}"
        case Binds.LOCK:
            why = "the interpreter's lock is the limiting factor: about one core is busy, more threads gain nothing, "
            why += f"and {reads}"
        case Binds.DECODER:
            why = f"the decoder is the limiting factor: {_threads(best.threads)} computed all the time, {reads}, and "
            why += f"{_cores(case.cores)} are there"
            why += ": more threads help" if _grows(case, best) else ""
        case Binds.TURNS:
            why = "neither cores nor reads are the limiting factor: "
            why += f"{best.cpu_cores:.1f} of {_cores(case.cores)} are busy, and {reads}: "
            why += "threads read and compute by turns"
            why += ", so more of them help" if _grows(case, best) else ""
        case Binds.UNKNOWN:
            bound = _bound(case, best)
            why = f"no limiting factor is known: this is {percent(best.rate / bound.rate, 0)} of raw reads with "
            why += f"{_threads(bound.threads)}, which should be its bound: one of them was cached, or the rates vary; "
            why += "try more --runs"
        case _:
            why = f"the {binds} is the limiting factor: this is {percent(share, 0)} of raw reads"
            why += "" if raw.threads == best.threads else f" with {_threads(raw.threads)}"
            why += f", {_growth(case, best)}"
    return Verdict(binds, f"{case.name}: {why}. {_scaling(case, best)}")


def _binds(case: Case, best: Measured, raw: Measured) -> Binds:
    near_raw = best.rate >= NEAR * raw.rate
    if _busy(best, case.cores) and (not near_raw or raw.cpu_cores >= _OWN * case.cores):
        return Binds.CORES
    if near_raw and best.rate > _BEYOND * _bound(case, best).rate:
        return Binds.UNKNOWN
    if near_raw:
        return Binds.NETWORK if case.network else Binds.DEVICE
    if _stuck(case, best) and abs(best.cpu_cores - 1) <= 1 - NEAR:
        return Binds.LOCK
    if case.decodes and best.cpu_cores >= NEAR * best.threads:
        return Binds.DECODER
    return Binds.TURNS


def _busy(one: Measured, cores: int) -> bool:
    """Whether no core is left, counting the cores used by other processes."""
    return one.cpu_cores + one.other_cores >= NEAR * cores


def _stuck(case: Case, best: Measured) -> bool:
    """Whether twice the number of threads was measured without a gain."""
    return any(one.threads >= 2 * best.threads for one in case.pipeline)


def _grows(case: Case, best: Measured) -> bool:
    """Whether the pipeline may gain from still more threads: it did so far, or one number of them was measured."""
    ordered = sorted(case.pipeline, key=lambda one: one.threads)
    if len(ordered) < 2:
        return True
    return best is ordered[-1] and best.rate >= (1 + _GAIN) * ordered[-2].rate


def _bound(case: Case, best: Measured) -> Measured:
    """Raw reads with as many threads; without such, the fastest ones."""
    return next((one for one in case.raw if one.threads == best.threads), fastest(case.raw))


def fastest(measured: Sequence[Measured]) -> Measured:
    """The fastest measurement. Among equals, the one with the fewest threads."""
    most = max(one.rate for one in measured)
    return min((one for one in measured if one.rate >= _SAME * most), key=lambda one: one.threads)


def _scaling(case: Case, best: Measured) -> str:
    least = min(case.pipeline, key=lambda one: one.threads)
    rate = f"{best.rate:,.0f}" if best.rate >= 10 else f"{best.rate:.2g}"
    said = f"{rate} {case.unit}s/s with {_threads(best.threads)}"
    if least.threads != best.threads:
        return f"{said}, {_times(best.rate / least.rate)} as many as with {least.threads}."
    return f"{said}{', and more threads gain nothing' if len(case.pipeline) > 1 else ''}."


def _growth(case: Case, best: Measured) -> str:
    """Whether latency or bandwidth limits raw reads, if there are enough measurements to tell."""
    ordered = sorted(case.raw, key=lambda one: one.threads)
    if len(ordered) < 2:
        return "so try other numbers of threads to see whether they can be faster"
    before, last = ordered[-2:]
    gain = last.rate / before.rate
    said = f"{percent(gain - 1, 0)} from {before.threads} to {last.threads} threads"
    if gain >= 1 + _GAIN and _stuck(case, best):
        return f"which gain {said}, as this does not"
    if gain >= _SCALES ** math.log2(last.threads / before.threads):
        return f"which still gain {said}: its latency is the limit, and more threads help"
    if gain >= 1 + _GAIN:
        return f"which gain {said}: more threads help a little"
    if gain > _SAME:
        return f"which gain only {said}: its bandwidth is the limit, and more threads do not help"
    return f"which lose {percent(1 - gain, 0)} from {before.threads} to {last.threads} threads: it can serve no more"


def _times(ratio: float) -> str:
    return f"{ratio:.0f}x" if ratio >= 10 else f"{ratio:.2f}".rstrip("0").rstrip(".") + "x"


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def _cores(count: int) -> str:
    return "1 core" if count == 1 else f"{count} cores"
